"""Run a search from the caller's request to the reranked response. All clients and engines share this code.

`search` does no I/O itself: it is a generator that yields requests and computations, and receives their results. If the
hits cannot be reranked, a `Reason` takes the place of the `Ranking`. If a stage fails, `osrerank.pipeline` keeps the
order of the stages before it, and writes the reason into the stage's report. To extend a search, see:

- for a client library: `osrerank.client` and `osrerank.elastic`, which perform the steps with `osrerank.driver`;
- for a search engine: `osrerank.types.engine.Engine`, whose properties say how engines differ;
- for an option: `osrerank.options.rerank`, which declares it, and `osrerank.search.plan`, which uses it;
- for a stage: `osrerank.stages`, and `osrerank.recipe`, which builds the pipeline of stages.
"""

import logging
from collections.abc import Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from osrerank.errors import ConfigError, ResponseFormatError
from osrerank.metrics import BOOSTS, INTERNAL_ERRORS, NOT_RERANKED, RERANK_SECONDS, SEARCHES
from osrerank.response import Hits, make_candidate_ids
from osrerank.retrieval.boosts import STAGE as BOOSTS_STAGE
from osrerank.retrieval.fields import SearchFields
from osrerank.search.interleave import InterleavedList, interleave_rankings
from osrerank.search.lockstep import ClientSteps, run_one
from osrerank.search.orders import is_reproducible
from osrerank.search.outcome import make_report, unranked_report
from osrerank.search.perform import complete_page, fields_have_changed, hits_with_texts, perform
from osrerank.search.plan import (
    IN_SHADOW,
    NOT_ATTEMPTED,
    Plan,
    SearchCall,
    make_plan,
    query_text_or_json,
    with_query,
)
from osrerank.search.rank import extract_boost_scores, load_models_and_vectors, read_ranking, run_stages
from osrerank.search.report import Report, write_report
from osrerank.search.searcher import Searcher
from osrerank.search.shadow import first_ids, make_digest
from osrerank.search.slow import SLOW_S, advise
from osrerank.search.step import Computation, QueueShadowRun, SendLater, Step
from osrerank.search.ubi_query import without_ubi
from osrerank.types import Ranking
from osrerank.types.engine_errors import EngineError, PropagatedError
from osrerank.types.reasons import Reason, ReasonCode, SearchWarning, WarningCode

logger = logging.getLogger(__name__)

Steps = Generator[Step, Any, Any]
UNFINISHED = SearchWarning(
    "the page is complete, but a bug in osrerank interrupted what follows a search: later pages may repeat or skip "
    "hits, and vectors may not have been stored; the log has the traceback",
    WarningCode.INTERNAL,
)


