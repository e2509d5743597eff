"""Run a search as a generator of steps, which does no input or output itself.

`Searcher.search` yields each step (a request to send, a function that scores) and is sent its result. The synchronous
and the asynchronous client perform the steps, and know nothing else of a search.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from opensearchpy import TransportError

from osrerank.errors import ConfigError
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import Rerank
from osrerank.options.rm3 import Rm3
from osrerank.retrieval.bm25_scale import Bm25Scales
from osrerank.retrieval.fields import CheckedNames, SearchFields, Wanted, named
from osrerank.retrieval.found_fields import FoundFields
from osrerank.retrieval.mapping import Leaf, leaves_of
from osrerank.retrieval.query_text import build_query, searched_fields
from osrerank.retrieval.requests import SideRequest
from osrerank.retrieval.rm3 import expand
from osrerank.retrieval.search_pipelines import SearchPipeline, SearchPipelines
from osrerank.search.calibrated import Calibrations
from osrerank.search.call import (
    NOT_ASKED,
    Plain,
    Refused,
    RerankArgument,
    Reranked,
    Reranking,
    decoded,
    planned,
)
from osrerank.search.orders import Orders, PageOrder
from osrerank.search.shadow import IN_SHADOW, Shadows, held_back, planned_back, query_text, tell_traffic
from osrerank.search.step import Scoring, SearchRequest, Shadow, Step
from osrerank.search.texts import with_texts
from osrerank.search.ubi import UbiRecords
from osrerank.search.ubi_query import UbiQuery, without_ubi
from osrerank.search.vectors import SideVectors
from osrerank.service import RerankService
from osrerank.services import Services
from osrerank.settings import Settings
from osrerank.types import Deadline, Encoder, Scorer
from osrerank.types.reasons import Reason, ReasonCode
from osrerank.vectors.records import Lookup

DEADLINE_MS = 1_000.0
"""Default deadline of a search by document vectors, in milliseconds, once the model is loaded."""
NO_BODY: Mapping[str, Any] = {}
NOT_RUN = (ReasonCode.SHADOW, ReasonCode.SHARE, ReasonCode.NOT_ASKED)
"""Reasons for which a search is not reranked although it could be."""
Query = str | Mapping[str, Any] | None
"""A text, a query-DSL clause, or None for the body's query."""


@dataclass(frozen=True, slots=True)
class SearchCall:
    """A caller's search: its request, its options, and the models that it uses.

    Attributes:
        query: a text, a query-DSL clause, or None for the body's query.
        body: the search body, decoded.
        params: the URL parameters.
        index: the index or indices.
        options: how it is reranked; None if it is not.
        deadline: the deadline of the whole search.
        service: holds the models.
        headers: the headers of the request, or of this search in a multi-search.
        held: why it is answered with its first pass although it could be reranked; None for all other searches.
    """

    query: Query
    body: Mapping[str, Any]
    params: Mapping[str, Any]
    index: Any
    options: Rerank | None
    deadline: Deadline
    service: RerankService
    headers: Any = None
    held: Reason | None = None


