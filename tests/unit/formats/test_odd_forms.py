"""The same six odd forms of one file, for every reader of texts: it reads what it reads of the plain file, or refuses.

A byte order mark, CR LF, a last line without its end and gzip are read; UTF-16 is refused by name; where lines end with
CR alone, a reader of lines refuses and one of tags or JSON reads.
"""

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from osrerank.decision.use.clicks import read_clicks
from osrerank.errors import FormatError
from osrerank.evaluation.folds import read_folds
from osrerank.formats.candidates import assemble_candidates, candidate_lists
from osrerank.formats.sources import open_sources
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels, read_run
from osrerank.training.examples import sources
from osrerank.training.examples.texts import TextFile
from osrerank.training.pretrain import read_texts
from osrerank_loaders.candidates import join_run_and_texts, read_top1000
from osrerank_loaders.collections.base import read_records
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.collections.squad import read_squad
from tests.unit.osrerank_loaders.collections.test_readers import DOC_V2, DOCS_TREC, NITF, PASSAGE_V2, POST, SGML

SQUAD = {"data": [{"title": "T", "paragraphs": [{"context": "c", "qas": [{"id": "q1", "question": "Who is it?"}]}]}]}
TOPICS = "<top>\n<num> Number: 1\n<title> salt\n</top>\n<top>\n<num> Number: 2\n<title> river\n</top>\n"
RUN, QUERIES, CORPUS = "q1 Q0 d1 1 2.5 t\nq1 Q0 d2 2 1.5 t\n", "q1\tsalt\nq2\triver\n", "d1\tsalt\nd2\triver\n"


