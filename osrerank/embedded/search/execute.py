"""Answer ``_search``, ``_count`` and ``_msearch``."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tantivy

from osrerank.embedded.errors import Fault, Json, as_number, as_object, as_whole, illegal, parsing, unsupported
from osrerank.embedded.mapping.source import SourceFilter, field_values, source_filter
from osrerank.embedded.query.compile import Compiler
from osrerank.embedded.search import sorting
from osrerank.embedded.search.aggregations import count_terms
from osrerank.embedded.search.doc_values import DocValues, doc_values_wanted
from osrerank.embedded.search.highlight import Highlighter
from osrerank.embedded.search.sorting import Key, MatchingDocument
from osrerank.embedded.storage.engine import Engine
from osrerank.embedded.storage.index import Snapshot
from osrerank.embedded.storage.shard import ID, SOURCE

WINDOW = 10_000
COUNTED = 10_000
"""Totals are exact up to this number unless ``track_total_hits`` is set, as in OpenSearch."""
_BODY = frozenset(
    {"query", "from", "size", "_source", "fields", "highlight", "aggs", "aggregations", "sort", "track_total_hits",
     "min_score", "post_filter", "timeout", "search_after", "track_scores", "explain", "version", "seq_no_primary_term",
     "profile", "search_pipeline", "docvalue_fields", "ext"}
)  # fmt: skip
_OFF_ONLY = ("explain", "version", "seq_no_primary_term", "profile")
"""Keys of OpenSearch that are accepted here only without effect."""
_EXTENSIONS = frozenset({"rerank", "ubi"})
"""Keys of ``ext`` that OpenSearch's plugins read, and that have no effect here."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A search request, read and checked."""

    query: Any
    start: int
    size: int
    source: SourceFilter
    fields: list[Any]
    doc_values: list[Any]
    highlight: Json | None
    aggregations: Json
    sort: list[Key]
    count_to: float
    min_score: float | None
    post_filter: Any
    search_after: list[Any] | None
    track_scores: bool


@dataclass(frozen=True, slots=True)
class Side:
    """One index of a search: its snapshot, the query, and the query with the post filter."""

    snapshot: Snapshot
    query: tantivy.Query
    filtered: tantivy.Query
    terms: Mapping[str, set[str]]


def plan(body: Json, params: Mapping[str, str]) -> SearchPlan:
    """Read a search request; URL parameters win over the body.

    Raises:
        Fault: 400 naming the wrong or unsupported key.
    """
    for key in body:
        if key not in _BODY:
            raise parsing(f"unknown key [{key}] for the embedded engine's search; it knows {sorted(_BODY)}")
    ext = body.get("ext", {})
    if not isinstance(ext, Mapping) or not ext.keys() <= _EXTENSIONS:
        raise unsupported(f"[ext] other than an object of {sorted(_EXTENSIONS)}")
    check_pipeline(body.get("search_pipeline", "_none"))
    merged = {
        **body,
        **{key: params[key] for key in ("from", "size", "track_total_hits", "track_scores") if key in params},
    }
    for key in _OFF_ONLY:
        if _flag(params.get(key, body.get(key, False)), key):
            raise unsupported(f"[{key}]")
    start, size = as_whole(merged.get("from", 0), "from"), as_whole(merged.get("size", 10), "size")
    if start + size > WINDOW:
        raise _window_fault(start + size)
    sort = sorting.sort_keys(params["sort"].split(",") if "sort" in params else body.get("sort"))
    sort = (
        []
        if [(one.field, one.descending) for one in sort] == [("_score", True)] and "search_after" not in body
        else sort
    )
    return SearchPlan(
        query=body.get("query") or {"match_all": {}},
        start=start,
        size=size,
        source=source_filter(body.get("_source"), params),
        fields=_as_list(body.get("fields")),
        doc_values=doc_values_wanted(body),
        highlight=body.get("highlight"),
        aggregations=as_object(body.get("aggs", body.get("aggregations")) or {}, "aggs"),
        sort=sort,
        count_to=_count_to(merged.get("track_total_hits", COUNTED)),
        min_score=None if body.get("min_score") is None else as_number(body["min_score"], "min_score"),
        post_filter=body.get("post_filter"),
        search_after=sorting.check_after(sort, body.get("search_after")),
        track_scores=_flag(merged.get("track_scores", False), "track_scores"),
    )


