"""Plan a search: build its *first pass*, the request for the candidates, and choose the models that rerank them.

The generators yield requests and computations, which the client performs. Most searches need none.
"""

import json
import logging
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np

from osrerank._log_throttle import LogThrottle
from osrerank.errors import ConfigError
from osrerank.options.rerank import NO_STAGES, Rerank, RerankOptions
from osrerank.recipe import Recipe
from osrerank.response import Page
from osrerank.retrieval.bm25_scale import NO_FACTOR, Bm25Scale
from osrerank.retrieval.boosts import SCORES_PARAM, Boosts, Parts, find_boosts
from osrerank.retrieval.fields import SearchFields, caller_names
from osrerank.retrieval.first_pass import COLLAPSE_WARNING, FirstPass, plan_first_pass, read_count
from osrerank.retrieval.mapping import without_boost
from osrerank.retrieval.query_text import build_query, explain_unfinished_query, find_query_text, shorten_text
from osrerank.retrieval.requests import SideRequest, select_index_options
from osrerank.retrieval.rm3 import expand_query
from osrerank.retrieval.sampled_fields import choose_field_names
from osrerank.retrieval.search_pipelines import UNKNOWN_PIPELINE, SearchPipeline
from osrerank.retrieval.text_fields import is_title
from osrerank.search.orders import PageOrder
from osrerank.search.searcher import Searcher
from osrerank.search.step import Computation, SearchRequest, Step
from osrerank.search.ubi_query import UbiQuery, without_ubi
from osrerank.service import RerankService
from osrerank.thresholds.cut import Thresholds
from osrerank.types import NEVER, Deadline
from osrerank.types.reasons import Reason, ReasonCode, SearchWarning, WarningCode
from osrerank.types.values import is_blank

logger = logging.getLogger(__name__)
log_throttle = LogThrottle()

Query = str | Mapping[str, Any] | None
"""A query's text, a query-DSL clause, or None for the query in the body."""
RerankArgument = bool | RerankOptions | Rerank
"""What callers may pass as ``rerank``, such as True or ``{"depth": 50}``. `Rerank.of` parses it."""
NOT_ASKED = Reason(ReasonCode.NOT_ASKED, "the pipeline is none")
IN_SHADOW = Reason(
    ReasonCode.SHADOW, "shadow mode: the plain search is the answer, and the reranked one runs in the background"
)
NOT_CHOSEN = Reason(ReasonCode.SHARE, "the search is not in the share of searches that are reranked")
NOT_ATTEMPTED = (ReasonCode.NOT_ASKED, ReasonCode.SHADOW, ReasonCode.SHARE)
"""The codes of these three reasons. They are no failures, because the search was not meant to be reranked."""
TRUNCATED_QUERY = "the query has too many words for the search engine: it searches for the first {} of them"
"""The warning about a query of which the engine gets only the first words. The model gets the whole text."""
NOT_EXPANDED = "rm3 found no documents by the field {}, so the query is not expanded"
FIELD_SAMPLE_SIZE = 30
"""About how many hits are examined for text fields if the mapping cannot be read."""
NO_BOOSTS_IN_MULTI_SEARCH = Reason(
    ReasonCode.BOOSTS,
    "the query's boosts are ignored, because OpenSearch returns no per-clause scores in a multi-search; use search",
)
NO_BOOSTS_IF_EMBEDDED = Reason(
    ReasonCode.BOOSTS, "the query's boosts are ignored, because the embedded engine returns no per-clause scores"
)


