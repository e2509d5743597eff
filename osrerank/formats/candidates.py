"""Read candidates to rerank without a search engine, from a file with texts, or a run with a corpus and queries."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.errors import EvaluationError, FormatError
from osrerank.formats.candidate_formats import (
    Entry,
    create_document,
    parse_json_line,
    read_dataset,
    read_json_array,
    read_table,
)
from osrerank.formats.files import line_error
from osrerank.formats.id_table import IdRow, IdTable
from osrerank.formats.ir_datasets import is_dataset
from osrerank.formats.lines import explain_invalid_id, raise_errors, read_json_lines, read_numbered_objects
from osrerank.formats.sources import file_errors, open_paths
from osrerank.formats.tables import is_table
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_run
from osrerank.types import Query


@dataclass(frozen=True, slots=True)
class CandidateList:
    """A query and its candidates.

    Attributes:
        query: the query.
        documents: the candidates in first-pass order, with ``id``, ``text`` and optionally ``title`` and ``score``.
    """

    query: Query
    documents: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class CandidateLists:
    """Candidate lists that need not fit into memory, because each iteration reads them again.

    Attributes:
        read: a function that reads the lists from the beginning.
    """

    read: Callable[[], Iterator[CandidateList]]

    def __iter__(self) -> Iterator[CandidateList]:
        return self.read()


class CandidatesByQuery:
    """Looks up the candidates of a query in lists that need not fit into memory. It is thread-safe.

    The constructor reads all lists once, to check them. Lookups in the lists' order read the lists once more. A lookup
    that goes back to an earlier list begins to read them again.

    Attributes:
        queries: the queries, in the lists' order.
        digest: a hash of all query ids and candidates, to detect changes.

    Raises:
        FormatError: a list is malformed.
    """

    def __init__(self, lists: CandidateLists) -> None:
        self._lists = lists
        self._remaining = iter(lists)
        self._lock = threading.Lock()
        queries = []
        hasher = hashlib.sha256(b"[")  # of all lists as one JSON array
        self._digests: dict[str, bytes] = {}
        for index, candidate_list in enumerate(lists):
            queries.append(candidate_list.query)
            line = _serialise(candidate_list)
            self._digests[candidate_list.query.query_id] = _hash_line(line)
            hasher.update(f"{', ' if index else ''}{line}".encode())
        hasher.update(b"]")
        self.queries: tuple[Query, ...] = tuple(queries)
        self.digest = hasher.hexdigest()[:16]

    def get_documents(self, query_id: str) -> Sequence[Mapping[str, Any]]:
        """Return a query's candidates.

        Raises:
            KeyError: the lists do not contain the query.
            FormatError: the candidates were changed after the constructor read them.
        """
        expected_digest = self._digests[query_id]
        with self._lock:
            candidate_list = self._find_next(query_id)
            if candidate_list is None:  # the query is before the current position
                self._remaining = iter(self._lists)
                candidate_list = self._find_next(query_id)
        if candidate_list is not None and _hash_line(_serialise(candidate_list)) == expected_digest:
            return candidate_list.documents
        raise FormatError(
            f"the file of the candidates of query {query_id!r} has been changed since this command began; run the "
            "command again, and do not change the file meanwhile"
        )

    def _find_next(self, query_id: str) -> CandidateList | None:
        """Read on to a query's list, or return None if the remaining lists do not contain it."""
        for candidate_list in self._remaining:
            if candidate_list.query.query_id == query_id:
                return candidate_list
        return None


def _serialise(candidate_list: CandidateList) -> str:
    return json.dumps([candidate_list.query.query_id, list(candidate_list.documents)], sort_keys=True)


def _hash_line(line: str) -> bytes:
    return hashlib.blake2b(line.encode(), digest_size=8).digest()


def read_candidates(path: Path | str) -> tuple[CandidateList, ...]:
    """Read a file of candidates with texts into memory. `candidate_lists` describes the formats.

    Raises:
        FormatError: a line is malformed, a query appears twice, a query has a document twice, or the file is empty.
    """
    return tuple(candidate_lists(path))


