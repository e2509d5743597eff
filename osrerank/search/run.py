"""Run a search: the one flow that all clients and engines share. Only a plain request without reranking bypasses it.

`search` yields requests and computations, is sent their results, and does no input or output itself. What else there
is to a search lies beside it: a client (`osrerank.client`) performs the steps, so that another engine is another
client; an option (`osrerank.options.rerank`) is read in `osrerank.search.plan`; the stages are put together in
`osrerank.recipe`.
"""

import logging
from collections.abc import Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from osrerank.errors import ConfigError, ResponseFormatError
from osrerank.metrics import BOOSTS, NOT_RERANKED, RERANK_SECONDS, SEARCHES
from osrerank.response import Hits, candidate_ids
from osrerank.retrieval.boosts import STAGE as BOOSTS_STAGE
from osrerank.retrieval.requests import SideRequest
from osrerank.search.interleave import Drawn, drawn_list, session_of
from osrerank.search.orders import comes_again
from osrerank.search.outcome import report_of, unranked
from osrerank.search.perform import fields_changed, hits_to_read, perform
from osrerank.search.plan import IN_SHADOW, NOT_TRIED, Asked, Plan, make_plan, text_of_query
from osrerank.search.rank import rank, read, with_boosts, with_vectors
from osrerank.search.report import Report, write
from osrerank.search.searcher import Searcher
from osrerank.search.shadow import ids_of
from osrerank.search.slow import SLOW_S, advise
from osrerank.search.step import Computation, Later, Shadow, Step
from osrerank.search.together import ClientSteps, alone
from osrerank.search.ubi_query import without_ubi
from osrerank.search.vectors import SideVectors
from osrerank.types import Ranking
from osrerank.types.candidate_vectors import CandidateVectors
from osrerank.types.failed import Raised
from osrerank.types.reasons import Reason, ReasonCode

logger = logging.getLogger(__name__)

Steps = Generator[Step, Any, Any]


def search(asked: Asked, known: Searcher) -> Steps:
    """Yield the steps of a search, receive the result of each, and return the response.

    Args:
        asked: what the caller asks for.
        known: what the client knows: of its indices, their models, their vectors.

    Raises:
        ConfigError: the rerank options cannot be used; or the query has no single text, and the options say to raise.
        ValueError: both a query and a body with a query are given.
        Failed: the search engine refused the caller's own request.
        Raised: a stage failed, and the options say to raise.
    """
    with known.serving(asked.index, checked=False) as service:  # the plan says so if the indices' models differ
        plan = yield from make_plan(asked, known, service)
        plan, response = yield from perform(plan, known)
        if (yield from fields_changed(plan, response, known)):
            plan = yield from make_plan(asked, known, service)  # by the mapping that was just read again
            plan, response = yield from perform(plan, known)
        if asked.options is None or not isinstance(response, Mapping):
            return response
        began_s = service.clock()
        try:
            plan, response = with_boosts(plan, response)
            plan, hits = yield from hits_to_read(plan, response, known)
            found = yield Computation(partial(read, hits, plan))
            plan, found = yield from with_vectors(found, hits, plan, reads_sides=known.vectors is not None)
            ranking = yield Computation(partial(rank, found, plan))
            drawn = yield from _interleaved(ranking, hits, plan, response, known)
            report = report_of(response, ranking, plan, drawn, rerank_ms=(service.clock() - began_s) * 1000)
            report = yield from recorded(report, plan, known)
            answer = write(response, report)
            yield from follow_up(ranking, report, answer, plan, hits, known)
        except (ConfigError, Raised):  # a stage whose failure the caller wants raised, or options that fit no model
            _count("false", service.clock() - began_s, asked)
            raise
        except Exception as error:  # noqa: BLE001 - the caller has a search engine's answer, and gets it
            answer = write(response, _unforeseen(error, response, plan))
        return answer


def _interleaved(
    own: Ranking | Reason, hits: Hits, plan: Plan, response: Mapping[str, Any], known: Searcher
) -> Generator[Step, Any, Drawn | None]:
    """Yield the steps that rank an interleaved search's hits for the other team; return the list of both, or None."""
    if plan.other is None or isinstance(own, Reason):
        return None
    other = replace(plan.other, fields=plan.fields)
    found = yield Computation(partial(read, hits, other))
    other, found = yield from with_vectors(found, hits, other, reads_sides=known.vectors is not None)
    ranking: Ranking | Reason = yield Computation(partial(rank, found, other))
    if isinstance(ranking, Reason):
        return None
    yield from _keep_order(ranking, other, hits)
    asked = plan.asked.options
    assert asked is not None
    assert asked.interleave is not None
    assert plan.page is not None
    return drawn_list(asked.interleave, asked.rankings, (own, ranking), response, plan.page)


def recorded(report: Report, plan: Plan, known: Searcher) -> Generator[Step, Any, Report]:
    """Yield the steps that record a search for UBI and queue its shadow run; return the report that says so."""
    if plan.ubi is not None:
        interleave = plan.asked.options and plan.asked.options.interleave
        session = session_of(interleave) if interleave else ""
        report = yield from known.records.told(
            plan.ubi, report, text=plan.text, session=session, deadline=plan.deadline
        )
    if plan.asked.held is IN_SHADOW and report.hits is not None:
        queued = yield Shadow(_second_run(report, plan, known))
        report = report.telling(traffic={**report.more["traffic"], "queued": queued})
    return report