@dataclass(frozen=True, slots=True)
class SearchCall:
    """A search as the caller requests it.

    Attributes:
        query: a text, a query-DSL clause, or None for the query in the body.
        body: the search body as a mapping.
        params: the URL parameters.
        index: the index or indices.
        options: the rerank options. None for a search without reranking.
        exclusion: why the option ``traffic`` excludes the search from reranking: `IN_SHADOW` or `NOT_CHOSEN`. None if
            it does not.
        position: the search's position in a multi-search, from 1. A single search has position 0.
        header: the search's header in the multi-search. None for a single search.
        is_json: whether the caller passed the body as JSON text. It is then sent as text, because it may contain half
            of a surrogate pair, which the client library cannot encode.
    """

    query: Query = None
    body: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    index: Any = None
    options: Rerank | None = None
    exclusion: Reason | None = None
    position: int = 0
    header: Mapping[str, Any] | None = None
    is_json: bool = False

    @property
    def is_in_multi_search(self) -> bool:
        return self.position > 0

    @property
    def index_options(self) -> dict[str, str]:
        """The parameters that decide which indices a name in ``index`` matches, such as ``expand_wildcards``."""
        return select_index_options({**(self.header or {}), **self.params})

    def in_callers_form(self, body: Mapping[str, Any]) -> Mapping[str, Any] | str:
        """Return a body as JSON text if the caller passed JSON text, and unchanged otherwise."""
        return json.dumps(body) if self.is_json else body


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a search is sent, and how its hits are reranked.

    Some values are filled in later: ``recipe`` when the models are loaded, ``score_parts`` from the response.

    Attributes:
        call: the caller's search.
        service: the service that holds the models.
        deadline: the deadline of the whole search.
        warnings: sentences that say how the response differs from what the request asked for.
        ubi: the content of ``ext.ubi`` (User Behavior Insights) to record. None if osrerank records nothing.

        body: the body of the caller's own request.
        first_pass: the request for the candidates. None if the caller's own request is sent instead.
        page: the page of the reranked list that the caller requests. None for all hits of the response.

        options: the rerank options.
        skip_reason: why the hits are not reranked. None if nothing prevents it so far.
        text: the query text that the model gets. Empty if the query has no text.
        fields: the fields to search, and the fields whose text the model gets.
        recipe: the stages and their models. None until the models are loaded.
        order: reads and saves the order of the first page's hits. None if no order is saved for the search.
        second_plan: the plan for the second ranking of an interleaved search. None for other searches.

        bm25: the factors by which the engine multiplies BM25 scores.
        boosts: the query's boosts, which are its rules for the score other than text, such as recency; or the reason
            why they do not count. None if the query has no boosts, or if the options ignore them.
        score_parts: each hit's text score and boosts. None if the engine did not return them.
    """

    call: SearchCall
    service: RerankService
    deadline: Deadline = NEVER
    warnings: tuple[SearchWarning, ...] = ()
    ubi: UbiQuery | None = None

    body: Mapping[str, Any] = field(default_factory=dict)
    first_pass: FirstPass | None = None
    page: Page | None = None

    options: Rerank = field(default_factory=Rerank)
    skip_reason: Reason | None = None
    text: str = ""
    fields: SearchFields = field(default_factory=SearchFields)
    recipe: Recipe | None = None
    order: PageOrder | None = None
    second_plan: "Plan | None" = None

    bm25: Bm25Scale = NO_FACTOR
    boosts: Boosts | Reason | None = None
    score_parts: tuple[Parts, ...] | None = None

    @property
    def offset(self) -> int:
        """The number of hits before the caller's page."""
        return read_count(self.call.params, self.call.body, ("from", "from_"), 0) or 0

    @property
    def callers_request(self) -> SearchRequest:
        """The caller's own request."""
        return SearchRequest(self.call.in_callers_form(self.body), self.call.params)

    @property
    def model_fields(self) -> tuple[str, ...]:
        """The fields whose text the model gets."""
        return self.fields.resolve_model_fields(self.options.fields)

    def without_reranking(self, reason: Reason) -> Self:
        """Return a plan that sends the caller's own request, and does not rerank its hits for the given reason."""
        return replace(self, skip_reason=reason, first_pass=None, page=None)

    def without_boosts(self, reason: Reason) -> Self:
        """Return a plan without boosts. Its first pass has no named clauses, and does not request their scores.

        Args:
            reason: why boosts do not count.
        """
        assert self.first_pass is not None
        first_pass = self.first_pass
        params = {name: value for name, value in first_pass.params.items() if name != SCORES_PARAM}
        if SCORES_PARAM in self.call.params:
            params[SCORES_PARAM] = self.call.params[SCORES_PARAM]
        body = {**first_pass.body, "query": self.body["query"]}
        first_pass = replace(first_pass, body=body, params=params, boosts=None)
        return replace(self, first_pass=first_pass).with_score_parts(reason)

    def with_score_parts(self, parts: tuple[Parts, ...] | Reason) -> Self:
        """Return the plan with each hit's text score and boosts, or with the reason why these are unknown."""
        changes: dict[str, Any] = {"boosts": parts} if isinstance(parts, Reason) else {"score_parts": parts}
        second_plan = self.second_plan and replace(self.second_plan, **changes)
        return replace(self, second_plan=second_plan, **changes)

    def with_fields_from(self, hits: Sequence[Mapping[str, Any]]) -> Self:
        """Return the plan with the model's fields: those that the options name, or else the text fields of the hits.

        Text fields are chosen from a sample of the hits, because a deadline leaves no time to examine all of them.
        """
        if caller_names(self.options.fields):
            return replace(self, fields=SearchFields.from_options(self.options))
        interval = math.ceil(len(hits) / FIELD_SAMPLE_SIZE) or 1
        sample = hits[::interval]
        values = [{**(hit.get("fields") or {}), **(hit.get("_source") or {})} for hit in sample]
        return replace(self, fields=replace(self.fields, model_fields=choose_field_names(values)))


