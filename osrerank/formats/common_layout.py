"""Write a collection as ``corpus.jsonl``, ``queries.tsv`` and qrels, the layout of `osrerank convert`."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from osrerank.formats.files import write_atomically
from osrerank.types import Document, Qrels, Query
from osrerank.types.values import replace_surrogates


class Judgment(NamedTuple):
    """A line of a qrels file."""

    query_id: str
    doc_id: str
    relevance: int


def flatten_qrels(qrels: Qrels) -> Iterator[Judgment]:
    """Yield all judgments, grouped by query."""
    for query_id, judged in qrels.judgments.items():
        yield from (Judgment(query_id, doc_id, relevance) for doc_id, relevance in judged.items())


def write_corpus(documents: Iterable[Document], path: Path) -> int:
    """Write documents as JSON lines, and return their number."""
    rows = (
        {"id": document.doc_id, "title": document.title, "text": document.text, **document.metadata}
        for document in documents
    )
    return write_lines(map(format_json_line, rows), path)


def write_queries(queries: Iterable[Query], path: Path) -> int:
    """Write ``query_id<TAB>text`` lines, and return their number.

    White space in texts becomes single spaces, and unpaired surrogates become question marks, as in a model's input.
    """
    lines = (f"{query.query_id}\t{' '.join(query.text.split())}" for query in queries)
    return write_lines(map(replace_surrogates, lines), path)


def write_qrels(judgments: Iterable[Judgment], path: Path) -> int:
    """Write ``query_id 0 doc_id relevance`` lines, and return their number."""
    return write_lines(
        (f"{judgment.query_id} 0 {judgment.doc_id} {judgment.relevance}" for judgment in judgments), path
    )


def format_json_line(row: Mapping[str, Any]) -> str:
    """Format an object as JSON. Unpaired surrogates, which UTF-8 cannot contain, are escaped as in ASCII."""
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace").decode("utf-8")


def write_lines(lines: Iterable[str], path: Path) -> int:
    """Write lines atomically to a file, or one by one to a pipe or device, and return their number."""
    n_lines = 0

    def count_lines() -> Iterator[str]:
        nonlocal n_lines
        for line in lines:
            n_lines += 1
            yield line + "\n"

    write_atomically(path, count_lines())
    return n_lines
