"""Keep the comparison page's queries and relevance judgments, and save those that users add on the page."""

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
"""The beginning of the ids of queries that users typed and judged, such as ``page-1``."""


class Judgments:
    """Queries and their relevance judgments. Safe to use from many threads.

    Args:
        queries: the queries, in the order of the page.
        qrels: the judgments of the queries, or None if there are none.
        folder: the folder in which users' judgments are saved, or None if users cannot judge documents. ``qrels.txt``
            has lines such as ``page-1 0 doc7 2``, and ``queries.tsv`` the texts of the queries. If the folder already
            contains judgments, they are loaded.

    Raises:
        FormatError: a file in the folder cannot be read.
        ConfigError: a query in the folder has the same id as one of ``queries``, but another text.
    """

    def __init__(self, queries: tuple[Query, ...] = (), qrels: Qrels | None = None, folder: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._folder = folder
        self._queries = {query.query_id: query for query in queries}
        judgments = qrels.judgments if qrels else {}
        self._grades = {query_id: dict(grades) for query_id, grades in judgments.items()}
        self._user_grades: dict[str, dict[str, int]] = {}  # only the users' grades, which the folder contains
        if folder is not None:
            qrels_file = folder / QRELS_FILE
            if qrels_file.exists() and qrels_file.stat().st_size:  # the file is empty if all judgments were removed
                self._read(folder)

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries of the page in its order, followed by the queries that users typed and judged."""
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
        """Return the id and the grades of the query with this text, such as ``("page-1", {"doc7": 2})``.

        Returns None if the query has no judgments.
        """
        with self._lock:
            query = self._find_query(text)
            if query is None or query.query_id not in self._grades:
                return None
            return query.query_id, dict(self._grades[query.query_id])

    def save_judgment(self, text: str, doc_id: str, relevance: int | None) -> str:
        """Save or remove a user's judgment of a document, and return the query's id.

        Args:
            text: the text of the query. If no query has this text, it is added.
            doc_id: the document's id.
            relevance: the grade, where 0 means not relevant, or None to remove the judgment.

        Raises:
            ConfigError: the server saves no judgments, or a TREC file cannot contain the document's id.
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
                _set_grade(grades_by_query, query.query_id, doc_id, relevance)
            self._save(self._folder)
            return query.query_id

    def _find_query(self, text: str) -> Query | None:
        """Return the query with this text, or None. Upper case and additional spaces make no difference.

        If several queries have the text, return one that has judgments if possible.
        """
        normalised = _normalise(text)
        queries = [query for query in self._queries.values() if _normalise(query.text) == normalised]
        for query in queries:
            if query.query_id in self._grades:
                return query
        return queries[0] if queries else None

    def _add_query(self, text: str) -> Query:
        """Add a query that a user typed, with the first id that no query has, such as ``page-1``."""
        number = 1
        while f"{NEW_QUERY_PREFIX}{number}" in self._queries:
            number += 1
        query = Query(f"{NEW_QUERY_PREFIX}{number}", " ".join(text.split()))
        self._queries[query.query_id] = query
        return query

    def _read(self, folder: Path) -> None:
        """Add the queries and judgments that were saved in the folder.

        If the folder and ``qrels`` have a grade for the same document, the folder's grade is used.
        """
        queries_file = folder / QUERIES_FILE
        for query in read_queries(queries_file):
            page_query = self._queries.setdefault(query.query_id, query)
            if page_query.text != query.text:
                reason = f"the query {query.query_id!r} in {queries_file} differs from the one in --queries"
                fix = "give one of the queries another id"
                raise ConfigError(f"{reason}; {fix}", setting="save_judgments", source=str(folder))
        for query_id, grades in read_qrels(folder / QRELS_FILE).judgments.items():
            self._user_grades[query_id] = dict(grades)
            self._grades.setdefault(query_id, {}).update(grades)

    def _save(self, folder: Path) -> None:
        """Write the users' judgments, and the queries that they belong to, into the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        query_lines = (f"{query_id}\t{self._queries[query_id].text}\n" for query_id in self._user_grades)
        write_atomically(folder / QUERIES_FILE, query_lines)
        write_qrels(flatten_qrels(Qrels(self._user_grades)), folder / QRELS_FILE)


def _set_grade(grades_by_query: dict[str, dict[str, int]], query_id: str, doc_id: str, grade: int | None) -> None:
    """Set the grade of a query's document, or remove it if ``grade`` is None. A query without grades is removed."""
    grades = grades_by_query.setdefault(query_id, {})
    grades.pop(doc_id, None)
    if grade is not None:
        grades[doc_id] = grade
    if not grades:
        del grades_by_query[query_id]


def _normalise(text: str) -> str:
    """Return a query's text in lower case with single spaces: "red deer" for " Red  DEER"."""
    return " ".join(text.split()).casefold()