def search(engine: Engine, expression: str | None, body: Json, params: Mapping[str, str]) -> Json:
    """Answer a search over the indices that an expression names."""
    began = time.perf_counter()
    wanted = plan(body, params)
    snapshots = [live.snapshot() for live in engine.searchable(expression)]
    sides = [_side(snapshot, wanted) for snapshot in snapshots]
    found, total, best = _find(sides, wanted)
    page = found[wanted.start : wanted.start + wanted.size]
    response: Json = {
        "took": 0,
        "timed_out": False,
        "_shards": shards(len(sides)),
        "hits": {**_total(total, wanted), "max_score": best, "hits": _show(page, sides, wanted)},
    }
    if wanted.aggregations:
        response["aggregations"] = count_terms(wanted.aggregations, [(side.snapshot, side.query) for side in sides])
    response["took"] = round((time.perf_counter() - began) * 1000)
    return response


def count(engine: Engine, expression: str | None, body: Json) -> Json:
    """Answer how many documents match."""
    for key in body:
        if key != "query":
            raise parsing(f"request does not support [{key}]")
    wanted = plan({"query": body.get("query"), "size": 0, "track_total_hits": True}, {})
    sides = [_side(live.snapshot(), wanted) for live in engine.searchable(expression)]
    return {"count": sum(_count(side) for side in sides), "_shards": shards(len(sides))}


def shards(number: int) -> Json:
    """Return the ``_shards`` of a response without failures."""
    return {"total": number, "successful": number, "skipped": 0, "failed": 0}


def _side(snapshot: Snapshot, wanted: SearchPlan) -> Side:
    compiler = Compiler(snapshot)
    query = compiler.compile(wanted.query)
    terms = compiler.terms
    if marked := (wanted.highlight or {}).get("highlight_query"):
        other = Compiler(snapshot)
        other.compile(marked)
        terms = other.terms
    filtered = query
    if wanted.post_filter:
        only_these = tantivy.Query.const_score_query(Compiler(snapshot).compile(wanted.post_filter), 0.0)
        filtered = tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.Must, only_these)])
    return Side(snapshot, query, filtered, terms)


def _find(sides: list[Side], wanted: SearchPlan) -> tuple[list[MatchingDocument], int, float | None]:
    """Return the documents in order, as many as the page needs; how many match; and the best score."""
    needed = wanted.start + wanted.size
    if wanted.sort:
        return _find_sorted(sides, wanted)
    found: list[MatchingDocument] = []
    total = 0
    for number, side in enumerate(sides):
        if wanted.min_score is not None:
            mine = [one for one in _all(number, side) if one.score >= wanted.min_score]
            total += len(mine)
        else:
            mine, matching = _best(number, side, max(1, needed), count=bool(wanted.count_to))
            total += matching
        found += mine
    found.sort(key=lambda one: (-one.score, one.number, one.seq))
    best = found[0].score if found and wanted.size else None
    return found[:needed], total, best


def _find_sorted(sides: list[Side], wanted: SearchPlan) -> tuple[list[MatchingDocument], int, float | None]:
    found: list[MatchingDocument] = []
    for number, side in enumerate(sides):
        columns = [
            sorting.read_keys(side.snapshot, side.filtered, key) if key.field not in ("_score", "_doc") else None
            for key in wanted.sort
        ]
        for one in _all(number, side):
            keys = tuple(
                one.score if key.field == "_score" else one.seq if column is None else column.get(one.seq)
                for key, column in zip(wanted.sort, columns, strict=True)
            )
            found.append(replace(one, keys=keys))
    if wanted.min_score is not None:
        found = [one for one in found if one.score >= wanted.min_score]
    total = len(found)
    scored = wanted.track_scores or any(key.field == "_score" for key in wanted.sort)
    best = max((one.score for one in found), default=None) if scored and wanted.size else None
    if wanted.search_after is not None:
        found = [one for one in found if sorting.after(wanted.sort, one, wanted.search_after)]
    found.sort(key=sorting.comparison(wanted.sort))
    return found, total, best


def _best(number: int, side: Side, needed: int, *, count: bool) -> tuple[list[MatchingDocument], int]:
    """Return at least the needed best documents, and how many match.

    tantivy orders equal scores by segment, OpenSearch by insertion. So more documents are read until the last one
    scores less than the last needed one, and all documents of that score are present.
    """
    limit = needed + 1
    everything = max(1, side.snapshot.searcher.num_docs)
    while True:
        answer = side.snapshot.searcher.search(side.filtered, min(limit, everything), count=count)
        hits = answer.hits
        complete = len(hits) < limit or limit >= everything
        if complete or hits[-1][0] < hits[needed - 1][0]:
            found = _found(number, side, hits)
            return sorted(found, key=lambda one: (-one.score, one.seq))[:needed], _counted(answer)
        limit *= 4


