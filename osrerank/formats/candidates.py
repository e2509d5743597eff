"""Candidates to rerank without a search engine: files with texts, or a run file with its corpus and queries."""

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
        documents: the candidates in first-pass order, each with ``id``, ``text`` and perhaps ``title`` and ``score``.
    """

    query: Query
    documents: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class CandidateLists:
    """Candidate lists in order; each iteration reads them again, so that they need not fit into memory.

    Attributes:
        read: function that reads the lists from the beginning.
    """

    read: Callable[[], Iterator[CandidateList]]

    def __iter__(self) -> Iterator[CandidateList]:
        return self.read()


class CandidatesByQuery:
    """Checks all candidate lists, then returns the candidates of one query at a time; usable from any thread.

    Args:
        lists: the candidate lists. They are read once here, to check them. They are read a second time if the callers
            of `documents` follow the order of the queries, and more often in another order.

    Attributes:
        queries: the queries, in the lists' order.
        digest: a digest of all ids and candidates, which shows whether they have changed.

    Raises:
        FormatError: a list is malformed.
    """

    def __init__(self, lists: CandidateLists) -> None:
        self._lists, self._next = lists, iter(lists)
        self._reading = threading.Lock()
        queries, content = [], hashlib.sha256(b"[")
        self._digests: dict[str, bytes] = {}
        for index, candidate_list in enumerate(lists):
            queries.append(candidate_list.query)
            line = _line(candidate_list)
            self._digests[candidate_list.query.query_id] = _digest(line)
            content.update(f"{', ' if index else ''}{line}".encode())
        content.update(b"]")
        self.queries: tuple[Query, ...] = tuple(queries)
        self.digest = content.hexdigest()[:16]

    def documents(self, query_id: str) -> Sequence[Mapping[str, Any]]:
        """Return a query's candidates, as `CandidateList` has them.

        Raises:
            KeyError: there is no such query.
            FormatError: the candidates have changed since they were checked.
        """
        expected_digest = self._digests[query_id]
        with self._reading:
            for _turn in ("from here on", "from the beginning"):
                candidate_list = next((listed for listed in self._next if listed.query.query_id == query_id), None)
                if candidate_list is not None and _digest(_line(candidate_list)) == expected_digest:
                    return candidate_list.documents
                if candidate_list is not None:
                    break
                self._next = iter(self._lists)
        raise FormatError(f"the candidates of query {query_id} were changed while they were read; start again")


def _line(candidate_list: CandidateList) -> str:
    return json.dumps([candidate_list.query.query_id, list(candidate_list.documents)], sort_keys=True)


def _digest(line: str) -> bytes:
    return hashlib.blake2b(line.encode(), digest_size=8).digest()


def read_candidates(path: Path | str) -> tuple[CandidateList, ...]:
    """Read a file of candidates with their texts, in any format that `candidate_lists` knows.

    Raises:
        FormatError: a line is malformed, a query appears twice, a query has a document twice, or the file is empty.
    """
    return tuple(candidate_lists(path))


def candidate_lists(path: Path | str) -> CandidateLists:
    """Return the candidate lists of a file with texts; the file's beginning shows its format.

    - JSON lines ``{"query_id", "query", "candidates": [{"doc_id", "text", "title"?, "score"?}]}``
    - rank_llm's JSON lines ``{"query": {"text", "qid"}, "candidates": [{"docid", "score", "doc": {...}}]}``, and the
      JSON array of its earlier files, ``[{"query", "hits": [{"content", "qid", "docid", "score"}]}]``
    - PyTerrier's table as CSV: ``qid``, ``query``, ``docno``, ``text``, and perhaps ``title`` and ``score``
    - ``ir_datasets:NAME``: the candidates that a collection comes with

    Candidates are in the order of the file; candidates of tables and of ir_datasets are sorted by score.

    Iteration raises `FormatError` if a line is malformed, a query appears twice, a query has a document twice, or the
    file has no candidates. A pipe can be read only once, so this function reads it into memory, and raises its errors.
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
            raise bad_line(path, number, f"query {query_id} appears twice, or its rows are not together; remove one")
        if problem := _entry_problem(query_id, text, documents):
            raise bad_line(path, number, problem)
        query_ids.add(query_id)
        yield CandidateList(Query(query_id, text), documents)
    if not query_ids:
        raise FormatError(f"{path}: no candidates", file=str(path))


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
"""A function that yields the documents with given ids, each with ``id``, ``text`` and perhaps ``title``; it skips ids
without a document."""


def assemble(run: Path | str, corpus: Path | str | Texts, queries: Path | str) -> CandidateLists:
    """Make candidate lists from a run, its queries, and the texts of its documents, which go to a temporary file.

    Args:
        run: a run file that `trec.read_run` can read.
        corpus: a file of JSON lines with ``id`` (or ``_id``, ``doc_id``), ``text`` and perhaps ``title``; or a function
            that reads the documents from an index.
        queries: a query set that `topics.read_queries` can read.

    Raises:
        FormatError: a file is malformed.
        EvaluationError: the corpus lacks a document of the run, or the query set a query.
        LoaderError: the disk has no room for the texts.
    """
    rankings = read_run(run).rankings
    texts = {query.query_id: query for query in read_queries(queries)}
    missing = {document.doc_id for ranking in rankings.values() for document in ranking}
    if callable(corpus):
        rows, corpus_name = _rows_from_index(corpus(frozenset(missing)), missing), "the index"
    else:
        rows, corpus_name = _rows_from_file(Path(corpus), frozenset(missing), missing), str(corpus)
    documents = IdTable.create_temporary(rows)
    if missing:
        raise EvaluationError(f"{corpus_name} lacks {len(missing)} documents of {run}, {min(missing)} among them")
    if no_text := rankings.keys() - texts.keys():
        raise EvaluationError(f"{queries} lacks {len(no_text)} queries of {run}, {min(no_text)} among them")
    return CandidateLists(
        lambda: (
            CandidateList(texts[query_id], tuple(_with_score(documents, *scored) for scored in rankings[query_id]))
            for query_id in rankings
        )
    )


def read_texts(corpus: Path, doc_ids: AbstractSet[str]) -> dict[str, str]:
    """Return id -> title and text of documents in a file of JSON lines; if an id is repeated, its last line counts.

    Raises:
        FormatError: a line is malformed.
        EvaluationError: the file lacks a document.
    """
    missing = set(doc_ids)
    documents = {row.id: json.loads(str(row.value)) for row in _rows_from_file(corpus, doc_ids, missing)}
    if missing:
        raise EvaluationError(f"{corpus} lacks {len(missing)} documents of the runs, {min(missing)} among them")
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

    Row numbers are negative, so that of several lines with an id, the last one comes first in the table.
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
    assert row is not None  # every document of the run was found
    return {**json.loads(str(row.value)), "score": score}


def _entry_problem(query_id: str, text: object, documents: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence about the first problem of an entry; "" if the entry is valid."""
    if not isinstance(text, str) or not text.strip():
        return f"query {query_id} has no text"
    problems = (
        invalid_id_reason(query_id, of_query=True),
        *(invalid_id_reason(document["id"]) for document in documents),
    )
    if problem := next(filter(None, problems), ""):
        return problem
    if len({document["id"] for document in documents}) != len(documents):
        return f"query {query_id} has a document twice; remove one"
    incomplete = next((document for document in documents if not isinstance(document.get("text"), str)), None)
    return "" if incomplete is None else f"document {incomplete['id']} of query {query_id} has no text"
