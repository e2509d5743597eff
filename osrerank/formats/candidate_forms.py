"""Parse published formats of candidates with texts. An entry is a query with its documents."""

import json
import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from osrerank.formats.ir_datasets import document_fields, load_dataset
from osrerank.formats.lines import excerpt
from osrerank.formats.sources import SourceFile, record_error
from osrerank.formats.tables import DOCNO, QID, QUERY, SCORE, TEXT, table_rows

Fields = Mapping[str, Any]
Entry = tuple[int, str, Any, tuple[Fields, ...]]
"""Line number, query id, query text, and documents with ``id``, ``text`` and optionally ``title`` and ``score``."""
_TEXT_FIELDS = ("text", "segment", "contents", "content", "body", "passage")
"""The fields that can contain a document's text in rank_llm's files, in order of preference."""


def line_entry(source: SourceFile, number: int, value: Fields) -> Entry:
    """Return the entry of a JSON line in osrerank's or rank_llm's format.

    Raises:
        FormatError: the line is in neither format.
    """
    try:
        query = value["query"]
        if isinstance(query, Mapping):
            documents = tuple(_parse_rank_llm(candidate, candidate["doc"]) for candidate in value["candidates"])
            return number, str(query["qid"]), query["text"], documents
        documents = tuple(make_document(candidate["doc_id"], candidate) for candidate in value["candidates"])
        return number, str(value["query_id"]), query, documents
    except (KeyError, TypeError) as error:
        expected = "expected query_id, query and candidates with doc_id, or rank_llm's query, docid and doc"
        raise record_error(source, f"{expected}: {error}", line=number) from None


def array_entries(source: SourceFile) -> Iterator[Entry]:
    """Yield the entries of a JSON array from older versions of rank_llm, with their numbers as line numbers.

    Raises:
        FormatError: the file is not such an array.
    """
    try:
        values = json.loads(source.stream.read())
    except ValueError as error:
        raise record_error(source, f"is not a JSON array: {error}") from None
    for number, value in enumerate(values, start=1):
        try:
            hits = value["hits"]
            documents = tuple(_parse_rank_llm(hit, hit) for hit in hits)
            yield number, str(hits[0]["qid"]) if hits else "", value["query"], documents
        except (KeyError, TypeError) as error:
            reason = f"entry {number}: expected rank_llm's query and hits with content, qid and docid: {error}"
            raise record_error(source, reason) from None


def table_entries(source: SourceFile) -> Iterator[Entry]:
    """Yield the entries of a PyTerrier table, with documents sorted by score.

    Raises:
        FormatError: a column is missing, or a score is not a number.
    """
    rows = table_rows(source, (QID, QUERY, DOCNO, TEXT))
    for query_id, group in groupby(rows, key=lambda row: row[1][QID]):
        numbered_rows = list(group)
        first_line, first_row = numbered_rows[0]
        documents = [_parse_row(source, line, row) for line, row in numbered_rows]
        yield first_line, query_id, first_row[QUERY], tuple(sorted(documents, key=_score_key))


def dataset_entries(name: str) -> Iterator[Entry]:
    """Yield the entries of an ir_datasets collection, with documents sorted by score and queries numbered from 1.

    Raises:
        LoaderError: the collection has no candidates, queries or documents.
    """
    candidates = load_dataset(name, "scoreddocs").scoreddocs_iter()
    queries = {query.query_id: query.default_text() for query in load_dataset(name, "queries").queries_iter()}
    store = load_dataset(name, "docs").docs_store()
    for number, (query_id, group) in enumerate(groupby(candidates, key=lambda candidate: candidate.query_id), 1):
        scores = {candidate.doc_id: candidate.score for candidate in group}
        documents_by_id = store.get_many(list(scores))
        documents = [
            make_document(doc_id, {**_parse_texts(document_fields(documents_by_id[doc_id])), SCORE: score})
            for doc_id, score in scores.items()
        ]
        yield number, query_id, queries.get(query_id), tuple(sorted(documents, key=_score_key))


def make_document(doc_id: object, fields: Fields) -> dict[str, Any]:
    """Return a document with id, text, title and score. Fields that are missing or None are left out."""
    values = {name: fields[name] for name in (TEXT, "title", SCORE) if fields.get(name) is not None}
    return {"id": str(doc_id), **values}


def _parse_rank_llm(candidate: Fields, document: Fields) -> dict[str, Any]:
    return make_document(candidate["docid"], {**_parse_texts(document), SCORE: candidate.get("score")})


def _parse_texts(document: Fields) -> dict[str, Any]:
    return {
        TEXT: next((document[name] for name in _TEXT_FIELDS if name in document), None),
        "title": document.get("title"),
    }


def _parse_row(source: SourceFile, number: int, row: Mapping[str, str]) -> dict[str, Any]:
    try:
        score = float(row[SCORE]) if row.get(SCORE) else None
    except ValueError:
        raise record_error(source, f"the score {excerpt(row[SCORE])} is not a number", line=number) from None
    return make_document(row[DOCNO], {TEXT: row[TEXT], "title": row.get("title") or None, SCORE: score})


def _score_key(document: Fields) -> float:
    """Return a key that sorts documents by descending score. Documents without a score come last."""
    return -float(document[SCORE]) if SCORE in document else math.inf
