"""Read published training data as examples: MS MARCO's triples, runs with judgments, labelled pairs, tweets.

The command line describes a source as ``KIND=FILE,OPTION=VALUE,...``, such as ``candidates=c.jsonl,qrels=qrels.txt``.
`KINDS` lists the kinds and their options.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from osrerank._bad_value import describe_bad_value
from osrerank.errors import ConfigError
from osrerank.formats.files import line_error
from osrerank.formats.lines import read_numbered_lines, read_numbered_objects
from osrerank.formats.topics import read_numbered_queries, read_queries
from osrerank.formats.trec import RunLine, read_qrels, read_run_lines
from osrerank.training.examples.example import Example, TitledText, join_title, read_examples
from osrerank.training.examples.texts import TextFile

DEFAULT_DEPTH = 1000
"""The default number of candidates that are read for each query. The papers on monoBERT and duoBERT call it k0."""
Queries = Mapping[str, str]
"""The texts of queries, by id."""


@dataclass(frozen=True, slots=True)
class ExampleSource:
    """A source of examples, which can be read any number of times.

    Attributes:
        name: the source, as the user wrote it.
        read: reads the examples from the beginning.
        sizes: the sizes of the source's files in bytes. A resumed training compares them to detect changed files.
    """

    name: str
    read: Callable[[], Iterator[Example]] = field(compare=False)
    sizes: tuple[int, ...] = ()


def open_source(options: Mapping[str, Any]) -> ExampleSource:
    """Open the source that options such as ``{"candidates": "c.jsonl", "qrels": "qrels.txt"}`` describe.

    The first option is the kind of source, with its file.

    Raises:
        ConfigError: the kind or an option is unknown, or an option that the kind needs is missing.
        FormatError: the file of queries or documents is malformed.
    """
    kind = next(iter(options), "")
    if kind not in KINDS:
        raise ConfigError(f"data: {kind!r} is not a kind of data; choose one of {', '.join(KINDS)}", setting="data")
    source_kind = KINDS[kind]
    other_options = {name: value for name, value in options.items() if name != kind}
    for name in source_kind.required:
        if name not in other_options:
            raise ConfigError(f"data: {kind} needs {name}=FILE", setting="data")
    names = (*source_kind.required, *source_kind.optional)
    if unknown := sorted(other_options.keys() - set(names)):
        allowed = ", ".join(names) or "none"
        raise ConfigError(f"data: {kind} has no option {unknown[0]!r}; its options are {allowed}", setting="data")
    path = _require_file(options[kind])
    files = {name: _require_file(value) for name, value in other_options.items() if name in FILE_OPTIONS}
    values = {name: _parse_option(name, value) for name, value in other_options.items() if name not in FILE_OPTIONS}
    opened_files = {name: FILE_OPTIONS[name](file) for name, file in files.items()}
    description = ",".join(f"{name}={value}" for name, value in options.items())
    sizes = tuple(file.stat().st_size for file in (path, *files.values()))
    return ExampleSource(description, partial(source_kind.read, path, **values, **opened_files), sizes)


def _parse_option(name: str, value: Any) -> int | bool:
    text = str(value).lower()
    if name in BOOLEAN_OPTIONS and text in {"true", "false"}:
        return text == "true"
    if name not in BOOLEAN_OPTIONS and text.isdecimal() and int(text) > 0:
        return int(text)
    expected = "true or false" if name in BOOLEAN_OPTIONS else "a whole number from 1 on"
    raise ConfigError(f"data: {name} is {value!r}; it must be {expected}", setting="data")


def _require_file(value: Any) -> Path:
    path = Path(str(value))
    if not path.is_file():
        raise ConfigError(f"data: there is no file {str(path)!r}", setting="data")
    return path


def read_triples(path: Path) -> Iterator[Example]:
    """Read MS MARCO's triples, lines ``query<TAB>relevant text<TAB>other text``."""
    for number, line in read_numbered_lines(path):
        columns = line.split("\t")
        if len(columns) != 3:
            raise line_error(
                path, number, f"expected query, relevant text and other text, found {len(columns)} columns"
            )
        yield _create_example(columns[0], map(TitledText, columns[1:]), path, number, labels=(1, 0))


def read_id_triples(path: Path, corpus: TextFile, queries: Queries) -> Iterator[Example]:
    """Read MS MARCO's triples of ids, such as ``400296 1540783 3518497``, and look up the texts.

    The ids are those of a query, a relevant document and another document.
    """
    for number, line in read_numbered_lines(path):
        ids = line.split()
        if len(ids) != 3:
            raise line_error(
                path, number, f"expected the ids of a query, a relevant text and another text, found {len(ids)} columns"
            )
        query = _look_up_query(queries, ids[0], path, number)
        documents = [_look_up_document(corpus, doc_id, path, number) for doc_id in ids[1:]]
        yield _create_example(query, documents, path, number, labels=(1, 0), doc_ids=ids[1:])


