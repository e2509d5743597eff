"""Answer ``_search``, ``_count`` and ``_msearch``."""

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
    as_list,
    as_number,
    as_object,
    as_whole,
    illegal,
    no_field_data,
    parsing,
    unsupported,
)
from osrerank.embedded.mapping.source import SourceFilter, field_values, source_filter
from osrerank.embedded.query.compile import Compiler
from osrerank.embedded.search.aggregations import count_terms
from osrerank.embedded.search.highlight import Highlighter
from osrerank.embedded.storage.engine import Engine
from osrerank.embedded.storage.index import Snapshot
from osrerank.embedded.storage.shard import ID, SEQ, SOURCE

WINDOW = 10_000
COUNTED = 10_000
"""Totals are exact up to this number unless ``track_total_hits`` is set, as in OpenSearch."""
_BODY = frozenset(
    {"query", "from", "size", "_source", "fields", "highlight", "aggs", "sort", "search_after", "track_total_hits",
     "min_score", "post_filter", "timeout", "search_pipeline", "ext"}
)  # fmt: skip
_EXTENSIONS = frozenset({"rerank", "ubi"})
"""Keys of ``ext`` that plugins of OpenSearch read; they have no effect here."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A search request after it was read and checked.

    Attributes:
        count_to: the number up to which hits are counted; None for no total.
        in_order: ``asc`` or ``desc`` for the order of insertion; None for another order.
        by_field: the field whose values order the documents, and whether the largest come first; None for another
            order.
        after: the sort value after which the page begins; None for a page that begins at ``start``.
    """

    query: Any
    start: int
    size: int
    source: SourceFilter
    fields: list[Any]
    highlight: Json | None
    aggregations: Json
    count_to: float | None
    min_score: float | None
    post_filter: Any
    in_order: str | None
    by_field: tuple[str, bool] | None
    after: int | None


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """One index of a search, with its compiled query.

    Attributes:
        snapshot: the index as of its last refresh.
        query: the query, which aggregations count.
        filtered: the query with the post filter, which gives the hits.
        terms: field path -> the query's terms, for highlighting.
    """

    snapshot: Snapshot
    query: TQuery
    filtered: TQuery
    terms: Mapping[str, set[str]]


@dataclass(frozen=True, slots=True)
class MatchingDocument:
    """A matching document before its source is read.

    Attributes:
        number: the position of its index among those searched, from 0.
        seq: its sequence number in that index.
        score: its score; None if the search sorts by something else.
        address: where tantivy has the document.
        key: the value that the document is sorted by; None for a search by score, or if the document lacks the value.
    """

    number: int
    seq: int
    score: float | None
    address: tantivy.DocAddress
    key: Any = None


def read_plan(body: Json, params: Mapping[str, str]) -> SearchPlan:
    """Read a search request; URL parameters win over the body.

    Raises:
        Fault: 400; the reason names the key that is wrong or not supported.
    """
    for key in body:
        if key not in _BODY:
            raise parsing(f"unknown key [{key}] for the embedded engine's search; it knows {sorted(_BODY)}")
        if body[key] is None:
            raise parsing(f"[{key}] cannot be null: leave it out")
    ext = body.get("ext", {})
    if not isinstance(ext, Mapping) or not ext.keys() <= _EXTENSIONS:
        raise unsupported(f"[ext] other than an object of {sorted(_EXTENSIONS)}")
    _check_without_effect({**body, **params})
    start, size = (as_whole(params.get(key, body.get(key, normal)), key) for key, normal in (("from", 0), ("size", 10)))
    if start + size > WINDOW:
        raise _window_fault(start + size)
    in_order, by_field = _read_sort(body.get("sort"))
    if (in_order or by_field) and "min_score" in body:
        raise unsupported("[min_score] with [sort]")
    return SearchPlan(
        query=body.get("query", {"match_all": {}}),
        start=start,
        size=size,
        source=source_filter(body.get("_source"), params),
        fields=as_list(body.get("fields", []), "fields"),
        highlight=body.get("highlight"),
        aggregations=as_object(body.get("aggs", {}), "aggs"),
        count_to=_count_to(body.get("track_total_hits", COUNTED)),
        min_score=as_number(body["min_score"], "min_score") if "min_score" in body else None,
        post_filter=body.get("post_filter"),
        in_order=in_order,
        by_field=by_field,
        after=_after(body.get("search_after"), in_order, start),
    )