def candidate_lists(path: Path | str) -> CandidateLists:
    """Open a file of candidates with texts, whose format is detected, and return its candidate lists.

    - JSON lines ``{"query_id", "query", "candidates": [{"doc_id", "text", "title"?, "score"?}]}``
    - rank_llm's JSON lines ``{"query": {"text", "qid"}, "candidates": [{"docid", "score", "doc": {...}}]}``, and the
      JSON array of its earlier files, ``[{"query", "hits": [{"content", "qid", "docid", "score"}]}]``
    - PyTerrier's table as CSV: ``qid``, ``query``, ``docno``, ``text``, and optionally ``title`` and ``score``
    - ``ir_datasets:NAME``: the candidates published with a collection

    Candidates are in the order of the file. Those of tables and ir_datasets are sorted by score.

    Iteration raises `FormatError` if a line is malformed, a query appears twice, a query has a document twice, or the
    file has no candidates. A pipe can be read only once, so this function loads it and raises these errors itself.
    """
    path = Path(path)
    if path.is_file() or is_dataset(path):
        return CandidateLists(lambda: _read_lists(path))
    lists = tuple(_read_lists(path))
    return CandidateLists(lambda: iter(lists))


def _read_lists(path: Path) -> Iterator[CandidateList]:
    """Yield each candidate list of a file after checking it."""
    query_ids: set[str] = set()
    for entry in _read_entries(path):
        reason = _explain_invalid_entry(entry)
        if entry.query_id in query_ids:
            reason = f"query {entry.query_id!r} appears again; put its rows together, or remove one"
        if reason:
            raise line_error(path, entry.line, reason)
        query_ids.add(entry.query_id)
        yield CandidateList(Query(entry.query_id, entry.query), entry.documents)
    if not query_ids:
        reason = f"{path} has no candidates; expected a line for each query, with query_id, query and candidates"
        raise FormatError(reason, file=str(path))


def _read_entries(path: Path) -> Iterator[Entry]:
    """Yield each query of a file with its documents, unchecked."""
    if is_dataset(path):
        yield from read_dataset(str(path))
        return
    for source in open_paths(path):
        with file_errors(source):
            if is_table(source):
                yield from read_table(source)
            elif source.stream.peek(1).lstrip().startswith(b"["):
                yield from read_json_array(source)
            else:
                yield from (
                    parse_json_line(source, number, value) for number, value in raise_errors(read_json_lines(source))
                )


Texts = Callable[[AbstractSet[str]], Iterable[Mapping[str, Any]]]
"""A function that returns the documents with the given ids: ``[{"id": "7", "text": "...", "title": "..."}]`` for
``{"7"}``. It leaves out ids that the corpus does not contain. A document need not have a title."""


def assemble_candidates(run: Path | str, corpus: Path | str | Texts, queries: Path | str) -> CandidateLists:
    """Assemble candidate lists from a run, a corpus and a query set. The texts are stored in a temporary file.

    Args:
        run: a run file, in a format of `trec.read_run`.
        corpus: a file of JSON lines with ``id`` (or ``_id``, ``doc_id``), ``text`` and optionally ``title``, or a
            function that reads the documents from an index.
        queries: a query set, in a format of `topics.read_queries`.

    Raises:
        FormatError: a file is malformed, or a document of the run appears twice in the corpus file.
        EvaluationError: a document or query of the run is not in the corpus or the query set.
        LoaderError: the disk is full.
    """
    rankings = read_run(run).rankings
    queries_by_id = {query.query_id: query for query in read_queries(queries)}
    doc_ids = frozenset(document.doc_id for ranking in rankings.values() for document in ranking)
    missing_ids = set(doc_ids)
    if callable(corpus):
        corpus_name = "the index"
        rows = _collect_from_index(corpus(doc_ids), missing_ids)
    else:
        corpus_name = str(corpus)
        rows = _collect_from_file(Path(corpus), doc_ids, missing_ids)
    documents = IdTable.create_temporary(rows)  # reads the rows, which removes their ids from ``missing_ids``
    if missing_ids:
        count = len(missing_ids)
        raise EvaluationError(
            f"{count} documents of {run} are not in {corpus_name}, such as {min(missing_ids)!r}; pass the "
            "run's own corpus"
        )
    missing_queries = rankings.keys() - queries_by_id.keys()
    if missing_queries:
        raise EvaluationError(
            f"{len(missing_queries)} queries of {run} are not in {queries}, such as {min(missing_queries)!r}; pass the "
            "run's own queries"
        )

    def read() -> Iterator[CandidateList]:
        for query_id, ranking in rankings.items():
            candidates = tuple(_load_scored(documents, doc_id, score) for doc_id, score in ranking)
            yield CandidateList(queries_by_id[query_id], candidates)

    return CandidateLists(read)


