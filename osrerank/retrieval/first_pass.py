"""What the first pass requests, so that any page of the reranked list can be cut from its response."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from osrerank.options.rerank import MAX_DEPTH, Rerank
from osrerank.response import Page
from osrerank.retrieval.fields import Fields, union

DEFAULT_SIZE = 10
SORTED = "the search is sorted by something else than score"
"""Why hits that the caller sorts are not reranked."""

_SOURCE_PARAMS = ("_source", "_source_includes", "_source_excludes", "_source_include", "_source_exclude")
# request feature -> why its hits are not reranked
_REFUSED = {
    "scroll": "a scroll has no first page to rerank",
    "search_after": "search_after continues after a first-pass score, which reranking replaces",
    "pit": "a point in time is for paging by sort values, which reranking replaces",
    "filter_path": "filter_path may hide what reranking reads",
}


@dataclass(frozen=True, slots=True)
class FirstPass:
    """A first-pass request, and what to do with its answer.

    Attributes:
        body: of the request.
        params: of the request's URL.
        page: the part of the reranked list that the caller wants.
        refusal: why the response is not reranked; empty when it is. Such a request is sent unchanged.
    """

    body: dict[str, Any]
    params: dict[str, Any]
    page: Page = field(default_factory=Page)
    refusal: str = ""


def plan(
    body: Mapping[str, Any], params: Mapping[str, Any], options: Rerank, depth: int, fields: Fields | None = None
) -> FirstPass:
    """Return the request for a window deep enough to rerank.

    The window starts at the first hit and holds the pipeline's depth or the caller's page, whichever reaches further;
    pages cut from the reranked list then neither overlap nor leave a gap.

    Args:
        body: the caller's request; URL parameters win over it, as in OpenSearch.
        params: the caller's URL parameters, `from` as `from` or `from_`.
        options: of this search.
        depth: candidates that the pipeline's deepest stage looks at.
        fields: of the search; without, those that the options name.
    """
    offset = count_of(params, body, ("from", "from_"), 0)
    size = count_of(params, body, ("size",), DEFAULT_SIZE)
    refusal = _refusal(body, params, offset, size)
    if refusal or offset is None or size is None:
        return FirstPass(dict(body), dict(params), refusal=refusal)
    wanted_body = {name: value for name, value in body.items() if name not in ("from", "size")}
    wanted_params = {name: value for name, value in params.items() if name not in ("from", "from_", "size")}
    wanted_body["from"] = 0
    wanted_body["size"] = max(depth, offset + size)
    _drop_rerank_ext(wanted_body)
    if not _names_pipeline(body, params) and not _is_hybrid(body.get("query")):
        wanted_params["search_pipeline"] = "_none"
    fields = fields or Fields.named_by(options)
    read = union(fields.read_for(one.fields) for one in options.rankings)
    needed = tuple(name for name in read if ":" not in name)  # the request has highlight: and inner_hits: anyway
    borrowed = _borrow_fields(wanted_body, params, needed, fields.fetched)
    page = Page(offset, size, borrowed, options.min_score, options.explain)
    return FirstPass(wanted_body, wanted_params, page)


def _refusal(body: Mapping[str, Any], params: Mapping[str, Any], offset: int | None, size: int | None) -> str:
    reasons = [why for name, why in _REFUSED.items() if params.get(name) or body.get(name)]
    if "_none_" in _listed(body, params, "stored_fields"):
        reasons.append("stored_fields is _none_: no text can be read")
    if offset is None or size is None:
        reasons.append("from or size is not a count")
    elif size == 0:
        reasons.append("size is 0: no hits were asked for")
    elif offset + size > MAX_DEPTH:
        reasons.append(f"from + size is {offset + size}: beyond the result window of {MAX_DEPTH:,} hits")
    sort = params.get("sort", body.get("sort"))
    if sort and not _led_by_score(sort):
        reasons.append(SORTED)
    return "; ".join(reasons)


def _led_by_score(sort: Any) -> bool:
    """Return whether a sort's first key is `_score`, descending."""
    first = (sort.split(",") if isinstance(sort, str) else sort if isinstance(sort, list) else [sort])[0]
    if isinstance(first, str):
        name, _, order = first.partition(":")
        return name == "_score" and order in ("", "desc")
    if isinstance(first, Mapping) and next(iter(first), None) == "_score":
        how = first["_score"]
        return bool((how.get("order", "desc") if isinstance(how, Mapping) else how) == "desc")
    return False


def count_of(params: Mapping[str, Any], body: Mapping[str, Any], names: tuple[str, ...], default: int) -> int | None:
    """Return a count in the request; None if it is not a count, which OpenSearch will refuse."""
    given = (place[name] for place in (params, body) for name in names if place.get(name) is not None)
    try:
        count = int(next(given, default))
    except (TypeError, ValueError):
        return None
    return count if count >= 0 else None


def _names_pipeline(body: Mapping[str, Any], params: Mapping[str, Any]) -> bool:
    """Return whether a search names a search pipeline."""
    return "search_pipeline" in params or "search_pipeline" in body


def _is_hybrid(query: Any) -> bool:
    """Return whether a query's scores need the index's own pipeline to be comparable."""
    return isinstance(query, Mapping) and "hybrid" in query


def _drop_rerank_ext(body: dict[str, Any]) -> None:
    """Remove `ext.rerank` from our copy: a cluster without the plugin refuses it."""
    if "rerank" in (body.get("ext") or {}):
        rest = {name: value for name, value in body["ext"].items() if name != "rerank"}
        if rest:
            body["ext"] = rest
        else:
            del body["ext"]


def _borrow_fields(
    body: dict[str, Any], params: Mapping[str, Any], needed: tuple[str, ...], fetched: frozenset[str]
) -> tuple[str, ...]:
    """Request through `fields` the text that `_source` lacks; return the names to remove afterwards."""
    source = body.get("_source", True)
    hidden = source not in (True, "true") or any(name in params for name in _SOURCE_PARAMS)
    hidden = hidden or "stored_fields" in body or "stored_fields" in params
    hidden = hidden or ("script_fields" in body and "_source" not in body)
    hidden = hidden and not (isinstance(source, list) and all(name in source for name in needed))
    asked = body.get("fields") or []
    missing = [name for name in needed if (hidden or name in fetched) and not _covers(asked, name)]
    if missing:
        body["fields"] = [*asked, *missing]
    others = [*_listed(body, params, "stored_fields"), *_listed(body, params, "docvalue_fields")]
    others += [*(body.get("script_fields") or {}), (body.get("collapse") or {}).get("field", "")]
    return tuple(name for name in missing if not _covers(others, name))


def _listed(body: Mapping[str, Any], params: Mapping[str, Any], option: str) -> list[Any]:
    """Return what an option of the body or the URL lists."""
    given = params.get(option) or body.get(option) or []
    return given.split(",") if isinstance(given, str) else list(given)


def _covers(patterns: Iterable[Any], name: str) -> bool:
    """Return whether a list of field names, patterns and `{"field": ...}` objects asks for a field."""
    return any(
        fnmatchcase(name, str(pattern.get("field", "")) if isinstance(pattern, Mapping) else str(pattern))
        for pattern in patterns
    )
