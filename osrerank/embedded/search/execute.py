"""Run a search or count: find the matching documents of each index, rank them, and build the response."""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tantivy
from tantivy import Occur
from tantivy import Query as TQuery

from osrerank.embedded.errors import ApiError, Json, no_field_data_error, parsing_error, unsupported_error
from osrerank.embedded.mapping.source import select_fields
from osrerank.embedded.mapping.values import last_value
from osrerank.embedded.query.compile import Compiler
from osrerank.embedded.search.aggregations import count_terms
from osrerank.embedded.search.highlight import Highlighter
from osrerank.embedded.search.request import INSERTION_ORDER, SearchRequest, SortOrder, read_search_request
from osrerank.embedded.storage.engine import Engine
from osrerank.embedded.storage.index import Snapshot
from osrerank.embedded.storage.shard import ID, SEQ, SOURCE

_SORT_VALUES = {math.inf: "Infinity", -math.inf: "-Infinity"}
"""How a response shows sort values that JSON has no numbers for."""


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """The query of a search, compiled for one of the searched indices.

    Attributes:
        snapshot: the index as of its last refresh.
        query: the query without the post filter, for aggregations.
        hits_query: the query with the post filter, for hits.
        terms: the terms to highlight in each field, such as ``{"title": {"tea"}}``.
    """

    snapshot: Snapshot
    query: TQuery
    hits_query: TQuery
    terms: Mapping[str, set[str]]


@dataclass(frozen=True, slots=True)
class MatchingDocument:
    """A matching document, before its source is read.

    Attributes:
        index_number: the position of the document's index among the searched indices, from 0.
        seq: the document's sequence number in that index, which grows with each write.
        address: the document's address in tantivy.
        score: the document's score. None if the search has a ``sort``.
        sort_value: the value by which the document is sorted. None if a text field has no value, or if the search sorts
            by score.
    """

    index_number: int
    seq: int
    address: tantivy.DocAddress
    score: float | None = None
    sort_value: Any = None


def search(engine: Engine, expression: str | None, body: Json, params: Mapping[str, str]) -> Json:
    """Return the response to a search of the indices that an expression matches."""
    began_at_s = time.perf_counter()
    request = read_search_request(body, params)
    snapshots = [live_index.snapshot() for live_index in engine.searchable_indices(expression)]
    index_queries = [_compile(snapshot, request) for snapshot in snapshots]
    if request.sort is None:
        ranked, total = _rank_by_score(index_queries, request)
    elif request.sort.path == INSERTION_ORDER:
        ranked, total = _rank_by_insertion(index_queries, request, request.sort)
    else:
        ranked, total = _rank_by_field(index_queries, request, request.sort)
    max_score = ranked[0].score if ranked and request.size else None  # OpenSearch gives none with the size 0
    page = ranked[request.start : request.start + request.size]
    hits = _format_hits(page, index_queries, request)
    response: Json = {
        "took": 0,
        "timed_out": False,
        "_shards": describe_shards(len(index_queries)),
        "hits": {**_format_total(total, request.count_limit), "max_score": max_score, "hits": hits},
    }
    if request.aggregations:
        queries = [
            (index_query.snapshot, _aggregated_query(index_query, request.min_score)) for index_query in index_queries
        ]
        response["aggregations"] = count_terms(request.aggregations, queries)
    response["took"] = round((time.perf_counter() - began_at_s) * 1000)
    return response


def count(engine: Engine, expression: str | None, body: Json) -> Json:
    """Return the response to a count of the documents that match a query."""
    for key in body:
        if key != "query":
            raise parsing_error(f"request does not support [{key}]")
    request = read_search_request({**body, "size": 0, "track_total_hits": True}, {})
    index_queries = [_compile(live_index.snapshot(), request) for live_index in engine.searchable_indices(expression)]
    return {"count": sum(map(_count_matches, index_queries)), "_shards": describe_shards(len(index_queries))}


def describe_shards(index_count: int) -> Json:
    """Return the ``_shards`` of a response without failures. Each index has one shard."""
    return {"total": index_count, "successful": index_count, "skipped": 0, "failed": 0}


def _compile(snapshot: Snapshot, request: SearchRequest) -> IndexQuery:
    """Compile a request's query and post filter for one index. The post filter adds 0 to the score."""
    compiler = Compiler(snapshot)
    query = compiler.compile(request.query)
    if not request.post_filter:
        return IndexQuery(snapshot, query, query, compiler.terms)
    post_filter = TQuery.const_score_query(Compiler(snapshot).compile(request.post_filter), 0.0)
    hits_query = TQuery.boolean_query([(Occur.Must, query), (Occur.Must, post_filter)])
    return IndexQuery(snapshot, query, hits_query, compiler.terms)


