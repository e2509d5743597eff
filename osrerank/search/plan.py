"""Plan a search: decide which requests it sends and how its hits are reranked. A plan is made once a search."""

import json
import logging
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

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
from osrerank.retrieval.query_text import build_query, explain_unfinished_query, find_query_text, shorten_to_clauses
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

logger = logging.getLogger(__name__)
due = LogThrottle()

Query = str | Mapping[str, Any] | None
"""A text, a query-DSL clause, or None for the body's query."""
RerankArgument = bool | RerankOptions | Rerank
"""The types that a search's `rerank` argument may have; `Rerank.of` reads it."""
NOT_ASKED = Reason(ReasonCode.NOT_ASKED, "the pipeline is none")
IN_SHADOW = Reason(
    ReasonCode.SHADOW, "shadow mode: the plain search is the answer, and the reranked one runs in the background"
)
NOT_CHOSEN = Reason(ReasonCode.SHARE, "the search is not in the share of searches that are reranked")
CUT_QUERY = "the query has too many words for the search engine: it searches for the first {} of them"
"""The warning about a query of which the engine gets only the first words; the model gets the whole text."""
NOT_EXPANDED = "rm3 found no documents by the field {}, so the query is not expanded"
MAX_SAMPLED = 30
"""The maximum number of hits that are searched for text fields if the mapping cannot be read."""
NOT_ATTEMPTED = (ReasonCode.NOT_ASKED, ReasonCode.SHADOW, ReasonCode.SHARE)
"""The reasons of searches that were not meant to be reranked; these searches do not count as failures."""


NOT_IN_MULTI_SEARCH = Reason(
    ReasonCode.BOOSTS,
    "the boosts of the query do not count: OpenSearch returns no per-clause scores in a multi-search; use search",
)
NOT_EMBEDDED = Reason(
    ReasonCode.BOOSTS, "the boosts of the query do not count: the embedded engine returns no per-clause scores"
)


