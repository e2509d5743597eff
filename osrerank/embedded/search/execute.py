"""Run searches and counts: read the request, find the matching documents, and build the response."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tantivy
from tantivy import Occur
from tantivy import Query as TQuery

from osrerank.embedded.errors import (
    Fault,
    Json,
    argument_fault,
    no_field_data_fault,
    parse_count,
    parse_number,
    parsing_fault,
    require_list,
    require_object,
    unsupported_fault,
)
from osrerank.embedded.mapping.source import SourceFilter, field_values, source_filter
from osrerank.embedded.query.compile import Compiler
from osrerank.embedded.search.aggregations import count_terms
from osrerank.embedded.search.highlight import Highlighter
from osrerank.embedded.storage.engine import Engine
from osrerank.embedded.storage.index import Snapshot
from osrerank.embedded.storage.shard import ID, SEQ, SOURCE

MAX_WINDOW = 10_000
"""The maximum of ``from`` + ``size``."""
DEFAULT_COUNT_LIMIT = 10_000
"""The number up to which totals are exact unless ``track_total_hits`` is set, as in OpenSearch."""
_BODY = frozenset(
    {"query", "from", "size", "_source", "fields", "highlight", "aggs", "sort", "search_after", "track_total_hits",
     "min_score", "post_filter", "timeout", "search_pipeline", "ext"}
)  # fmt: skip
_EXTENSIONS = frozenset({"rerank", "ubi"})
"""Keys of ``ext`` for plugins of OpenSearch, which have no effect here."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A search request after it was parsed and checked.

    Attributes:
        count_limit: the number up to which hits are counted. None to leave out the total.
        insertion_order: ``asc`` or ``desc`` to sort by insertion. None to sort by something else.
        sort_field: the field to sort by, and whether in descending order. None to sort by something else.
        after: the sort value after which the page begins. None if it begins at ``start``.
    """

    query: Any
    start: int
    size: int
    source: SourceFilter
    fields: list[Any]
    highlight: Json | None
    aggregations: Json
    count_limit: float | None
    min_score: float | None
    post_filter: Any
    insertion_order: str | None
    sort_field: tuple[str, bool] | None
    after: int | None


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """One index of a search, with its compiled query.

    Attributes:
        snapshot: the index as of its last refresh.
        query: the query without the post filter, for aggregations.
        filtered: the query with the post filter, for hits.
        terms: field path -> the terms of the query, for highlighting.
    """

    snapshot: Snapshot
    query: TQuery
    filtered: TQuery
    terms: Mapping[str, set[str]]


@dataclass(frozen=True, slots=True)
class MatchingDocument:
    """A matching document, before its source is read.

    Attributes:
        index_number: the position of its index among the searched indices, from 0.
        seq: the sequence number of the document in that index.
        score: the score. None if the search sorts by something else.
        address: the address of the document in tantivy.
        sort_value: the value that the document is sorted by. None if it lacks the value, or the search sorts by score.
    """

    index_number: int
    seq: int
    score: float | None
    address: tantivy.DocAddress
    sort_value: Any = None


def read_plan(body: Json, params: Mapping[str, str]) -> SearchPlan:
    """Parse a search request; URL parameters override the body.

    Raises:
        Fault: 400 for a key that is invalid or not supported. The reason contains the key.
    """
    for key in body:
        if key not in _BODY:
            raise parsing_fault(f"unknown key [{key}] for the embedded engine's search; it knows {sorted(_BODY)}")
        if body[key] is None:
            raise parsing_fault(f"[{key}] cannot be null: leave it out")
    ext = body.get("ext", {})
    if not isinstance(ext, Mapping) or not ext.keys() <= _EXTENSIONS:
        raise unsupported_fault(f"[ext] other than an object of {sorted(_EXTENSIONS)}")
    _check_without_effect({**body, **params})
    start = parse_count(params.get("from", body.get("from", 0)), "from")
    size = parse_count(params.get("size", body.get("size", 10)), "size")
    if start + size > MAX_WINDOW:
        raise _window_fault(start + size)
    insertion_order, sort_field = _read_sort(body.get("sort"))
    if (insertion_order or sort_field) and "min_score" in body:
        raise unsupported_fault("[min_score] with [sort]")
    return SearchPlan(
        query=body.get("query", {"match_all": {}}),
        start=start,
        size=size,
        source=source_filter(body.get("_source"), params),
        fields=require_list(body.get("fields", []), "fields"),
        highlight=body.get("highlight"),
        aggregations=require_object(body.get("aggs", {}), "aggs"),
        count_limit=_read_count_limit(body.get("track_total_hits", DEFAULT_COUNT_LIMIT)),
        min_score=parse_number(body["min_score"], "min_score") if "min_score" in body else None,
        post_filter=body.get("post_filter"),
        insertion_order=insertion_order,
        sort_field=sort_field,
        after=_read_search_after(body.get("search_after"), insertion_order, start),
    )


def _check_without_effect(parameters: Mapping[str, Any]) -> None:
    """Check parameters without effect in this engine; refuse values with an effect in OpenSearch, or invalid ones."""
    pipeline = parameters.get("search_pipeline", "_none")
    if pipeline != "_none":
        fix = "the embedded engine has no search pipelines; pass search_pipeline=_none"
        raise argument_fault(f"Pipeline {pipeline} is not defined: {fix}")
    preference = str(parameters.get("preference", "_local"))
    if preference.startswith("_") and preference != "_local":
        fix = "pass _local, or a name of your own"
        raise argument_fault(f"no Preference for [{preference}] in the embedded engine: {fix}")
    timeout = str(parameters.get("timeout", "-1"))
    if not re.fullmatch(r"-1|\d+(nanos|micros|ms|s|m|h|d)", timeout):
        raise parsing_fault(f"failed to parse [timeout] with value [{timeout}]: pass a time such as 1s")


def _read_sort(sort: Any) -> tuple[str | None, tuple[str, bool] | None]:
    """Return ``insertion_order`` and ``sort_field`` of the `SearchPlan` for a body's ``sort``."""
    if sort is None:
        return None, None
    key = sort[0] if isinstance(sort, list) and len(sort) == 1 else sort
    if isinstance(key, str):
        key = {key: "asc"}
    if isinstance(key, Mapping) and len(key) == 1:
        ((name, order),) = key.items()
        if isinstance(order, Mapping) and not order.keys() - {"order"}:
            order = order.get("order", "asc")
        if order in ("asc", "desc") and name == "_doc":
            return str(order), None
        if order in ("asc", "desc") and not name.startswith("_") and ":" not in name:
            return None, (name, order == "desc")
    raise unsupported_fault(f"[sort] by {json.dumps(sort):.100}", 'it sorts by score, by one field, or by ["_doc"]')