def _check_without_effect(parameters: Mapping[str, Any]) -> None:
    """Check parameters that this engine ignores: refuse values that OpenSearch would refuse or act on."""
    if (name := parameters.get("search_pipeline", "_none")) != "_none":
        raise illegal(
            f"Pipeline {name} is not defined: the embedded engine has no search pipelines; pass search_pipeline=_none"
        )
    if (preference := str(parameters.get("preference", "_local"))).startswith("_") and preference != "_local":
        raise illegal(f"no Preference for [{preference}] in the embedded engine: pass _local, or a name of your own")
    if not re.fullmatch(r"-1|\d+(nanos|micros|ms|s|m|h|d)", timeout := str(parameters.get("timeout", "-1"))):
        raise parsing(f"failed to parse [timeout] with value [{timeout}]: pass a time such as 1s")


def _read_sort(sort: Any) -> tuple[str | None, tuple[str, bool] | None]:
    """Return ``in_order`` and ``by_field`` of the `SearchPlan`, read from a body's ``sort``."""
    if sort is None:
        return None, None
    level = sort[0] if isinstance(sort, list) and len(sort) == 1 else sort
    if isinstance(level, str):
        level = {level: "asc"}
    if isinstance(level, Mapping) and len(level) == 1:
        ((name, options),) = level.items()
        order = (
            options.get("order", "asc") if isinstance(options, Mapping) and not options.keys() - {"order"} else options
        )
        if order in ("asc", "desc") and name == "_doc":
            return str(order), None
        if order in ("asc", "desc") and not name.startswith("_") and ":" not in name:
            return None, (name, order == "desc")
    raise unsupported(f"[sort] by {json.dumps(sort):.100}", 'it sorts by score, by one field, or by ["_doc"]')


def _after(values: Any, in_order: str | None, start: int) -> int | None:
    if values is None:
        return None
    if in_order is None or start or not isinstance(values, list) or len(values) != 1 or not isinstance(values[0], int):
        raise unsupported(
            f"[search_after: {values!r:.100}]", 'pass one number, with [sort: ["_doc"]] and without [from]'
        )
    return int(values[0])


def search(engine: Engine, expression: str | None, body: Json, params: Mapping[str, str]) -> Json:
    """Answer a search over the indices that an expression names."""
    began = time.perf_counter()
    plan = read_plan(body, params)
    snapshots = [live.snapshot() for live in engine.searchable(expression)]
    index_queries = [_compile(snapshot, plan) for snapshot in snapshots]
    if plan.by_field is not None:
        matching, total = _find_by_field(index_queries, plan, *plan.by_field)
    else:
        matching, total = _find(index_queries, plan) if plan.in_order is None else _find_in_order(index_queries, plan)
    best = matching[0].score if matching and plan.size else None
    page = matching[plan.start : plan.start + plan.size]
    response: Json = {
        "took": 0,
        "timed_out": False,
        "_shards": shards(len(index_queries)),
        "hits": {**_total(total, plan), "max_score": best, "hits": _show(page, index_queries, plan)},
    }
    if plan.aggregations:
        response["aggregations"] = count_terms(
            plan.aggregations, [(index_query.snapshot, index_query.query) for index_query in index_queries]
        )
    response["took"] = round((time.perf_counter() - began) * 1000)
    return response


def count(engine: Engine, expression: str | None, body: Json) -> Json:
    """Answer how many documents match."""
    for key in body:
        if key != "query":
            raise parsing(f"request does not support [{key}]")
    plan = read_plan({**body, "size": 0, "track_total_hits": True}, {})
    index_queries = [_compile(live.snapshot(), plan) for live in engine.searchable(expression)]
    return {"count": sum(_count(index_query) for index_query in index_queries), "_shards": shards(len(index_queries))}


def shards(number: int) -> Json:
    """Return the ``_shards`` of a response without failures."""
    return {"total": number, "successful": number, "skipped": 0, "failed": 0}