def lines(*rows: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def documents(loader: str, path: Path) -> list[Any]:
    records = list(read_records(LOADERS[loader], open_sources([str(path)])))
    for record in records:
        if isinstance(record, FormatError):
            raise record
    return records


def beside(path: Path, name: str, text: str) -> Path:
    (path.parent / name).write_text(text)
    return path.parent / name


def texts(path: Path) -> list[Any]:
    text_file = TextFile(path)
    ids = [text_id for text_id in ("d1", "d2", "1", "2") if text_id in text_file]
    return [(text_id, text_file.get_document(text_id).full_text) for text_id in ids]


def id_triples(path: Path) -> list[Any]:
    corpus = TextFile(beside(path, "corpus", CORPUS))
    return list(sources.read_id_triples(path, corpus, {"q1": "salt", "q2": "river"}))


def run_source(path: Path) -> list[Any]:
    corpus, qrels = TextFile(beside(path, "corpus", CORPUS)), beside(path, "qrels", "q1 0 d1 1\n")
    return list(sources.read_run(path, corpus, {"q1": "salt"}, qrels))


def with_qrels(read: Callable[..., Any], path: Path) -> list[Any]:
    return list(read(path, beside(path, "qrels", "q1 0 d1 1\n1 0 7 1\n")))


def microblog(path: Path) -> list[Any]:
    tweets = beside(path, "tweets", lines({"id": "7", "text": "a tweet"}, {"id": "8", "text": "another"}))
    return list(sources.read_microblog(path, beside(path, "qrels", "1 0 7 1\n2 0 8 1\n"), tweets))


def assembled(path: Path, of: str) -> list[Any]:
    contents = {"run": RUN, "corpus": lines({"id": "d1", "text": "a"}, {"id": "d2", "text": "b"}), "queries": QUERIES}
    return list(
        assemble_candidates(
            **{name: path if name == of else beside(path, name, text) for name, text in contents.items()}
        )
    )


def of_run(path: Path) -> list[Any]:
    return list(
        join_run_and_texts((str(path),), {"q1": "salt"}, documents("msmarco-passage", beside(path, "c", CORPUS)))
    )


CANDIDATES = lines(
    {"query_id": "q1", "query": "salt", "candidates": [{"doc_id": "d1", "text": "a"}]},
    {"query_id": "q2", "query": "river", "candidates": [{"doc_id": "d2", "text": "b"}]},
)
EXAMPLES = lines(*({"query": query, "documents": ["a", "b"], "relevance": [1, 0]} for query in ("salt", "river")))
READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "msmarco-passage": (partial(documents, "msmarco-passage"), CORPUS),
    "msmarco-document": (partial(documents, "msmarco-document"), "D1\tu\tt\tone\nD2\tu\tt\ttwo\n"),
    "msmarco-docs.trec": (partial(documents, "msmarco-document"), DOCS_TREC),
    "msmarco-v2-passage": (partial(documents, "msmarco-v2-passage"), lines(PASSAGE_V2, PASSAGE_V2)),
    "msmarco-v2-document": (partial(documents, "msmarco-v2-document"), lines(DOC_V2, DOC_V2)),
    "jsonl": (partial(documents, "jsonl"), lines({"id": "1", "text": "one"}, {"id": "2", "text": "two"})),
    "beir": (partial(documents, "beir"), lines({"_id": "1", "text": "one"}, {"_id": "2", "text": "two"})),
    "SGML": (partial(documents, "trec"), SGML),
    "robust04": (partial(documents, "robust04"), SGML),
    "New York Times": (partial(documents, "trec"), NITF),
    "Washington Post": (partial(documents, "trec"), lines(POST, POST)),
    "HTML": (partial(documents, "trec"), "<html>\n<pre>\nsalt\nriver\n</pre></html>\n"),
    "SQuAD": (lambda path: list(read_squad(path)), f"{json.dumps(SQUAD)}\n"),
    "run": (read_run, RUN),
    "run of three columns": (read_run, "q1\td1\t1\nq1\td2\t2\n"),
    "judgments": (read_qrels, "q1 0 d1 1\nq1 0 d2 0\n"),
    "judgments of BEIR": (read_qrels, "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td1\t1\n"),
    "queries": (read_queries, QUERIES),
    "queries in JSON": (read_queries, lines({"_id": "q1", "text": "salt"}, {"_id": "q2", "text": "river"})),
    "topics": (read_queries, TOPICS),
    "topics of CACM": (read_queries, "<DOC>\n<DOCNO>1</DOCNO>\nsalt\n</DOC>\n<DOC>\n<DOCNO>2</DOCNO>\nriver\n</DOC>\n"),
    "candidates": (lambda path: list(candidate_lists(path)), CANDIDATES),
    **{f"rerank: {of}": (partial(assembled, of=of), text) for of, text in {"run": RUN, "queries": QUERIES}.items()},
    "rerank: corpus": (partial(assembled, of="corpus"), lines({"id": "d1", "text": "a"}, {"id": "d2", "text": "b"})),
    "top-1000": (lambda path: list(read_top1000((str(path),))), "q1\td1\tsalt\ta\nq1\td2\tsalt\tb\n"),
    "top-100": (of_run, RUN),
    "clicks": (
        lambda path: list(read_clicks(path)),
        lines(*({"query": query, "documents": ["a"], "clicks": []} for query in ("salt", "river"))),
    ),
    "folds": (read_folds, '[["1"],\n["2"]]\n'),
    "texts": (texts, CORPUS),
    "texts in JSON": (texts, lines({"id": "1", "text": "one"}, {"id": "2", "text": "two"})),
    "triples": (lambda path: list(sources.read_triples(path)), "salt\ta\tb\nriver\tc\td\n"),
    "id-triples": (id_triples, "q1\td1\td2\nq2\td2\td1\n"),
    "training candidates": (partial(with_qrels, sources.read_candidates), CANDIDATES),
    "training run": (run_source, RUN),
    "pairs": (lambda path: list(sources.read_pairs(path)), "1\tsalt\ta\t1\n2\triver\tb\t0\n"),
    "microblog": (microblog, TOPICS),
    "examples": (lambda path: list(sources.read_examples(path)), EXAMPLES),
    "pretraining texts": (lambda path: list(read_texts([path])), "salt\nriver\n"),
}
FORMS: dict[str, Callable[[bytes], bytes]] = {
    "mark": lambda raw: b"\xef\xbb\xbf" + raw,
    "CR LF": lambda raw: raw.replace(b"\n", b"\r\n"),
    "no end": lambda raw: raw.removesuffix(b"\n"),
    "gzip": gzip.compress,
    "CR alone": lambda raw: raw.replace(b"\n", b"\r"),
    "UTF-16": lambda raw: raw.decode().encode("utf-16"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("form", FORMS)
def test_an_odd_form_is_read_as_the_plain_file_or_refused_by_name(tmp_path: Path, reader: str, form: str) -> None:
    read, text = READERS[reader]
    path = tmp_path / ("file.html" if reader == "HTML" else "file")
    path.write_bytes(text.encode())
    plain = read(path)
    path.write_bytes(FORMS[form](text.encode()))
    try:
        assert read(path) == plain
        refusal = None
    except FormatError as error:
        refusal = error
    assert form != "UTF-16" or refusal is not None
    if refusal is not None:
        reason = {"CR alone": "CR alone", "gzip": "unpack it first", "UTF-16": "UTF-16"}[form]
        assert reason in str(refusal)
        assert str(path) in str(refusal)