def read_candidates(path: Path, qrels: Path, depth: int = DEFAULT_DEPTH, relevant: int = 1) -> Iterator[Example]:
    """Read a candidate file of ``osrerank rerank``. Relevant documents that are not in it are counted as ``missed``.

    Args:
        path: JSON lines ``{"query_id", "query", "candidates": [{"doc_id", "text", "title"?}]}``.
        qrels: the file of judgments.
        depth: how many candidates of each query to read.
        relevant: the minimum grade of a relevant document.
    """
    judgments = read_qrels(qrels).judgments
    for number, value in read_numbered_objects(path):
        try:
            query_id = str(value["query_id"])
            entries = value["candidates"][:depth]
            texts = [join_title(entry) for entry in entries]
            doc_ids = [str(entry["doc_id"]) for entry in entries]
            query = value["query"]
        except (KeyError, TypeError, AttributeError) as error:
            reason = f"{describe_bad_value(error)}; expected a query with candidates, as in osrerank rerank --help"
            raise line_error(path, number, reason) from None
        query_judgments = judgments.get(query_id, {})
        labels = [int(query_judgments.get(doc_id, 0) >= relevant) for doc_id in doc_ids]
        missed = _count_missed(query_judgments, set(doc_ids), relevant)
        yield _create_example(query, texts, path, number, labels=labels, doc_ids=doc_ids, missed=missed)


def read_run(
    path: Path,
    corpus: TextFile,
    queries: Queries,
    qrels: Path,
    depth: int = DEFAULT_DEPTH,
    relevant: int = 1,
    inject: bool = True,  # noqa: FBT001, FBT002 - users set it by name
) -> Iterator[Example]:
    """Read the run of a first pass and its judgments, as duoBERT's paper does (arXiv 1910.14424, section 3.1).

    Args:
        path: a run in TREC's six columns or MS MARCO's three. A query's lines must be consecutive and in rank order.
        corpus: the documents' texts.
        queries: the queries' texts.
        qrels: the file of judgments.
        depth: how many documents of each query to read.
        relevant: the minimum grade of a relevant document.
        inject: whether to add relevant documents that the first pass did not find. The paper adds none for TREC-CAR.
    """
    judgments = read_qrels(qrels).judgments
    for query_id, lines in _group_by_query(path):
        number = lines[0].number
        doc_ids = [line.doc_id for line in lines[:depth]]
        relevant_ids = {doc_id for doc_id, grade in judgments.get(query_id, {}).items() if grade >= relevant}
        missed_ids = sorted(relevant_ids.difference(doc_ids))
        if inject:
            doc_ids += missed_ids
        texts = [_look_up_document(corpus, doc_id, path, number) for doc_id in doc_ids]
        query = _look_up_query(queries, query_id, path, number)
        labels = [int(doc_id in relevant_ids) for doc_id in doc_ids]
        missed = 0 if inject else len(missed_ids)
        yield _create_example(query, texts, path, number, labels=labels, doc_ids=doc_ids, missed=missed)


def read_pairs(path: Path) -> Iterator[Example]:
    """Read labelled pairs in WikiQA's columns ``query id, query, text, label``, or in Birch's eight.

    Birch's columns are label, first-pass score, query, text, query id and three more. The lines of a query must be
    consecutive.
    """
    pairs = (_parse_pair(line, path, number) for number, line in read_numbered_lines(path) if line.strip())
    for _query_id, group in itertools.groupby(pairs, key=lambda pair: pair.query_id):
        query_pairs = list(group)
        texts = [TitledText(pair.text) for pair in query_pairs]
        labels = [pair.label for pair in query_pairs]
        yield _create_example(query_pairs[0].query, texts, path, query_pairs[0].number, labels=labels)


def read_microblog(path: Path, qrels: Path, tweets: Path, relevant: int = 1) -> Iterator[Example]:
    """Read TREC Microblog: for each topic, all judged tweets whose text is in the file of tweets.

    Args:
        path: the topics, ``<top><num>Number: MB001</num><query>...</query></top>`` (``<title>`` in 2011).
        qrels: the judgments. Grades 1 and 2 are relevant, and -2 is spam.
        tweets: JSON lines with ``id`` (or ``id_str``) and ``text``, or lines ``id<TAB>text``.
        relevant: the minimum grade of a relevant tweet.
    """
    texts = TextFile(tweets)
    judgments = read_qrels(qrels).judgments
    queries = list(read_numbered_queries(path))
    if not queries:
        raise line_error(path, 1, "expected TREC topics, <top> ... </top>")
    for number, query in queries:
        topic_judgments = _find_topic_judgments(judgments, query.query_id)
        doc_ids = [doc_id for doc_id in topic_judgments if doc_id in texts]
        documents = [texts.get_document(doc_id) for doc_id in doc_ids]
        labels = [int(topic_judgments[doc_id] >= relevant) for doc_id in doc_ids]
        missed = _count_missed(topic_judgments, set(doc_ids), relevant)
        yield _create_example(query.text, documents, path, number, labels=labels, missed=missed)