def _rank_by_score(index_queries: list[IndexQuery], request: SearchRequest) -> tuple[list[MatchingDocument], int]:
    """Return the documents with the highest scores, up to the end of the page, and the number of all matches."""
    limit = max(1, request.start + request.size)  # tantivy refuses the limit 0
    ranked: list[MatchingDocument] = []
    total = 0
    for index_number, index_query in enumerate(index_queries):
        if request.min_score is not None:
            matches = _all_matches(index_number, index_query)
            documents = [match for match in matches if _require_score(match) >= request.min_score]
            total += len(documents)
        else:
            needs_count = request.count_limit is not None
            documents, n_matches = _best_matches(index_number, index_query, limit, needs_count=needs_count)
            total += n_matches
        ranked += documents
    ranked.sort(key=lambda match: (-_require_score(match), match.index_number, match.seq))
    return ranked[:limit], total


def _rank_by_insertion(
    index_queries: list[IndexQuery], request: SearchRequest, sort: SortOrder
) -> tuple[list[MatchingDocument], int]:
    """Return the documents in insertion order, up to the end of the page, and the number of all matches."""
    limit = request.start + request.size
    order = tantivy.Order.Desc if sort.is_descending else tantivy.Order.Asc
    ranked: list[MatchingDocument] = []
    for index_number, index_query in enumerate(index_queries):
        query, snapshot = index_query.hits_query, index_query.snapshot
        if request.search_after is not None:
            lowest = highest = None
            if not sort.is_descending:
                lowest = max(0, request.search_after + 1)
            elif request.search_after > 0:
                highest = request.search_after - 1
            else:
                continue  # no sequence number is lower
            next_documents = TQuery.range_query(snapshot.shard.schema, SEQ, tantivy.FieldType.Unsigned, lowest, highest)
            query = TQuery.boolean_query([(Occur.Must, query), (Occur.Must, next_documents)])
        result = snapshot.searcher.search(query, max(1, limit), count=False, order_by_field=SEQ, order=order)
        for seq, address in result.hits:
            ranked.append(MatchingDocument(index_number, int(seq), address, sort_value=int(seq)))
    ranked.sort(key=lambda match: match.seq, reverse=sort.is_descending)
    return ranked[:limit], sum(map(_count_matches, index_queries))


def _rank_by_field(
    index_queries: list[IndexQuery], request: SearchRequest, sort: SortOrder
) -> tuple[list[MatchingDocument], int]:
    """Return the documents ordered by a field, up to the end of the page, and the number of all matches.

    A document with several values is ordered by the smallest one, or by the largest one in descending order. Documents
    without a value come last: their sort value is the last one of the field's type, or None for text.
    """
    documents_with_value: list[MatchingDocument] = []
    documents_without_value: list[MatchingDocument] = []
    choose = max if sort.is_descending else min
    for index_number, index_query in enumerate(index_queries):
        snapshot = index_query.snapshot
        field = snapshot.fields.by_path.get(sort.path)
        if field is None:
            reason = f"No mapping found for [{sort.path}] in order to sort on"
            raise ApiError(400, "query_shard_exception", reason, {"index": snapshot.name})
        if field.column == "text":
            raise no_field_data_error(sort.path)
        is_sortable = field.has_doc_values and field.is_indexed
        if not is_sortable or field.column != index_queries[0].snapshot.fields.by_path[sort.path].column:
            feature = f"[sort] by [{sort.path}] without doc_values or index, or of another type in another index"
            raise unsupported_error(feature)
        # in insertion order, which documents with equal values keep
        matches = sorted(_all_matches(index_number, index_query), key=lambda match: match.seq)
        stored_documents = snapshot.searcher.docs([match.address for match in matches])
        for match, document in zip(matches, stored_documents, strict=True):
            values = snapshot.fields.extract(_read_source(document)).get(sort.path)
            value = choose(values) if values else last_value(field.kind, is_descending=sort.is_descending)
            documents = documents_without_value if value is None else documents_with_value
            documents.append(replace(match, score=None, sort_value=value))
    # stable even with ``reverse``, so documents with equal values stay in insertion order
    documents_with_value.sort(key=lambda match: match.sort_value, reverse=sort.is_descending)
    ranked = [*documents_with_value, *documents_without_value]
    return ranked[: request.start + request.size], len(ranked)


