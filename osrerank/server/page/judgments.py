"""Read and save the relevance judgments of the comparison page's queries: those in files, and those of its users."""

import threading
from collections.abc import Mapping
from pathlib import Path

from osrerank.errors import ConfigError
from osrerank.formats.common_layout import flatten_qrels, write_qrels
from osrerank.formats.files import write_atomically
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.types import Qrels, Query

QUERIES_FILE = "queries.tsv"
QRELS_FILE = "qrels.txt"
NEW_QUERY_PREFIX = "page-"
"""If users judge a query that they typed, its id begins with this prefix."""


class Judgments:
    """Queries and their judgments. Safe to use from many threads.

    Args:
        queries: the queries, in the order of the page.
        qrels: the judgments of the queries, or None if there are none.
        folder: the folder in which users' judgments are saved, as TREC qrels with a table of queries. Judgments that it
            already contains are loaded. If it is None, users cannot judge documents.

    Raises:
        FormatError: a file in the folder cannot be read.
        ConfigError: a query in the folder has the id of another query.
    """

    def __init__(self, queries: tuple[Query, ...] = (), qrels: Qrels | None = None, folder: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._folder = folder
        self._queries = {query.query_id: query for query in queries}
        judgments = qrels.judgments if qrels else {}
        self._grades = {query_id: dict(grades) for query_id, grades in judgments.items()}
        self._user_grades: dict[str, dict[str, int]] = {}  # those that are saved in the folder
        if folder is not None and (folder / QRELS_FILE).exists() and (folder / QRELS_FILE).stat().st_size:
            self._read(folder)

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries, in the order of the page. Queries that users typed come last."""
        with self._lock:
            return tuple(self._queries.values())

    @property
    def can_judge(self) -> bool:
        """Whether users of the page can judge documents."""
        return self._folder is not None

    def is_judged(self, query_id: str) -> bool:
        """Return whether a query has judgments."""
        return query_id in self._grades

    def find_judgments(self, text: str) -> tuple[str, Mapping[str, int]] | None:
        """Return the id of the query with a text, and its judgments. Returns None if it has none."""
        with self._lock:
            query = self._find_query(text)
            if query is None or query.query_id not in self._grades:
                return None
            return query.query_id, dict(self._grades[query.query_id])

    def save_judgment(self, text: str, doc_id: str, relevance: int | None) -> str:
        """Save a judgment, and return the query's id.

        ``relevance`` is the grade, where 0 is not relevant. None removes the judgment.

        Raises:
            ConfigError: users cannot judge, or a TREC file cannot contain the document's id.
            OSError: the files cannot be written.
        """
        if self._folder is None:
            raise ConfigError("the server saves no judgments: start it with --save-judgments", setting="save_judgments")
        if not doc_id or any(character.isspace() for character in doc_id):
            reason = f"the id {doc_id!r} is empty or contains white space, so a TREC file cannot contain it"
            raise ConfigError(reason, setting="doc_id", source="request")
        with self._lock:
            query = self._find_query(text) or self._add_query(text)
            for grades_by_query in (self._grades, self._user_grades):
                grades = grades_by_query.setdefault(query.query_id, {})
                grades.pop(doc_id, None)
                if relevance is not None:
                    grades[doc_id] = relevance
                if not grades:
                    del grades_by_query[query.query_id]
            self._save(self._folder)
            return query.query_id

    def _find_query(self, text: str) -> Query | None:
        """Return the query with a text, preferably a judged one, or None if there is no such query."""
        normalized = _normalize(text)
        queries = [query for query in self._queries.values() if _normalize(query.text) == normalized]
        for query in queries:
            if query.query_id in self._grades:
                return query
        return queries[0] if queries else None

    def _add_query(self, text: str) -> Query:
        number = 1
        while f"{NEW_QUERY_PREFIX}{number}" in self._queries:
            number += 1
        query = Query(f"{NEW_QUERY_PREFIX}{number}", " ".join(text.split()))
        self._queries[query.query_id] = query
        return query

    def _read(self, folder: Path) -> None:
        queries_file = folder / QUERIES_FILE
        for query in read_queries(queries_file):
            if self._queries.setdefault(query.query_id, query).text != query.text:
                reason = f"the query {query.query_id} in {queries_file} differs from the one in --queries"
                raise ConfigError(f"{reason}: rename one of them", setting="save_judgments", source=str(folder))
        for query_id, grades in read_qrels(folder / QRELS_FILE).judgments.items():
            self._user_grades[query_id] = dict(grades)
            self._grades.setdefault(query_id, {}).update(grades)

    def _save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        queries = (f"{query_id}\t{self._queries[query_id].text}\n" for query_id in self._user_grades)
        write_atomically(folder / QUERIES_FILE, queries)
        write_qrels(flatten_qrels(Qrels(self._user_grades)), folder / QRELS_FILE)


def _normalize(text: str) -> str:
    return " ".join(text.split()).casefold()
