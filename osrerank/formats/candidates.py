"""Read candidates to rerank without a search engine: files with texts, or a run with its corpus and queries."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.errors import EvaluationError, FormatError
from osrerank.formats.candidate_forms import (
    Entry,
    array_entries,
    dataset_entries,
    line_entry,
    make_document,
    table_entries,
)
from osrerank.formats.files import bad_line
from osrerank.formats.id_table import IdRow, IdTable
from osrerank.formats.ir_datasets import is_dataset
from osrerank.formats.lines import invalid_id_reason, json_lines, numbered_objects, raise_errors
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
    """An iterable of candidate lists that need not fit into memory, because each iteration reads them again.

    Attributes:
        read: a function that reads the lists from the beginning.
    """

    read: Callable[[], Iterator[CandidateList]]

    def __iter__(self) -> Iterator[CandidateList]:
        return self.read()


class CandidatesByQuery:
    """Returns the candidates of one query at a time, from lists that need not fit into memory. It is thread-safe.

    Args:
        lists: the candidate lists. The constructor reads and checks all of them. `documents` reads them a second time
            if queries are requested in the lists' order, and more often in another order.

    Attributes:
        queries: the queries, in the lists' order.
        digest: a digest of all query ids and candidates, to detect changes.

    Raises:
        FormatError: a list is malformed.
    """

    def __init__(self, lists: CandidateLists) -> None:
        self._lists, self._remaining = lists, iter(lists)
        self._lock = threading.Lock()
        queries, content = [], hashlib.sha256(b"[")
        self._digests: dict[str, bytes] = {}
        for index, candidate_list in enumerate(lists):
            queries.append(candidate_list.query)
            line = _serialise(candidate_list)
            self._digests[candidate_list.query.query_id] = _digest(line)
            content.update(f"{', ' if index else ''}{line}".encode())
        content.update(b"]")
        self.queries: tuple[Query, ...] = tuple(queries)
        self.digest = content.hexdigest()[:16]

    def documents(self, query_id: str) -> Sequence[Mapping[str, Any]]:
        """Return a query's candidates.

        Raises:
            KeyError: the lists do not contain the query.
            FormatError: the candidates were changed after the constructor read them.
        """
        expected_digest = self._digests[query_id]
        with self._lock:
            for _attempt in range(2):  # search from the current position, then from the beginning
                candidate_list = next((each for each in self._remaining if each.query.query_id == query_id), None)
                if candidate_list is not None and _digest(_serialise(candidate_list)) == expected_digest:
                    return candidate_list.documents
                if candidate_list is not None:
                    break
                self._remaining = iter(self._lists)
        raise FormatError(f"the candidates of query {query_id} were changed while they were being read; start again")


def _serialise(candidate_list: CandidateList) -> str:
    return json.dumps([candidate_list.query.query_id, list(candidate_list.documents)], sort_keys=True)


def _digest(line: str) -> bytes:
    return hashlib.blake2b(line.encode(), digest_size=8).digest()


def read_candidates(path: Path | str) -> tuple[CandidateList, ...]:
    """Read a file of candidates with texts, in any format of `candidate_lists`.

    Raises:
        FormatError: a line is malformed, a query appears twice, a query has a document twice, or the file is empty.
    """
    return tuple(candidate_lists(path))


def candidate_lists(path: Path | str) -> CandidateLists:
    """Return the candidate lists of a file with texts, whose format is detected.

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
    query_ids: set[str] = set()
    for number, query_id, text, documents in _entries(path):
        if query_id in query_ids:
            raise bad_line(path, number, f"query {query_id} appears twice, or its rows are not adjacent; remove one")
        if reason := _invalid_entry_reason(query_id, text, documents):
            raise bad_line(path, number, reason)
        query_ids.add(query_id)
        yield CandidateList(Query(query_id, text), documents)
    if not query_ids:
        raise FormatError(f"{path} has no candidates", file=str(path))


def _entries(path: Path) -> Iterator[Entry]:
    if is_dataset(path):
        yield from dataset_entries(str(path))
        return
    for source in open_paths(path):
        with file_errors(source):
            if is_table(source):
                yield from table_entries(source)
            elif source.stream.peek(1).lstrip().startswith(b"["):
                yield from array_entries(source)
            else:
                yield from (line_entry(source, number, value) for number, value in raise_errors(json_lines(source)))


Texts = Callable[[AbstractSet[str]], Iterable[Mapping[str, Any]]]
"""A function from ids to documents, each with ``id``, ``text`` and optionally ``title``. Missing ids are skipped."""


