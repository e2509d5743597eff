"""Convert MS MARCO's top-1000 and top-100 files into candidates for `osrerank rerank`.

A top-1000 file contains the texts, and its lines are in random order. A top-100 file is a TREC run, so its texts are
read from the collection. Both can be larger than memory, so a temporary SQLite file sorts their rows.
"""

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

from osrerank.errors import CorpusFormatError, FormatError
from osrerank.formats.common_layout import format_json_line, write_lines
from osrerank.formats.id_table import open_scratch_database
from osrerank.formats.lines import explain_invalid_id, quote_start, raise_errors, read_text_lines
from osrerank.formats.sources import SourceFile, file_errors, open_sources, record_error
from osrerank.formats.trec import read_run_lines
from osrerank_loaders.collections.base import Record

_TOP1000_FIELDS = 4
_CREATE_ROWS = "CREATE TABLE rows (position INTEGER, query_id TEXT, query TEXT, doc_id TEXT, score REAL, rank INTEGER)"
_CREATE_TEXTS = "CREATE TABLE texts (doc_id TEXT PRIMARY KEY, title TEXT, text TEXT) WITHOUT ROWID"
_SELECT_ID_WITHOUT_TEXT = "SELECT 1 FROM texts WHERE doc_id = CAST(? AS TEXT) AND text IS NULL"
_UPDATE_TEXT = "UPDATE texts SET title = ?, text = ? WHERE doc_id = ?"
_SELECT_CANDIDATES = """
    SELECT rows.query_id, query, rows.doc_id, title, text, score
    FROM rows JOIN (SELECT query_id, min(position) AS first_position FROM rows GROUP BY query_id) USING (query_id)
    LEFT JOIN texts ON texts.doc_id = rows.doc_id
    ORDER BY first_position, rank, position
"""
_SELECT_SHARED_RANK = """
    SELECT query_id, rank FROM rows WHERE rank IS NOT NULL GROUP BY query_id, rank HAVING count(*) > 1 LIMIT 1
"""


def read_top1000(files: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield each query of a top-1000 file (``qid TAB pid TAB query TAB passage``) with its candidates.

    The result for a query is ``{"query_id": "1", "query": ..., "candidates": [{"doc_id": "7", "text": ...}]}``.
    """
    with tempfile.TemporaryDirectory() as folder, closing(_create_database(Path(folder))) as database:
        for position, (source, number, line) in enumerate(_read_lines(files)):
            fields = line.split("\t")
            if len(fields) != _TOP1000_FIELDS:
                reason = f"expected qid, pid, query, passage, found {len(fields)} fields: {quote_start(line)}"
                raise record_error(source, reason, line=number)
            query_id, doc_id, query, text = fields
            id_problem = explain_invalid_id(query_id, is_query=True) or explain_invalid_id(doc_id)
            if id_problem:
                raise record_error(source, id_problem, line=number)
            row = (position, query_id, query, doc_id)
            database.execute("INSERT INTO rows (position, query_id, query, doc_id) VALUES (?, ?, ?, ?)", row)
            database.execute("INSERT OR IGNORE INTO texts (doc_id, title, text) VALUES (?, '', ?)", (doc_id, text))
        yield from _group_by_query(database, files)


def join_run_and_texts(
    files: tuple[str, ...], queries: Mapping[str, str], documents: Iterable[Record]
) -> Iterator[dict[str, Any]]:
    """Yield each query of a run, in the run's order, with its candidates and their texts from the collection.

    A run in MS MARCO's three columns has no scores, so its candidates get the scores 1/rank.

    Args:
        files: the run's files.
        queries: the text of each query by its id.
        documents: the documents of the collection, and the errors of records that are not valid documents.

    Raises:
        FormatError: a line is not a run line, a query or document is missing, two documents share a rank, or a record
            of the collection is not valid.
    """
    with tempfile.TemporaryDirectory() as folder, closing(_create_database(Path(folder))) as database:
        for position, line in enumerate(read_run_lines(files)):
            if line.query_id not in queries:
                raise line.error(f"query {line.query_id!r} is not in the queries file")
            row = (position, line.query_id, queries[line.query_id], line.doc_id, line.score, line.rank)
            database.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)", row)
        shared_rank = database.execute(_SELECT_SHARED_RANK).fetchone()
        if shared_rank:
            query_id, rank = shared_rank
            raise CorpusFormatError(
                f"{', '.join(files)}: two documents of query {query_id!r} share the rank {rank}; number them 1, 2, "
                "3, ..."
            )
        _store_texts(database, documents)
        yield from _group_by_query(database, files)


def write_candidates(queries: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write queries with their candidates as JSON lines, and return the number of queries."""
    return write_lines(map(format_json_line, queries), path)


def _create_database(folder: Path) -> sqlite3.Connection:
    database = open_scratch_database(str(folder / "candidates.sqlite"))
    database.execute(_CREATE_ROWS)
    database.execute(_CREATE_TEXTS)
    return database


def _read_lines(files: tuple[str, ...]) -> Iterator[tuple[SourceFile, int, str]]:
    for source in open_sources(files):
        with file_errors(source):
            for number, line in raise_errors(read_text_lines(source)):
                yield source, number, line


def _store_texts(database: sqlite3.Connection, documents: Iterable[Record]) -> None:
    """Store the title and text of each document in the run. Raise an error if one is not in the collection."""
    database.execute("INSERT INTO texts SELECT DISTINCT doc_id, '', NULL FROM rows ORDER BY doc_id")
    for document in documents:
        if isinstance(document, FormatError):
            raise document
        # As bytes, because an id that is not in the run might contain a lone surrogate, which SQLite refuses in a text.
        doc_id = document.doc_id.encode("utf-8", "surrogatepass")
        if database.execute(_SELECT_ID_WITHOUT_TEXT, (doc_id,)).fetchone():
            database.execute(_UPDATE_TEXT, (document.title, document.text, document.doc_id))
    n_missing, first_id = database.execute("SELECT count(*), min(doc_id) FROM texts WHERE text IS NULL").fetchone()
    if n_missing:
        raise CorpusFormatError(
            f"{n_missing} candidates are not in the collection, such as {first_id!r}; pass the collection of "
            "these candidates"
        )


def _group_by_query(database: sqlite3.Connection, files: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield each query with its candidates.

    Raises:
        CorpusFormatError: a query has two texts or a document twice, or there are no queries. `osrerank rerank` would
            refuse such a file.
    """
    names = ", ".join(files)
    has_queries = False
    for query_id, rows in groupby(database.execute(_SELECT_CANDIDATES), key=lambda row: row[0]):
        has_queries = True
        candidates = []
        query_texts = set()
        for _query_id, query, *columns in rows:
            query_texts.add(query)
            candidates.append(_build_candidate(*columns))
        if len(query_texts) > 1:
            raise CorpusFormatError(f"{names}: query {query_id!r} has two texts; remove one")
        counts = Counter(candidate["doc_id"] for candidate in candidates)
        doc_id, count = counts.most_common(1)[0]
        if count > 1:
            raise CorpusFormatError(f"{names}: query {query_id!r} has document {doc_id!r} twice; remove one")
        yield {"query_id": query_id, "query": query, "candidates": candidates}
    if not has_queries:
        raise CorpusFormatError(f"{names}: there are no candidates; is this the right file?")


def _build_candidate(doc_id: str, title: str, text: str, score: float | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"doc_id": doc_id}
    if title:
        candidate["title"] = title
    candidate["text"] = text
    if score is not None:
        candidate["score"] = score
    return candidate