def read_texts(corpus: Path, doc_ids: AbstractSet[str]) -> dict[str, str]:
    """Return each document's title and text as one string. The corpus is a file of JSON lines.

    Raises:
        FormatError: a line is malformed, or a document appears twice.
        EvaluationError: a document is not in the file.
    """
    missing_ids = set(doc_ids)
    documents = {row.id: json.loads(str(row.value)) for row in _collect_from_file(corpus, doc_ids, missing_ids)}
    if missing_ids:
        count = len(missing_ids)
        raise EvaluationError(
            f"{count} documents of the runs are not in {corpus}, such as {min(missing_ids)!r}; pass the runs' "
            "own corpus"
        )
    return {
        doc_id: " ".join(filter(None, (document.get("title"), document["text"])))
        for doc_id, document in documents.items()
    }


def _collect_from_index(documents: Iterable[Mapping[str, Any]], missing_ids: set[str]) -> Iterator[IdRow]:
    """Yield documents as JSON, and remove their ids from ``missing_ids``."""
    for document in documents:
        missing_ids.discard(document["id"])
        value = json.dumps(create_document(document["id"], document))
        yield IdRow(document["id"], number=0, value=value)  # no id is repeated, so the number does not matter


def _collect_from_file(path: Path, doc_ids: AbstractSet[str], missing_ids: set[str]) -> Iterator[IdRow]:
    """Yield documents as JSON, and remove their ids from ``missing_ids``."""
    for number, value in read_numbered_objects(path):
        doc_id = next((str(value[name]) for name in ("id", "_id", "doc_id") if name in value), None)
        if doc_id is None:
            raise line_error(path, number, "the document has no id; add the field id")
        if doc_id in doc_ids:
            if not isinstance(value.get("text"), str):
                raise line_error(path, number, f"document {doc_id!r} has no text; add the field text")
            if doc_id not in missing_ids:
                raise line_error(path, number, f"document {doc_id!r} appears twice; remove one")
            missing_ids.discard(doc_id)
            yield IdRow(doc_id, number, value=json.dumps(create_document(doc_id, value)))


def _load_scored(documents: IdTable, doc_id: str, score: float) -> dict[str, Any]:
    row = documents.get(doc_id)
    assert row is not None  # `assemble_candidates` checked that no document is missing
    return {**json.loads(str(row.value)), "score": score}


def _explain_invalid_entry(entry: Entry) -> str:
    """Return why an entry is invalid, or ""."""
    if not isinstance(entry.query, str) or not entry.query.strip():
        return f"query {entry.query_id!r} has no text"
    doc_ids = [document["id"] for document in entry.documents]
    for reason in (explain_invalid_id(entry.query_id, is_query=True), *map(explain_invalid_id, doc_ids)):
        if reason:
            return reason
    if len(set(doc_ids)) != len(doc_ids):
        repeated = next(doc_id for doc_id in doc_ids if doc_ids.count(doc_id) > 1)
        return f"query {entry.query_id!r} has document {repeated!r} twice; remove one"
    for document in entry.documents:
        if not isinstance(document.get("text"), str):
            return f"document {document['id']!r} of query {entry.query_id!r} has no text"
    return ""