def make_plan(call: SearchCall, searcher: Searcher, service: RerankService) -> Generator[Step, Any, Plan]:
    """Plan a search.

    Args:
        call: the caller's search.
        searcher: the state that the client's searches share.
        service: the service that holds the index's models.

    Raises:
        ConfigError: the options cannot be used, or the query has no single text and ``on_failure`` is ``"raise"``.
        ValueError: both a query and a body with a query are given.
    """
    options = call.options or searcher.defaults.options_for(call.index)
    recipe, deadline = yield from _find_recipe_and_deadline(call, searcher, service)
    fields = yield from look_up_fields(call, searcher)
    query = shorten_text(call.query, fields) if isinstance(call.query, str) else call.query
    body = with_query(query, call.body, fields)
    plan = Plan(call, service, deadline, body=body, options=options, fields=fields, recipe=recipe)
    if isinstance(query, str) and query != call.query:
        plan = _with_truncation_warning(plan, len(query.split()))
    if call.options is None:
        return plan
    if isinstance(call.query, str):
        plan = replace(plan, text=call.query)
    search_pipeline = UNKNOWN_PIPELINE
    if not fields.timed_out:  # otherwise, another request would probably time out too
        params = {**(call.header or {}), **call.params}
        search_pipeline = yield from searcher.pipelines.find(call.index, params, call.body)
    if options.rm3 is not None and not search_pipeline.blocking_reason and call.exclusion is None:
        plan = yield from _expand_query(plan, query, search_pipeline)
    if options.is_first_pass:
        return replace(plan, skip_reason=NOT_ASKED)
    if "ext" in plan.body and (yield from searcher.engine.find()).has_ext:
        plan = replace(plan, ubi=UbiQuery.from_body(plan.body, call.params), body=without_ubi(plan.body))
    if call.exclusion is not None:
        return _with_text_and_first_pass(plan, search_pipeline, None)  # sets the text and the skip reason alone
    skip_reason = yield from _find_skip_reason(plan, searcher)
    if skip_reason is not None:
        return replace(plan, skip_reason=skip_reason, text="")  # so that UBI records no query text
    thresholds = yield from _find_thresholds(plan, searcher)
    plan = yield from _with_order_and_bm25_scale(plan, thresholds, searcher)
    plan = _with_text_and_first_pass(plan, search_pipeline, thresholds)
    return (yield from _with_boosts(plan, searcher))


def _with_truncation_warning(plan: Plan, n_words: int) -> Plan:
    """Return the plan with the warning that the query was truncated.

    The response to a search without reranking has no place for warnings, so the warning is logged.
    """
    warning = SearchWarning(TRUNCATED_QUERY.format(n_words), WarningCode.QUERY_CUT)
    index = plan.call.index or "all indices"
    if plan.call.options is None and log_throttle.should_log((str(index), TRUNCATED_QUERY)):
        logger.warning("[query-cut] search of %s: %s", index, warning)
    return replace(plan, warnings=(warning,))