def _read_search_after(values: Any, insertion_order: str | None, start: int) -> int | None:
    if values is None:
        return None
    is_number = isinstance(values, list) and len(values) == 1 and isinstance(values[0], int)
    if insertion_order is None or start or not is_number:
        fix = 'pass one number, with [sort: ["_doc"]] and without [from]'
        raise unsupported_fault(f"[search_after: {values!r:.100}]", fix)
    return int(values[0])


def search(engine: Engine, expression: str | None, body: Json, params: Mapping[str, str]) -> Json:
    """Return the response to a search of the indices that an expression names."""
    started_s = time.perf_counter()
    plan = read_plan(body, params)
    snapshots = [live_index.snapshot() for live_index in engine.searchable_indices(expression)]
    index_queries = [_compile(snapshot, plan) for snapshot in snapshots]
    if plan.sort_field is not None:
        matching, total = _rank_by_field(index_queries, plan, *plan.sort_field)
    elif plan.insertion_order is not None:
        matching, total = _rank_by_insertion(index_queries, plan)
    else:
        matching, total = _rank_by_score(index_queries, plan)
    max_score = matching[0].score if matching and plan.size else None
    page = matching[plan.start : plan.start + plan.size]
    response: Json = {
        "took": 0,
        "timed_out": False,
        "_shards": shards(len(index_queries)),
        "hits": {**_format_total(total, plan), "max_score": max_score, "hits": _format_hits(page, index_queries, plan)},
    }
    if plan.aggregations:
        queries = [(index_query.snapshot, index_query.query) for index_query in index_queries]
        response["aggregations"] = count_terms(plan.aggregations, queries)
    response["took"] = round((time.perf_counter() - started_s) * 1000)
    return response


def count(engine: Engine, expression: str | None, body: Json) -> Json:
    """Return the response to a count of the documents that match a query."""
    for key in body:
        if key != "query":
            raise parsing_fault(f"request does not support [{key}]")
    plan = read_plan({**body, "size": 0, "track_total_hits": True}, {})
    index_queries = [_compile(live_index.snapshot(), plan) for live_index in engine.searchable_indices(expression)]
    return {"count": sum(_count(index_query) for index_query in index_queries), "_shards": shards(len(index_queries))}