def _count_missed(judgments: Mapping[str, int], doc_ids: Collection[str], min_grade: int) -> int:
    """Return the number of relevant documents that are not in ``doc_ids``."""
    return sum(grade >= min_grade for doc_id, grade in judgments.items() if doc_id not in doc_ids)


def _find_topic_judgments(judgments: Mapping[str, Mapping[str, int]], query_id: str) -> Mapping[str, int]:
    """Return a topic's judgments. The topic's number can be 1, 001 or MB001 in the qrels."""
    topic_number = query_id.removeprefix("MB").lstrip("0")
    for name in (topic_number, f"{topic_number:0>3}", f"MB{topic_number:0>3}"):
        if name in judgments:
            return judgments[name]
    return {}


class _LabelledPair(NamedTuple):
    """A line that `read_pairs` reads: the line's number, its columns, and the label 0 or 1."""

    number: int
    query_id: str
    query: str
    text: str
    label: int


def _parse_pair(line: str, path: Path, number: int) -> _LabelledPair:
    columns = line.split("\t")
    if len(columns) == 4:
        query_id, query, text, label = columns
    elif len(columns) == 8:
        label, _score, query, text, query_id = columns[:5]
    else:
        raise line_error(path, number, f"expected 4 columns (WikiQA) or 8 (Birch), found {len(columns)}")
    if label.strip() not in {"0", "1"}:
        raise line_error(path, number, f"the label is {label!r}; it must be 0 or 1")
    return _LabelledPair(number, query_id, query, text, int(label))


def _group_by_query(path: Path) -> Iterator[tuple[str, list[RunLine]]]:
    """Yield each query id of a run with its lines, which must be consecutive."""
    finished_ids: set[str] = set()
    for query_id, group in itertools.groupby(read_run_lines(path), key=lambda line: line.query_id):
        lines = list(group)
        if query_id in finished_ids:
            raise lines[0].error(f"query {query_id!r} appears in two places; sort the run by query and rank")
        finished_ids.add(query_id)
        yield query_id, lines


def _look_up_document(corpus: TextFile, doc_id: str, path: Path, number: int) -> TitledText:
    try:
        return corpus.get_document(doc_id)
    except KeyError:
        raise line_error(path, number, f"the corpus has no document {doc_id!r}") from None


def _look_up_query(queries: Queries, query_id: str, path: Path, number: int) -> str:
    try:
        return queries[query_id]
    except KeyError:
        raise line_error(path, number, f"the file of queries has no query {query_id!r}") from None


def _create_example(
    query: Any,
    documents: Iterable[TitledText],
    path: Path,
    number: int,
    *,
    labels: Iterable[int],
    doc_ids: Iterable[str] = (),
    missed: int = 0,
) -> Example:
    if not isinstance(query, str) or not query.strip():
        raise line_error(path, number, "the query has no text")
    return Example.from_texts(
        query.strip(), documents, labels, f"{path}, line {number}", doc_ids=doc_ids, missed=missed
    )


def _read_query_texts(path: Path) -> Queries:
    return {query.query_id: query.text for query in read_queries(path)}


class SourceKind(NamedTuple):
    """The function that reads a kind of source, and the names of its required and optional options."""

    read: Callable[..., Iterator[Example]]
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


FILE_OPTIONS: Mapping[str, Callable[[Path], Any]] = {
    "corpus": TextFile,
    "queries": _read_query_texts,
    "qrels": Path,
    "tweets": Path,
}
"""For each option that is a file's path, the function from the path to the reader's argument. Other options are numbers
or booleans."""
BOOLEAN_OPTIONS = frozenset({"inject"})
KINDS: Mapping[str, SourceKind] = {
    "examples": SourceKind(read_examples),
    "triples": SourceKind(read_triples),
    "id-triples": SourceKind(read_id_triples, ("corpus", "queries")),
    "candidates": SourceKind(read_candidates, ("qrels",), ("depth", "relevant")),
    "run": SourceKind(read_run, ("corpus", "queries", "qrels"), ("depth", "relevant", "inject")),
    "pairs": SourceKind(read_pairs),
    "microblog": SourceKind(read_microblog, ("qrels", "tweets"), ("relevant",)),
}
"""The kinds of sources, by name, each with its reader and options."""
