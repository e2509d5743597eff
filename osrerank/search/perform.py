"""Send the first pass of a search, which fetches the candidates. If it fails, send the caller's own request.

The functions are generators that yield their requests, and are sent the responses.
"""

import logging
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from osrerank._log_throttle import LogThrottle
from osrerank.response import Hits, parse_hits, read_sections
from osrerank.retrieval.boosts import SCORES_PARAM
from osrerank.retrieval.first_pass import FirstPass, count_failed_shards, read_hits, read_total
from osrerank.retrieval.requests import SideRequest
from osrerank.search.orders import MAY_OVERLAP
from osrerank.search.plan import NOT_ATTEMPTED, Plan, look_up_fields
from osrerank.search.searcher import Searcher
from osrerank.search.step import ReadTexts, SearchRequest, Step
from osrerank.types.engine import Engine
from osrerank.types.engine_errors import EngineError
from osrerank.types.reasons import Reason, ReasonCode, SearchWarning, WarningCode

logger = logging.getLogger(__name__)
log_throttle = LogThrottle()

BELOW_DEPTH = Reason(ReasonCode.PAGING, "search_after names no reranked hit, so the page keeps the first pass's order")
AMBIGUOUS_SEARCH_AFTER = SearchWarning(
    "several hits have the sort values of search_after, so pages might miss hits: end the sort with a unique field",
    WarningCode.PAGES_APART,
)
"""The warning that hits have equal sort values, so that it is unclear where the next page begins."""
SHORTENED = Reason(
    ReasonCode.SHORTENED,
    "the search pipeline changes the number of hits: only the first page of a search without sort can be reranked",
)
NO_CLAUSE_SCORES = "the query's boosts are ignored, because the search engine does not return their scores"
FIELD_DEFINITIONS = ("derived", "runtime_mappings")
"""The parts of a search body that define fields."""


def perform(plan: Plan, searcher: Searcher) -> Generator[SearchRequest, Any, tuple[Plan, Any]]:
    """Send a search's first pass, or the caller's own request. Return the plan that was carried out, and the response.

    A first pass with boosts names the query's clauses, to get their scores. If it is refused, it is sent again without
    the names. If a first pass without names is refused, the caller's own request is sent, unless it would fail as well.
    The returned plan then has the reason as its ``skip_reason``.

    Raises:
        EngineError: the caller's own request failed, or the first pass failed with an error that the caller's request
            would get as well, such as status 401.
    """
    first_pass = plan.first_pass
    if first_pass is None:
        response = yield from _send_callers_request(plan)
        return plan, response
    try:
        response = yield _build_request(plan, first_pass)
    except EngineError as error:
        refusal = _explain_refusal(error)
        if refusal is None:
            raise
    else:
        return plan, response
    # Outside the except block, so that an error of the second request does not have the traceback of the first error.
    if first_pass.boosts is not None:
        reason = Reason(ReasonCode.BOOSTS, NO_CLAUSE_SCORES, refusal.external_message)
        plan, response = yield from perform(plan.without_boosts(reason), searcher)
        was_accepted = plan.first_pass is not None
        if was_accepted:  # so the names were refused, and later searches of the index leave them out
            searcher.named_score_failures.put(str(plan.call.index), replace(reason, external_message=""))
        return plan, response
    plan, response = yield from _skip_reranking(plan, refusal)
    _warn(refusal)  # only now: if the caller's own request is refused, too, the message may quote its query
    return plan, response


def complete_page(plan: Plan, response: Any) -> Generator[SearchRequest, Any, tuple[Plan, Any]]:
    """Return the plan and the response of a page that lacks no hits and does not overlap other pages.

    - If the first pass is incomplete, the caller's own request is sent, and the more complete response is returned.
    - If the search pipeline changes the number of hits, reranked pages would overlap or leave gaps. So only the hits of
      the first page are reranked. Later pages come from the caller's own request.

    Raises:
        EngineError: the caller's own request failed.
    """
    first_pass = plan.first_pass
    if first_pass is None or not isinstance(response, Mapping):
        return plan, response
    incompleteness = first_pass.explain_incompleteness(response)
    if incompleteness:
        reason = Reason(ReasonCode.INCOMPLETE, "the first pass for reranking was incomplete", incompleteness)
        return (yield from _choose_more_complete(plan, response, reason))
    if first_pass.search_after is not None:
        return (yield from _page_after_hit(plan, first_pass, response))
    if not first_pass.has_wrong_size(response):
        return plan, response
    # A sorted search is not reranked, because the caller might continue after any hit of this page.
    if first_pass.page.is_first and not first_pass.is_sorted:
        first_pass = first_pass.with_caller_page_size()
        response = yield _build_request(plan, first_pass)
        return replace(plan, first_pass=first_pass, page=first_pass.page), response
    return (yield from _skip_reranking(plan, SHORTENED))


