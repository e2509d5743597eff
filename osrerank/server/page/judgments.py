"""Queries to pick from, and judgments: those that are given, and those that people make on the page."""

import threading
from collections.abc import Mapping
from pathlib import Path

from osrerank.errors import ConfigError
from osrerank.formats.files import write_atomically
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.types import Qrels, Query

QUERIES_FILE, QRELS_FILE = "queries.tsv", "qrels.txt"
MADE = "page-"
"""Begins the ids of queries that were judged on the page."""


class Judgments:
    """Queries and their judgments; safe to use from many threads.

    Args:
        queries: in the order of the page.
        qrels: judgments; None if there are none.
        folder: where new judgments are saved, as TREC qrels beside a table of queries; None if nobody may judge.
            What is there already counts too.

    Raises:
        FormatError: a file of the folder cannot be read.
        ConfigError: a query of the folder has the id of another one.
    """

    def __init__(self, queries: tuple[Query, ...] = (), qrels: Qrels | None = None, folder: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._folder = folder
        self._queries = {query.query_id: query for query in queries}
        self._judged = {query_id: dict(one) for query_id, one in (qrels.judgments if qrels else {}).items()}
        self._made: dict[str, dict[str, int]] = {}
        if folder is not None and (folder / QRELS_FILE).exists() and (folder / QRELS_FILE).stat().st_size:
            self._read(folder)

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries, in order."""
        with self._lock:
            return tuple(self._queries.values())

    @property
    def can_judge(self) -> bool:
        """Whether people may judge documents."""
        return self._folder is not None

    def is_judged(self, query_id: str) -> bool:
        """Return whether a query has judgments."""
        return query_id in self._judged

    def of(self, text: str) -> tuple[str, Mapping[str, int]] | None:
        """Return the id and the judgments of the query with this text; None if it has none."""
        with self._lock:
            query = self._with_text(text)
            if query is None or query.query_id not in self._judged:
                return None
            return query.query_id, dict(self._judged[query.query_id])

    def judge(self, text: str, doc_id: str, relevance: int | None) -> str:
        """Save a judgment, and return the query's id.

        Args:
            text: the query's.
            doc_id: the document's.
            relevance: 0 for not relevant, above for relevant; None to take the judgment back.

        Raises:
            ConfigError: nobody may judge here, or the document's id cannot stand in a TREC file.
            OSError: the files cannot be written.
        """
        if self._folder is None:
            raise ConfigError("judgments are not saved here: serve with --save-judgments", setting="save_judgments")
        if not doc_id or any(character.isspace() for character in doc_id):
            reason = f"the id {doc_id!r} has white space and cannot stand in a TREC file"
            raise ConfigError(reason, setting="doc_id", source="request")
        with self._lock:
            query = self._with_text(text) or self._new(text)
            for judged in (self._judged, self._made):
                one = judged.setdefault(query.query_id, {})
                one.pop(doc_id, None)
                if relevance is not None:
                    one[doc_id] = relevance
                if not one:
                    del judged[query.query_id]
            self._save(self._folder)
            return query.query_id

    def _with_text(self, text: str) -> Query | None:
        wanted = _folded(text)
        same = [query for query in self._queries.values() if _folded(query.text) == wanted]
        return next((query for query in same if query.query_id in self._judged), same[0] if same else None)

    def _new(self, text: str) -> Query:
        number = 1
        while f"{MADE}{number}" in self._queries:
            number += 1
        query = Query(f"{MADE}{number}", " ".join(text.split()))
        self._queries[query.query_id] = query
        return query

    def _read(self, folder: Path) -> None:
        for query in read_queries(folder / QUERIES_FILE):
            if self._queries.setdefault(query.query_id, query).text != query.text:
                reason = f"{folder / QUERIES_FILE}: {query.query_id} is another query than that of --queries"
                raise ConfigError(reason, setting="save_judgments", source=str(folder))
        for query_id, one in read_qrels(folder / QRELS_FILE).judgments.items():
            self._made[query_id] = dict(one)
            self._judged.setdefault(query_id, {}).update(one)

    def _save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        texts = (f"{query_id}\t{self._queries[query_id].text}\n" for query_id in self._made)
        write_atomically(folder / QUERIES_FILE, texts)
        lines = (
            f"{query_id} 0 {doc_id} {grade}\n" for query_id, one in self._made.items() for doc_id, grade in one.items()
        )
        write_atomically(folder / QRELS_FILE, lines)


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
