"""Write the common layout: ``corpus.jsonl``, ``queries.tsv`` (query_id TAB text) and ``qrels.txt`` (TREC)."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from osrerank.formats.files import write_atomically
from osrerank.types import Document, Qrels, Query


class Judgment(NamedTuple):
    """One line of a qrels file."""

    query_id: str
    doc_id: str
    relevance: int


def flatten_qrels(qrels: Qrels) -> Iterator[Judgment]:
    """Yield the judgments one by one, each query's together."""
    for query_id, judged in qrels.judgments.items():
        yield from (Judgment(query_id, doc_id, relevance) for doc_id, relevance in judged.items())


def write_corpus(documents: Iterable[Document], path: Path) -> int:
    """Write documents as JSON lines; return how many."""
    rows = (
        {"id": document.doc_id, "title": document.title, "text": document.text, **document.metadata}
        for document in documents
    )
    return write_lines((json.dumps(row, ensure_ascii=False) for row in rows), path)


def write_queries(queries: Iterable[Query], path: Path) -> int:
    """Write ``query_id TAB text`` lines, in which white space within a text is one space; return how many."""
    return write_lines((f"{query.query_id}\t{' '.join(query.text.split())}" for query in queries), path)


def write_qrels(judgments: Iterable[Judgment], path: Path) -> int:
    """Write ``query_id 0 doc_id relevance`` lines; return how many."""
    return write_lines(
        (f"{judgment.query_id} 0 {judgment.doc_id} {judgment.relevance}" for judgment in judgments), path
    )


def write_lines(lines: Iterable[str], path: Path) -> int:
    """Write lines to a file, whole or not at all, or to a pipe or device line by line; return how many."""
    count = 0

    def counted() -> Iterator[str]:
        nonlocal count
        for count, line in enumerate(lines, 1):  # noqa: B007 - counted here, read below
            yield line + "\n"

    write_atomically(path, counted())
    return count
