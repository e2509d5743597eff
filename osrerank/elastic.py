"""elasticsearch-py's clients, whose searches can rerank (extra ``elasticsearch``); `osrerank.wrap` makes them."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

from osrerank._optional import require
from osrerank.driver import AsyncDriver, SyncDriver
from osrerank.options.defaults import Defaults
from osrerank.retrieval.requests import SideRequest, authentication_of, may_change_indices, path_of
from osrerank.search.calls import multi_search_steps, search_steps
from osrerank.search.plan import RerankArgument
from osrerank.search.searcher import Searcher
from osrerank.search.step import ClientStep, MultiSearchRequest, SearchRequest
from osrerank.search.templates import multi_template_steps, template_steps
from osrerank.search.together import ClientSteps
from osrerank.search.traced import multi_search_span, search_span
from osrerank.service import RerankService
from osrerank.types.engine import Engine
from osrerank.types.failed import Failed
from osrerank.vectors.background import Background

require("elasticsearch", extra="elasticsearch")

from elastic_transport import ConnectionTimeout, TransportError  # noqa: E402 - may be absent
from elasticsearch import ApiError, AsyncElasticsearch, Elasticsearch  # noqa: E402 - likewise

__all__ = ["RerankingAsyncElasticsearch", "RerankingElasticsearch"]

CARRIED = ("_searcher", "_later", "_calls", "is_owner")
"""Attributes that a client made by ``options`` has from the one that made it."""


class Call(NamedTuple):
    """A request that a method of elasticsearch-py was about to send, and what was answered to those sent in its place.

    Attributes:
        client: the client that sends: with the options of this call, if it has any.
        params: the URL's parameters.
        body: the request's body.
        indices: the index or indices.
        responses: the responses to searches.
    """

    client: Any
    params: Mapping[str, Any]
    body: Any
    indices: str | None
    responses: list[Any]

    def answer(self, found: Any) -> Any:
        """Return the answer of a search as elasticsearch-py returns it: with the headers and so on of the response."""
        last = self.responses[-1]
        return last if found is last.body else type(last)(body=found, meta=last.meta)


class _Elastic:
    """What both clients share: the searcher, and requests that are recorded in place of being sent.

    elasticsearch-py itself turns arguments into a request: a copy of the client records it.
    """

    _searcher: Searcher
    _headers: Any
    _request_timeout: Any
    _calls: list[Call] | None = None
    _send: Callable[..., Any]

    @property
    def searcher(self) -> Searcher:
        """What the searches of this client's user share."""
        return self._searcher.seen_by(self._headers)

    def options(self, **options: Any) -> Self:
        """Return a client with other options, such as credentials, that reranks with the same models."""
        client: Self = super().options(**options)  # type: ignore[misc]
        client.__dict__ |= {name: self.__dict__[name] for name in CARRIED if name in self.__dict__}
        return client

    def _copy(self, calls: list[Call] | None) -> Self:
        """Return a copy that records the requests of its next calls, or sends them if there is no list for them."""
        copy = object.__new__(type(self))
        copy.__dict__ |= {**self.__dict__, "_calls": calls}
        return copy

    def _record(self, *, params: Any = None, body: Any = None, path_parts: Any = None, **_: Any) -> None:
        assert self._calls is not None
        index = unquote((path_parts or {}).get("index", ""))
        self._calls.append(Call(self._copy(None), params or {}, body, index or None, []))

    def _notice(self, method: str, path: str, request: Mapping[str, Any]) -> None:
        """Read again what is cached of the indices if a request of ``indices`` may have changed it."""
        if str(request.get("endpoint_id")).startswith("indices.") and may_change_indices(method, path):
            self._searcher.forget_indices()

    def _request(self, step: ClientStep, call: Call) -> tuple[Self, dict[str, Any]]:
        """Return the client that sends a step's request, and the arguments of its ``perform_request``."""
        if isinstance(step, SideRequest):
            client, own, given = self, step.params.get("request_timeout"), self._request_timeout
            if own is not None and not (isinstance(given, int | float) and given < own):
                client = self.options(request_timeout=own)
            params = {name: value for name, value in step.params.items() if name != "request_timeout"}
            return client, {**_content(step.body), "method": step.method, "path": step.path, "params": params}
        assert isinstance(step, SearchRequest | MultiSearchRequest)
        action = "search" if isinstance(step, SearchRequest) else "msearch"
        request = {
            **(_content(step.body) if isinstance(step, SearchRequest) else _content(step.lines, is_lines=True)),
            "method": "POST",
            "path": path_of(call.indices, f"_{action}/template" if step.is_template else f"_{action}"),
            "params": step.params if isinstance(step, SearchRequest) else {**call.params, **step.params},
            "endpoint_id": f"{action}_template" if step.is_template else action,
            "path_parts": {"index": call.indices} if call.indices else {},
        }
        return self, request

    def _sending(self, index: Any) -> Callable[[Any], Any]:
        return partial(self._send, Call(self, {}, None, index, []))

    @staticmethod
    def _failure(error: Exception) -> Exception:
        if isinstance(error, ApiError):
            said = error.body.get("error") if isinstance(error.body, Mapping) else None
            cause = next(iter(said.get("root_cause") or ()), said) if isinstance(said, Mapping) else {}
            return Failed(error, status=error.status_code, kind=str(cause.get("type") or ""), foreign=str(error))
        if isinstance(error, TransportError):
            return Failed(error, timed_out=isinstance(error, ConnectionTimeout), foreign=str(error))
        return error


