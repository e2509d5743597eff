"""The steps of a client's searches, without input and output.

`Searcher.search` yields each step - send a request, score - and is sent its result. The synchronous and the
asynchronous client perform the steps and know nothing else of a search.
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
from osrerank.retrieval.fields import CheckedNames, Fields, Wanted, named
from osrerank.retrieval.found_fields import FoundFields
from osrerank.retrieval.mapping import Leaf, leaves_of
from osrerank.retrieval.query_text import build_query, searched_fields
from osrerank.retrieval.requests import SideRequest
from osrerank.retrieval.rm3 import expand
from osrerank.search.calibrated import Calibrations
from osrerank.search.call import (
    NO_HITS,
    Plain,
    Refused,
    RerankArgument,
    Reranked,
    Reranking,
    decoded,
    planned,
)
from osrerank.search.orders import Orders, PageOrder
from osrerank.search.shadow import IN_SHADOW, NOT_CHOSEN, Shadows, held_back, planned_back, tell_share, text_of
from osrerank.search.step import Scoring, SearchRequest, Shadow, Step
from osrerank.search.ubi import UbiRecords
from osrerank.search.ubi_query import UbiQuery, without_ubi
from osrerank.search.vectors import SideVectors
from osrerank.service import RerankService
from osrerank.services import Services
from osrerank.settings import Settings
from osrerank.stages.ordering import NO_TEXT
from osrerank.types import Deadline, Encoder, Scorer
from osrerank.vectors.records import Lookup

DEADLINE_MS = 1_000.0
"""Time of a search by document vectors that names none, in milliseconds, once the model is loaded."""
NO_BODY: Mapping[str, Any] = {}
Query = str | Mapping[str, Any] | None
"""A text, a query-DSL clause, or None for the body's."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a caller asks of a search.

    Attributes:
        query: text, a clause, or None for the body's.
        body: the search body, decoded.
        params: URL parameters.
        index: the index or indices.
        options: how it is reranked; None for not at all.
        deadline: of the whole search.
        service: has the models.
        headers: of the request, or those of the search among several.
        held: why it is answered with its first pass though it could be reranked; "" for all others.
    """

    query: Query
    body: Mapping[str, Any]
    params: Mapping[str, Any]
    index: Any
    options: Rerank | None
    deadline: Deadline
    service: RerankService
    headers: Any = None
    held: str = ""


class Searcher:
    """The models, defaults, fields, vectors, calibrations and records of a client's searches.

    Safe to use from many threads.

    Args:
        settings: models, backend, threads, Redis.
        defaults: what ``rerank=True`` means, for each index; read from the settings file when absent.
        scorer: a scorer or an encoder of your own, used in place of the settings' model; the caller closes it.
        duo_scorer: likewise, in place of the model that compares pairs.
        encoder: likewise, in place of the model of vectors beside a cross-encoder.
        clock: returns the seconds that deadlines are counted in.
        is_embedded: whether the engine is the embedded one.
        authentication: a digest of what the client identifies itself with.

    Attributes:
        service: the models of indices for which the settings file names none.
        models: those of indices for which it names one; None if there are none, or with a scorer of the caller's.
        defaults: as given or read.
        fields: finds the fields to search and to read.
        calibrations: of the indices' probabilities.
        records: what users were shown, for UBI.
        vectors: side indices of document vectors; None if they are off.
        orders: keeps orders that later pages need.
        shadows: runs searches again in shadow mode.
        is_embedded: whether the engine is the embedded one.
        deadline_ms: of a search that names none and ends with the stage ``vectors``; None for no limit.
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
        self.fields = FoundFields()
        self.calibrations = Calibrations(settings)
        self.records = UbiRecords(is_embedded=is_embedded)
        self.orders = Orders(settings.redis_url.get_secret_value() if settings.redis_url else None, clock)
        self.shadows = Shadows(settings)
        self._authentication = authentication
        self.is_embedded = is_embedded
        self.deadline_ms: float | None = DEADLINE_MS
        has_sides = not is_embedded if settings.vectors_index is None else settings.vectors_index
        self.vectors = SideVectors(is_embedded=is_embedded, clock=clock) if has_sides else None

    def serving(self, index: Any, *, checked: bool = True) -> AbstractContextManager[RerankService]:
        """Return the service of an index's model as a context in which it stays loaded.

        Args:
            index: the caller's.
            checked: whether indices with different models raise; else they get the client's own model.

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
        """Yield the steps of a search, each to be answered with its result, and return the response.

        A step's ``TransportError`` is thrown into the generator. If OpenSearch refuses the first pass's request, or
        answers it incompletely, the caller's own request is sent, too, and its response is marked.

        Args:
            query: text, a query-DSL clause, or None for the body's.
            body: the caller's search body.
            params: the caller's URL parameters.
            index: the caller's index or indices.
            rerank: the caller's options.
            headers: of the caller's request.

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
            return (yield SearchRequest(Plain(_with_query(query, content, Fields()), dict(params))))
        held = ""
        if options is not None and (options.shadow or options.share is not None):
            options, held = held_back(options, query, content)
        with self._own if self.models is None else self.models.of(index) as service:
            deadline = yield from self.deadline_of(None if held else options, service)
            asked = Asked(query, content, params, index, options, deadline, service, headers, held)
            fields = yield from self.fields_of(options or defaults, index, query=query, body=content)
            answer = yield from self._searched(asked, fields)
            if _reads_nothing(answer) or self.fields.is_outdated(index, answer):
                again = yield from self.fields_of(options or defaults, index, query=query, body=content, anew=True)
                if again != fields:  # the mapping has changed
                    fields = again
                    answer = yield from self._searched(asked, fields)
        if said := answer["rerank"]["warnings"] if "rerank" in answer else fields.complaints(None):
            self.fields.warn(index, [sentence for sentence in said if sentence not in fields.warnings])
        if held == IN_SHADOW:
            steps = self.in_shadow(asked, answer, lambda again: self._searched(again, fields))
            answer["rerank"]["shadow"] = {"queued": (yield steps)}
        return answer

    def deadline_of(
        self, options: Rerank | None, service: RerankService, searches: int = 1
    ) -> Generator[Scoring, Any, Deadline]:
        """Return the deadline of a search; the step that comes before it, if any, loads the model.

        Args:
            options: of the search; None where it is not reranked.
            service: has the model.
            searches: that are run one after the other in the time of so many.
        """
        if options is None or options.is_first_pass:
            return Deadline.after_ms(None, service.clock)
        if options.deadline_ms != "auto":
            return Deadline.after_ms(options.deadline_ms, service.clock)
        duration_ms, is_encoder = self.deadline_ms, service.first.is_encoder
        if duration_ms is None or not all(one.may_end_with_vectors for one in options.rankings):
            return Deadline.after_ms(None, service.clock)
        if is_encoder is None or (not is_encoder and options.pipeline == "vectors"):  # of another model than the first
            is_encoder = yield Scoring(partial(service.encodes, options))
        return Deadline.after_ms(duration_ms * searches if is_encoder else None, service.clock)

    def in_shadow(
        self, asked: Asked, answer: Mapping[str, Any], search: Callable[[Asked], Generator[Step, Any, Any]]
    ) -> Shadow:
        """Return the step that runs a search again with reranking, in shadow mode, and records what that changes.

        Args:
            asked: the search.
            answer: the response that the caller gets.
            search: yields the steps of a search, and returns its response.
        """

        def steps() -> Generator[Step, Any, tuple[Any, float]]:
            if answer["rerank"]["reason"] != IN_SHADOW:  # it cannot be reranked
                return answer, 0.0
            with self.serving(asked.index, checked=False) as service:
                deadline = yield from self.deadline_of(asked.options, service)
                started, own = service.clock(), without_ubi(asked.body)
                response = yield from search(replace(asked, body=own, deadline=deadline, service=service, held=""))
                return response, service.clock() - started

        text = text_of(asked.options or Rerank(), asked.query, asked.body)
        return Shadow(self.shadows.second_run(text, asked.index, answer, steps()))

    def _searched(self, asked: Asked, fields: Fields) -> Generator[Step, Any, Any]:
        """Yield the steps of a search whose fields are known, and return the response."""
        call = yield from self.planned(asked, fields)
        response: Any
        try:
            response = yield SearchRequest(call)
        except TransportError as error:
            if not call.loss(error):
                raise
            response = error
        # not in the handler, so that an error of this request has no second traceback
        if isinstance(call, Reranked) and (reason := call.loss(response)):
            own = call.fall_back(reason)
            call, response = call.choose(response, own, (yield SearchRequest(own)))
        lookup = None if self.vectors is None else (yield from self.read([(call, response)]))[0]
        return (yield from self.finished(call, response, lookup))

    def planned(self, asked: Asked, fields: Fields) -> Generator[Step, Any, Plain]:
        """Yield the steps that a search needs before its request, usually none, and return its call."""
        query, options = asked.query, asked.options
        if options is not None and asked.held:
            text = query if isinstance(query, str) else ""
            by = Reranking(asked.service, options, text, asked.deadline, fields)
            return planned_back(by, _with_query(query, asked.body, fields), asked.params, asked.held)
        if options is not None and options.rm3 is not None:
            query, options = yield from _expanded(asked, options, options.rm3, fields)
        body = _with_query(query, asked.body, fields)
        if options is None or options.is_first_pass:
            return Plain(body, dict(asked.params))
        thresholds = None
        if self.models is not None and (reason := self.models.conflict(asked.index)):
            ubi = UbiQuery.of(asked.body, asked.params)
            by = Reranking(asked.service, options, "", asked.deadline, fields, ubi)
            return Refused({**without_ubi(body)}, dict(asked.params), reason, by)
        if options.cutoff is not None or options.min_probability is not None:
            thresholds = yield from self.calibrations.of(fields.written_into(options), asked.index, asked.service)
        text = asked.query if isinstance(asked.query, str) else ""
        what = asked.query, asked.body, asked.params, asked.index, asked.headers, self._authentication, thresholds
        order = PageOrder(self.orders, asked.service, what)
        by = Reranking(asked.service, options, text, asked.deadline, fields, order=order)
        call = planned(by, body, asked.params, thresholds)
        if isinstance(call, Reranked):
            for model in asked.service.models_of(options):
                model.expect(call.by.text)
        return call

    def warm_up(self, index: Any = None) -> None:
        """Load the models that ``rerank=True`` uses in an index; without an index, the client's own.

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
        """Yield the requests for the vectors of responses' hits; return each one's lookup, None if it needs none."""
        if self.vectors is None:
            return [None] * len(calls)
        those = [(call, response) for call, response in calls if isinstance(call, Reranked)]
        lookups = iter((yield from self.vectors.read(those)))
        return [next(lookups) if isinstance(call, Reranked) else None for call, _ in calls]

    def finished(self, call: Plain, response: Any, lookup: Lookup | None) -> Generator[Step, Any, Any]:
        """Yield the steps that rerank and record a response, and return the answer."""
        if not isinstance(call, Refused | Reranked):
            return response
        if self.vectors is not None and lookup is not None and isinstance(call, Reranked):
            answer = yield from self.vectors.finish(call, response, lookup)
        else:
            answer = yield Scoring(partial(call.finish, response))
        if call.by.options.share is not None:
            tell_share(answer, call.by.options)
        return (yield from self.records.after(call.by.ubi, call.by, answer)) if call.by.ubi else answer

    def fields_of(
        self, options: Rerank, index: Any, *, query: Query = "", body: Mapping[str, Any] = NO_BODY, anew: bool = False
    ) -> Generator[SideRequest, Any, Fields]:
        """Yield the requests that are needed, usually none, and return the fields of a search.

        Args:
            options: of the search.
            index: the caller's.
            query: the caller's: a text that searches fields, a clause, or None for the body's.
            body: the caller's, decoded.
            anew: whether to look again.
        """
        own = None if isinstance(query, str) else searched_fields(body.get("query") if query is None else query)
        teams = [one.fields for one in options.rankings[1:] if one.fields != options.fields]
        others = tuple(name for names in teams for name in named(names))
        defined: tuple[Leaf, ...] = ()
        if "derived" in body or "runtime_mappings" in body:
            leaves = leaves_of({"derived": body.get("derived"), "runtime": body.get("runtime_mappings")})
            defined = tuple(leaves.values())
        is_checked = isinstance(options.fields, CheckedNames)
        wanted = Wanted(named(options.query_fields), named(options.fields), own, others, defined, is_checked)
        return (yield from self.fields.of(index, wanted, anew=anew))


def _expanded(
    asked: Asked, options: Rerank, rm3: Rm3, fields: Fields
) -> Generator[SideRequest, Any, tuple[Mapping[str, Any], Rerank]]:
    """Yield the requests of query expansion; return the new query and options.

    Raises:
        ConfigError: the query is not text.
    """
    if not isinstance(asked.query, str):
        raise ConfigError(
            "rm3 expands a query given as text: client.search(text, ...); for a query of your own leave rm3 out",
            setting="rerank.rm3",
            source="argument",
        )
    clause = yield from expand(asked.query, asked.index, rm3, asked.params, fields.searched)
    return clause, replace(options, query=asked.query if options.query is None else options.query)


def _with_query(query: Any, body: Mapping[str, Any], fields: Fields) -> Mapping[str, Any]:
    """Return the body with the query in it: a text over the fields, or a clause, perhaps a query builder's object."""
    if query is None:
        return body
    if "query" in body:
        raise ValueError("search got a query and a body that has one too: give one of them")
    if isinstance(query, str):
        return {**body, "query": build_query(query, fields)}
    return {**body, "query": dict(query.to_dict() if hasattr(query, "to_dict") else query)}


def _reads_nothing(answer: Any) -> bool:
    """Return whether a search found nothing, or nothing to read."""
    marks = answer.get("rerank")
    if marks is not None and marks["reason"] not in (IN_SHADOW, NOT_CHOSEN):
        return marks["applied"] is False and str(marks["reason"]).startswith((NO_HITS, NO_TEXT))
    total = (answer.get("hits") or {}).get("total")
    return (total.get("value") if isinstance(total, Mapping) else total) == 0