def look_up_fields(
    call: SearchCall, searcher: Searcher, *, refresh: bool = False
) -> Generator[SideRequest, Any, SearchFields]:
    """Find the fields of a search, which are usually cached.

    Args:
        call: the caller's search.
        searcher: the state that the client's searches share.
        refresh: whether to read the mapping again, even if it is cached.
    """
    options = call.options or searcher.defaults.options_for(call.index)
    return (
        yield from searcher.find_fields(
            options,
            call.index,
            query=call.query,
            body=call.body,
            index_options=call.index_options,
            refresh=refresh,
            uses_build_fields=call.options is not None,  # without reranking, no model needs fields
        )
    )


def _find_skip_reason(plan: Plan, searcher: Searcher) -> Generator[Step, Any, Reason | None]:
    """Return why the models or the engine prevent reranking, or None if they do not."""
    if searcher.models is not None and (conflict := searcher.models.explain_conflict(plan.call.index)):
        return Reason(ReasonCode.MODELS, conflict)
    if "ext" not in plan.call.body:
        return None
    engine = yield from searcher.engine.find()
    if not engine.has_ext:
        return Reason(ReasonCode.REQUEST, f"{engine.value} refuses searches with ext: leave out ext")
    return None


def _find_thresholds(plan: Plan, searcher: Searcher) -> Generator[Step, Any, Thresholds | None]:
    """Return the calibrated thresholds of the hits, or None if the options set no threshold."""
    if plan.options.cutoff is None and plan.options.min_probability is None:
        return None
    options = plan.fields.update_options(plan.options)
    return (yield from searcher.calibrations.find_thresholds(options, plan.call.index, plan.service))


def _with_order_and_bm25_scale(
    plan: Plan, thresholds: Thresholds | None, searcher: Searcher
) -> Generator[Step, Any, Plan]:
    """Return the plan with access to the saved order and, if a stage scores sentences, with the BM25 scale."""
    call = plan.call
    key_parts = (call.query, call.body, call.params, call.index, call.header, searcher.authentication, thresholds)
    plan = replace(plan, order=PageOrder(searcher.orders, plan.service, key_parts))
    scores_sentences = any(ranking_options.sentences is not None for ranking_options in plan.options.rankings)
    if scores_sentences and not searcher.is_embedded:
        scale = yield from searcher.bm25_scales.find(call.index, plan.body, call.index_options)
        plan = replace(plan, bm25=scale)
    return plan


def _find_recipe_and_deadline(
    call: SearchCall, searcher: Searcher, service: RerankService
) -> Generator[Computation, Any, tuple[Recipe | None, Deadline]]:
    """Return the recipe and the deadline of a search.

    Models that are not loaded yet are usually loaded while the engine searches, and the recipe is None. They are loaded
    now if the deadline depends on them: ``deadline_ms="auto"`` sets one only for searches that rank by vectors.
    """
    options, clock = call.options, service.clock
    if options is None or options.is_first_pass or call.exclusion is not None:
        return None, Deadline.after_ms(None, clock)
    rankings = [ranking_options for ranking_options in options.rankings if ranking_options.pipeline != NO_STAGES]
    recipes = [service.find_loaded_recipe(ranking_options) for ranking_options in rankings]
    duration_ms = options.explicit_deadline_ms
    may_end_with_vectors = all(ranking_options.may_end_with_vectors for ranking_options in rankings)
    if options.deadline_ms == "auto" and searcher.deadline_ms is not None and may_end_with_vectors:
        for index, ranking_options in enumerate(rankings):
            if recipes[index] is None:
                recipes[index] = yield Computation(partial(service.load_recipe, ranking_options))
        uses_vectors = all(recipe is not None and recipe.vector_stage is not None for recipe in recipes)
        # The searches of a multi-search are reranked one by one, so a later search has a later deadline.
        duration_ms = searcher.deadline_ms * (call.position or 1) if uses_vectors else None
    deadline = Deadline.after_ms(duration_ms, clock)
    for ranking_options, recipe in zip(rankings, recipes, strict=True):
        if recipe is None:
            service.start_loading(ranking_options)
    first_recipe = None if options.pipeline == NO_STAGES else recipes[0]
    return first_recipe, deadline