def search(call: SearchCall, searcher: Searcher) -> Steps:
    """Search, rerank the hits, and return the response.

    Args:
        call: the caller's search.
        searcher: the state that the client's searches share: models, fields of the indices, vectors.

    Raises:
        ConfigError: the rerank options cannot be used, or the query has no single text and ``on_failure`` is
            ``"raise"``.
        ValueError: both a query and a body with a query are given.
        EngineError: the search engine refused the caller's own request.
        PropagatedError: a stage failed, and ``on_failure`` is ``"raise"``.
    """
    # Indices with different models are no error here: the plan says that the hits are not reranked for this reason.
    with searcher.service_for(call.index, allow_mixed_models=True) as service:
        failure: Exception | None = None
        try:
            plan = yield from make_plan(call, searcher, service)
        except (AttributeError, LookupError, TypeError) as error:  # a malformed request, or a bug in osrerank
            failure = error
        if failure is not None:  # outside the except block, so that the engine's error has only its own traceback
            plan = Plan(call, service, body=with_query(call.query, call.body, SearchFields()))
            response = yield plan.callers_request
            return _respond_unranked(failure, response, plan)
        plan, response = yield from perform(plan, searcher)
        try:
            reranking_began_at_s = service.clock()  # for the metrics, if one of the next steps fails
            plan, response = yield from complete_page(plan, response)
            if (yield from fields_have_changed(plan, response, searcher)):
                newest_plan = yield from make_plan(call, searcher, service)
                plan, response = yield from perform(newest_plan, searcher)
                plan, response = yield from complete_page(plan, response)
            reranking_began_at_s = service.clock()  # the first pass has ended
            if call.options is None or not isinstance(response, Mapping):  # not to be reranked, or not JSON
                return response
            if "error" in response:  # the caller's parameter ``ignore`` turns the engine's error into a response
                return response
            plan, response = extract_boost_scores(plan, response)
            plan, hits = yield from hits_with_texts(plan, response, searcher)
            ranking = yield Computation(partial(read_ranking, hits, plan))
            plan, ranking = yield from load_models_and_vectors(ranking, hits, plan, searcher)
            reranked = yield Computation(partial(run_stages, ranking, plan))
            interleaved = yield from _interleave(reranked, hits, plan, response, searcher)
            rerank_ms = (service.clock() - reranking_began_at_s) * 1000
            report = make_report(response, reranked, plan, interleaved, rerank_ms=rerank_ms)
            report = yield from record_search(report, plan, searcher)
            reranked_response = yield from finish_search(reranked, report, response, plan, hits, searcher)
        except EngineError:  # the caller's own request failed; all other requests handle their errors
            raise
        except (ConfigError, PropagatedError):  # the options do not fit the models, or ``on_failure`` is "raise"
            _count_search(applied="false", took_s=service.clock() - reranking_began_at_s, call=call, code=None)
            raise
        except Exception as error:  # noqa: BLE001 - a bug in osrerank must not lose the engine's response
            return _respond_unranked(error, response, plan)
        return reranked_response


def _interleave(
    first_ranking: Ranking | Reason, hits: Hits, plan: Plan, response: Mapping[str, Any], searcher: Searcher
) -> Generator[Step, Any, InterleavedList | None]:
    """Compute the second ranking of an interleaved search, and interleave it with the first.

    Returns None if the search is not interleaved, or if the hits cannot be reranked.
    """
    if plan.second_plan is None or isinstance(first_ranking, Reason):
        return None
    second_plan = replace(plan.second_plan, fields=plan.fields)
    ranking = yield Computation(partial(read_ranking, hits, second_plan))
    second_plan, ranking = yield from load_models_and_vectors(ranking, hits, second_plan, searcher)
    second_ranking: Ranking | Reason = yield Computation(partial(run_stages, ranking, second_plan))
    if isinstance(second_ranking, Reason):
        return None
    yield from _save_order(second_ranking, second_plan, hits)
    options = plan.call.options
    assert options is not None
    assert options.interleave is not None
    assert plan.page is not None
    rankings = first_ranking, second_ranking
    return interleave_rankings(options.interleave, options.rankings, rankings, response, plan.page)


def record_search(report: Report, plan: Plan, searcher: Searcher) -> Generator[Step, Any, Report]:
    """If requested, record the search for UBI (User Behavior Insights), and queue its second run in shadow mode.

    Returns the report with entries that say whether the search was recorded and queued.
    """
    if plan.ubi is not None:
        options = plan.call.options
        interleave = options.interleave if options else None
        session = make_digest(interleave.key) if interleave else ""
        report = yield from searcher.records.record(
            plan.ubi, report, text=plan.text, session=session, deadline=plan.deadline
        )
    if plan.call.exclusion is IN_SHADOW and report.hits is not None:
        queued = yield QueueShadowRun(_shadow_run(report, plan, searcher))
        report = report.with_entries(traffic={**report.entries["traffic"], "queued": queued})
    return report


