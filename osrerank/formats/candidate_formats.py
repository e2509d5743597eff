"""Parse the formats of candidate files: queries with the texts of their candidates, as published by other projects."""

import json
import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from osrerank._bad_value import describe_bad_value
from osrerank.errors import LoaderError
from osrerank.formats.ir_datasets import extract_fields, load_dataset
from osrerank.formats.lines import quote_start
from osrerank.formats.sources import SourceFile, record_error
from osrerank.formats.tables import DOCNO, QID, QUERY, SCORE, TEXT, read_table_rows

Fields = Mapping[str, Any]
_TEXT_FIELDS = ("text", "segment", "contents", "content", "body", "passage")
"""The fields that can contain a document's text in rank_llm's files, in order of preference."""


class Entry(NamedTuple):
    """A query and its candidates, before validation.

    Attributes:
        line: the number of the line or, if the file has no lines, of the entry, from 1, for error messages.
        query_id: the query's id.
        query: the query's text.
        documents: the candidates, with ``id``, ``text`` and optionally ``title`` and ``score``.
    """

    line: int
    query_id: str
    query: Any
    documents: tuple[Fields, ...]


def parse_json_line(source: SourceFile, number: int, value: Fields) -> Entry:
    """Parse a JSON line in osrerank's or rank_llm's format.

    Raises:
        FormatError: the line is in neither format.
    """
    try:
        query = value["query"]
        if isinstance(query, Mapping):
            documents = tuple(_parse_rank_llm(candidate, candidate["doc"]) for candidate in value["candidates"])
            return Entry(number, str(query["qid"]), query["text"], documents)
        documents = tuple(create_document(candidate["doc_id"], candidate) for candidate in value["candidates"])
        return Entry(number, str(value["query_id"]), query, documents)
    except (KeyError, TypeError, AttributeError) as error:
        expected = "expected query_id, query and candidates with doc_id, or rank_llm's query, docid and doc"
        raise record_error(source, f"{describe_bad_value(error)}; {expected}", line=number) from None


def read_json_array(source: SourceFile) -> Iterator[Entry]:
    """Yield the entries of a JSON array, the format of older versions of rank_llm.

    Raises:
        FormatError: the file is not such an array.
    """
    try:
        values = json.loads(source.stream.read())
    except (ValueError, RecursionError) as error:
        raise record_error(source, f"the file is not a JSON array: {error}") from None
    for number, value in enumerate(values, start=1):
        try:
            hits = value["hits"]
            query_id = str(hits[0]["qid"]) if hits else ""
            # here, the fields of the document are those of the hit itself
            yield Entry(number, query_id, value["query"], tuple(_parse_rank_llm(hit, hit) for hit in hits))
        except (KeyError, TypeError, AttributeError) as error:
            expected = "expected rank_llm's query and hits with content, qid and docid"
            reason = f"entry {number}: {describe_bad_value(error)}; {expected}"
            raise record_error(source, reason) from None


def read_table(source: SourceFile) -> Iterator[Entry]:
    """Yield the entries of a PyTerrier table, with documents sorted by score.

    Raises:
        FormatError: a column is missing, or a score is not a number.
    """
    rows = read_table_rows(source, (QID, QUERY, DOCNO, TEXT))
    for query_id, group in groupby(rows, key=lambda row: row[1][QID]):
        numbered_rows = list(group)
        first_line, first_row = numbered_rows[0]
        documents = [_parse_row(source, line, row) for line, row in numbered_rows]
        yield Entry(first_line, query_id, first_row[QUERY], tuple(sorted(documents, key=_get_sort_key)))


def read_dataset(name: str) -> Iterator[Entry]:
    """Yield the entries of an ir_datasets collection, with documents sorted by score and queries numbered from 1.

    Raises:
        LoaderError: the collection has no candidates, queries or documents, or lacks a candidate's document.
    """
    candidates = load_dataset(name, "scoreddocs").scoreddocs_iter()
    queries = {query.query_id: query.default_text() for query in load_dataset(name, "queries").queries_iter()}
    store = load_dataset(name, "docs").docs_store()
    for number, (query_id, group) in enumerate(groupby(candidates, key=lambda candidate: candidate.query_id), 1):
        scores = {candidate.doc_id: candidate.score for candidate in group}
        documents_by_id = store.get_many(list(scores))
        if missing := scores.keys() - documents_by_id.keys():
            raise LoaderError(
                f"the dataset {name} has the candidate {min(missing)!r} for query {query_id!r}, but no text of it"
            )
        documents = [
            create_document(doc_id, {**_parse_texts(extract_fields(documents_by_id[doc_id])), SCORE: score})
            for doc_id, score in scores.items()
        ]
        yield Entry(number, query_id, queries.get(query_id), tuple(sorted(documents, key=_get_sort_key)))


def create_document(doc_id: object, fields: Fields) -> dict[str, Any]:
    """Return a document with id, text, title and score. Fields that are missing or None are left out."""
    values = {name: fields[name] for name in (TEXT, "title", SCORE) if fields.get(name) is not None}
    return {"id": str(doc_id), **values}


def _parse_rank_llm(candidate: Fields, document: Fields) -> dict[str, Any]:
    return create_document(candidate["docid"], {**_parse_texts(document), SCORE: candidate.get("score")})


def _parse_texts(document: Fields) -> dict[str, Any]:
    """Return a document's text, from the first field in `_TEXT_FIELDS` that it has, and its title."""
    return {
        TEXT: next((document[name] for name in _TEXT_FIELDS if name in document), None),
        "title": document.get("title"),
    }


def _parse_row(source: SourceFile, number: int, row: Mapping[str, str]) -> dict[str, Any]:
    try:
        score = float(row[SCORE]) if row.get(SCORE) else None
    except ValueError:
        raise record_error(
            source, f"the score is {quote_start(row[SCORE])}; it must be a number", line=number
        ) from None
    return create_document(row[DOCNO], {TEXT: row[TEXT], "title": row.get("title") or None, SCORE: score})


def _get_sort_key(document: Fields) -> float:
    """Return a key that sorts documents by descending score. Documents without a score come last."""
    return -float(document[SCORE]) if SCORE in document else math.inf
