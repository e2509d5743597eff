"""Read published training data as examples: MS MARCO's triples, runs with judgments, labelled pairs, tweets.

A source is written `KIND=FILE,OPTION=VALUE,...`; `KINDS` lists the kinds.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osrerank.errors import ConfigError
from osrerank.formats.files import bad_line
from osrerank.formats.lines import numbered_lines, numbered_objects
from osrerank.formats.topics import numbered_queries, read_queries
from osrerank.formats.trec import RunLine, read_qrels, run_lines
from osrerank.training.examples.lists import Example, TitledText, read_examples, titled
from osrerank.training.examples.texts import TextFile

DEPTH = 1000
"""The papers' k0: the depth of the first pass, from which documents that are not relevant are taken."""
Queries = Mapping[str, str]
"""query_id -> text."""


@dataclass(frozen=True, slots=True)
class ExampleSource:
    """A source of examples; it can be read any number of times.

    Attributes:
        name: the source as the user wrote it.
        read: reads the examples from the first one on.
        sizes: the sizes of its files in bytes, so that a changed file is noticed.
    """

    name: str
    read: Callable[[], Iterator[Example]] = field(compare=False)
    sizes: tuple[int, ...] = ()


def open_source(options: Mapping[str, Any]) -> ExampleSource:
    """Return the source that the options describe; the first option is ``{kind: file}``.

    Raises:
        ConfigError: the kind or an option is unknown, or an option that the kind needs is missing.
        FormatError: the file of a collection, in which texts are looked up, is malformed.
    """
    kind = next(iter(options), "")
    if kind not in KINDS:
        raise ConfigError(f"data: {kind!r} is not a kind of data; choose one of {', '.join(KINDS)}", setting="data")
    reader, needed, optional = KINDS[kind]
    settings = {name: value for name, value in options.items() if name != kind}
    for name in needed:
        if name not in settings:
            raise ConfigError(f"data: {kind} needs {name}=FILE", setting="data")
    if unknown := sorted(settings.keys() - {*needed, *optional}):
        allowed = ", ".join((*needed, *optional)) or "none"
        raise ConfigError(f"data: {kind} has no option {unknown[0]}; it has {allowed}", setting="data")
    path = _existing(options[kind])
    files = {name: _existing(value) for name, value in settings.items() if name in FILES}
    values = {name: _value(name, value) for name, value in settings.items() if name not in FILES}
    opened_files = {name: FILES[name](file) for name, file in files.items()}
    description = ",".join(f"{name}={value}" for name, value in options.items())
    sizes = tuple(file.stat().st_size for file in (path, *files.values()))
    return ExampleSource(description, lambda: reader(path, **values, **opened_files), sizes)


def _value(name: str, value: Any) -> int | bool:
    """Return the number or the boolean of an option, which the command line passes as text.

    Raises:
        ConfigError: the text is neither a number nor a boolean, or the option takes the other of the two.
    """
    text = str(value).lower()
    if name in SWITCHES and text in {"true", "false"}:
        return text == "true"
    if name not in SWITCHES and text.isdecimal() and int(text) > 0:
        return int(text)
    expected = "true or false" if name in SWITCHES else "a whole number from 1 on"
    raise ConfigError(f"data: {name} is {value!r}; it must be {expected}", setting="data")


def _existing(value: Any) -> Path:
    path = Path(str(value))
    if not path.is_file():
        raise ConfigError(f"data: {path} is not a file", setting="data")
    return path


def triples(path: Path) -> Iterator[Example]:
    """Read MS MARCO's triples, lines ``query<TAB>relevant text<TAB>other text``."""
    for number, line in numbered_lines(path):
        columns = line.split("\t")
        if len(columns) != 3:
            raise bad_line(path, number, f"expected query, relevant text and other text, found {len(columns)} columns")
        yield _example(columns[0], map(TitledText, columns[1:]), (1, 0), path, number)


def id_triples(path: Path, corpus: TextFile, queries: Queries) -> Iterator[Example]:
    """Read MS MARCO's triples of ids, lines ``query id, relevant id, other id``, and look up the texts."""
    for number, line in numbered_lines(path):
        ids = line.split()
        if len(ids) != 3:
            raise bad_line(path, number, f"expected three ids, found {len(ids)} columns")
        query = _query(queries, ids[0], path, number)
        documents = [_document(corpus, doc_id, path, number) for doc_id in ids[1:]]
        yield _example(query, documents, (1, 0), path, number, doc_ids=ids[1:])


