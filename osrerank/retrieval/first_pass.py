"""Plan the first pass: the search request that finds all hits to rerank and all hits of the caller's page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any, NamedTuple, Self

from osrerank.options.rerank import MAX_DEPTH, Rerank
from osrerank.response import Page
from osrerank.retrieval.boosts import SCORES_PARAM, Boosts
from osrerank.retrieval.fields import SearchFields, union
from osrerank.retrieval.retrievers import (
    explain_unsupported_retriever,
    read_retriever_page_size,
    read_retriever_window,
)
from osrerank.retrieval.search_pipelines import NO_PIPELINE, SearchPipeline, add_pipeline
from osrerank.thresholds.cut import Thresholds
from osrerank.types.reasons import Reason, ReasonCode, SearchWarning, WarningCode

DEFAULT_SIZE = 10
"""The engine's default ``size``."""
MAX_REASON_CHARACTERS = 200
"""The maximum length of the reason why a shard failed, as shown in a message."""
COLLAPSE_WARNING = SearchWarning(
    "collapse shows each group by the hit that the first pass ranks highest, so a better member may stay hidden; "
    "docs/concepts.md says how to rerank all members",
    WarningCode.COLLAPSED,
)
OTHER_SORT_REASON = "the search is sorted by something other than score"
"""The reason why the hits of a search with the caller's own sort are not reranked."""

_SOURCE_PARAMS = ("_source", "_source_includes", "_source_excludes", "_source_include", "_source_exclude")
_PAGING_REASONS = {
    "scroll": "a scroll reads all hits in batches, and has no page to rerank",
    "search_after": "search_after continues a reranked list only if the search is sorted by _score first",
    "pit": "a point in time is for paging by sort values, which reranking replaces",
}
"""Keys of requests that page by other means than ``from``, and the reasons why these searches are not reranked."""
HYBRID_PAGING_REASON = "a hybrid query has later pages only with pagination_depth"
_FIELD_DEFINING_KEYS = ("docvalue_fields", "stored_fields", "script_fields", "derived", "runtime_mappings")
"""Keys of a request that add values to ``fields`` of the hits, under names that the caller chooses."""