def _all(number: int, side: Side) -> list[MatchingDocument]:
    limit = max(1, side.snapshot.searcher.num_docs)
    return _found(number, side, side.snapshot.searcher.search(side.filtered, limit, count=False).hits)


def _found(number: int, side: Side, hits: list[tuple[float, tantivy.DocAddress]]) -> list[MatchingDocument]:
    numbers = side.snapshot.shard.numbers(side.snapshot.searcher, [address for _, address in hits])
    return [MatchingDocument(number, seq, score, address) for seq, (score, address) in zip(numbers, hits, strict=True)]


def _count(side: Side) -> int:
    return _counted(side.snapshot.searcher.search(side.filtered, 1, count=True))


def _counted(answer: Any) -> int:
    """Return how many documents matched; tantivy's type stubs lack the attribute."""
    return int(answer.count or 0)


def _show(page: list[MatchingDocument], sides: list[Side], wanted: SearchPlan) -> list[Json]:
    highlighters = (
        [Highlighter(wanted.highlight, side.snapshot, side.terms) for side in sides] if wanted.highlight else []
    )
    doc_values = [DocValues(wanted.doc_values, side.snapshot) for side in sides] if wanted.doc_values else []
    hits = []
    for one, document in zip(page, _documents(page, sides), strict=True):
        side = sides[one.number]
        hit: Json = {"_index": side.snapshot.name, "_id": document.get_first(ID), "_score": _score(one, wanted)}
        source = json.loads(str(_bytes(document.get_first(SOURCE)), "utf-8"))
        if wanted.source.wanted:
            hit["_source"] = wanted.source.apply(source)
        if wanted.fields:
            paths = {path: field.source for path, field in side.snapshot.fields.by_path.items()}
            if kept := field_values(source, wanted.fields, paths):
                hit["fields"] = kept
        if doc_values and (kept := doc_values[one.number].of(one.seq)):
            hit["fields"] = {**kept, **hit.get("fields", {})}
        if highlighters and (marked := highlighters[one.number].mark(source)):
            hit["highlight"] = marked
        if wanted.sort:
            hit["sort"] = list(one.keys)
        hits.append(hit)
    return hits


def _documents(page: list[MatchingDocument], sides: list[Side]) -> list[tantivy.Document]:
    """Return the stored documents of a page."""
    of_side = [
        iter(side.snapshot.searcher.docs([one.address for one in page if one.number == number]))
        for number, side in enumerate(sides)
    ]
    return [next(of_side[one.number]) for one in page]


def _bytes(stored: Any) -> bytes:
    return bytes(stored)


def _score(one: MatchingDocument, wanted: SearchPlan) -> float | None:
    if wanted.sort and not wanted.track_scores and not any(key.field == "_score" for key in wanted.sort):
        return None
    return one.score


def _total(total: int, wanted: SearchPlan) -> Json:
    if not wanted.count_to:
        return {}
    if total > wanted.count_to:
        return {"total": {"value": int(wanted.count_to), "relation": "gte"}}
    return {"total": {"value": total, "relation": "eq"}}


def _count_to(given: Any) -> float:
    """Return how far to count totals: 0 for not at all, infinity for exactly."""
    if given in (True, "true"):
        return float("inf")
    if given in (False, "false"):
        return 0
    return as_whole(given, "track_total_hits")


def check_pipeline(name: Any) -> None:
    """Refuse any search pipeline except ``_none``: the engine has none."""
    if name != "_none":
        raise illegal(
            f"Pipeline {name} is not defined: the embedded engine has no search pipelines; give search_pipeline=_none"
        )


def _flag(given: Any, name: str) -> bool:
    if given in (True, "true", ""):
        return True
    if given in (False, "false"):
        return False
    raise illegal(f"Failed to parse value [{given}] of [{name}] as only [true] or [false] are allowed.")


def _as_list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [] if given is None else [given]


def _window_fault(asked: int) -> Fault:
    reason = (
        f"Result window is too large, from + size must be less than or equal to: [{WINDOW}] but was [{asked}]."
        " See the scroll api for a more efficient way to request large data sets."
        " This limit can be set by changing the [index.max_result_window] index level setting."
    )
    return illegal(reason)