def _with_text_and_first_pass(plan: Plan, search_pipeline: SearchPipeline, thresholds: Thresholds | None) -> Plan:
    """Return the plan with its text and first pass, or with the reason why the hits are not reranked."""
    call, options = plan.call, plan.options
    if "collapse" in plan.body:
        plan = replace(plan, warnings=(*plan.warnings, COLLAPSE_WARNING))
    if options.query is not None:
        plan = replace(plan, text=options.query)
    depth = plan.service.count_candidates(options)
    first_pass = plan_first_pass(plan.body, call.params, options, depth, plan.fields, search_pipeline, thresholds)
    if isinstance(first_pass, Reason):
        return replace(plan, skip_reason=first_pass)
    plan = _with_text(plan)
    if plan.skip_reason is not None:
        return plan
    if call.exclusion is not None:
        return replace(plan, skip_reason=call.exclusion)
    if plan.recipe is not None:
        plan.recipe.prefetch_query(plan.text)
    plan = replace(plan, first_pass=first_pass, page=first_pass.page)
    if options.interleave is None:
        return plan
    first_options, second_options = options.rankings
    recipe = None if second_options.pipeline == NO_STAGES else plan.service.find_loaded_recipe(second_options)
    second_plan = replace(plan, options=second_options, recipe=recipe)
    return replace(plan, options=first_options, second_plan=second_plan)


def _with_boosts(plan: Plan, searcher: Searcher) -> Generator[SideRequest, Any, Plan]:
    """Return the plan with the query's boosts. If the engine can return their scores, the first pass requests them."""
    has_clause = not isinstance(plan.call.query, str)  # a query given as text has no boosts
    if plan.first_pass is None or not has_clause or plan.options.boosts == "ignore":
        return plan
    boosts = find_boosts(plan.body, plan.call.params, plan.text, plan.fields.traits.non_text)
    first_pass = plan.first_pass
    if isinstance(boosts, Boosts):
        failure = searcher.named_score_failures.get(str(plan.call.index))
        if searcher.is_embedded:
            failure = NO_BOOSTS_IF_EMBEDDED
        elif failure is None and plan.call.is_in_multi_search:
            engine = yield from searcher.engine.find()
            if not engine.scores_named_queries_in_multi_search:
                failure = NO_BOOSTS_IN_MULTI_SEARCH
        if failure is None:
            first_pass = first_pass.with_named_query(boosts)
        else:
            boosts = failure
    second_plan = plan.second_plan and replace(plan.second_plan, boosts=boosts)
    return replace(plan, first_pass=first_pass, boosts=boosts, second_plan=second_plan)


def _with_text(plan: Plan) -> Plan:
    """Return the plan with the query text, or with the reason why there is no text to rerank by.

    Raises:
        ConfigError: the query has no text, and ``on_failure`` is ``"raise"``.
    """
    if plan.options.query is not None or not is_blank(plan.text):
        return plan
    reason = explain_unfinished_query(plan.body)
    if reason:
        return replace(plan, skip_reason=Reason(ReasonCode.AS_YOU_TYPE, reason))
    try:
        return replace(plan, text=find_query_text(plan.body, plan.fields.traits.non_text))
    except ConfigError as error:
        if plan.options.on_failure == "raise" and not plan.call.is_in_multi_search and plan.call.exclusion is None:
            raise
        return replace(plan, skip_reason=Reason(ReasonCode.NO_QUERY, str(error)))


def with_models(plan: Plan) -> Generator[Computation, Any, Plan]:
    """Return the plan with its recipe, which holds the models. Load them first if necessary."""
    if plan.recipe is not None or plan.skip_reason is not None or plan.options.pipeline == NO_STAGES:
        return plan
    recipe = yield Computation(partial(plan.service.load_recipe, plan.options, plan.deadline))
    return replace(plan, recipe=recipe)


def _expand_query(plan: Plan, query: Any, search_pipeline: SearchPipeline) -> Generator[SideRequest, Any, Plan]:
    """Return the plan with the query expanded by RM3, which adds words from the best documents of the query.

    Raises:
        ConfigError: the query is not a text.
    """
    call, rm3 = plan.call, plan.options.rm3
    assert rm3 is not None
    if not isinstance(query, str):
        raise ConfigError(
            "rm3 needs a query given as text: client.search(text, ...); for a query-DSL clause, leave rm3 out",
            setting="rerank.rm3",
            source="argument",
        )
    query_fields = [without_boost(name) for name in plan.fields.query_fields] or ["text"]  # a guess, if none are known
    field_name = rm3.field or _first_non_title_field(query_fields)
    body_pipeline = call.body.get("search_pipeline", search_pipeline.replacement)
    pipeline_to_use = call.params.get("search_pipeline", body_pipeline)
    expanded = yield from expand_query(query, call.index, rm3, call.params, field_name, pipeline_to_use)
    if expanded is None:
        warning = SearchWarning(NOT_EXPANDED.format(field_name), WarningCode.QUERY_UNEXPANDED)
        return replace(plan, warnings=(*plan.warnings, warning))
    return replace(plan, body=with_query(expanded, call.body, plan.fields))