def _compile(snapshot: Snapshot, plan: SearchPlan) -> IndexQuery:
    compiler = Compiler(snapshot)
    filtered = query = compiler.compile(plan.query)
    if plan.post_filter:
        only_these = TQuery.const_score_query(Compiler(snapshot).compile(plan.post_filter), 0.0)
        filtered = TQuery.boolean_query([(Occur.Must, query), (Occur.Must, only_these)])
    return IndexQuery(snapshot, query, filtered, compiler.terms)


def _find(index_queries: list[IndexQuery], plan: SearchPlan) -> tuple[list[MatchingDocument], int]:
    """Return the documents with the highest scores in order, as many as the page needs, and how many match."""
    needed = plan.start + plan.size
    ranked: list[tuple[float, MatchingDocument]] = []
    total = 0
    for number, index_query in enumerate(index_queries):
        if plan.min_score is not None:
            scored_documents = [scored for scored in _all(number, index_query) if scored[0] >= plan.min_score]
            total += len(scored_documents)
        else:
            scored_documents, matching = _best(number, index_query, max(1, needed), count=plan.count_to is not None)
            total += matching
        ranked += scored_documents
    ranked.sort(key=lambda scored: (-scored[0], scored[1].number, scored[1].seq))
    return [document for _, document in ranked[: max(1, needed)]], total


def _find_in_order(index_queries: list[IndexQuery], plan: SearchPlan) -> tuple[list[MatchingDocument], int]:
    """Return the documents in the order of their insertion, as many as the page needs, and how many match."""
    needed = plan.start + plan.size
    order = tantivy.Order.Asc if plan.in_order == "asc" else tantivy.Order.Desc
    matching: list[MatchingDocument] = []
    for number, index_query in enumerate(index_queries):
        query = index_query.filtered
        if plan.after is not None:
            low, high = (plan.after + 1, None) if plan.in_order == "asc" else (None, plan.after - 1)
            if (high or 0) < 0:
                continue
            bounds = (None if low is None else max(0, low), high)
            later = TQuery.range_query(index_query.snapshot.shard.schema, SEQ, tantivy.FieldType.Unsigned, *bounds)
            query = TQuery.boolean_query([(Occur.Must, query), (Occur.Must, later)])
        hits = index_query.snapshot.searcher.search(
            query, max(1, needed), count=False, order_by_field=SEQ, order=order
        ).hits
        matching += [MatchingDocument(number, int(seq), None, address, int(seq)) for seq, address in hits]
    matching.sort(key=lambda document: document.seq, reverse=plan.in_order == "desc")
    return matching[:needed], sum(map(_count, index_queries))


def _find_by_field(
    index_queries: list[IndexQuery],
    plan: SearchPlan,
    path: str,
    is_descending: bool,  # noqa: FBT001 - as `SearchPlan` has it
) -> tuple[list[MatchingDocument], int]:
    """Return the documents ordered by a field's values, those without a value last, and how many match.

    If a document has several values, an ascending order uses the smallest, a descending order the largest.
    """
    valued: list[MatchingDocument] = []
    without: list[MatchingDocument] = []
    for number, index_query in enumerate(index_queries):
        if (field := index_query.snapshot.fields.by_path.get(path)) is None:
            reason = f"No mapping found for [{path}] in order to sort on"
            raise Fault(400, "query_shard_exception", reason, {"index": index_query.snapshot.name})
        if field.column == "text":
            raise no_field_data(path)
        if (
            not field.has_doc_values
            or not field.indexed
            or field.column != index_queries[0].snapshot.fields.by_path[path].column
        ):
            raise unsupported(f"[sort] by [{path}] without doc_values or index, or of another type in another index")
        matching = sorted((match for _, match in _all(number, index_query)), key=lambda match: match.seq)
        stored = index_query.snapshot.searcher.docs([match.address for match in matching])
        for match, document in zip(matching, stored, strict=True):
            source = json.loads(str(_bytes(document.get_first(SOURCE)), "utf-8"))
            values = index_query.snapshot.fields.extract(source).get(path)
            key = None if not values else max(values) if is_descending else min(values)
            (without if key is None else valued).append(replace(match, score=None, key=key))
    valued.sort(key=lambda document: document.key, reverse=is_descending)  # stable, also in reverse
    everything = [*valued, *without]
    return everything[: plan.start + plan.size], len(everything)


