"""Read the body and URL parameters of a search request, and refuse what the engine does not support."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osrerank.embedded.errors import (
    ApiError,
    Json,
    argument_error,
    parse_count,
    parse_number,
    parsing_error,
    require_list,
    require_object,
    unsupported_error,
)
from osrerank.embedded.mapping.source import SourceFilter, read_source_filter

MAX_WINDOW = 10_000
"""The maximum of ``from`` + ``size``."""
DEFAULT_COUNT_LIMIT = 10_000
"""The number up to which totals are exact if the request does not set ``track_total_hits``, as in OpenSearch."""
INSERTION_ORDER = "_doc"
"""The name of the insertion order in a ``sort``, such as ``["_doc"]``."""
_BODY_KEYS = frozenset(
    {"query", "from", "size", "_source", "fields", "highlight", "aggs", "sort", "search_after", "track_total_hits",
     "min_score", "post_filter", "timeout", "search_pipeline", "ext"}
)  # fmt: skip
_EXTENSIONS = frozenset({"rerank", "ubi"})
"""The keys of ``ext`` that are accepted. They belong to plugins of OpenSearch, and have no effect here."""


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The order of a search that does not sort by score.

    Attributes:
        path: the field to sort by, or `INSERTION_ORDER`.
        is_descending: whether the largest value, or the latest insertion, comes first.
    """

    path: str
    is_descending: bool


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A search request that was parsed and checked.

    Attributes:
        query: the query clause.
        post_filter: the query clause that filters hits but not aggregations. None if there is no such filter.
        start: the number of hits before the page, which is the request's ``from``.
        size: the number of hits on the page.
        sort: the order of the hits. None if they are sorted by score.
        search_after: the sequence number after which the page begins. None if it begins at ``start``.
        min_score: the lowest score of a hit. None if hits with any score are returned.
        count_limit: the number up to which hits are counted, or infinity. None if the response has no total.
        source: the filter for the ``_source`` of hits.
        fields: the patterns for the ``fields`` of hits, such as ``["title", "meta.*"]``.
        highlight: the options for the highlights of hits. None if hits have no highlights.
        aggregations: the aggregations by name.
    """

    query: Any
    post_filter: Any
    start: int
    size: int
    sort: SortOrder | None
    search_after: int | None
    min_score: float | None
    count_limit: float | None
    source: SourceFilter
    fields: list[Any]
    highlight: Json | None
    aggregations: Json


def read_search_request(body: Json, params: Mapping[str, str]) -> SearchRequest:
    """Parse a search request, in which URL parameters override the body.

    Raises:
        ApiError: 400 for a key that is invalid or not supported. The reason contains the key.
    """
    for key in body:
        if key not in _BODY_KEYS:
            raise parsing_error(
                f"unknown key [{key}] for the embedded engine's search; it supports {sorted(_BODY_KEYS)}"
            )
        if body[key] is None:
            raise parsing_error(f"[{key}] cannot be null: leave it out")
    ext = body.get("ext", {})
    if not isinstance(ext, Mapping) or not ext.keys() <= _EXTENSIONS:
        raise unsupported_error(f"[ext] other than an object of {sorted(_EXTENSIONS)}")
    _check_ignored_parameters({**body, **params})
    start = parse_count(params.get("from", body.get("from", 0)), "from")
    size = parse_count(params.get("size", body.get("size", 10)), "size")
    if start + size > MAX_WINDOW:
        raise _window_error(start + size)
    sort = _read_sort(body.get("sort"))
    if sort is not None and "min_score" in body:
        raise unsupported_error("[min_score] with [sort]")
    return SearchRequest(
        query=body.get("query", {"match_all": {}}),
        post_filter=body.get("post_filter"),
        start=start,
        size=size,
        sort=sort,
        search_after=_read_search_after(body.get("search_after"), sort, start),
        min_score=parse_number(body["min_score"], "min_score") if "min_score" in body else None,
        count_limit=_read_count_limit(body.get("track_total_hits", DEFAULT_COUNT_LIMIT)),
        source=read_source_filter(body.get("_source"), params),
        fields=require_list(body.get("fields", []), "fields"),
        highlight=body.get("highlight"),
        aggregations=require_object(body.get("aggs", {}), "aggs"),
    )


def _check_ignored_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse invalid values of parameters without effect, and values that would change OpenSearch's response."""
    pipeline = parameters.get("search_pipeline", "_none")
    if pipeline != "_none":
        fix = "the embedded engine has no search pipelines; pass search_pipeline=_none"
        raise argument_error(f"Pipeline {pipeline} is not defined: {fix}")
    preference = str(parameters.get("preference", "_local"))
    if preference.startswith("_") and preference != "_local":
        fix = "pass _local, or a name of your own"
        raise argument_error(f"no Preference for [{preference}] in the embedded engine: {fix}")
    timeout = str(parameters.get("timeout", "-1"))
    if not re.fullmatch(r"-1|\d+(nanos|micros|ms|s|m|h|d)", timeout):
        raise parsing_error(f"failed to parse [timeout] with value [{timeout}]: pass a time such as 1s")


def _read_sort(sort: Any) -> SortOrder | None:
    """Parse a sort such as "year", ``["_doc"]`` or ``[{"year": {"order": "desc"}}]``. None means to sort by score."""
    if sort is None:
        return None
    key = sort[0] if isinstance(sort, list) and len(sort) == 1 else sort
    if isinstance(key, str):
        key = {key: "asc"}
    if isinstance(key, Mapping) and len(key) == 1:
        ((name, order),) = key.items()
        if isinstance(order, Mapping) and not order.keys() - {"order"}:
            order = order.get("order", "asc")
        is_field = not name.startswith("_") and ":" not in name  # "year:desc" is the form of a URL
        if order in ("asc", "desc") and (is_field or name == INSERTION_ORDER):
            return SortOrder(name, is_descending=order == "desc")
    raise unsupported_error(f"[sort] by {json.dumps(sort):.100}", 'it sorts by score, by one field, or by ["_doc"]')


def _read_search_after(values: Any, sort: SortOrder | None, start: int) -> int | None:
    if values is None:
        return None
    is_one_number = isinstance(values, list) and len(values) == 1 and isinstance(values[0], int)
    if sort is None or sort.path != INSERTION_ORDER or start or not is_one_number:
        fix = 'pass one number, with [sort: ["_doc"]] and without [from]'
        raise unsupported_error(f"[search_after: {values!r:.100}]", fix)
    return int(values[0])


def _read_count_limit(limit: Any) -> float | None:
    if isinstance(limit, bool):
        return float("inf") if limit else None
    return parse_count(limit, "track_total_hits")


def _window_error(hits: int) -> ApiError:
    reason = (
        f"Result window is too large, from + size must be less than or equal to: [{MAX_WINDOW}] but was [{hits}]."
        " See the scroll api for a more efficient way to request large data sets."
        " This limit can be set by changing the [index.max_result_window] index level setting."
    )
    return argument_error(reason)