@dataclass(frozen=True, slots=True)
class SearchCall:
    """A search as the caller requests it.

    Attributes:
        query: a text, a query-DSL clause, or None for the body's query.
        body: the search body, decoded.
        params: the URL parameters.
        index: the index or indices.
        options: the rerank options; None for a plain search.
        exclusion: the reason why the option ``traffic`` excludes the search from reranking (shadow mode, or the share
            of traffic); None if it does not.
        position: the search's position in a multi-search, from 1; 0 for a single search.
        header: the search's header in the multi-search; None for a single search.
        is_json: whether the caller passed the body as JSON text, which can hold half of a surrogate pair.
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
    def index_options(self) -> dict[str, str]:
        """The parameters that decide which indices the names in ``index`` match."""
        return select_index_options({**(self.header or {}), **self.params})

    def in_callers_form(self, body: Mapping[str, Any]) -> Mapping[str, Any] | str:
        """Return a body as JSON text if the caller passed JSON text, else unchanged."""
        return json.dumps(body) if self.is_json else body


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a search is performed and reranked. Its stages and fields may be filled in after the response.

    Attributes:
        call: the caller's search.
        service: the service that holds the models.
        body: the body of the caller's own request.
        fields: the fields to search, and the fields whose text the model gets. If it has none for the model, the fields
            of the options are used, or else text fields of the hits.
        deadline: the deadline of the whole search.
        options: the rerank options.
        text: the query text that the model gets; empty if the query has no text.
        obstacle: the reason why the hits are not reranked; None if nothing prevents it so far.
        first_pass: the request for the candidates; None if the caller's own request is sent.
        page: the page that the caller requests; None for all hits of the response.
        recipe: the stages; None until their models are loaded.
        order: the saved order of the hits, for later pages; None if the search has only one page.
        ubi: the content of ``ext.ubi`` to record; None if nothing is recorded, or the engine records it.
        team_b: the plan of team B's ranking; None if the search is not interleaved.
        warnings: sentences about differences between the request and the response.
        bm25: the scale of the first pass's scores.
        boosts: the query's boosts; a reason if they do not count; None if the query has none, or they are ignored.
        score_parts: the scores of the query's text and of its boosts, for each hit; None if they are not known.
    """

    call: SearchCall
    service: RerankService
    body: Mapping[str, Any] = field(default_factory=dict)
    fields: SearchFields = field(default_factory=SearchFields)
    deadline: Deadline = NEVER
    options: Rerank = field(default_factory=Rerank)
    text: str = ""
    obstacle: Reason | None = None
    first_pass: FirstPass | None = None
    page: Page | None = None
    recipe: Recipe | None = None
    order: PageOrder | None = None
    ubi: UbiQuery | None = None
    team_b: "Plan | None" = None
    warnings: tuple[SearchWarning, ...] = ()
    bm25: Bm25Scale = NO_FACTOR
    boosts: Boosts | Reason | None = None
    score_parts: tuple[Parts, ...] | None = None

    @property
    def offset(self) -> int:
        """The number of hits above the caller's page."""
        return read_count(self.call.params, self.call.body, ("from", "from_"), 0) or 0

    @property
    def callers_request(self) -> SearchRequest:
        """The caller's own request."""
        return SearchRequest(self.call.in_callers_form(self.body), self.call.params)

    @property
    def names(self) -> tuple[str, ...]:
        """The fields whose text the model gets."""
        return self.fields.resolve_model_fields(self.options.fields)

    def unranked(self, obstacle: Reason) -> Self:
        """Return the plan that sends the caller's own request, and the reason why its hits are not reranked."""
        return replace(self, obstacle=obstacle, first_pass=None, page=None)

    def without_names(self, reason: Reason) -> Self:
        """Return the plan whose first pass has no names for the query's clauses, so that boosts do not count."""
        assert self.first_pass is not None
        first = self.first_pass
        params = {name: value for name, value in first.params.items() if name != SCORES_PARAM}
        if SCORES_PARAM in self.call.params:
            params[SCORES_PARAM] = self.call.params[SCORES_PARAM]
        first = replace(first, body={**first.body, "query": self.body["query"]}, params=params, boosts=None)
        return replace(self, first_pass=first).with_score_parts(reason)

    def with_score_parts(self, parts: tuple[Parts, ...] | Reason) -> Self:
        """Return the plan with each hit's scores of the query's text and boosts, or with the reason why it has none."""
        changed: dict[str, Any] = {"boosts": parts} if isinstance(parts, Reason) else {"score_parts": parts}
        return replace(self, team_b=self.team_b and replace(self.team_b, **changed), **changed)

    def with_fields_of(self, hits: Sequence[Mapping[str, Any]]) -> Self:
        """Return the plan with the fields whose text the model gets: those of the options, or else text fields of hits.

        Only a sample of the hits is searched for text fields, because a deadline leaves no time to go through all.
        """
        if caller_names(self.options.fields):
            return replace(self, fields=SearchFields.from_options(self.options))
        sample = hits[:: -(-len(hits) // MAX_SAMPLED) or 1]
        read = choose_field_names([{**(hit.get("fields") or {}), **(hit.get("_source") or {})} for hit in sample])
        return replace(self, fields=replace(self.fields, model_fields=read))


def make_plan(call: SearchCall, searcher: Searcher, service: RerankService) -> Generator[Step, Any, Plan]:
    """Yield the steps needed before a search's request (usually none), and return the plan.

    Args:
        call: the caller's search.
        searcher: the state that the client's searches share.
        service: the service that holds the index's models.

    Raises:
        ConfigError: the options cannot be used; or the query has no single text, and the options say to raise.
        ValueError: both a query and a body with a query are given.
    """
    options = call.options or searcher.defaults.options_for(call.index)
    recipe, deadline = yield from _find_recipe_and_deadline(call, searcher, service)
    fields = yield from look_up_fields(call, searcher)
    searched = shorten_to_clauses(call.query, fields) if isinstance(call.query, str) else call.query
    plan = Plan(call, service, with_query(searched, call.body, fields), fields, deadline, options, recipe=recipe)
    if isinstance(searched, str) and searched != call.query:
        plan = _with_cut_query(plan, len(searched.split()))
    if call.options is None:
        return plan
    if isinstance(call.query, str):
        plan = replace(plan, text=call.query)
    pipeline = UNKNOWN_PIPELINE
    if not fields.timed_out:
        pipeline = yield from searcher.pipelines.find(call.index, {**(call.header or {}), **call.params}, call.body)
    if options.rm3 is not None and not pipeline.obstacle and call.exclusion is None:
        plan = yield from _expand_query(plan, searched, pipeline)
    if options.is_first_pass:
        return replace(plan, obstacle=NOT_ASKED)
    if "ext" in plan.body and (yield from searcher.engine.find()).has_ext:
        plan = replace(plan, ubi=UbiQuery.of(plan.body, call.params), body=without_ubi(plan.body))
    if call.exclusion is not None:
        return _with_first_pass(plan, pipeline, None)
    if (obstacle := (yield from _obstacle(plan, searcher))) is not None:
        return replace(plan, obstacle=obstacle, text="")
    plan, thresholds = yield from _with_lookups(plan, searcher)
    return (yield from _with_boosts(_with_first_pass(plan, pipeline, thresholds), searcher))


def _with_cut_query(plan: Plan, count: int) -> Plan:
    """Return the plan with the warning that the query was truncated; log the warning if no report will have it."""
    warning, index = SearchWarning(CUT_QUERY.format(count), WarningCode.QUERY_CUT), plan.call.index or "all indices"
    if plan.call.options is None and due.should_log((str(index), CUT_QUERY)):
        logger.warning("[query-cut] search of %s: %s", index, warning)
    return replace(plan, warnings=(warning,))


def look_up_fields(
    call: SearchCall, searcher: Searcher, *, anew: bool = False
) -> Generator[SideRequest, Any, SearchFields]:
    """Yield the requests that look up a search's fields (usually none), and return the fields.

    Args:
        call: the caller's search.
        searcher: the state that the client's searches share.
        anew: whether to read the mapping again, even if it is cached.
    """
    options = call.options or searcher.defaults.options_for(call.index)
    return (
        yield from searcher.fields_of(
            options,
            call.index,
            query=call.query,
            body=call.body,
            index_options=call.index_options,
            anew=anew,
            uses_build_fields=call.options is not None,  # a plain search needs no fields for a model
        )
    )


def _obstacle(plan: Plan, searcher: Searcher) -> Generator[Step, Any, Reason | None]:
    """Return the reason why the models or the engine prevent reranking; None if they do not.

    If the body has ``ext``, yield the request that identifies the engine, in case it is not known.
    """
    if searcher.models is not None and (conflict := searcher.models.explain_conflict(plan.call.index)):
        return Reason(ReasonCode.MODELS, conflict)
    if "ext" not in plan.call.body:
        return None
    engine = yield from searcher.engine.find()
    if not engine.has_ext:
        return Reason(ReasonCode.REQUEST, f"{engine.value} refuses ext")
    return None


def _with_lookups(plan: Plan, searcher: Searcher) -> Generator[Step, Any, tuple[Plan, Thresholds | None]]:
    """Yield the steps that look up the thresholds and, for sentences, the BM25 scale; return both with the plan."""
    call, options, thresholds = plan.call, plan.options, None
    if options.cutoff is not None or options.min_probability is not None:
        with_fields = plan.fields.update_options(options)
        thresholds = yield from searcher.calibrations.of(with_fields, call.index, plan.service)
    depends_on = call.query, call.body, call.params, call.index, call.header, searcher.authentication, thresholds
    plan = replace(plan, order=PageOrder(searcher.orders, plan.service, depends_on))
    if not searcher.is_embedded and any(ranking.sentences is not None for ranking in options.rankings):
        plan = replace(plan, bm25=(yield from searcher.bm25_scales.find(call.index, plan.body, call.index_options)))
    return plan, thresholds


def _find_recipe_and_deadline(
    call: SearchCall, searcher: Searcher, service: RerankService
) -> Generator[Computation, Any, tuple[Recipe | None, Deadline]]:
    """Yield the step that loads the models, if the deadline depends on their kind; return the recipe and the deadline.

    If the deadline does not depend on them, models that are not loaded yet are loaded while the search engine searches.
    Then the recipe is None.
    """
    options, clock = call.options, service.clock
    if options is None or options.is_first_pass or call.exclusion is not None:
        return None, Deadline.after_ms(None, clock)
    rankings = [ranking for ranking in options.rankings if ranking.pipeline != NO_STAGES]
    recipes = [service.find_loaded_recipe(ranking) for ranking in rankings]
    duration_ms, may_be_timed = options.explicit_deadline_ms, all(ranking.may_end_with_vectors for ranking in rankings)
    if options.deadline_ms == "auto" and searcher.deadline_ms is not None and may_be_timed:
        for number, ranking in enumerate(rankings):
            if recipes[number] is None:
                recipes[number] = yield Computation(partial(service.load_recipe, ranking))
        is_vectors = all(recipe is not None and recipe.vector_stage is not None for recipe in recipes)
        duration_ms = searcher.deadline_ms * (call.position or 1) if is_vectors else None
    deadline = Deadline.after_ms(duration_ms, clock)
    for ranking, recipe in zip(rankings, recipes, strict=True):
        if recipe is None:
            service.start_loading(ranking)
    return recipes[0] if options.pipeline != NO_STAGES else None, deadline


def _with_first_pass(plan: Plan, pipeline: SearchPipeline, thresholds: Thresholds | None) -> Plan:
    """Return the plan with its first pass, or with the reason why the hits cannot be reranked."""
    call, options = plan.call, plan.options
    if "collapse" in plan.body:
        plan = replace(plan, warnings=(*plan.warnings, COLLAPSE_WARNING))
    if options.query is not None:
        plan = replace(plan, text=options.query)
    depth = plan.service.count_candidates(options)
    first_pass = plan_first_pass(plan.body, call.params, options, depth, plan.fields, pipeline, thresholds)
    if isinstance(first_pass, Reason):
        return replace(plan, obstacle=first_pass)
    plan = _with_text(plan)
    if plan.obstacle is not None:
        return plan
    if call.exclusion is not None:
        return replace(plan, obstacle=call.exclusion)
    if plan.recipe is not None:
        plan.recipe.prefetch_query(plan.text)
    plan = replace(plan, first_pass=first_pass, page=first_pass.page)
    if options.interleave is None:
        return plan
    options_a, options_b = options.rankings
    recipe = None if options_b.pipeline == NO_STAGES else plan.service.find_loaded_recipe(options_b)
    return replace(plan, options=options_a, team_b=replace(plan, options=options_b, recipe=recipe))


def _with_boosts(plan: Plan, searcher: Searcher) -> Generator[SideRequest, Any, Plan]:
    """Return the plan whose first pass returns the scores of the query's boosts, if the query has boosts that count.

    In a multi-search, yield the request that identifies the engine, in case it is not known.
    """
    if plan.first_pass is None or isinstance(plan.call.query, str) or plan.options.boosts == "ignore":
        return plan
    boosts = find_boosts(plan.body, plan.call.params, plan.text, plan.fields.traits.non_text)
    first = plan.first_pass
    if isinstance(boosts, Boosts):
        refusal = NOT_EMBEDDED if searcher.is_embedded else searcher.without_named_scores.get(str(plan.call.index))
        if plan.call.position and not refusal:
            engine = yield from searcher.engine.find()
            refusal = None if engine.scores_names_in_multi_search else NOT_IN_MULTI_SEARCH
        first = first if refusal else first.with_named_query(boosts)
        boosts = refusal or boosts
    return replace(plan, first_pass=first, boosts=boosts, team_b=plan.team_b and replace(plan.team_b, boosts=boosts))


def _with_text(plan: Plan) -> Plan:
    """Return the plan with the query text, or with the reason why the query has no text.

    Raises:
        ConfigError: the query has no text, and the options say to raise.
    """
    if plan.text or plan.options.query is not None:
        return plan
    if reason := explain_unfinished_query(plan.body):
        return replace(plan, obstacle=Reason(ReasonCode.AS_YOU_TYPE, reason))
    try:
        return replace(plan, text=find_query_text(plan.body, plan.fields.traits.non_text))
    except ConfigError as error:
        if plan.options.on_failure == "raise" and not plan.call.position and plan.call.exclusion is None:
            raise
        return replace(plan, obstacle=Reason(ReasonCode.NO_QUERY, str(error)))


def with_models(plan: Plan) -> Generator[Computation, Any, Plan]:
    """Yield the step that waits for the models, if they are not loaded yet; return the plan with the recipe."""
    if plan.recipe is not None or plan.obstacle is not None or plan.options.pipeline == NO_STAGES:
        return plan
    recipe = yield Computation(partial(plan.service.load_recipe, plan.options, plan.deadline))
    return replace(plan, recipe=recipe)


def _expand_query(plan: Plan, text: Any, pipeline: SearchPipeline) -> Generator[SideRequest, Any, Plan]:
    """Yield the requests that expand the query by RM3; return the plan of the expanded query.

    Args:
        plan: the plan of the search for the text.
        text: the text to search for.
        pipeline: the search pipeline of the search.

    Raises:
        ConfigError: the query is not a text.
    """
    call, rm3 = plan.call, plan.options.rm3
    assert rm3 is not None
    if not isinstance(text, str):
        raise ConfigError(
            "rm3 needs a query given as text: client.search(text, ...); for a query-DSL clause, leave rm3 out",
            setting="rerank.rm3",
            source="argument",
        )
    name = rm3.field or _first_body_field([without_boost(name) for name in plan.fields.query_fields] or ["text"])
    own = call.params.get("search_pipeline", call.body.get("search_pipeline", pipeline.replacement))
    query = yield from expand_query(text, call.index, rm3, call.params, name, own)
    if query is None:
        warning = SearchWarning(NOT_EXPANDED.format(name), WarningCode.QUERY_UNEXPANDED)
        return replace(plan, warnings=(*plan.warnings, warning))
    return replace(plan, body=with_query(query, call.body, plan.fields))


def _first_body_field(names: Sequence[str]) -> str:
    """Return the first field whose name is not like a title, or the last field if all are."""
    return next((name for name in names if not is_title(name)), names[-1])


def with_query(query: Any, body: Mapping[str, Any], fields: SearchFields) -> Mapping[str, Any]:
    """Return the body with the query: a query for a text in the fields, or the caller's clause unchanged.

    Raises:
        ValueError: the body has a query as well.
    """
    if query is None:
        return body
    if "query" in body:
        raise ValueError("the query is given twice, as an argument and in the body: leave one out")
    if isinstance(query, str):
        return {**body, "query": build_query(query, fields)}
    return {**body, "query": dict(query.to_dict() if hasattr(query, "to_dict") else query)}


def with_traffic_key(options: Rerank, query: Any, body: Mapping[str, Any]) -> tuple[Rerank, Reason | None]:
    """Return the options with ``traffic.key`` filled in, and the reason if ``traffic`` excludes the search.

    Args:
        options: the search's options.
        query: a text, a query-DSL clause, or None for the body's query.
        body: the caller's body, decoded.
    """
    traffic = options.traffic
    if traffic is None or options.is_first_pass:
        return options, None
    if traffic.key is None:
        traffic = replace(traffic, key=query_text_or_json(options, query, body) or None)
        options = replace(options, traffic=traffic)
    if not traffic.is_chosen:
        return options, NOT_CHOSEN
    return options, IN_SHADOW if traffic.shadow else None


def query_text_or_json(options: Rerank, query: Any, body: Mapping[str, Any]) -> str:
    """Return the query text of a search, or the query as JSON if it has no text or several."""
    if options.query is not None or isinstance(query, str):
        return query if options.query is None else options.query
    clause = query.to_dict() if hasattr(query, "to_dict") else query
    full_body = body if clause is None else {**body, "query": clause}
    try:
        return find_query_text(full_body)
    except ConfigError:
        return json.dumps(full_body.get("query"), sort_keys=True, default=str)


def decode_body(body: Any) -> Mapping[str, Any]:
    """Return a search body as a mapping, whether it is a mapping, JSON text, or an object with ``to_dict``.

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
    return body
