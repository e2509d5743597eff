"""Rank the hits of a search: read their texts from the response, fetch their stored vectors, and run the stages."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from osrerank.errors import ConfigError
from osrerank.options.rerank import NO_STAGES
from osrerank.pipeline import describe_failures, find_applied, find_reason_code
from osrerank.response import Hits, has_own_order, has_repeats, make_candidates
from osrerank.retrieval.boosts import add_score_parts, apply_boosts, split_scores
from osrerank.retrieval.first_pass import OTHER_SORT_REASON
from osrerank.search.exact_names import mark_exact_names, move_exact_names_up
from osrerank.search.orders import with_overlap_warning
from osrerank.search.plan import Plan, with_models
from osrerank.search.searcher import Searcher
from osrerank.search.step import Computation, ReadRecords
from osrerank.stages.ordering import NO_TEXT
from osrerank.stages.vectors import VectorStage
from osrerank.tracing.attributes import set_search_outcome
from osrerank.tracing.spans import UNRECORDED, span
from osrerank.types import Deadline, Query, Ranking
from osrerank.types.engine_errors import PropagatedError
from osrerank.types.reasons import Reason, ReasonCode

QUERY_ID = "search"
"""The ``query_id`` in the ranking of a search."""
NO_HITS = Reason(ReasonCode.NO_HITS, "there are no hits")
REPEATED = Reason(
    ReasonCode.REPEATED,
    "the same hit appears twice: a hybrid query needs a pipeline that normalises its scores (search_pipeline=...)",
)


def read_ranking(hits: Hits, plan: Plan) -> Ranking | Reason:
    """Return the first pass's hits as a ranking with the model's input texts, or the reason why they are not reranked.

    Args:
        hits: the hits with their texts, in the first pass's order.
        plan: the plan of the search.

    Raises:
        ResponseFormatError: a score is not a number.
    """
    skip_reason = _find_skip_reason(hits, plan)
    if skip_reason is not None:
        return skip_reason
    fields_by_index = plan.fields.model_fields_by_index(plan.options.fields) if plan.fields.groups else None
    candidates = make_candidates(hits, plan.model_fields, plan.options.separator, fields_by_index)
    if all(candidate.text is None for candidate in candidates):
        return Reason(ReasonCode.NO_TEXT, _no_text_message(plan.model_fields, hits))
    ranking = Ranking(Query(QUERY_ID, plan.text), candidates)
    if plan.score_parts is not None:
        ranking = add_score_parts(ranking, plan.score_parts)
    ranking = mark_exact_names(ranking, hits)
    return plan.bm25.rescale(ranking, hits)


def extract_boost_scores(plan: Plan, response: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
    """Move each hit's text score and boosts from the response into the plan. Return the new plan and response."""
    if plan.first_pass is None or plan.first_pass.boosts is None:
        return plan, response
    parts, response = split_scores(response, plan.first_pass.boosts)
    return plan.with_score_parts(parts), response


def _find_skip_reason(hits: Hits, plan: Plan) -> Reason | None:
    """Return why hits cannot be reranked, whatever their texts are, or None if nothing prevents it."""
    if plan.skip_reason is not None:
        return plan.skip_reason
    if not hits:
        return NO_HITS
    if has_own_order(hits):
        return Reason(ReasonCode.SORTED, OTHER_SORT_REASON)
    if has_repeats(hits):
        return REPEATED
    return None if plan.text.strip() else Reason(ReasonCode.NO_QUERY, "the query text is empty")


def load_models_and_vectors(
    ranking: Ranking | Reason, hits: Hits, plan: Plan, searcher: Searcher
) -> Generator[Computation | ReadRecords, Any, tuple[Plan, Ranking | Reason]]:
    """Load what the stages need. Return the plan with the models, and the ranking with its stored vectors.

    If an order was saved with the first page, a later page gets this order, and neither models nor vectors are loaded.

    Args:
        ranking: the first pass's ranking, or the reason why there is none.
        hits: the first pass's hits.
        plan: the plan of the search.
        searcher: the state that the client's searches share.

    Raises:
        ConfigError: the options do not fit the models.
    """
    if isinstance(ranking, Reason) or plan.options.pipeline == NO_STAGES:
        return plan, ranking
    order = plan.order
    if order is not None and _is_later_page(plan) and not order.store.is_empty:
        saved_ranking = yield Computation(partial(order.read, ranking, hits, plan.options, plan.recipe))
        if saved_ranking is not None:
            return plan, saved_ranking
    plan = yield from with_models(plan)
    ranking = yield from _read_vectors(ranking, hits, plan, searcher)
    return plan, ranking


