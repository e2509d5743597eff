"""The common layout: ``corpus.jsonl``, ``queries.tsv`` (query_id TAB text) and ``qrels.txt`` (TREC)."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from osrerank.types import Document, Query


class Judgment(NamedTuple):
    """One line of a qrels file."""

    query_id: str
    doc_id: str
    relevance: int


def write_corpus(documents: Iterable[Document], path: Path) -> int:
    """Write documents as JSON lines; return how many."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for count, document in enumerate(documents, 1):  # noqa: B007 - counted here, read below
            row = {"id": document.doc_id, "title": document.title, "text": document.text, **document.metadata}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return count


def write_queries(queries: Iterable[Query], path: Path) -> int:
    """Write ``query_id TAB text`` lines, white space within a text as one space; return how many."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for count, query in enumerate(queries, 1):  # noqa: B007 - counted here, read below
            file.write(f"{query.query_id}\t{' '.join(query.text.split())}\n")
    return count


def write_qrels(judgments: Iterable[Judgment], path: Path) -> int:
    """Write ``query_id 0 doc_id relevance`` lines; return how many."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for count, judgment in enumerate(judgments, 1):  # noqa: B007 - counted here, read below
            file.write(f"{judgment.query_id} 0 {judgment.doc_id} {judgment.relevance}\n")
    return count