def _first_non_title_field(names: Sequence[str]) -> str:
    """Return the first field that is not a title. If all fields are titles, return the last one."""
    return next((name for name in names if not is_title(name)), names[-1])


def with_query(query: Any, body: Mapping[str, Any], fields: SearchFields) -> Mapping[str, Any]:
    """Return the body with the query. A text becomes a clause that searches the fields, such as ``multi_match``.

    Raises:
        ConfigError: the query is neither a text nor a clause.
        ValueError: the body has a query as well.
    """
    if query is None:
        return body
    if "query" in body:
        raise ValueError("the query is given twice, as an argument and in the body: leave one out")
    if isinstance(query, str):
        return {**body, "query": build_query(query, fields)}
    clause = query.to_dict() if hasattr(query, "to_dict") else query
    if not isinstance(clause, Mapping):
        reason = f"the query is a {type(query).__name__}; it must be a text or a query-DSL clause"
        raise ConfigError(reason, setting="query", source="argument")
    return {**body, "query": _to_plain_values(dict(clause))}


def apply_traffic(options: Rerank, query: Any, body: Mapping[str, Any]) -> tuple[Rerank, Reason | None]:
    """Fill in the option ``traffic.key``, and decide whether ``traffic`` excludes the search from reranking.

    Args:
        options: the search's options.
        query: a text, a query-DSL clause, or None for the query in the body.
        body: the caller's body as a mapping.

    Returns:
        the options with ``traffic.key``, which by default is the query; and why the search is excluded: `IN_SHADOW`,
        `NOT_CHOSEN`, or None if it is not.
    """
    traffic = options.traffic
    if traffic is None or options.is_first_pass:
        return options, None
    if traffic.key is None:
        traffic = replace(traffic, key=query_text_or_json(options, query, body) or None)
        options = replace(options, traffic=traffic)
    if not traffic.is_chosen:
        return options, NOT_CHOSEN
    return options, (IN_SHADOW if traffic.shadow else None)


def query_text_or_json(options: Rerank, query: Any, body: Mapping[str, Any]) -> str:
    """Return the query text of a search. If the query has no text or several texts, return the query as JSON."""
    if options.query is not None:
        return options.query
    if isinstance(query, str):
        return query
    clause = query.to_dict() if hasattr(query, "to_dict") else query
    full_body = body if clause is None else {**body, "query": clause}
    try:
        return find_query_text(full_body)
    except ConfigError:
        return json.dumps(full_body.get("query"), sort_keys=True, default=str)


def decode_body(body: Any) -> Mapping[str, Any]:
    """Return a search body as a mapping, with lists in place of tuples, and Python's numbers in place of numpy's.

    The body may be a mapping, JSON text, or an object with ``to_dict``.

    Raises:
        ConfigError: the body is none of these.
    """
    if isinstance(body, str | bytes):
        try:
            body = json.loads(body)
        except ValueError as error:
            raise ConfigError(f"the search body is not JSON: {error}", setting="body", source="argument") from None
    if hasattr(body, "to_dict"):
        body = body.to_dict()
    if not isinstance(body, Mapping):
        raise ConfigError(
            f"the search body is a {type(body).__name__}; it must be an object", setting="body", source="argument"
        )
    plain_body: Mapping[str, Any] = _to_plain_values(dict(body))
    return plain_body


def _to_plain_values(value: Any) -> Any:
    """Return a part of a search body with lists in place of tuples, and Python's numbers in place of numpy's."""
    if isinstance(value, dict):
        return dict(zip(value, map(_to_plain_values, value.values()), strict=True))
    if isinstance(value, list | tuple):
        return list(map(_to_plain_values, value))
    return value.item() if isinstance(value, np.number | np.bool_) else value