@dataclass(frozen=True, slots=True)
class FirstPass:
    """A first pass's request, and the page of the reranked list that the caller requested.

    Attributes:
        body: the request's body.
        params: the request's URL parameters.
        page: the caller's page.
        pipeline: the search pipeline that applies to the request.
        fields_to_fetch: fields whose text a second request fetches by the hits' ids. Empty if the hits have the text.
        reads_only_source: whether texts are read only from ``_source``. In ``fields``, the caller may give a field's
            name to computed values.
        search_after: the sort values of the hit after which the caller's page begins, as in the caller's body. None if
            the page is given by ``from``.
        boosts: the parts of the query whose scores are requested. None if the caller's query is sent unchanged.
    """

    body: dict[str, Any]
    params: dict[str, Any]
    page: Page
    pipeline: SearchPipeline = NO_PIPELINE
    fields_to_fetch: tuple[str, ...] = ()
    reads_only_source: bool = False
    search_after: list[Any] | None = None
    boosts: Boosts | None = None

    @property
    def depth(self) -> int:
        """The number of hits to rerank with `search_after`: all requested hits except one page."""
        n_requested: int = self.body["size"]
        return n_requested - self.page.size

    @property
    def is_sorted(self) -> bool:
        """Whether hits have sort values, with which the caller can request the next page (``search_after``)."""
        return bool(self.params.get("sort") or self.body.get("sort"))

    def find_last_seen_hits(self, response: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the indices of the hits with the sort values `search_after`. The caller's page begins after them.

        Several hits can have equal sort values. The result is empty if the first such hit is not reranked.
        """
        sort_values = [hit.get("sort") if isinstance(hit, Mapping) else None for hit in read_hits(response)]
        indices = [index for index, values in enumerate(sort_values) if values == self.search_after]
        return tuple(indices) if indices and indices[0] < self.depth else ()

    def explain_incompleteness(self, response: Mapping[str, Any]) -> str:
        """Return why this response might lack hits that the caller's own request would find, or an empty string."""
        shards = _read_object(response, "_shards")
        if shards.get("failed"):
            return f"{shards['failed']} of {shards.get('total')} shards failed{_describe_first_failure(shards)}"
        if response.get("timed_out"):
            return "it timed out"
        if response.get("terminated_early") and "terminate_after" not in {*self.body, *self.params}:
            return "it was terminated early"
        if self.pipeline.may_shorten:
            return ""
        n_hits, end = len(read_hits(response)), self.page.offset + self.page.size
        total = read_total(response, end)
        is_page_empty = n_hits <= self.page.offset
        # A collapsed response always has fewer hits than its total, so it is suspect only if the page is empty.
        is_short = n_hits < min(end, total) and (is_page_empty or "collapse" not in self.body)
        # OpenSearch can refuse the caller's own request for an empty page of a hybrid query.
        may_be_refused = is_page_empty and self.page.offset > 0 and _read_hybrid_query(self.body) is not None
        if is_short or may_be_refused:
            return f"it found {n_hits} of {total} hits"
        return ""

    def has_wrong_size(self, response: Mapping[str, Any]) -> bool:
        """Return whether the search pipeline added or dropped hits, so that pages would overlap or leave a gap."""
        n_requested, n_returned = self.body["size"], len(read_hits(response))
        requests_only_first_page = self.page.offset == 0 and n_requested == self.page.size
        if requests_only_first_page and n_returned <= n_requested:
            return False
        n_expected = min(n_requested, read_total(response, n_requested))
        return self.pipeline.adds_hits or (self.pipeline.may_shorten and n_returned != n_expected)

    def with_caller_page_size(self) -> Self:
        """Return the request for only as many hits as the caller's first page has.

        The caller then gets all hits of the response, even if the search pipeline added some.
        """
        body = {**self.body, "size": self.page.size}
        return replace(self, body=body, page=replace(self.page, size=MAX_DEPTH))

    def with_named_query(self, boosts: Boosts) -> Self:
        """Return the request with names for the parts of its query, which also requests the scores of these parts."""
        params = {**self.params, SCORES_PARAM: "true"}
        return replace(self, body={**self.body, "query": boosts.query}, params=params, boosts=boosts)

    def is_own_response_better(self, own_response: Mapping[str, Any], response: Mapping[str, Any]) -> bool:
        """Return whether the response to the caller's own request is better than the first pass's response.

        It is better if it is more complete. It is also better if the same number of shards failed in both, but the
        responses' pages have different numbers of hits: a shard that cannot fetch its hits leaves a gap, and the first
        pass, which requests more hits, fills the gap with hits of lower rank.
        """
        size, start = self.page.size, self.page.offset
        own_losses = _measure_losses(own_response, read_hits(own_response)[:size])
        losses = _measure_losses(response, read_hits(response)[start : start + size])
        have_same_failures = own_losses.failed_shards == losses.failed_shards > 0
        if have_same_failures and own_losses.minus_hits != losses.minus_hits:
            return True
        return any(own_loss < loss for own_loss, loss in zip(own_losses, losses, strict=True))


class _Losses(NamedTuple):
    """What a response lacks. For each of these numbers, lower means a more complete response.

    ``minus_hits`` is minus the number of hits on the page.
    """

    failed_shards: int
    timed_out: bool
    terminated_early: bool
    minus_hits: int


def _read_object(response: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the object under a key of a response, or an empty object if there is none."""
    part = response.get(name)
    return part if isinstance(part, Mapping) else {}


def read_hits(response: Mapping[str, Any]) -> Sequence[Any]:
    """Return the list of hits of a response without checking its elements, or an empty list if there is none."""
    hits = _read_object(response, "hits").get("hits")
    return hits if isinstance(hits, list) else ()


def read_total(response: Mapping[str, Any], default: int) -> int:
    """Return the total number of hits that a response reports, or ``default`` if it reports none."""
    total = _read_object(response, "hits").get("total")
    count = total.get("value") if isinstance(total, Mapping) else total
    return int(count) if isinstance(count, int | float) else default


def count_failed_shards(response: Mapping[str, Any]) -> int:
    """Return the number of shards that failed."""
    return int(_read_object(response, "_shards").get("failed", 0))


def _measure_losses(response: Mapping[str, Any], hits: Sequence[Any]) -> _Losses:
    """Return what a response with these hits on its page lacks."""
    return _Losses(
        failed_shards=count_failed_shards(response),
        timed_out=bool(response.get("timed_out")),
        terminated_early=bool(response.get("terminated_early")),
        minus_hits=-len(hits),
    )


def _describe_first_failure(shards: Mapping[str, Any]) -> str:
    """Return the reason why the first shard failed, in parentheses. Empty if the response has no reason."""
    failures: Sequence[Mapping[str, Any]] = shards.get("failures") or ({},)
    reason = failures[0].get("reason") or {}
    return f" ({reason.get('type')}: {str(reason.get('reason'))[:MAX_REASON_CHARACTERS]})" if reason else ""


def plan_first_pass(
    body: Mapping[str, Any],
    params: Mapping[str, Any],
    options: Rerank,
    depth: int,
    fields: SearchFields,
    pipeline: SearchPipeline = NO_PIPELINE,
    thresholds: Thresholds | None = None,
) -> FirstPass | Reason:
    """Return the first pass's request for all candidates, or the reason why the search cannot be reranked.

    The request starts at the first hit. It ends at ``depth`` or at the end of the caller's page, whichever is further,
    so that pages of the reranked list neither overlap nor leave a gap. It ends with the page if more hits would change
    which hits ``min_score`` removes.

    Args:
        body: the caller's body. URL parameters override it, as in OpenSearch.
        params: the caller's URL parameters. The parameter ``from`` can also be named ``from_``.
        options: the search's options.
        depth: the number of candidates that the deepest stage reranks.
        fields: the fields that the search uses.
        pipeline: the search pipeline that applies to the search.
        thresholds: the probabilities below which reranked hits are removed. If None, no hit is removed.
    """
    offset = read_count(params, body, ("from", "from_"), 0)
    default_size = read_retriever_page_size(body, offset or 0) or DEFAULT_SIZE
    size = read_count(params, body, ("size",), default_size)
    search_after = _read_search_after(body, params, pipeline)
    refusal = _find_refusal(body, params, offset, size, continued_depth=None if search_after is None else depth)
    if refusal is not None:
        return refusal
    if pipeline.blocking_reason:
        return Reason(ReasonCode.SEARCH_PIPELINE, pipeline.blocking_reason)
    assert offset is not None  # otherwise, the request was refused above
    assert size is not None
    retriever_reason = explain_unsupported_retriever(body, offset + size)
    if retriever_reason:
        return Reason(ReasonCode.RETRIEVER, retriever_reason)
    new_body = {name: value for name, value in body.items() if name not in ("from", "size", "search_after")}
    new_params = {name: value for name, value in params.items() if name not in ("from", "from_", "size")}
    if _min_score_depends_on_size(body):
        end = offset + size
    elif search_after is None:
        end = max(depth, offset + size)
    else:
        end = depth + size  # the page begins below any of the reranked hits
    new_body |= {"from": 0, "size": min(end, read_retriever_window(body) or end)}
    _drop_rerank_ext(new_body)
    new_body, new_params = add_pipeline(pipeline.replacement, new_body, new_params)
    # The models' texts come from _source, or else ``fields`` of the hits, or else a second request.
    model_fields = union(fields.resolve_model_fields(ranking.fields) for ranking in options.rankings)
    # texts of fields such as highlight:title and inner_hits:passages are in the hits already
    names = tuple(name for name in model_fields if ":" not in name)
    absent_names = _find_names_absent_from_source(body, params, names, fields.traits.absent_from_source)
    page = Page(offset, size, min_score=options.min_score, explain=options.explain, thresholds=thresholds)
    can_use_fields = fields.traits.source_only.isdisjoint(absent_names) and not pipeline.changes_fields
    if can_use_fields and not _may_clash(body, params, names):
        requested_fields = body.get("fields") or []
        added_names = tuple(name for name in absent_names if not _is_listed(requested_fields, name))
        if added_names:
            new_body["fields"] = [*requested_fields, *added_names]
        page = replace(page, added_fields=added_names)
        return FirstPass(new_body, new_params, page, pipeline, search_after=search_after)
    needs_second_request = pipeline.changes_fields or bool(absent_names)
    fields_to_fetch = names if needs_second_request else ()
    return FirstPass(
        new_body,
        new_params,
        page,
        pipeline,
        fields_to_fetch=fields_to_fetch,
        reads_only_source=not fields_to_fetch,
        search_after=search_after,
    )


def _read_search_after(
    body: Mapping[str, Any], params: Mapping[str, Any], pipeline: SearchPipeline
) -> list[Any] | None:
    """Return the values of ``search_after`` if they continue a reranked list, or None.

    They do not continue it if the search is not sorted by score first, if hits are collapsed, or if a search pipeline
    might add or drop hits.
    """
    sort_values = body.get("search_after")
    if not isinstance(sort_values, list | tuple) or not sort_values:
        return None
    if "collapse" in body or params.get("search_after"):
        return None
    is_ranked = _sorts_by_score_first(params.get("sort", body.get("sort")))
    return list(sort_values) if is_ranked and not (pipeline.may_shorten or pipeline.adds_hits) else None


def _find_refusal(
    body: Mapping[str, Any],
    params: Mapping[str, Any],
    offset: int | None,
    size: int | None,
    *,
    continued_depth: int | None,
) -> Reason | None:
    """Return the reason why the hits of a request cannot be reranked, or None if they can.

    Args:
        body: the caller's body.
        params: the caller's URL parameters.
        offset: the index of the page's first hit, from 0. None if ``from`` in the request is not a count.
        size: the number of hits of the page. None if ``size`` in the request is not a count.
        continued_depth: the number of hits to rerank if ``search_after`` continues a reranked list. Otherwise None.
    """
    can_search_after = continued_depth is not None and not offset and continued_depth + (size or 0) <= MAX_DEPTH
    paging_reasons = [
        reason
        for name, reason in _PAGING_REASONS.items()
        if (params.get(name) or body.get(name) is not None) and not (name == "search_after" and can_search_after)
    ]
    hybrid = _read_hybrid_query(body)
    if offset and hybrid is not None and hybrid.get("pagination_depth") is None:
        paging_reasons.append(HYBRID_PAGING_REASON)
    request_reasons = [f"{name} is null" for name, value in body.items() if value is None]
    if params.get("filter_path") or body.get("filter_path"):
        request_reasons.insert(0, "filter_path may hide what reranking reads")
    stored_fields = params.get("stored_fields") or body.get("stored_fields") or []
    if isinstance(stored_fields, str):
        stored_fields = stored_fields.split(",")
    if "_none_" in stored_fields:
        request_reasons.append("stored_fields is _none_: no text can be read")
    if offset is None or size is None:
        request_reasons.append("from or size is not a count")
    elif size == 0:
        request_reasons.append("size is 0: no hits were asked for")
    elif offset + size > MAX_DEPTH:
        request_reasons.append(f"from + size is {offset + size}: beyond the result window of {MAX_DEPTH:,} hits")
    sort = params.get("sort", body.get("sort"))
    sort_reasons = [OTHER_SORT_REASON] if sort and not _sorts_by_score_first(sort) else []
    all_reasons = [*paging_reasons, *request_reasons, *sort_reasons]
    if not all_reasons:
        return None
    code = ReasonCode.PAGING if paging_reasons else ReasonCode.REQUEST if request_reasons else ReasonCode.SORTED
    return Reason(code, "; ".join(all_reasons))


def _read_hybrid_query(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the content of the ``hybrid`` query of a body, or None if its query is another one."""
    query = body.get("query")
    hybrid = query.get("hybrid") if isinstance(query, Mapping) else None
    return hybrid if isinstance(hybrid, Mapping) else None


def _min_score_depends_on_size(body: Mapping[str, Any]) -> bool:
    """Return whether ``min_score`` would remove other hits if the request asked for more of them.

    OpenSearch normalises the scores of a hybrid query among the hits that each of its queries finds. Without
    ``pagination_depth``, the request's ``size`` decides how many these are.
    """
    hybrid = _read_hybrid_query(body)
    return hybrid is not None and hybrid.get("pagination_depth") is None and body.get("min_score") is not None


def _sorts_by_score_first(sort: Any) -> bool:
    """Return whether a sort begins with the score, best first.

    It can be written as ``"_score:desc,date"``, ``["_score"]``, ``{"_score": "desc"}`` or
    ``[{"_score": {"order": "desc"}}]``.
    """
    if isinstance(sort, str):
        sort = sort.split(",")
    first = next(iter(sort), None) if isinstance(sort, list | tuple) else sort
    if isinstance(first, str):
        name, _, order = first.partition(":")
        return name == "_score" and order.lower() in ("", "desc")
    if isinstance(first, Mapping) and next(iter(first), None) == "_score":
        order = first["_score"]
        if isinstance(order, Mapping):
            order = order.get("order", "desc")
        return str(order).lower() == "desc"
    return False


def read_count(params: Mapping[str, Any], body: Mapping[str, Any], names: tuple[str, ...], default: int) -> int | None:
    """Return a count, such as ``size``, from the URL parameters or else the body.

    ``names`` are the names that the count can have. Return ``default`` if neither has it, and None if its value is not
    a count, so that the engine will refuse the request.
    """
    values = [source.get(name) for source in (params, body) for name in names]
    value: Any = next((value for value in values if value is not None), default)
    if isinstance(value, str):
        return int(value) if value.isdecimal() else None
    is_number = isinstance(value, Real) and not isinstance(value, bool)  # numpy's numbers, too
    is_count = is_number and value >= 0 and value % 1 == 0
    return int(value) if is_count else None


def _drop_rerank_ext(body: dict[str, Any]) -> None:
    """Remove `ext.rerank` from the copy of the body, because a cluster without the plugin refuses it."""
    if "rerank" in (body.get("ext") or {}):
        other_extensions = {name: value for name, value in body["ext"].items() if name != "rerank"}
        if other_extensions:
            body["ext"] = other_extensions
        else:
            del body["ext"]


def _find_names_absent_from_source(
    body: Mapping[str, Any], params: Mapping[str, Any], names: tuple[str, ...], not_in_source: frozenset[str]
) -> tuple[str, ...]:
    """Return the fields that ``_source`` of the hits will not have: all of them if the request filters ``_source``.

    ``not_in_source`` are the fields that are never in ``_source``.
    """
    source = body.get("_source", True)
    requests_all = source in (True, "true") or (isinstance(source, list) and all(name in source for name in names))
    is_filtered = (
        not requests_all
        or any(name in params for name in _SOURCE_PARAMS)
        or "stored_fields" in body
        or "stored_fields" in params
        or ("script_fields" in body and "_source" not in body)  # by default, script_fields turn _source off
    )
    return tuple(name for name in names if is_filtered or name in not_in_source)


def _may_clash(body: Mapping[str, Any], params: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Return whether adding these names to ``fields`` of the request might change what the caller gets.

    It might if the request puts other values under these names (computed or formatted fields, the field of
    ``collapse``), or if a completion suggester, an aggregation or ``verbose_pipeline`` would show the added text.
    """
    suggest = body.get("suggest")
    suggesters = suggest.values() if isinstance(suggest, Mapping) else ()
    formatted = [entry for entry in body.get("fields") or () if isinstance(entry, Mapping) and "format" in entry]
    collapse_field = (body.get("collapse") or {}).get("field", "")
    return (
        any(body.get(name) or params.get(name) for name in (*_FIELD_DEFINING_KEYS, "verbose_pipeline"))
        or any(isinstance(entry, Mapping) and "completion" in entry for entry in suggesters)
        or _has_top_hits(body.get("aggs") or body.get("aggregations"))
        or any(_is_listed([*formatted, collapse_field], name) for name in names)
    )


def _has_top_hits(part: Any) -> bool:
    """Return whether aggregations show hits. In Elasticsearch, these hits have the ``fields`` of the request."""
    if not isinstance(part, Mapping):
        return False
    return "top_hits" in part or any(_has_top_hits(inner) for inner in part.values())


def _is_listed(patterns: Iterable[Any], name: str) -> bool:
    """Return whether a field's name is in a list of names, patterns and objects such as ``{"field": "title"}``."""
    names = (pattern.get("field", "") if isinstance(pattern, Mapping) else pattern for pattern in patterns)
    return any(fnmatchcase(name, str(listed_name)) for listed_name in names)