def shards(number: int) -> Json:
    """Return the ``_shards`` of a response without failures."""
    return {"total": number, "successful": number, "skipped": 0, "failed": 0}


def _compile(snapshot: Snapshot, plan: SearchPlan) -> IndexQuery:
    compiler = Compiler(snapshot)
    filtered = query = compiler.compile(plan.query)
    if plan.post_filter:
        post_filter = TQuery.const_score_query(Compiler(snapshot).compile(plan.post_filter), 0.0)
        filtered = TQuery.boolean_query([(Occur.Must, query), (Occur.Must, post_filter)])
    return IndexQuery(snapshot, query, filtered, compiler.terms)


def _rank_by_score(index_queries: list[IndexQuery], plan: SearchPlan) -> tuple[list[MatchingDocument], int]:
    """Return the documents with the highest scores, up to the end of the page, and the number of matching ones."""
    limit = max(1, plan.start + plan.size)
    ranked: list[tuple[float, MatchingDocument]] = []
    total = 0
    for number, index_query in enumerate(index_queries):
        if plan.min_score is not None:
            scored = [entry for entry in _all_matches(number, index_query) if entry[0] >= plan.min_score]
            total += len(scored)
        else:
            scored, count = _best_matches(number, index_query, limit, counts=plan.count_limit is not None)
            total += count
        ranked += scored
    ranked.sort(key=lambda entry: (-entry[0], entry[1].index_number, entry[1].seq))
    return [document for _, document in ranked[:limit]], total


def _rank_by_insertion(index_queries: list[IndexQuery], plan: SearchPlan) -> tuple[list[MatchingDocument], int]:
    """Return the documents in the order of insertion, up to the end of the page, and the number of matching ones."""
    limit = plan.start + plan.size
    is_ascending = plan.insertion_order == "asc"
    order = tantivy.Order.Asc if is_ascending else tantivy.Order.Desc
    matching: list[MatchingDocument] = []
    for number, index_query in enumerate(index_queries):
        query, snapshot = index_query.filtered, index_query.snapshot
        if plan.after is not None:
            if not is_ascending and plan.after < 1:
                continue
            bounds = (max(0, plan.after + 1), None) if is_ascending else (None, plan.after - 1)
            following = TQuery.range_query(snapshot.shard.schema, SEQ, tantivy.FieldType.Unsigned, *bounds)
            query = TQuery.boolean_query([(Occur.Must, query), (Occur.Must, following)])
        result = snapshot.searcher.search(query, max(1, limit), count=False, order_by_field=SEQ, order=order)
        matching += [MatchingDocument(number, int(seq), None, address, int(seq)) for seq, address in result.hits]
    matching.sort(key=lambda document: document.seq, reverse=not is_ascending)
    return matching[:limit], sum(map(_count, index_queries))


def _rank_by_field(
    index_queries: list[IndexQuery],
    plan: SearchPlan,
    path: str,
    is_descending: bool,  # noqa: FBT001 - as `SearchPlan` has it
) -> tuple[list[MatchingDocument], int]:
    """Return the documents ordered by a field's values, those without a value last, and their total number.

    Of several values of a document, the smallest counts in ascending order, the largest in descending order.
    """
    with_value: list[MatchingDocument] = []
    without_value: list[MatchingDocument] = []
    choose = max if is_descending else min
    for number, index_query in enumerate(index_queries):
        snapshot = index_query.snapshot
        field = snapshot.fields.by_path.get(path)
        if field is None:
            reason = f"No mapping found for [{path}] in order to sort on"
            raise Fault(400, "query_shard_exception", reason, {"index": snapshot.name})
        if field.column == "text":
            raise no_field_data_fault(path)
        is_sortable = field.has_doc_values and field.is_indexed
        if not is_sortable or field.column != index_queries[0].snapshot.fields.by_path[path].column:
            feature = f"[sort] by [{path}] without doc_values or index, or of another type in another index"
            raise unsupported_fault(feature)
        matching = sorted((match for _, match in _all_matches(number, index_query)), key=lambda match: match.seq)
        stored = snapshot.searcher.docs([match.address for match in matching])
        for match, document in zip(matching, stored, strict=True):
            values = snapshot.fields.extract(_read_source(document)).get(path)
            if values:
                with_value.append(replace(match, score=None, sort_value=choose(values)))
            else:
                without_value.append(replace(match, score=None))
    with_value.sort(key=lambda document: document.sort_value, reverse=is_descending)  # stable, also in reverse
    ranked = [*with_value, *without_value]
    return ranked[: plan.start + plan.size], len(ranked)