def candidates(path: Path, qrels: Path, depth: int = DEPTH, relevant: int = 1) -> Iterator[Example]:
    """Read candidate files of ``osrerank rerank``; relevant documents that are not candidates are only counted.

    Args:
        path: JSON lines ``{"query_id", "query", "candidates": [{"doc_id", "text", "title"?}]}``.
        qrels: the file of judgments.
        depth: how many candidates to read, from the top.
        relevant: the lowest grade that counts as relevant.
    """
    judgments = read_qrels(qrels).judgments
    for number, value in numbered_objects(path):
        try:
            judged = judgments.get(str(value["query_id"]), {})
            entries = value["candidates"][:depth]
            texts, doc_ids = [titled(entry) for entry in entries], [str(entry["doc_id"]) for entry in entries]
            grades = [int(judged.get(doc_id, 0) >= relevant) for doc_id in doc_ids]
            missed = _missed(judged, set(doc_ids), relevant)
            query = value["query"]
        except (KeyError, TypeError, AttributeError) as error:
            raise bad_line(path, number, f"no candidates of a query ({error!r}); see osrerank rerank --help") from None
        yield _example(query, texts, grades, path, number, doc_ids=doc_ids, missed=missed)


def run(
    path: Path,
    corpus: TextFile,
    queries: Queries,
    qrels: Path,
    depth: int = DEPTH,
    relevant: int = 1,
    inject: bool = True,  # noqa: FBT001, FBT002 - an option by name
) -> Iterator[Example]:
    """Read a first pass's run; its documents that are not relevant are J_neg (arXiv 1910.14424, section 3.1).

    Args:
        path: a run in TREC's six columns or MS MARCO's three, with each query's lines together and in rank order.
        corpus: the documents' texts.
        queries: the queries' texts.
        qrels: the file of judgments.
        depth: k0, how many documents to read for each query.
        relevant: the lowest grade that counts as relevant.
        inject: whether to add relevant documents that the first pass missed; the recipe for TREC-CAR adds none.
    """
    judgments = read_qrels(qrels).judgments
    for query_id, lines in _grouped(path):
        number, ranked = lines[0].number, [line.doc_id for line in lines[:depth]]
        judged = {doc_id for doc_id, grade in judgments.get(query_id, {}).items() if grade >= relevant}
        missed = sorted(judged.difference(ranked))
        doc_ids = [*ranked, *missed] if inject else ranked
        texts = [_document(corpus, doc_id, path, number) for doc_id in doc_ids]
        query = _query(queries, query_id, path, number)
        grades = [int(doc_id in judged) for doc_id in doc_ids]
        left_out = 0 if inject else len(missed)
        yield _example(query, texts, grades, path, number, doc_ids=doc_ids, missed=left_out)


def pairs(path: Path) -> Iterator[Example]:
    """Read labelled pairs in WikiQA's columns ``query id, query, text, label``, or in Birch's eight.

    Birch's columns are label, first-pass score, query, text, query id and three more. A query's lines stand together.
    """
    rows = ((number, _pair(line.split("\t"), path, number)) for number, line in numbered_lines(path) if line.strip())
    for _query_id, group in itertools.groupby(rows, key=lambda row: row[1][0]):
        lines = list(group)
        number, (_first_id, query, _text, _label) = lines[0]
        yield _example(query, [TitledText(row[2]) for _, row in lines], [row[3] for _, row in lines], path, number)


def microblog(path: Path, qrels: Path, tweets: Path, relevant: int = 1) -> Iterator[Example]:
    """Read TREC Microblog: for each topic, all judged tweets whose text is in the file of tweets.

    Args:
        path: the topics, ``<top><num>Number: MB001</num><query>...</query></top>`` (``<title>`` in 2011).
        qrels: the file of judgments; grades 1 and 2 are relevant, -2 is spam.
        tweets: JSON lines with ``id`` (or ``id_str``) and ``text``, or lines ``id<TAB>text``.
        relevant: the lowest grade that counts as relevant.
    """
    texts = TextFile(tweets)
    judgments = read_qrels(qrels).judgments
    queries = list(numbered_queries(path))
    if not queries:
        raise bad_line(path, 1, "expected TREC topics, <top> ... </top>")
    for line, query in queries:
        topic = _of_topic(judgments, query.query_id)
        judged = {doc_id: grade for doc_id, grade in topic.items() if doc_id in texts}
        grades = [int(grade >= relevant) for grade in judged.values()]
        missed = _missed(topic, judged, relevant)
        yield _example(query.text, [texts.document(doc_id) for doc_id in judged], grades, path, line, missed=missed)