def _shadow_run(report: Report, plan: Plan, searcher: Searcher) -> ClientSteps:
    """Return the steps that run a search of shadow mode again with reranking, and that record how the order changes."""
    call = plan.call
    assert call.options is not None

    def search_with_reranking() -> Generator[Step, Any, tuple[Any, float]]:
        """Return the response of the reranked search, and its duration in seconds."""
        if report.code != ReasonCode.SHADOW:  # the search cannot be reranked, and the report has the reason
            return write_report({"hits": {"hits": []}}, report), 0.0
        began_at_s = plan.service.clock()
        reranked_call = replace(call, body=without_ubi(call.body), exclusion=None)  # not in shadow mode
        response = yield from search(reranked_call, searcher)
        return response, plan.service.clock() - began_at_s

    text = query_text_or_json(call.options, call.query, call.body)
    reranking = run_one(search_with_reranking(), searcher.vectors, call.header)
    return searcher.shadows.compare_with_reranking(text, call.index, first_ids(report.hits or ()), reranking)


def finish_search(
    reranked: Ranking | Reason,
    report: Report,
    response: Mapping[str, Any],
    plan: Plan,
    hits: Hits,
    searcher: Searcher,
) -> Generator[Step, Any, dict[str, Any]]:
    """Write the report into the response, count the search, save its order and its new vectors, and log advice.

    If a bug in osrerank interrupts the steps after the report, the response has a warning.

    Args:
        reranked: the ranking after all stages, or the reason why the hits were not reranked.
        report: the report of the search.
        response: the search engine's response.
        plan: the plan of the search.
        hits: the first pass's hits.
        searcher: the state that the client's searches share.

    Returns:
        the response that the caller gets.
    """
    reranked_response = write_report(response, report)
    try:
        _count_outcome(report, plan)
        yield from _save_and_log(reranked, report, reranked_response, plan, hits, searcher)
    except Exception:  # a bug in osrerank must not lose the reranked response
        logger.exception(
            "[internal] a bug in osrerank may have lost the order or vectors of a search; please report the traceback"
        )
        INTERNAL_ERRORS.inc()
        return write_report(response, replace(report, warnings=(*report.warnings, UNFINISHED)))
    return reranked_response


def _count_outcome(report: Report, plan: Plan) -> None:
    """Count a search in the metrics, unless it was not meant to be reranked."""
    if report.code in NOT_ATTEMPTED:
        return
    applied = "no_hits" if report.code == ReasonCode.NO_HITS else str(report.applied).lower()
    _count_search(applied, report.rerank_ms / 1000, plan.call, report.code)
    for stage in report.stages:
        if stage.name == BOOSTS_STAGE:
            BOOSTS.labels(str(stage.applied).lower()).inc()


def _save_and_log(
    reranked: Ranking | Reason,
    report: Report,
    reranked_response: Mapping[str, Any],
    plan: Plan,
    hits: Hits,
    searcher: Searcher,
) -> Generator[Step, Any, None]:
    """Save a search's order for later pages, store its new vectors, and log why it was slow or not fully reranked."""
    if isinstance(reranked, Ranking):
        yield from _save_order(reranked, plan, hits)
        yield from _write_vectors(reranked, plan, hits, searcher)
    new_warnings = [text for text in report.warnings if text not in plan.fields.warnings]  # not logged yet
    searcher.fields.warn(plan.call.index, new_warnings)
    if report.code in NOT_ATTEMPTED:
        return
    for stage in report.stages:
        if stage.name == BOOSTS_STAGE and not stage.applied:
            logger.info("a search is reranked without its boosts: %s", stage.reason)
    total_s = (report.rerank_ms + reranked_response["rerank"]["first_pass_took_ms"]) / 1000
    if total_s > SLOW_S or report.applied is not True:
        page_hits = reranked_response.get("hits", {}).get("hits", ())  # the parameter filter_path may hide the hits
        yield from advise(page_hits, report.stages, total_s, plan, searcher)
    if report.applied is not True:
        logger.info("a search was not fully reranked: %s", report.code)  # the reason might quote the query