class Searcher:
    """Runs a client's searches, and holds what they share: models, defaults, fields, vectors, calibrations, records.

    Safe to use from many threads.

    Args:
        settings: models, backend, threads, Redis.
        defaults: what ``rerank=True`` means, for each index; read from the settings file when absent.
        scorer: a scorer or an encoder of your own, used instead of the settings' model; the caller closes it.
        duo_scorer: likewise, instead of the model that compares pairs of candidates.
        encoder: likewise, instead of ``vector_model``, the bi-encoder that is used beside a cross-encoder.
        clock: returns the seconds that deadlines are counted in.
        is_embedded: whether the engine is the embedded one.
        authentication: a digest of the client's credentials; it keeps apart what different users may see.

    Attributes:
        service: the models of indices for which the settings file names none.
        models: the models of indices for which the settings file names one; None if it names none, or the caller gives
            a scorer.
        defaults: the given defaults, or those that were read.
        pipelines: finds the search pipelines that searches run under.
        bm25_scales: finds the scale of searches' first-pass scores.
        fields: finds the fields to search and to read.
        calibrations: the calibrations of the indices' probabilities.
        records: records what users were shown, for UBI (User Behavior Insights).
        vectors: reads and writes side indices of document vectors; None if they are off.
        orders: keeps the orders that later pages need.
        shadows: runs searches again in shadow mode.
        is_embedded: whether the engine is the embedded one.
        deadline_ms: default deadline of a search that ends with the stage ``vectors``, in ms; None for no limit.
    """

    def __init__(
        self,
        settings: Settings,
        defaults: Defaults | None = None,
        scorer: Scorer | Encoder | None = None,
        duo_scorer: Scorer | None = None,
        *,
        encoder: Encoder | None = None,
        clock: Callable[[], float] = time.monotonic,
        is_embedded: bool = False,
        authentication: str = "",
    ) -> None:
        self.service = RerankService(settings, scorer, duo_scorer, clock, encoder=encoder, has_index=True)
        defaults = defaults or Defaults.load(settings)
        self.defaults = defaults if scorer is None else defaults.without_models("the client's own scorer")
        self.models = Services(self.service, self.defaults) if self.defaults.models else None
        self._own = nullcontext(self.service)
        self.pipelines = SearchPipelines(is_embedded, clock)
        self.bm25_scales = Bm25Scales(clock)
        self.fields = FoundFields(pipelines=self.pipelines)
        self.calibrations = Calibrations(settings)
        self.records = UbiRecords(is_embedded=is_embedded)
        self.orders = Orders(settings.redis_url.get_secret_value() if settings.redis_url else None, clock)
        self.shadows = Shadows(settings)
        self._authentication = authentication
        self.is_embedded = is_embedded
        self.deadline_ms: float | None = DEADLINE_MS
        has_sides = settings.vectors == "index" or (settings.vectors is None and not is_embedded)
        self.vectors = SideVectors(is_embedded=is_embedded, clock=clock) if has_sides else None

    def serving(self, index: Any, *, checked: bool = True) -> AbstractContextManager[RerankService]:
        """Return a context that yields the service of an index's model, and keeps the model loaded.

        Args:
            index: the caller's index or indices.
            checked: whether indices with different models raise an error; else the client's own model is used.

        Raises:
            ConfigError: there are several indices, with different models.
        """
        if checked and self.models is not None and (reason := self.models.conflict(index)):
            raise ConfigError(reason, setting="model", source="settings file")
        return self._own if self.models is None else self.models.of(index)

    def search(
        self,
        query: Query,
        body: Any,
        params: Mapping[str, Any],
        *,
        index: Any,
        rerank: RerankArgument,
        headers: Any = None,
    ) -> Generator[Step, Any, Any]:
        """Yield the steps of a search, receive the result of each, and return the response.

        The client throws a step's ``TransportError`` into the generator. If OpenSearch refuses the first pass's
        request, or answers it incompletely, the caller's own request is sent as well, and its response is marked.

        Args:
            query: a text, a query-DSL clause, or None for the body's query.
            body: the caller's search body.
            params: the caller's URL parameters.
            index: the caller's index or indices.
            rerank: the caller's ``rerank`` argument.
            headers: the headers of the caller's request.

        Raises:
            ConfigError: the rerank options cannot be used; or the query has no single text, and the options say to
                raise.
            ValueError: both a query and a body with a query are given.
            ScoringError: reranking failed and ``on_failure`` is ``"raise"``.
        """
        defaults = self.defaults.of(index)
        options = Rerank.of(rerank, defaults)
        if options is None and query is None:
            return (yield SearchRequest(Plain(body, dict(params))))
        content = {} if body is None else decoded(body)
        if options is None and not isinstance(query, str):
            return (yield SearchRequest(Plain(_with_query(query, content, SearchFields()), dict(params))))
        held: Reason | None = None
        if options is not None and options.traffic is not None:
            options, held = held_back(options, query, content)
        with self._own if self.models is None else self.models.of(index) as service:
            deadline = yield from self.deadline_of(None if held else options, service)
            asked = SearchCall(query, content, params, index, options, deadline, service, headers, held)
            fields = yield from self.fields_of(options or defaults, index, query=query, body=content)
            answer = yield from self._searched(asked, fields)
            if _reads_nothing(answer) or self.fields.is_outdated(index, answer):
                newest = yield from self.fields_of(options or defaults, index, query=query, body=content, anew=True)
                if newest != fields:  # the mapping has changed
                    fields = newest
                    answer = yield from self._searched(asked, fields)
        if warnings := answer["rerank"]["warnings"] if "rerank" in answer else fields.complaints(None):
            self.fields.warn(index, [warning for warning in warnings if warning not in fields.warnings])
        if held is IN_SHADOW:
            steps = self.in_shadow(asked, answer, lambda again: self._searched(again, fields))
            answer["rerank"]["traffic"]["queued"] = yield steps
        return answer

    def deadline_of(
        self, options: Rerank | None, service: RerankService, searches: int = 1
    ) -> Generator[Scoring, Any, Deadline]:
        """Yield the step that loads the model, if its kind must be known, and return the deadline of a search.

        Args:
            options: the search's options; None if it is not reranked.
            service: holds the model.
            searches: how many searches run one after the other; the default deadline is multiplied by it.
        """
        if options is None or options.is_first_pass:
            return Deadline.after_ms(None, service.clock)
        if options.deadline_ms != "auto":
            return Deadline.after_ms(options.deadline_ms, service.clock)
        duration_ms, is_encoder = self.deadline_ms, service.first.is_encoder
        if duration_ms is None or not all(team.may_end_with_vectors for team in options.rankings):
            return Deadline.after_ms(None, service.clock)
        if is_encoder is None or (not is_encoder and options.pipeline == "vectors"):  # vectors of ``vector_model``
            is_encoder = yield Scoring(partial(service.encodes, options))
        return Deadline.after_ms(duration_ms * searches if is_encoder else None, service.clock)

    def in_shadow(
        self, asked: SearchCall, answer: Mapping[str, Any], search: Callable[[SearchCall], Generator[Step, Any, Any]]
    ) -> Shadow:
        """Return the step that, in shadow mode, runs a search again with reranking and records what that changes.

        Args:
            asked: the search.
            answer: the response that the caller gets.
            search: a function that yields the steps of a search and returns its response.
        """

        def steps() -> Generator[Step, Any, tuple[Any, float]]:
            if answer["rerank"]["reason_code"] != ReasonCode.SHADOW:  # it cannot be reranked
                return answer, 0.0
            with self.serving(asked.index, checked=False) as service:
                deadline = yield from self.deadline_of(asked.options, service)
                started, own = service.clock(), without_ubi(asked.body)
                response = yield from search(replace(asked, body=own, deadline=deadline, service=service, held=None))
                return response, service.clock() - started

        text = query_text(asked.options or Rerank(), asked.query, asked.body)
        return Shadow(self.shadows.second_run(text, asked.index, answer, steps()))

    def _searched(self, asked: SearchCall, fields: SearchFields) -> Generator[Step, Any, Any]:
        """Yield the steps of a search whose fields are known, and return the response."""
        call = yield from self.planned(asked, fields)
        response: Any
        try:
            response = yield SearchRequest(call)
        except TransportError as error:
            if call.again(error) is None:
                raise
            response = error
        # outside the except block, so that an error of the second request does not carry the first one's traceback
        if (other := call.again(response)) is not None:
            call, response = call.choose(response, other, (yield SearchRequest(other)))
        [call] = yield from with_texts([(call, response)])
        lookup = None if self.vectors is None else (yield from self.read([(call, response)]))[0]
        return (yield from self.finished(call, response, lookup))

    def planned(self, asked: SearchCall, fields: SearchFields) -> Generator[Step, Any, Plain]:
        """Plan a search: yield the steps needed before its request (usually none), and return the request to send."""
        query, options = asked.query, asked.options
        if options is None:
            return Plain(_with_query(query, asked.body, fields), dict(asked.params))
        pipeline = yield from self.pipelines.of(asked.index, asked.params, asked.body)
        by = Reranking(asked.service, options, query if isinstance(query, str) else "", asked.deadline, fields)
        if asked.held:
            return planned_back(by, _with_query(query, asked.body, fields), asked.params, pipeline, asked.held)
        if options.rm3 is not None and not pipeline.obstacle:
            query, options = yield from _expanded(asked, options, options.rm3, fields, pipeline)
            by = replace(by, options=options)
        body = _with_query(query, asked.body, fields)
        if options.is_first_pass:
            return Refused(body, dict(asked.params), NOT_ASKED, by)
        thresholds = None
        if self.models is not None and (conflict := self.models.conflict(asked.index)):
            by = replace(by, text="", ubi=UbiQuery.of(asked.body, asked.params))
            return Refused({**without_ubi(body)}, dict(asked.params), Reason(ReasonCode.MODELS, conflict), by)
        if options.cutoff is not None or options.min_probability is not None:
            thresholds = yield from self.calibrations.of(fields.written_into(options), asked.index, asked.service)
        what = asked.query, asked.body, asked.params, asked.index, asked.headers, self._authentication, thresholds
        by = replace(by, order=PageOrder(self.orders, asked.service, what))
        if not self.is_embedded and any(team.sentences is not None for team in options.rankings):
            by = replace(by, bm25=(yield from self.bm25_scales.of(asked.index, body)))
        call = planned(by, body, asked.params, pipeline, thresholds)
        if isinstance(call, Reranked):
            for model in asked.service.models_of(options):
                model.expect(call.by.text)
        return call

    def warm_up(self, index: Any = None) -> None:
        """Load the models that ``rerank=True`` uses in an index; without an index, the client's own models.

        Raises:
            ConfigError: there are several indices, with different models.
            OsrerankError: as `RerankService.warm_up`.
        """
        with self._own if index is None else self.serving(index) as service:
            service.warm_up(self.defaults.base if index is None else self.defaults.of(index))

    def close(self) -> None:
        """Release the models and the connections to Redis."""
        if self.models is not None:
            self.models.close()
        self.service.close()
        self.orders.close()

    def read(self, calls: Sequence[tuple[Plain, Any]]) -> Generator[Step, Any, list[Lookup | None]]:
        """Yield the requests that read hits' vectors from side indices; return lookups, None for calls not reranked."""
        if self.vectors is None:
            return [None] * len(calls)
        reranked = [(call, response) for call, response in calls if isinstance(call, Reranked)]
        lookups = iter((yield from self.vectors.read(reranked)))
        return [next(lookups) if isinstance(call, Reranked) else None for call, _ in calls]

    def finished(self, call: Plain, response: Any, lookup: Lookup | None) -> Generator[Step, Any, Any]:
        """Yield the steps that rerank a response and record it for UBI, and return the answer."""
        if not isinstance(call, Refused | Reranked):
            return response
        if self.vectors is not None and lookup is not None and isinstance(call, Reranked):
            answer = yield from self.vectors.finish(call, response, lookup)
        else:
            answer = yield Scoring(partial(call.finish, response))
        if call.by.options.traffic is not None:
            tell_traffic(answer, call.by.options.traffic)
        return (yield from self.records.after(call.by.ubi, call.by, answer)) if call.by.ubi else answer

    def fields_of(
        self, options: Rerank, index: Any, *, query: Query = "", body: Mapping[str, Any] = NO_BODY, anew: bool = False
    ) -> Generator[SideRequest, Any, SearchFields]:
        """Yield the requests that look fields up (usually none), and return the fields that a search uses.

        Args:
            options: the search's options.
            index: the caller's index or indices.
            query: the caller's query: a text, a query-DSL clause, or None for the body's query.
            body: the caller's body, decoded.
            anew: whether to read the mapping again, even if it is cached.
        """
        own = None if isinstance(query, str) else searched_fields(body.get("query") if query is None else query)
        teams = [team.fields for team in options.rankings[1:] if team.fields != options.fields]
        others = tuple(name for names in teams for name in named(names))
        defined: tuple[Leaf, ...] = ()
        if "derived" in body or "runtime_mappings" in body:
            leaves = leaves_of({"derived": body.get("derived"), "runtime": body.get("runtime_mappings")})
            defined = tuple(leaves.values())
        is_checked = isinstance(options.fields, CheckedNames)
        wanted = Wanted(named(options.query_fields), named(options.fields), own, others, defined, is_checked)
        return (yield from self.fields.of(index, wanted, anew=anew))


