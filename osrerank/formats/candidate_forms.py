"""Read the published formats of candidates with texts; an entry has line, query id, query and documents."""

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
"""An entry: line, query id, query text, and documents with ``id``, ``text`` and perhaps ``title`` and ``score``."""
_TEXTS = ("text", "segment", "contents", "content", "body", "passage")
"""The fields in which rank_llm looks for a document's text, in its order."""


def line_entry(source: SourceFile, number: int, value: Fields) -> Entry:
    """Return the entry of a JSON line in our format or in rank_llm's.

    Raises:
        FormatError: the line has neither format.
    """
    try:
        if isinstance(value["query"], Mapping):
            query, candidates = value["query"], value["candidates"]
            return (
                number,
                str(query["qid"]),
                query["text"],
                tuple(_of_rank_llm(candidate, candidate["doc"]) for candidate in candidates),
            )
        documents = tuple(make_document(candidate["doc_id"], candidate) for candidate in value["candidates"])
        return number, str(value["query_id"]), value["query"], documents
    except (KeyError, TypeError) as error:
        expected = "expected query_id, query and candidates with doc_id, or rank_llm's query, docid and doc"
        raise record_error(source, f"{expected}: {error}", line=number) from None


def array_entries(source: SourceFile) -> Iterator[Entry]:
    """Yield the entries of the JSON array that older versions of rank_llm wrote; the line is the entry's number.

    Raises:
        FormatError: the file is not such an array.
    """
    try:
        values = json.loads(source.stream.read())
    except ValueError as error:
        raise record_error(source, f"not a JSON array: {error}") from None
    for number, value in enumerate(values, start=1):
        try:
            hits = value["hits"]
            documents = tuple(_of_rank_llm(hit, hit) for hit in hits)
            yield number, str(hits[0]["qid"]) if hits else "", value["query"], documents
        except (KeyError, TypeError) as error:
            reason = f"entry {number}: expected rank_llm's query and hits with content, qid and docid: {error}"
            raise record_error(source, reason) from None


def table_entries(source: SourceFile) -> Iterator[Entry]:
    """Yield the entries of a PyTerrier table, with documents in the order of their scores.

    Raises:
        FormatError: a column is missing, or a score is not a number.
    """
    rows = table_rows(source, (QID, QUERY, DOCNO, TEXT))
    for query_id, group in groupby(rows, key=lambda row: row[1][QID]):
        numbered = list(group)
        number, first = numbered[0]
        documents = [_of_row(source, *pair) for pair in numbered]
        yield number, query_id, first[QUERY], tuple(sorted(documents, key=_by_score))


def dataset_entries(name: str) -> Iterator[Entry]:
    """Yield the entries of an ir_datasets collection, with documents by score; the line is the query's number.

    Raises:
        LoaderError: the collection has no candidates, queries or documents.
    """
    scored = load_dataset(name, "scoreddocs")
    queries = {query.query_id: query.default_text() for query in load_dataset(name, "queries").queries_iter()}
    store = load_dataset(name, "docs").docs_store()
    for number, (query_id, group) in enumerate(
        groupby(scored.scoreddocs_iter(), key=lambda scored_document: scored_document.query_id), 1
    ):
        scores = {scored_document.doc_id: scored_document.score for scored_document in group}
        stored = store.get_many(list(scores))
        documents = [
            make_document(doc_id, {**_texts_of(document_fields(stored[doc_id])), SCORE: score})
            for doc_id, score in scores.items()
        ]
        yield number, query_id, queries.get(query_id), tuple(sorted(documents, key=_by_score))


def make_document(doc_id: object, fields: Fields) -> dict[str, Any]:
    """Return a document with id, text, title and score; absent fields and None are left out."""
    present = {name: fields[name] for name in (TEXT, "title", SCORE) if fields.get(name) is not None}
    return {"id": str(doc_id), **present}


def _of_rank_llm(candidate: Fields, document: Fields) -> dict[str, Any]:
    return make_document(candidate["docid"], {**_texts_of(document), SCORE: candidate.get("score")})


def _texts_of(document: Fields) -> dict[str, Any]:
    return {TEXT: next((document[name] for name in _TEXTS if name in document), None), "title": document.get("title")}


def _of_row(source: SourceFile, number: int, row: Mapping[str, str]) -> dict[str, Any]:
    try:
        score = float(row[SCORE]) if row.get(SCORE) else None
    except ValueError:
        raise record_error(source, f"the score {excerpt(row[SCORE])} is not a number", line=number) from None
    return make_document(row[DOCNO], {TEXT: row[TEXT], "title": row.get("title") or None, SCORE: score})


def _by_score(document: Fields) -> float:
    """Return a key that sorts documents by score, with those without a score last."""
    return -float(document[SCORE]) if SCORE in document else math.inf