def _is_later_page(plan: Plan) -> bool:
    return plan.page is not None and not plan.page.is_first


def _read_vectors(
    ranking: Ranking, hits: Hits, plan: Plan, searcher: Searcher
) -> Generator[Computation | ReadRecords, Any, Ranking]:
    """Return the ranking with its candidates' stored vectors, from this machine or from the side indices."""
    if plan.recipe is None or plan.recipe.vector_stage is None or plan.deadline.passed:
        return ranking
    stage = plan.recipe.vector_stage
    ranking = yield Computation(partial(_read_local_vectors, ranking, plan.recipe.max_depth, stage, plan.deadline))
    if searcher.vectors is None or ranking.vectors is None:
        return ranking
    missing_keys = ranking.vectors.missing_keys
    if not missing_keys:
        return ranking
    hits_by_id = dict(zip([candidate.doc_id for candidate in ranking.candidates], hits, strict=True))
    index_by_key = {key: str(hits_by_id[doc_id].get("_index")) for doc_id, key in missing_keys.items()}
    records = yield ReadRecords(index_by_key, plan.deadline)
    if not records:
        return ranking
    valid_records = yield Computation(partial(stage.document_vectors.parse_and_store, records))
    return replace(ranking, vectors=ranking.vectors.with_stored_records(valid_records))


def _read_local_vectors(ranking: Ranking, depth: int, stage: VectorStage, deadline: Deadline) -> Ranking:
    """Return the ranking with the vectors that are stored on this machine, and with the keys of all vectors."""
    return replace(ranking, vectors=stage.read_vectors(ranking, depth, deadline))


def run_stages(ranking: Ranking | Reason, plan: Plan) -> Ranking | Reason:
    """Run the stages, unless the ranking has a saved order already. Record the outcome in the tracing span.

    Args:
        ranking: the first pass's ranking with vectors. If it is the reason why the hits are not reranked, the function
            returns it unchanged.
        plan: the plan of the search.

    Raises:
        ConfigError: a stage cannot do what the options require.
        PropagatedError: a stage failed, and ``on_failure`` is ``"raise"``.
    """
    # In a multi-search, each search has a span of its own. The outcome of a single search goes to the current span.
    with span("osrerank.rerank") if plan.call.is_in_multi_search else UNRECORDED:
        has_saved_order = isinstance(ranking, Ranking) and bool(ranking.reports)  # they are saved with the order
        if isinstance(ranking, Ranking) and not has_saved_order and plan.recipe is not None:
            ranking = _rerank(ranking, plan)
        if isinstance(ranking, Reason):
            set_search_outcome(applied=False, reason=str(ranking), code=ranking.code)
        else:
            trace_outcome(ranking)
    return ranking


def trace_outcome(ranking: Ranking) -> None:
    """Write to the current tracing span whether a ranking was reranked, and why it was not or only in part."""
    reports = ranking.reports
    set_search_outcome(applied=find_applied(reports), reason=describe_failures(reports), code=find_reason_code(reports))


def _rerank(ranking: Ranking, plan: Plan) -> Ranking:
    """Return the ranking after all stages and boosts. Hits whose name is exactly the query are moved up."""
    assert plan.recipe is not None
    try:
        ranking = plan.recipe.rerank(ranking, plan.deadline, on_failure=plan.options.on_failure)
    except Exception as error:
        if plan.options.on_failure == "raise" and not isinstance(error, ConfigError):
            raise PropagatedError(error) from error
        raise
    if plan.boosts is not None:
        ranking = apply_boosts(ranking, plan.boosts)
    ranking = move_exact_names_up(ranking)
    if plan.order is not None and _is_later_page(plan):
        ranking = with_overlap_warning(ranking, plan.options)
    return ranking


def _no_text_message(names: Sequence[str], hits: Hits) -> str:
    """Return the message for hits without text in the fields ``names``. It lists the fields that the hits have."""
    present_names = sorted({name for hit in hits for key in ("_source", "fields") for name in (hit.get(key) or {})})
    finding = f"the hits have {', '.join(present_names)}" if present_names else "the hits carry no _source"
    missing_names = f" ({', '.join(names)})" if names else ""
    return f"{NO_TEXT}{missing_names}: {finding}; set rerank={{'fields': [...]}} to fields that are in _source"