def _best_matches(
    number: int, index_query: IndexQuery, limit: int, *, counts: bool
) -> tuple[list[tuple[float, MatchingDocument]], int]:
    """Return the best documents of an index with their scores, up to a limit, and the number of matching ones.

    tantivy orders equal scores by segment, OpenSearch by insertion. Therefore more documents are read, until one scores
    lower than the last one within the limit: then all documents with equal scores are known.
    """
    read_limit = limit + 1
    document_count = max(1, index_query.snapshot.searcher.num_docs)
    while True:
        result = index_query.snapshot.searcher.search(
            index_query.filtered, min(read_limit, document_count), count=counts
        )
        hits = result.hits
        is_complete = len(hits) < read_limit or read_limit >= document_count
        if is_complete or hits[-1][0] < hits[limit - 1][0]:
            scored = _with_scores(number, index_query, hits)
            return sorted(scored, key=lambda entry: (-entry[0], entry[1].seq))[:limit], int(result.count or 0)
        read_limit *= 4


def _all_matches(number: int, index_query: IndexQuery) -> list[tuple[float, MatchingDocument]]:
    searcher = index_query.snapshot.searcher
    result = searcher.search(index_query.filtered, max(1, searcher.num_docs), count=False)
    return _with_scores(number, index_query, result.hits)


def _with_scores(
    number: int, index_query: IndexQuery, hits: list[tuple[float, tantivy.DocAddress]]
) -> list[tuple[float, MatchingDocument]]:
    snapshot = index_query.snapshot
    seqs = snapshot.shard.sequence_numbers(snapshot.searcher, [address for _, address in hits])
    return [
        (score, MatchingDocument(number, seq, score, address)) for seq, (score, address) in zip(seqs, hits, strict=True)
    ]


def _count(index_query: IndexQuery) -> int:
    return int(index_query.snapshot.searcher.search(index_query.filtered, 1, count=True).count or 0)


def _format_hits(page: list[MatchingDocument], index_queries: list[IndexQuery], plan: SearchPlan) -> list[Json]:
    highlighters = []
    if plan.highlight:
        highlighters = [Highlighter(plan.highlight, query.snapshot, query.terms) for query in index_queries]
    hits = []
    for match, document in zip(page, _read_documents(page, index_queries), strict=True):
        snapshot = index_queries[match.index_number].snapshot
        hit: Json = {"_index": snapshot.name, "_id": document.get_first(ID), "_score": match.score}
        source = _read_source(document)
        if plan.source.is_returned:
            hit["_source"] = plan.source.apply(source)
        if plan.fields and (values := field_values(source, plan.fields, snapshot.fields)):
            hit["fields"] = values
        if highlighters and (highlights := highlighters[match.index_number].mark(source)):
            hit["highlight"] = highlights
        if plan.insertion_order or plan.sort_field:
            hit["sort"] = [match.sort_value]
        hits.append(hit)
    return hits


def _read_documents(page: list[MatchingDocument], index_queries: list[IndexQuery]) -> list[tantivy.Document]:
    """Return the stored documents of a page; those of an index are read in one step."""
    documents = [
        iter(index_query.snapshot.searcher.docs([match.address for match in page if match.index_number == number]))
        for number, index_query in enumerate(index_queries)
    ]
    return [next(documents[match.index_number]) for match in page]


def _read_source(document: Any) -> Json:
    source: Json = json.loads(str(bytes(document.get_first(SOURCE)), "utf-8"))
    return source


def _format_total(total: int, plan: SearchPlan) -> Json:
    if plan.count_limit is None:
        return {}
    if total > plan.count_limit:
        return {"total": {"value": int(plan.count_limit), "relation": "gte"}}
    return {"total": {"value": total, "relation": "eq"}}


def _read_count_limit(limit: Any) -> float | None:
    """Return the number up to which hits are counted: infinity for an exact total. None to leave it out."""
    if isinstance(limit, bool):
        return float("inf") if limit else None
    return parse_count(limit, "track_total_hits")


def _window_fault(hits: int) -> Fault:
    reason = (
        f"Result window is too large, from + size must be less than or equal to: [{MAX_WINDOW}] but was [{hits}]."
        " See the scroll api for a more efficient way to request large data sets."
        " This limit can be set by changing the [index.max_result_window] index level setting."
    )
    return argument_fault(reason)