def _best(
    number: int, index_query: IndexQuery, needed: int, *, count: bool
) -> tuple[list[tuple[float, MatchingDocument]], int]:
    """Return the ``needed`` best documents of an index, each after its score, and how many match.

    tantivy orders equal scores by segment, OpenSearch by insertion. So documents are read until one scores lower than
    the last one needed: then all that tie with that one have been read.
    """
    limit = needed + 1
    everything = max(1, index_query.snapshot.searcher.num_docs)
    while True:
        result = index_query.snapshot.searcher.search(index_query.filtered, min(limit, everything), count=count)
        hits = result.hits
        complete = len(hits) < limit or limit >= everything
        if complete or hits[-1][0] < hits[needed - 1][0]:
            ranked = _as_documents(number, index_query, hits)
            return sorted(ranked, key=lambda scored: (-scored[0], scored[1].seq))[:needed], _counted(result)
        limit *= 4


def _all(number: int, index_query: IndexQuery) -> list[tuple[float, MatchingDocument]]:
    limit = max(1, index_query.snapshot.searcher.num_docs)
    return _as_documents(
        number, index_query, index_query.snapshot.searcher.search(index_query.filtered, limit, count=False).hits
    )


def _as_documents(
    number: int, index_query: IndexQuery, hits: list[tuple[float, tantivy.DocAddress]]
) -> list[tuple[float, MatchingDocument]]:
    """Return tantivy's hits as documents, each after its score."""
    numbers = index_query.snapshot.shard.numbers(index_query.snapshot.searcher, [address for _, address in hits])
    return [
        (score, MatchingDocument(number, seq, score, address))
        for seq, (score, address) in zip(numbers, hits, strict=True)
    ]


def _count(index_query: IndexQuery) -> int:
    return _counted(index_query.snapshot.searcher.search(index_query.filtered, 1, count=True))


def _counted(result: Any) -> int:
    """Return how many documents matched; tantivy's type stubs lack the attribute."""
    return int(result.count or 0)


def _show(page: list[MatchingDocument], index_queries: list[IndexQuery], plan: SearchPlan) -> list[Json]:
    highlighters = (
        [Highlighter(plan.highlight, index_query.snapshot, index_query.terms) for index_query in index_queries]
        if plan.highlight
        else []
    )
    hits = []
    for match, document in zip(page, _documents(page, index_queries), strict=True):
        index_query = index_queries[match.number]
        hit: Json = {"_index": index_query.snapshot.name, "_id": document.get_first(ID), "_score": match.score}
        source = json.loads(str(_bytes(document.get_first(SOURCE)), "utf-8"))
        if plan.source.is_returned:
            hit["_source"] = plan.source.apply(source)
        if plan.fields and (values := field_values(source, plan.fields, index_query.snapshot.fields)):
            hit["fields"] = values
        if highlighters and (marked := highlighters[match.number].mark(source)):
            hit["highlight"] = marked
        if plan.in_order or plan.by_field:
            hit["sort"] = [match.key]
        hits.append(hit)
    return hits


def _documents(page: list[MatchingDocument], index_queries: list[IndexQuery]) -> list[tantivy.Document]:
    """Return the stored documents of a page."""
    of_side = [
        iter(index_query.snapshot.searcher.docs([match.address for match in page if match.number == number]))
        for number, index_query in enumerate(index_queries)
    ]
    return [next(of_side[match.number]) for match in page]


def _bytes(stored: Any) -> bytes:
    return bytes(stored)


def _total(total: int, plan: SearchPlan) -> Json:
    if plan.count_to is None:
        return {}
    if total > plan.count_to:
        return {"total": {"value": int(plan.count_to), "relation": "gte"}}
    return {"total": {"value": total, "relation": "eq"}}


def _count_to(limit: Any) -> float | None:
    """Return how far to count totals: None for not at all, infinity for exactly."""
    if isinstance(limit, bool):
        return float("inf") if limit else None
    return as_whole(limit, "track_total_hits")


def _window_fault(hits: int) -> Fault:
    reason = (
        f"Result window is too large, from + size must be less than or equal to: [{WINDOW}] but was [{hits}]."
        " See the scroll api for a more efficient way to request large data sets."
        " This limit can be set by changing the [index.max_result_window] index level setting."
    )
    return illegal(reason)