def _save_order(reranked: Ranking, plan: Plan, hits: Hits) -> Generator[Computation, Any, None]:
    """Save a first page's order if later pages might be ranked differently. Otherwise, delete a saved one."""
    order, page = plan.order, plan.page
    if order is None or page is None or not page.is_first:
        return
    may_change = plan.deadline.at_s is not None or not is_reproducible(reranked, plan.options)
    if may_change:
        yield Computation(partial(order.save, reranked, make_candidate_ids(hits), hits, plan.options, plan.recipe))
    elif not order.store.is_empty:
        yield Computation(partial(order.drop, plan.options))


def _write_vectors(reranked: Ranking, plan: Plan, hits: Hits, searcher: Searcher) -> Generator[SendLater, Any, None]:
    """Write the vectors that the search computed to side indices, and report the documents that still have none.

    The command ``osrerank vectors build --follow`` reads these reports.
    """
    side_indices, vectors = searcher.vectors, reranked.vectors
    if side_indices is None or vectors is None:
        return
    missing_keys = vectors.missing_keys
    if not missing_keys:
        return
    hits_by_id = dict(zip(make_candidate_ids(hits), hits, strict=True))
    if vectors.new_records:
        assert plan.recipe is not None
        assert plan.recipe.vector_stage is not None
        document_vectors = plan.recipe.vector_stage.document_vectors
        index_by_key = {key: str(hits_by_id[doc_id].get("_index")) for doc_id, key in vectors.keys.items()}
        records = document_vectors.records.to_contents(vectors.new_records)
        write_steps = side_indices.write_steps(records, index_by_key, document_vectors.label)
        if write_steps is not None:
            yield SendLater(write_steps)
    hits_without_vector = [hits_by_id[doc_id] for doc_id, key in missing_keys.items() if key not in vectors.new_records]
    if hits_without_vector:
        documents = [(str(hit.get("_index")), str(hit["_id"])) for hit in hits_without_vector]
        report_steps = side_indices.report_steps(documents)
        if report_steps is not None:
            yield SendLater(report_steps)


def _count_search(applied: str, took_s: float, call: SearchCall, code: ReasonCode | None) -> None:
    """Count a search in the metrics. Searches in shadow mode have other metrics.

    Args:
        applied: "true", "false", "partial" or "no_hits".
        took_s: the wall time of reranking in seconds.
        call: the caller's search.
        code: why the search was not fully reranked. None if it was, or if the caller gets an exception.
    """
    if call.options is None or call.options.in_shadow:
        return
    SEARCHES.labels(applied).inc()
    RERANK_SECONDS.observe(took_s)
    if code is not None:
        NOT_RERANKED.labels(str(code)).inc()


def _respond_unranked(error: Exception, response: Any, plan: Plan) -> Any:
    """Log an unexpected error in osrerank, and return the engine's response with the reason why it is not reranked."""
    error_name = type(error).__name__
    reason = Reason(ReasonCode.INTERNAL, f"internal error in osrerank ({error_name}); the log has the traceback")
    if isinstance(error, ResponseFormatError):
        reason = Reason(ReasonCode.RESPONSE, "the response cannot be reranked", str(error))
        logger.warning("[response-unread] a search is not reranked: %s", error)
    else:
        logger.error(
            "[internal] a bug in osrerank left a search without reranking; please report the traceback below",
            exc_info=error,
        )
        INTERNAL_ERRORS.inc()
    if plan.call.options is None or not isinstance(response, Mapping):
        return response
    if plan.call.exclusion is None:
        _count_search(applied="false", took_s=0.0, call=plan.call, code=reason.code)
    try:
        return write_report(response, unranked_report(response, reason, plan))
    except Exception:  # a malformed response can cause the same error again
        logger.exception(
            "[internal] a bug in osrerank left a search without a report; please report the traceback below"
        )
        return response