def _second_run(report: Report, plan: Plan, known: Searcher) -> ClientSteps:
    """Return the steps that rerank a search of shadow mode again, and record how its order changes."""
    asked, before = plan.asked, ids_of(report.hits or ())
    assert asked.options is not None

    def steps() -> Generator[Step, Any, tuple[Any, float]]:
        if report.code != ReasonCode.SHADOW:  # it cannot be reranked
            return write({"hits": {"hits": []}}, report), 0.0
        started_s = plan.service.clock()
        response = yield from search(replace(asked, body=without_ubi(asked.body), held=None), known)
        return response, plan.service.clock() - started_s

    text = text_of_query(asked.options, asked.query, asked.body)
    return known.shadows.second_run(text, asked.index, before, alone(steps(), known.vectors, asked.header))


def follow_up(
    ranking: Ranking | Reason, report: Report, answer: Mapping[str, Any], plan: Plan, hits: Hits, known: Searcher
) -> Generator[Step, Any, None]:
    """Yield the steps that store the order and the new vectors; count the search, and log its warnings and failures."""
    if isinstance(ranking, Ranking):
        yield from _keep_order(ranking, plan, hits)
        if known.vectors is not None and ranking.vectors is not None:
            yield from _write_vectors(known.vectors, ranking.vectors, plan, hits)
    known.fields.warn(plan.asked.index, [one for one in report.warnings if one not in plan.fields.warnings])
    if report.code in NOT_TRIED:
        return
    for stage in report.stages:
        if stage.name == BOOSTS_STAGE:
            BOOSTS.labels(str(stage.applied).lower()).inc()
            if not stage.applied:
                logger.info("a search is reranked without its boosts: %s", stage.reason)
    took_s = report.rerank_ms / 1000
    _count("no_hits" if report.code == ReasonCode.NO_HITS else str(report.applied).lower(), took_s, plan.asked)
    whole_s = took_s + answer["rerank"]["first_pass_took_ms"] / 1000
    if whole_s > SLOW_S or report.applied is not True:
        shown = answer.get("hits", {}).get("hits", ())  # filter_path may hide them
        yield from advise(shown, report.stages, whole_s, plan, known)
    if report.applied is not True:
        NOT_RERANKED.labels(str(report.code)).inc()
        logger.info("a search was not fully reranked: %s", report.reason)


def _write_vectors(
    sides: SideVectors, vectors: CandidateVectors, plan: Plan, hits: Hits
) -> Generator[Later, Any, None]:
    """Yield the steps that store a search's new vectors, and tell builders which documents had none."""
    by_name = dict(zip(candidate_ids(hits), hits, strict=True))
    steps: list[Generator[SideRequest, Any, None] | None] = []
    if vectors.made:
        assert plan.recipe is not None
        assert plan.recipe.compares is not None
        source = plan.recipe.compares.vectors
        index_of = {key: str(by_name[doc_id].get("_index")) for doc_id, key in vectors.keys.items()}
        steps.append(sides.writing(source.records.contents(vectors.made), index_of, source.label))
    if lacking := [by_name[doc_id] for doc_id, key in vectors.lacking.items() if key not in vectors.made]:
        steps.append(sides.reporting((str(hit.get("_index")), str(hit["_id"])) for hit in lacking))
    for requests in filter(None, steps):
        yield Later(requests)


def _keep_order(ranking: Ranking, plan: Plan, hits: Hits) -> Generator[Computation, Any, None]:
    """Yield the step that stores a first page's order if a later page might not have it, or drops an old one."""
    order, page = plan.order, plan.page
    if order is None or page is None or not page.is_first:
        return
    if plan.deadline.at_s is not None or not comes_again(ranking, plan.options):
        yield Computation(partial(order.keep, ranking, candidate_ids(hits), hits, plan.options, plan.recipe))
    elif not order.orders.is_empty:
        yield Computation(partial(order.drop, plan.options))


def _count(applied: str, took_s: float, asked: Asked) -> None:
    """Count a search; second runs of shadow mode have metrics of their own."""
    if asked.options is None or not asked.options.in_shadow:
        SEARCHES.labels(applied).inc()
        RERANK_SECONDS.observe(took_s)


def _unforeseen(error: Exception, response: Mapping[str, Any], plan: Plan) -> Report:
    """Return the report of a search in which an unexpected error occurred, and log the error."""
    reason = Reason(ReasonCode.INTERNAL, f"osrerank made a mistake ({type(error).__name__}): the log has the traceback")
    if isinstance(error, ResponseFormatError):
        reason = Reason(ReasonCode.RESPONSE, "the response cannot be reranked", str(error))
        logger.warning("[response-unread] a search is not reranked: %s", error)
    else:
        logger.error("[internal] a search is answered without reranking; please report this", exc_info=error)
    if plan.asked.held is None:
        _count("false", 0.0, plan.asked)
        NOT_RERANKED.labels(str(reason.code)).inc()
    return unranked(response, reason, plan)