def _expanded(
    asked: SearchCall, options: Rerank, rm3: Rm3, fields: SearchFields, pipeline: SearchPipeline
) -> Generator[SideRequest, Any, tuple[Mapping[str, Any], Rerank]]:
    """Yield the requests that expand the query by RM3; return the new query and options.

    Raises:
        ConfigError: the query is not a text.
    """
    if not isinstance(asked.query, str):
        raise ConfigError(
            "rm3 needs a query given as text: client.search(text, ...); for a query-DSL clause, leave rm3 out",
            setting="rerank.rm3",
            source="argument",
        )
    named = asked.params.get("search_pipeline", asked.body.get("search_pipeline", pipeline.instead))
    clause = yield from expand(asked.query, asked.index, rm3, asked.params, fields.searched, named)
    return clause, replace(options, query=asked.query if options.query is None else options.query)


def _with_query(query: Any, body: Mapping[str, Any], fields: SearchFields) -> Mapping[str, Any]:
    """Return the body with the query in it: a query for a text in the fields, or the caller's clause as it is."""
    if query is None:
        return body
    if "query" in body:
        raise ValueError("the query is given twice, as an argument and in the body: leave one out")
    if isinstance(query, str):
        return {**body, "query": build_query(query, fields)}
    return {**body, "query": dict(query.to_dict() if hasattr(query, "to_dict") else query)}


def _reads_nothing(answer: Any) -> bool:
    """Return whether a search found no hits, or only hits without text."""
    marks = answer.get("rerank")
    if marks is not None and marks["reason_code"] not in NOT_RUN:
        return marks["applied"] is False and marks["reason_code"] in (ReasonCode.NO_HITS, ReasonCode.NO_TEXT)
    total = (answer.get("hits") or {}).get("total")
    return (total.get("value") if isinstance(total, Mapping) else total) == 0