def _missed(judged: Mapping[str, int], present: Collection[str], relevant: int) -> int:
    """Return how many relevant documents are not among those present."""
    return sum(grade >= relevant for doc_id, grade in judged.items() if doc_id not in present)


def _of_topic(judgments: Mapping[str, Mapping[str, int]], query_id: str) -> Mapping[str, int]:
    """Return a topic's judgments; topics and qrels write its number as 1, 001 or MB001."""
    number = query_id.removeprefix("MB").lstrip("0")
    return next((judgments[name] for name in (number, f"{number:0>3}", f"MB{number:0>3}") if name in judgments), {})


def examples(path: Path) -> Iterator[Example]:
    """Read the JSON lines that ``osrerank train data`` writes."""
    return read_examples(path)


def _pair(columns: list[str], path: Path, number: int) -> tuple[str, str, str, int]:
    """Return query id, query, text and label of a line's columns."""
    if len(columns) == 4:
        query_id, query, text, label = columns
    elif len(columns) == 8:
        label, _score, query, text, query_id = columns[:5]
    else:
        raise bad_line(path, number, f"expected 4 columns (WikiQA) or 8 (Birch), found {len(columns)}")
    if label.strip() not in {"0", "1"}:
        raise bad_line(path, number, f"the label is {label!r}; it must be 0 or 1")
    return query_id, query, text, int(label)


def _grouped(path: Path) -> Iterator[tuple[str, list[RunLine]]]:
    """Yield each query id of a run with its lines.

    Raises:
        FormatError: a line is malformed, or a query's lines do not stand together.
    """
    finished_ids: set[str] = set()
    for query_id, group in itertools.groupby(run_lines(path), key=lambda line: line.query_id):
        lines = list(group)
        if query_id in finished_ids:
            raise lines[0].error(f"query {query_id} appears in two places; sort the run by query and rank")
        finished_ids.add(query_id)
        yield query_id, lines


def _document(corpus: TextFile, doc_id: str, path: Path, number: int) -> TitledText:
    try:
        return corpus.document(doc_id)
    except KeyError:
        raise bad_line(path, number, f"the corpus has no document {doc_id}") from None


def _query(queries: Queries, query_id: str, path: Path, number: int) -> str:
    try:
        return queries[query_id]
    except KeyError:
        raise bad_line(path, number, f"the file of queries has no query {query_id}") from None


def _example(
    query: Any,
    documents: Iterable[TitledText],
    grades: Iterable[int],
    path: Path,
    number: int,
    *,
    doc_ids: Iterable[str] = (),
    missed: int = 0,
) -> Example:
    if not isinstance(query, str) or not query.strip():
        raise bad_line(path, number, "the query has no text")
    return Example.of(query.strip(), documents, grades, f"{path}, line {number}", doc_ids=doc_ids, missed=missed)


def _queries(path: Path) -> Queries:
    """Return a query set's texts by id."""
    return {query.query_id: query.text for query in read_queries(path)}


Reader = Callable[..., Iterator[Example]]
FILES: Mapping[str, Callable[[Path], Any]] = {"corpus": TextFile, "queries": _queries, "qrels": Path, "tweets": Path}
SWITCHES = frozenset({"inject"})
KINDS: Mapping[str, tuple[Reader, tuple[str, ...], tuple[str, ...]]] = {
    "examples": (examples, (), ()),
    "triples": (triples, (), ()),
    "id-triples": (id_triples, ("corpus", "queries"), ()),
    "candidates": (candidates, ("qrels",), ("depth", "relevant")),
    "run": (run, ("corpus", "queries", "qrels"), ("depth", "relevant", "inject")),
    "pairs": (pairs, (), ()),
    "microblog": (microblog, ("qrels", "tweets"), ("relevant",)),
}
"""Kind -> its reader, the options that it needs, and the optional ones."""
