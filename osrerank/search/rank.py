"""Rank the hits of a search: read their texts, find their vectors, and run the stages."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from osrerank.errors import ConfigError
from osrerank.options.rerank import NO_STAGES
from osrerank.pipeline import applied, code_of, reasons
from osrerank.recipe import Recipe
from osrerank.response import Hits, has_own_order, has_repeats, parse
from osrerank.retrieval.boosts import apply_boosts, split_scores, with_score_parts
from osrerank.retrieval.first_pass import OTHER_SORT
from osrerank.search.exact_names import exact_first, marked
from osrerank.search.orders import with_join_warning
from osrerank.search.plan import Plan, with_models
from osrerank.search.searcher import Searcher
from osrerank.search.step import Computation, Records
from osrerank.stages.ordering import NO_TEXT
from osrerank.stages.vectors import VectorStage
from osrerank.tracing.attributes import set_search_outcome
from osrerank.tracing.spans import UNRECORDED, span
from osrerank.types import Deadline, Query, Ranking
from osrerank.types.failed import Raised
from osrerank.types.reasons import Reason, ReasonCode

QUERY_ID = "search"
"""The id of the query in a `Ranking` that is made for a search."""
NO_HITS = Reason(ReasonCode.NO_HITS, "there are no hits")
REPEATED = Reason(
    ReasonCode.REPEATED,
    "the same hit appears twice: a hybrid query needs a pipeline that normalises its scores (search_pipeline=...)",
)


def read(hits: Hits, plan: Plan) -> Ranking | Reason:
    """Return the first pass's hits as a ranking, each with the text that the model reads; or why there is none.

    Args:
        hits: in the first pass's order, with their texts.
        plan: names the fields.

    Raises:
        ResponseFormatError: a score is not a number.
    """
    if (obstacle := _obstacle(hits, plan)) is not None:
        return obstacle
    by_index = plan.fields.fields_by_index(plan.options.fields) if plan.fields.groups else None
    ranking = parse(hits, Query(QUERY_ID, plan.text), plan.names, plan.options.separator, by_index)
    if all(candidate.text is None for candidate in ranking.candidates):
        return Reason(ReasonCode.NO_TEXT, _no_text(plan.names, hits))
    if plan.score_parts is not None:
        ranking = with_score_parts(ranking, plan.score_parts)
    return plan.bm25.rescale(marked(ranking, hits), hits)


def extract_boost_scores(plan: Plan, response: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
    """Move the scores of the query's text and boosts from the response's hits into the plan; return both."""
    if plan.first_pass is None or plan.first_pass.boosts is None:
        return plan, response
    parts, response = split_scores(response, plan.first_pass.boosts)
    return plan.with_score_parts(parts), response


def _obstacle(hits: Hits, plan: Plan) -> Reason | None:
    """Return why hits cannot be reranked, whatever their texts are; None if they can."""
    if plan.obstacle is not None:
        return plan.obstacle
    if not hits:
        return NO_HITS
    if has_own_order(hits):
        return Reason(ReasonCode.SORTED, OTHER_SORT)
    if has_repeats(hits):
        return REPEATED
    return None if plan.text.strip() else Reason(ReasonCode.NO_QUERY, "the query text is empty")


def with_vectors(
    ranking: Ranking | Reason, hits: Hits, plan: Plan, searcher: Searcher
) -> Generator[Computation | Records, Any, tuple[Plan, Ranking | Reason]]:
    """Yield the steps that find what the stages need; return the plan with its stages, and the ranking with vectors.

    If the order of the first page was saved, a later page gets it, and no models or vectors are needed.

    Args:
        ranking: the first pass's ranking, or why there is none.
        hits: the first pass's hits.
        plan: how they are reranked.
        searcher: its side indices, if it has any, are asked for vectors that this machine lacks.

    Raises:
        ConfigError: the options do not fit the models.
    """
    order, is_later_page = plan.order, plan.page is not None and not plan.page.is_first
    if isinstance(ranking, Reason) or plan.options.pipeline == NO_STAGES:
        return plan, ranking
    if order is not None and is_later_page and not order.orders.is_empty:
        in_kept_order = yield Computation(partial(order.read, ranking, hits, plan.options, plan.recipe))
        if in_kept_order is not None:
            return plan, in_kept_order
    plan = yield from with_models(plan)
    return plan, (yield from _read_vectors(ranking, hits, plan, searcher))


def _read_vectors(
    ranking: Ranking, hits: Hits, plan: Plan, searcher: Searcher
) -> Generator[Computation | Records, Any, Ranking]:
    """Yield the steps that read the stored vectors of candidates, and return the ranking with them.

    The file of this machine is read first, then the side indices for the vectors that it lacks.
    """
    if plan.recipe is None or (stage := plan.recipe.compares) is None or plan.deadline.passed:
        return ranking
    ranking = yield Computation(partial(_with_stored, ranking, plan.recipe, stage, plan.deadline))
    if searcher.vectors is None or ranking.vectors is None or not (lacking := ranking.vectors.missing_keys):
        return ranking
    pairs = zip(ranking.candidates, hits, strict=True)
    index_of = {candidate.doc_id: str(hit.get("_index")) for candidate, hit in pairs if candidate.doc_id in lacking}
    records = yield Records({key: index_of[doc_id] for doc_id, key in lacking.items()}, plan.deadline)
    if not records:
        return ranking
    received = yield Computation(partial(stage.vectors.accept, records))
    return replace(ranking, vectors=ranking.vectors.with_stored(received))


def _with_stored(ranking: Ranking, recipe: Recipe, stage: VectorStage, deadline: Deadline) -> Ranking:
    """Return the ranking with the keys of its candidates' vector records, and the records that this machine has."""
    return replace(ranking, vectors=stage.stored(ranking, recipe.max_depth, deadline))