def assemble(run: Path | str, corpus: Path | str | Texts, queries: Path | str) -> CandidateLists:
    """Assemble candidate lists from a run, a corpus and a query set. The texts are stored in a temporary file.

    Args:
        run: a run file, in a format of `trec.read_run`.
        corpus: a file of JSON lines with ``id`` (or ``_id``, ``doc_id``), ``text`` and optionally ``title``, or a
            function that reads the documents from an index.
        queries: a query set, in a format of `topics.read_queries`.

    Raises:
        FormatError: a file is malformed.
        EvaluationError: a document or query of the run is not in the corpus or the query set.
        LoaderError: the disk is full.
    """
    rankings = read_run(run).rankings
    queries_by_id = {query.query_id: query for query in read_queries(queries)}
    missing = {document.doc_id for ranking in rankings.values() for document in ranking}
    if callable(corpus):
        rows, corpus_name = _rows_from_index(corpus(frozenset(missing)), missing), "the index"
    else:
        rows, corpus_name = _rows_from_file(Path(corpus), frozenset(missing), missing), str(corpus)
    documents = IdTable.create_temporary(rows)
    if missing:
        raise EvaluationError(f"{len(missing)} documents of {run} are not in {corpus_name}, such as {min(missing)}")
    missing_queries = rankings.keys() - queries_by_id.keys()
    if missing_queries:
        raise EvaluationError(
            f"{len(missing_queries)} queries of {run} are not in {queries}, such as {min(missing_queries)}"
        )
    return CandidateLists(
        lambda: (
            CandidateList(
                queries_by_id[query_id], tuple(_with_score(documents, *scored) for scored in rankings[query_id])
            )
            for query_id in rankings
        )
    )


def read_texts(corpus: Path, doc_ids: AbstractSet[str]) -> dict[str, str]:
    """Return document id -> title and text, from a file of JSON lines. The last line with an id counts.

    Raises:
        FormatError: a line is malformed.
        EvaluationError: a document is not in the file.
    """
    missing = set(doc_ids)
    documents = {row.id: json.loads(str(row.value)) for row in _rows_from_file(corpus, doc_ids, missing)}
    if missing:
        raise EvaluationError(f"{len(missing)} documents of the runs are not in {corpus}, such as {min(missing)}")
    return {
        doc_id: " ".join(filter(None, (document.get("title"), document["text"])))
        for doc_id, document in documents.items()
    }


def _rows_from_index(documents: Iterable[Mapping[str, Any]], missing: set[str]) -> Iterator[IdRow]:
    """Yield documents as JSON, and remove their ids from ``missing``."""
    for document in documents:
        missing.discard(document["id"])
        yield IdRow(document["id"], 0, json.dumps(make_document(document["id"], document)))


def _rows_from_file(path: Path, doc_ids: AbstractSet[str], missing: set[str]) -> Iterator[IdRow]:
    """Yield documents as JSON, and remove their ids from ``missing``.

    Row numbers are negative line numbers, so that the table returns the last line with an id.
    """
    for number, value in numbered_objects(path):
        doc_id = next((str(value[name]) for name in ("id", "_id", "doc_id") if name in value), None)
        if doc_id is None:
            raise bad_line(path, number, "the document has no id")
        if doc_id in doc_ids:
            if not isinstance(value.get("text"), str):
                raise bad_line(path, number, f"document {doc_id} has no text")
            missing.discard(doc_id)
            yield IdRow(doc_id, -number, json.dumps(make_document(doc_id, value)))


def _with_score(documents: IdTable, doc_id: str, score: float) -> dict[str, Any]:
    row = documents.get(doc_id)
    assert row is not None  # `assemble` checked that no document is missing
    return {**json.loads(str(row.value)), "score": score}


def _invalid_entry_reason(query_id: str, text: object, documents: Sequence[Mapping[str, Any]]) -> str:
    """Return why an entry is invalid, or "" if it is valid."""
    if not isinstance(text, str) or not text.strip():
        return f"query {query_id} has no text"
    if reason := invalid_id_reason(query_id, is_query=True):
        return reason
    for document in documents:
        if reason := invalid_id_reason(document["id"]):
            return reason
    if len({document["id"] for document in documents}) != len(documents):
        return f"query {query_id} has a document twice; remove one"
    for document in documents:
        if not isinstance(document.get("text"), str):
            return f"document {document['id']} of query {query_id} has no text"
    return ""