def _page_after_hit(
    plan: Plan, first_pass: FirstPass, response: Mapping[str, Any]
) -> Generator[SearchRequest, Any, tuple[Plan, Any]]:
    """Return the plan and the response of the page after the hit that has the sort values in ``search_after``.

    If no reranked hit has these sort values, the page is below the reranked hits, and the caller's own request is sent.
    """
    hit_indices = first_pass.find_last_seen_hits(response)
    if hit_indices:
        page = replace(first_pass.page, search_after_indices=hit_indices)
        warnings = plan.warnings if len(hit_indices) == 1 else (*plan.warnings, AMBIGUOUS_SEARCH_AFTER)
        second_plan = None if plan.second_plan is None else replace(plan.second_plan, page=page)
        first_pass = replace(first_pass, page=page)
        plan = replace(plan, page=page, first_pass=first_pass, warnings=warnings, second_plan=second_plan)
        return plan, response
    plan, callers_response = yield from _skip_reranking(plan, BELOW_DEPTH)
    reranked_hits = {_hit_key(hit) for hit in read_hits(response)[: first_pass.depth]}
    callers_hits = read_hits(callers_response) if isinstance(callers_response, Mapping) else ()
    # This page overlaps the reranked ones if the hit of search_after has been deleted since, or its score has changed.
    if any(_hit_key(hit) in reranked_hits for hit in callers_hits):
        plan = replace(plan, warnings=(*plan.warnings, MAY_OVERLAP))
    return plan, callers_response


def _hit_key(hit: Any) -> tuple[Any, ...] | None:
    """Return the index, id and routing of a hit. Documents with different routing can have the same id."""
    return (hit.get("_index"), hit.get("_id"), hit.get("_routing")) if isinstance(hit, Mapping) else None


def _build_request(plan: Plan, first_pass: FirstPass) -> SearchRequest:
    """Return a first pass's request. In a multi-search, its URL parameters go into the body, except `SCORES_PARAM`."""
    body, params = first_pass.body, first_pass.params
    if plan.call.is_in_multi_search:
        body = {**body, **{name: value for name, value in params.items() if name != SCORES_PARAM}}
        params = {name: value for name, value in params.items() if name == SCORES_PARAM}
    return SearchRequest(plan.call.in_callers_form(body), params, is_first_pass=True)


def _skip_reranking(plan: Plan, reason: Reason) -> Generator[SearchRequest, Any, tuple[Plan, Any]]:
    """Send the caller's own request. Return the plan, with the reason for not reranking, and the response."""
    plan = plan.without_reranking(reason)
    response = yield from _send_callers_request(plan)
    return plan, response


def _send_callers_request(plan: Plan) -> Generator[SearchRequest, Any, Any]:
    """Send the caller's own request. Send it again if it failed because of another search of the multi-search."""
    try:
        return (yield plan.callers_request)
    except EngineError as error:
        if not error.is_shared or _explain_refusal(error) is None:
            raise
    return (yield plan.callers_request)


def _choose_more_complete(plan: Plan, response: Any, reason: Reason) -> Generator[SearchRequest, Any, tuple[Plan, Any]]:
    """Send the caller's own request. Return its response or the first pass's response, whichever is more complete.

    If the same number of shards failed in both, the first pass's response gets the shard failures of the caller's
    response. Their reasons might mention the request's ``size``, and that of the first pass would puzzle the caller.

    Args:
        plan: the plan of the search.
        response: the incomplete response of the first pass.
        reason: why the hits of the caller's own request are not reranked.
    """
    try:
        callers_response = yield plan.callers_request
    except EngineError as error:
        if error.timed_out or _explain_refusal(error) is None:  # the caller's request may be valid
            return plan, response
        raise
    if plan.first_pass is None or not plan.first_pass.is_own_response_better(callers_response, response):
        n_failed = count_failed_shards(response)
        if n_failed > 0 and n_failed == count_failed_shards(callers_response):
            response = {**response, "_shards": callers_response["_shards"]}
        return plan, response
    _warn(reason)
    return plan.without_reranking(reason), callers_response