def rank(ranking: Ranking | Reason, plan: Plan) -> Ranking | Reason:
    """Run the stages, unless the ranking is in the order that was kept, and record the outcome in the trace.

    Args:
        ranking: the first pass's hits with their vectors; or why they are not reranked, which is then returned.
        plan: how they are reranked.

    Raises:
        ConfigError: a stage cannot do what the options ask for.
        Raised: a stage failed, and the options say to raise.
    """
    with span("osrerank.rerank") if plan.call.position else UNRECORDED:  # each search of a multi-search has a span
        if isinstance(ranking, Ranking) and not ranking.reports and plan.recipe is not None:
            ranking = _after_stages(ranking, plan)
        if isinstance(ranking, Reason):
            set_search_outcome(applied=False, reason=str(ranking), code=ranking.code)
        else:
            reports = ranking.reports
            set_search_outcome(applied=applied(reports), reason=reasons(reports), code=code_of(reports))
    return ranking


def _after_stages(ranking: Ranking, plan: Plan) -> Ranking:
    """Return the ranking after all stages."""
    assert plan.recipe is not None
    try:
        ranking = plan.recipe.rerank(ranking, plan.deadline, on_failure=plan.options.on_failure)
    except Exception as error:
        if plan.options.on_failure == "raise" and not isinstance(error, ConfigError):
            raise Raised(error) from error
        raise
    if plan.boosts is not None:
        ranking = apply_boosts(ranking, plan.boosts)
    ranking = exact_first(ranking)
    is_later_page = plan.page is not None and not plan.page.is_first
    return with_join_warning(ranking, plan.options) if is_later_page and plan.order is not None else ranking


def _no_text(names: Sequence[str], hits: Hits) -> str:
    """Return the reason why hits without text cannot be reranked; it lists the fields that they have."""
    present = sorted({name for hit in hits for key in ("_source", "fields") for name in (hit.get(key) or {})})
    fields = f"the hits have {', '.join(present)}" if present else "the hits carry no _source"
    return f"{NO_TEXT} ({', '.join(names)}): {fields}; name the right ones as rerank={{'fields': [...]}}"
