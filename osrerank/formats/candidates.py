"""Candidates to rerank without a search engine: JSON lines, or a run file with its corpus and queries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.errors import EvaluationError, FormatError
from osrerank.formats.files import bad_line
from osrerank.formats.lines import numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_run
from osrerank.types import Query


@dataclass(frozen=True, slots=True)
class CandidateList:
    """A query and its candidates.

    Attributes:
        query: the query.
        documents: in first-pass order, each with ``id``, ``text`` and, if there are any, ``title`` and ``score``.
    """

    query: Query
    documents: Sequence[Mapping[str, Any]]


def read_candidates(path: Path | str) -> tuple[CandidateList, ...]:
    """Read JSON lines ``{"query_id", "query", "candidates": [{"doc_id", "text", "title"?, "score"?}]}``.

    Raises:
        FormatError: a line is malformed, a query appears twice or a document twice for a query, or there is none.
    """
    path = Path(path)
    lists: dict[str, CandidateList] = {}
    for number, value in numbered_objects(path):
        try:
            query_id, text, candidates = str(value["query_id"]), value["query"], value["candidates"]
            documents = tuple(_document(candidate["doc_id"], candidate) for candidate in candidates)
        except (KeyError, TypeError) as error:
            raise bad_line(path, number, f"expected query_id, query and candidates with doc_id: {error}") from None
        if query_id in lists:
            raise bad_line(path, number, f"query {query_id} appears twice; remove one")
        if problem := _problem_of(query_id, text, documents):
            raise bad_line(path, number, problem)
        lists[query_id] = CandidateList(Query(query_id, text), documents)
    if not lists:
        raise FormatError(f"{path}: no candidates", file=str(path))
    return tuple(lists.values())


def assemble(run: Path | str, corpus: Path | str, queries: Path | str) -> tuple[CandidateList, ...]:
    """Make candidate lists of a run, the texts of its documents and its queries.

    Args:
        run: as `trec.read_run` reads it.
        corpus: JSON lines with ``id`` (or ``_id``, ``doc_id``), ``text`` and, where there is one, ``title``.
        queries: as `topics.read_queries` reads it.

    Raises:
        FormatError: a file is malformed.
        EvaluationError: the run has a document or query that the others lack.
    """
    rankings = read_run(run).rankings
    texts = {query.query_id: query for query in read_queries(queries)}
    wanted = {document.doc_id for ranking in rankings.values() for document in ranking}
    documents = _read_corpus(Path(corpus), wanted)
    missing = wanted - documents.keys()
    if missing:
        raise EvaluationError(f"{corpus} lacks {len(missing)} documents of {run}, {min(missing)} among them")
    if lost := rankings.keys() - texts.keys():
        raise EvaluationError(f"{queries} lacks {len(lost)} queries of {run}, {min(lost)} among them")
    return tuple(
        CandidateList(
            texts[query_id], tuple({**documents[one.doc_id], "score": one.score} for one in rankings[query_id])
        )
        for query_id in rankings
    )


def _read_corpus(path: Path, wanted: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the wanted documents by id."""
    wanted = set(wanted)
    documents = {}
    for number, value in numbered_objects(path):
        doc_id = next((str(value[name]) for name in ("id", "_id", "doc_id") if name in value), None)
        if doc_id is None:
            raise bad_line(path, number, "the document has no id")
        if doc_id in wanted:
            if not isinstance(value.get("text"), str):
                raise bad_line(path, number, f"document {doc_id} has no text")
            documents[doc_id] = _document(doc_id, value)
    return documents


def _document(doc_id: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: fields[name] for name in ("text", "title", "score") if fields.get(name) is not None}
    return {"id": str(doc_id), **kept}


def _problem_of(query_id: str, text: object, documents: Sequence[Mapping[str, Any]]) -> str:
    """Return what is wrong with a line, "" if nothing is."""
    if not isinstance(text, str) or not text.strip():
        return f"query {query_id} has no text"
    if len({document["id"] for document in documents}) != len(documents):
        return f"query {query_id} has a document twice; remove one"
    bad = next((document for document in documents if not isinstance(document.get("text"), str)), None)
    return "" if bad is None else f"document {bad['id']} of query {query_id} has no text"