def _explain_refusal(error: EngineError) -> Reason | None:
    """Return why the first pass was refused, or None if the caller's own request would fail as well.

    It would fail as well if the status is 401 or 404, the engine is overloaded, or the cluster cannot be reached.
    """
    if error.status in (401, 404) or error.is_overload or (error.status is None and not error.timed_out):
        return None
    return Reason(ReasonCode.REFUSED, "the first pass for reranking was refused", error.external_message)


def _warn(reason: Reason) -> None:
    if log_throttle.should_log("first-pass-refused"):
        logger.warning("[first-pass-refused] a search is not reranked: %s; not logged again for a minute", reason)


def hits_with_texts(plan: Plan, response: Any, searcher: Searcher) -> Generator[Step, Any, tuple[Plan, Hits]]:
    """Return the plan and the hits with their texts. If the response has no texts, fetch them with a second request.

    The returned plan has the fields whose text the model gets. If the texts cannot be fetched, it has a skip reason.

    Raises:
        ResponseFormatError: the response does not have the format of a search response.
    """
    first_pass = plan.first_pass
    if plan.skip_reason is not None or first_pass is None:
        return plan, ()
    hits: Hits = parse_hits(response)
    if first_pass.fields_to_fetch and hits:
        engine = yield from searcher.engine.find()
        try:
            texts = yield _request_for_texts(plan, first_pass.fields_to_fetch, hits, engine)
        except EngineError as error:
            code = ReasonCode.DEADLINE if error.timed_out else ReasonCode.REFUSED
            reason = Reason(code, "the texts of the hits could not be fetched", error.external_message)
            return replace(plan, skip_reason=reason), hits
        documents_by_key = {_hit_key(document): document for document in parse_hits(texts)}
        documents = [documents_by_key.get(_hit_key(hit), {}) for hit in hits]
        hits = [
            {**hit, "_source": document.get("_source"), "fields": document.get("fields")}
            for hit, document in zip(hits, documents, strict=True)
        ]
    elif first_pass.reads_only_source:  # the values in ``fields`` may be computed by the caller's request
        hits = [{**hit, "fields": None} for hit in hits]
    if not plan.fields.model_fields:
        plan = plan.with_fields_from(hits)
    return plan, hits


def _request_for_texts(plan: Plan, names: Sequence[str], hits: Hits, engine: Engine) -> ReadTexts:
    """Return the request for the texts of the hits, by their ids."""
    indices = sorted({str(hit["_index"]) for hit in hits})
    ids = sorted({hit["_id"] for hit in hits})
    body = {
        "query": {"ids": {"values": ids}},
        "size": min(len(hits) * len(indices), 10_000),  # an id can be in each index; the engine returns at most 10,000
        "_source": list(names),
        "fields": [name for name in names if name in plan.fields.traits.absent_from_source],
        **{name: plan.body[name] for name in FIELD_DEFINITIONS if name in plan.body},
    }
    assert plan.first_pass is not None
    if plan.first_pass.pipeline.has_default and engine.has_pipelines:
        # An empty object turns the pipeline off. Before OpenSearch 2.18, a body may not name a pipeline, such as _none.
        body["search_pipeline"] = {}
    return ReadTexts(indices, body, plan.deadline)


def fields_have_changed(plan: Plan, response: Any, searcher: Searcher) -> Generator[SideRequest, Any, bool]:
    """Read the mapping again if the cached mapping might be outdated. Return whether the search's fields have changed.

    The mapping might be outdated if the search found no hits, hits without text, or hits with fields that are not in
    the mapping.
    """
    call = plan.call
    try:
        is_outdated = searcher.fields.note_new_names(call.index, call.index_options, response)
        if not is_outdated and not _finds_no_text(plan, response):
            return False
    except (AttributeError, TypeError):  # the response is malformed; `hits_with_texts` raises the error
        return False
    newest = yield from look_up_fields(call, searcher, refresh=True)
    return newest != plan.fields


def _finds_no_text(plan: Plan, response: Mapping[str, Any]) -> bool:
    """Return whether a search found no hits or only hits without text."""
    if plan.skip_reason is not None and plan.skip_reason.code not in NOT_ATTEMPTED:
        return False
    if plan.first_pass is None:
        return read_total(response, default=1) == 0  # an unknown total counts as hits
    hits, names = read_hits(response), plan.model_fields
    if not hits:
        return True
    if not names or plan.first_pass.fields_to_fetch:
        return False
    return not any(isinstance(hit, Mapping) and read_sections(hit, names) for hit in hits)