def _content(body: Any, *, is_lines: bool = False) -> dict[str, Any]:
    """Return a request's body and its headers; a text has lines of JSON if it begins a new one at its end."""
    if body is None:
        return {"headers": {"accept": "application/json"}}
    is_lines = is_lines or (isinstance(body, str) and body.endswith("\n"))
    kind = "application/x-ndjson" if is_lines else "application/json"
    return {"headers": {"accept": "application/json", "content-type": kind}, "body": body}


def _steps(name: str, call: Call, query: Any, rerank: RerankArgument) -> ClientSteps:
    """Return the steps of a recorded call."""
    searcher, index = call.client.searcher, call.indices
    if name == "search":
        return search_steps(searcher, query, call.body, call.params, index=index, rerank=rerank)
    if name == "search_template":
        return template_steps(searcher, call.body, call.params, index=index, rerank=rerank)
    several = multi_search_steps if name == "msearch" else multi_template_steps
    return several(searcher, call.body, index, rerank=rerank, params=call.params)


def _span(name: str, call: Call, query: Any, rerank: RerankArgument) -> Any:
    if name.startswith("m"):
        return multi_search_span(call.client, call.indices)
    return search_span(call.client, call.indices, rerank, query)


class RerankingElasticsearch(_Elastic, SyncDriver, Elasticsearch):  # type: ignore[override]
    """An ``elasticsearch.Elasticsearch`` whose searches take ``rerank=``, as those of ``osrerank.Client`` do.

    Everything else is elasticsearch-py's: keyword arguments, ``options``, ``ObjectApiResponse``, exceptions, retries.
    """

    def perform_request(self, method: str, path: str, **request: Any) -> Any:
        """Send a request, as elasticsearch-py does."""
        if self._calls is not None:
            return self._record(**request)
        try:
            return super().perform_request(method, path, **request)
        finally:  # a request that failed may have changed some indices
            self._notice(method, path, request)

    def search(self, query: Any = None, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Search, and rerank the hits if ``rerank`` asks for it.

        Args:
            query: a text that is searched in ``query_fields``; or a query-DSL clause; or None for another argument's.
            rerank: as for ``osrerank.Client``.
            arguments: as for ``Elasticsearch.search``.
        """
        if isinstance(query, str):
            return self._reranked("search", rerank, query, arguments)
        arguments = {**arguments, "query": query} if query is not None else arguments
        return super().search(**arguments) if rerank is False else self._reranked("search", rerank, None, arguments)

    def msearch(self, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Run several searches in one request, and rerank each if ``rerank`` asks for it."""
        return super().msearch(**arguments) if rerank is False else self._reranked("msearch", rerank, None, arguments)

    def search_template(self, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Search with a search template, and rerank the hits if ``rerank`` asks for it."""
        if rerank is False:
            return super().search_template(**arguments)
        return self._reranked("search_template", rerank, None, arguments)

    def msearch_template(self, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Search with several templates in one request, and rerank each search if ``rerank`` asks for it."""
        if rerank is False:
            return super().msearch_template(**arguments)
        return self._reranked("msearch_template", rerank, None, arguments)

    def _reranked(self, name: str, rerank: RerankArgument, query: str | None, arguments: Mapping[str, Any]) -> Any:
        calls: list[Call] = []
        getattr(super(RerankingElasticsearch, self._copy(calls)), name)(**arguments)
        (call,) = calls
        with _span(name, call, query, rerank):
            send = partial(call.client._send, call)  # noqa: SLF001 - a copy of this client
            return call.answer(call.client._performed(_steps(name, call, query, rerank), send))  # noqa: SLF001

    def _send(self, call: Call, step: ClientStep) -> Any:
        client, request = self._request(step, call)
        response = client.perform_request(**request)
        if not isinstance(step, SideRequest):
            call.responses.append(response)
        return response.body


class RerankingAsyncElasticsearch(_Elastic, AsyncDriver, AsyncElasticsearch):  # type: ignore[override]
    """An ``elasticsearch.AsyncElasticsearch`` whose searches take ``rerank=``, as those of `RerankingElasticsearch`."""

    async def perform_request(self, method: str, path: str, **request: Any) -> Any:
        """Send a request, as elasticsearch-py does."""
        if self._calls is not None:
            return self._record(**request)
        try:
            return await super().perform_request(method, path, **request)
        finally:
            self._notice(method, path, request)

    async def search(self, query: Any = None, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Search, and rerank the hits if ``rerank`` asks for it."""
        if isinstance(query, str):
            return await self._reranked("search", rerank, query, arguments)
        arguments = {**arguments, "query": query} if query is not None else arguments
        if rerank is False:
            return await super().search(**arguments)
        return await self._reranked("search", rerank, None, arguments)

    async def msearch(self, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Run several searches in one request, and rerank each if ``rerank`` asks for it."""
        if rerank is False:
            return await super().msearch(**arguments)
        return await self._reranked("msearch", rerank, None, arguments)

    async def search_template(self, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Search with a search template, and rerank the hits if ``rerank`` asks for it."""
        if rerank is False:
            return await super().search_template(**arguments)
        return await self._reranked("search_template", rerank, None, arguments)

    async def msearch_template(self, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Search with several templates in one request, and rerank each search if ``rerank`` asks for it."""
        if rerank is False:
            return await super().msearch_template(**arguments)
        return await self._reranked("msearch_template", rerank, None, arguments)

    async def _reranked(
        self, name: str, rerank: RerankArgument, query: str | None, arguments: Mapping[str, Any]
    ) -> Any:
        calls: list[Call] = []
        await getattr(super(RerankingAsyncElasticsearch, self._copy(calls)), name)(**arguments)
        (call,) = calls
        with _span(name, call, query, rerank):
            send = partial(call.client._send, call)  # noqa: SLF001 - a copy of this client
            found = await call.client._performed(_steps(name, call, query, rerank), send)  # noqa: SLF001
            return call.answer(found)

    async def _send(self, call: Call, step: ClientStep) -> Any:
        client, request = self._request(step, call)
        response = await client.perform_request(**request)
        if not isinstance(step, SideRequest):
            call.responses.append(response)
        return response.body


def wrapped(client: Any, models: RerankService, defaults: Defaults) -> Any:
    """Return a client with an existing one's transport, credentials and options, whose searches can rerank."""
    is_async = isinstance(client, AsyncElasticsearch)
    new: Any = object.__new__(_class_of(type(client), is_async))  # type: ignore[arg-type]
    searcher = Searcher(models, defaults, engine=Engine.ELASTICSEARCH, authentication=authentication_of(client))
    state: dict[str, Any] = {"_searcher": searcher, "_later": set() if is_async else Background(), "is_owner": False}
    new.__dict__ |= {**client.__dict__, "_headers": client._headers.copy(), **state}  # noqa: SLF001 - its credentials
    new.indices = type(client.indices)(new)
    return new


@lru_cache
def _class_of(base: Any, is_async: bool) -> Any:  # noqa: FBT001 - a part of the key
    """Return the reranking class for a class of clients, which may be an application's own subclass."""
    own = RerankingAsyncElasticsearch if is_async else RerankingElasticsearch
    return own if issubclass(own, base) else type(f"Reranking{base.__name__}", (own, base), {})