def _best_matches(
    index_number: int, index_query: IndexQuery, limit: int, *, needs_count: bool
) -> tuple[list[MatchingDocument], int]:
    """Return the ``limit`` best documents of an index, and the number of all matches, or 0 without ``needs_count``.

    tantivy orders documents with equal scores by segment, but OpenSearch by insertion. Therefore documents beyond the
    limit are read until one has a lower score than the last document within the limit. All documents with the last
    document's score are then read, and can be ordered by insertion.
    """
    read_limit = limit + 1
    searcher = index_query.snapshot.searcher
    n_documents = max(1, searcher.num_docs)
    while True:
        result = searcher.search(index_query.hits_query, min(read_limit, n_documents), count=needs_count)
        hits = result.hits  # pairs of score and address
        is_complete = len(hits) < read_limit or read_limit >= n_documents
        if is_complete or hits[-1][0] < hits[limit - 1][0]:
            matches = _read_matches(index_number, index_query, hits)
            matches.sort(key=lambda match: (-_require_score(match), match.seq))
            return matches[:limit], int(result.count or 0)
        read_limit *= 4


def _all_matches(index_number: int, index_query: IndexQuery) -> list[MatchingDocument]:
    searcher = index_query.snapshot.searcher
    result = searcher.search(index_query.hits_query, max(1, searcher.num_docs), count=False)
    return _read_matches(index_number, index_query, result.hits)


def _read_matches(
    index_number: int, index_query: IndexQuery, hits: list[tuple[float, tantivy.DocAddress]]
) -> list[MatchingDocument]:
    """Add the documents' sequence numbers to tantivy's hits, which are pairs of score and address."""
    snapshot = index_query.snapshot
    seqs = snapshot.shard.sequence_numbers(snapshot.searcher, [address for _, address in hits])
    return [
        MatchingDocument(index_number, seq, address, score) for seq, (score, address) in zip(seqs, hits, strict=True)
    ]


def _aggregated_query(index_query: IndexQuery, min_score: float | None) -> TQuery:
    """Return the query whose matching documents are aggregated: without the post filter, but with ``min_score``."""
    if min_score is None:
        return index_query.query
    matches = _all_matches(0, replace(index_query, hits_query=index_query.query))
    sequence_numbers = [match.seq for match in matches if _require_score(match) >= min_score]
    return TQuery.term_set_query(index_query.snapshot.shard.schema, SEQ, sequence_numbers)


def _require_score(match: MatchingDocument) -> float:
    assert match.score is not None
    return match.score


def _count_matches(index_query: IndexQuery) -> int:
    return int(index_query.snapshot.searcher.search(index_query.hits_query, 1, count=True).count or 0)


def _format_hits(page: list[MatchingDocument], index_queries: list[IndexQuery], request: SearchRequest) -> list[Json]:
    highlighters = []
    if request.highlight:
        highlighters = [Highlighter(request.highlight, query.snapshot, query.terms) for query in index_queries]
    hits = []
    for match, document in zip(page, _read_documents(page, index_queries), strict=True):
        snapshot = index_queries[match.index_number].snapshot
        hit: Json = {"_index": snapshot.name, "_id": document.get_first(ID), "_score": match.score}
        source = _read_source(document)
        if request.source.is_returned:
            hit["_source"] = request.source.apply(source)
        if request.fields and (values := select_fields(source, request.fields, snapshot.fields)):
            hit["fields"] = values
        if highlighters and (highlights := highlighters[match.index_number].highlight(source)):
            hit["highlight"] = highlights
        if request.sort is not None:
            hit["sort"] = [_SORT_VALUES.get(match.sort_value, match.sort_value)]
        hits.append(hit)
    return hits


def _read_documents(page: list[MatchingDocument], index_queries: list[IndexQuery]) -> list[tantivy.Document]:
    """Return the stored documents of a page, in its order. Each index is read once, and the results are merged."""
    documents_by_index = []
    for index_number, index_query in enumerate(index_queries):
        addresses = [match.address for match in page if match.index_number == index_number]
        documents_by_index.append(iter(index_query.snapshot.searcher.docs(addresses)))
    return [next(documents_by_index[match.index_number]) for match in page]


def _read_source(document: Any) -> Json:
    source: Json = json.loads(str(bytes(document.get_first(SOURCE)), "utf-8"))
    return source


def _format_total(total: int, count_limit: float | None) -> Json:
    """Return ``{"total": ...}`` for the hits, or an empty object if the request does not want the total."""
    if count_limit is None:
        return {}
    if total > count_limit:
        return {"total": {"value": int(count_limit), "relation": "gte"}}
    return {"total": {"value": total, "relation": "eq"}}
