"""The queries that the page offers, and their judgments, from files or from users of the page."""

import threading
from collections.abc import Mapping
from pathlib import Path

from osrerank.errors import ConfigError
from osrerank.formats.files import write_atomically
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.types import Qrels, Query

QUERIES_FILE, QRELS_FILE = "queries.tsv", "qrels.txt"
NEW_QUERY = "page-"
"""The prefix of the ids of queries that users of the page typed and judged."""


class Judgments:
    """Queries and their judgments; safe to use from many threads.

    Args:
        queries: the queries, in the order of the page.
        qrels: the judgments; None for none.
        folder: the folder where new judgments are saved, as TREC qrels and a table of queries; None if nobody may
            judge. Judgments that it has already are read first.

    Raises:
        FormatError: a file of the folder cannot be read.
        ConfigError: a query of the folder has the id of another query.
    """

    def __init__(self, queries: tuple[Query, ...] = (), qrels: Qrels | None = None, folder: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._folder = folder
        self._queries = {query.query_id: query for query in queries}
        self._judged = {query_id: dict(grades) for query_id, grades in (qrels.judgments if qrels else {}).items()}
        self._made: dict[str, dict[str, int]] = {}
        if folder is not None and (folder / QRELS_FILE).exists() and (folder / QRELS_FILE).stat().st_size:
            self._read(folder)

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries, in the order of the page; new ones come last."""
        with self._lock:
            return tuple(self._queries.values())

    @property
    def can_judge(self) -> bool:
        """Whether users of the page may judge documents."""
        return self._folder is not None

    def is_judged(self, query_id: str) -> bool:
        """Return whether a query has judgments."""
        return query_id in self._judged

    def of(self, text: str) -> tuple[str, Mapping[str, int]] | None:
        """Return the id and judgments of the query with a text; None if it has no judgments."""
        with self._lock:
            query = self._with_text(text)
            if query is None or query.query_id not in self._judged:
                return None
            return query.query_id, dict(self._judged[query.query_id])

    def judge(self, text: str, doc_id: str, relevance: int | None) -> str:
        """Save a judgment, and return the query's id.

        Args:
            text: the text of the query.
            doc_id: the id of the document.
            relevance: the grade, 0 for not relevant; None to remove the judgment.

        Raises:
            ConfigError: nobody may judge, or a TREC file cannot contain the document's id.
            OSError: the files cannot be written.
        """
        if self._folder is None:
            raise ConfigError("judgments are not saved here: serve with --save-judgments", setting="save_judgments")
        if not doc_id or any(character.isspace() for character in doc_id):
            reason = f"the id {doc_id!r} is empty or has white space, so a TREC file cannot contain it"
            raise ConfigError(reason, setting="doc_id", source="request")
        with self._lock:
            query = self._with_text(text) or self._new(text)
            for judged in (self._judged, self._made):
                grades = judged.setdefault(query.query_id, {})
                grades.pop(doc_id, None)
                if relevance is not None:
                    grades[doc_id] = relevance
                if not grades:
                    del judged[query.query_id]
            self._save(self._folder)
            return query.query_id

    def _with_text(self, text: str) -> Query | None:
        folded = _folded(text)
        queries = [query for query in self._queries.values() if _folded(query.text) == folded]
        return next((query for query in queries if query.query_id in self._judged), queries[0] if queries else None)

    def _new(self, text: str) -> Query:
        number = 1
        while f"{NEW_QUERY}{number}" in self._queries:
            number += 1
        query = Query(f"{NEW_QUERY}{number}", " ".join(text.split()))
        self._queries[query.query_id] = query
        return query

    def _read(self, folder: Path) -> None:
        for query in read_queries(folder / QUERIES_FILE):
            if self._queries.setdefault(query.query_id, query).text != query.text:
                reason = f"{folder / QUERIES_FILE}: the query {query.query_id} differs from that of --queries"
                raise ConfigError(reason, setting="save_judgments", source=str(folder))
        for query_id, grades in read_qrels(folder / QRELS_FILE).judgments.items():
            self._made[query_id] = dict(grades)
            self._judged.setdefault(query_id, {}).update(grades)

    def _save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        texts = (f"{query_id}\t{self._queries[query_id].text}\n" for query_id in self._made)
        write_atomically(folder / QUERIES_FILE, texts)
        lines = (
            f"{query_id} 0 {doc_id} {grade}\n"
            for query_id, grades in self._made.items()
            for doc_id, grade in grades.items()
        )
        write_atomically(folder / QRELS_FILE, lines)


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
