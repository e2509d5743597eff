"""elasticsearch-py's clients, whose searches can rerank (extra ``elasticsearch``); `osrerank.wrap` makes them."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

from osrerank._optional import require
from osrerank.driver import AsyncDriver, SyncDriver
from osrerank.options.defaults import Defaults
from osrerank.retrieval.requests import SideRequest, build_path, digest_authentication, may_change_indices
from osrerank.search.calls import multi_search_steps, search_steps
from osrerank.search.lockstep import ClientSteps
from osrerank.search.plan import RerankArgument
from osrerank.search.searcher import Searcher
from osrerank.search.step import ClientStep, MultiSearchRequest, SearchRequest
from osrerank.search.templates import multi_template_steps, template_steps
from osrerank.search.traced import multi_search_span, search_span
from osrerank.service import RerankService
from osrerank.types.engine import Engine
from osrerank.types.failed import Failed
from osrerank.vectors.background import Background

require("elasticsearch", extra="elasticsearch")

from elastic_transport import ConnectionTimeout, TransportError  # noqa: E402 - may be absent
from elasticsearch import ApiError, AsyncElasticsearch, Elasticsearch  # noqa: E402 - likewise

__all__ = ["RerankingAsyncElasticsearch", "RerankingElasticsearch"]

SHARED_ATTRIBUTES = ("_searcher", "_background", "_calls", "is_owner")
"""Attributes that a client copies to the clients that its ``options`` makes."""


class RecordedCall(NamedTuple):
    """A recorded request of an elasticsearch-py method, and the responses to the searches that were sent instead.

    Attributes:
        client: the client that sends the searches; it has the options of this call.
        params: the URL parameters.
        body: the body of the request.
        indices: the index or indices; None for all.
        responses: the responses to the searches.
    """

    client: Any
    params: Mapping[str, Any]
    body: Any
    indices: str | None
    responses: list[Any]

    def respond(self, body: Any) -> Any:
        """Return a body as elasticsearch-py's response object, with the status and headers of the last response."""
        last = self.responses[-1]
        return last if body is last.body else type(last)(body=body, meta=last.meta)


class _RecordingClient:
    """The code that both clients share.

    elasticsearch-py turns the arguments of a search into a request. A copy of the client records that request instead
    of sending it, and the recorded request is reranked.
    """

    _searcher: Searcher
    _headers: Any
    _request_timeout: Any
    _calls: list[RecordedCall] | None = None
    _send: Callable[..., Any]

    @property
    def searcher(self) -> Searcher:
        """What the searches of this client's user share."""
        return self._searcher.for_user(self._headers)

    def options(self, **options: Any) -> Self:
        """Return a client with other options, such as credentials, that reranks with the same models."""
        client: Self = super().options(**options)  # type: ignore[misc]
        client.__dict__ |= {name: self.__dict__[name] for name in SHARED_ATTRIBUTES if name in self.__dict__}
        return client

    def _copy(self, calls: list[RecordedCall] | None) -> Self:
        """Return a copy that appends its requests to a list instead of sending them; with None, it sends them."""
        copy = object.__new__(type(self))
        copy.__dict__ |= {**self.__dict__, "_calls": calls}
        return copy

    def _record(self, *, params: Any = None, body: Any = None, path_parts: Any = None, **_: Any) -> None:
        assert self._calls is not None
        index = unquote((path_parts or {}).get("index", ""))
        self._calls.append(RecordedCall(self._copy(None), params or {}, body, index or None, []))

    def _forget_changed_indices(self, method: str, path: str, request: Mapping[str, Any]) -> None:
        """Drop what is cached of the indices if a request of ``client.indices`` may have changed them."""
        if str(request.get("endpoint_id")).startswith("indices.") and may_change_indices(method, path):
            self._searcher.forget_indices()

    def _request(self, step: ClientStep, call: RecordedCall) -> tuple[Self, dict[str, Any]]:
        """Return the client that sends a step's request, and the arguments of its ``perform_request``."""
        if isinstance(step, SideRequest):
            client, timeout_s, given_s = self, step.params.get("request_timeout"), self._request_timeout
            if timeout_s is not None and not (isinstance(given_s, int | float) and given_s < timeout_s):
                client = self.options(request_timeout=timeout_s)
            url_params = {name: value for name, value in step.params.items() if name != "request_timeout"}
            request = {"method": step.method, "path": step.path, "params": url_params}
            return client, {**_headers_and_body(step.body), **request}
        assert isinstance(step, SearchRequest | MultiSearchRequest)
        params: Mapping[str, Any]
        if isinstance(step, SearchRequest):
            action, content, params = "search", _headers_and_body(step.body), step.params
        else:
            action, content = "msearch", _headers_and_body(step.lines, is_lines=True)
            params = {**call.params, **step.params}
        request = {
            **content,
            "method": "POST",
            "path": build_path(call.indices, f"_{action}/template" if step.is_template else f"_{action}"),
            "params": params,
            "endpoint_id": f"{action}_template" if step.is_template else action,
            "path_parts": {"index": call.indices} if call.indices else {},
        }
        return self, request

    def _sender(self, index: Any) -> Callable[[Any], Any]:
        return partial(self._send, RecordedCall(self, {}, None, index, []))

    @staticmethod
    def _as_failed(error: Exception) -> Exception:
        if isinstance(error, ApiError):
            details = error.body.get("error") if isinstance(error.body, Mapping) else None
            cause = next(iter(details.get("root_cause") or ()), details) if isinstance(details, Mapping) else {}
            return Failed(error, status=error.status_code, kind=str(cause.get("type") or ""), foreign=str(error))
        if isinstance(error, TransportError):
            return Failed(error, timed_out=isinstance(error, ConnectionTimeout), foreign=str(error))
        return error


def _headers_and_body(body: Any, *, is_lines: bool = False) -> dict[str, Any]:
    """Return the body and the headers of a request; a text that ends with a line break is newline-delimited JSON."""
    if body is None:
        return {"headers": {"accept": "application/json"}}
    is_lines = is_lines or (isinstance(body, str) and body.endswith("\n"))
    kind = "application/x-ndjson" if is_lines else "application/json"
    return {"headers": {"accept": "application/json", "content-type": kind}, "body": body}


def _steps(name: str, call: RecordedCall, query: Any, rerank: RerankArgument) -> ClientSteps:
    """Return the steps of the method that a call was recorded for."""
    searcher, index = call.client.searcher, call.indices
    if name == "search":
        return search_steps(searcher, query, call.body, call.params, index=index, rerank=rerank)
    if name == "search_template":
        return template_steps(searcher, call.body, call.params, index=index, rerank=rerank)
    steps_of = multi_search_steps if name == "msearch" else multi_template_steps
    return steps_of(searcher, call.body, index, rerank=rerank, params=call.params)


def _span(name: str, call: RecordedCall, query: Any, rerank: RerankArgument) -> Any:
    if name.startswith("m"):
        return multi_search_span(call.client, call.indices)
    return search_span(call.client, call.indices, rerank, query)


class RerankingElasticsearch(_RecordingClient, SyncDriver, Elasticsearch):  # type: ignore[override]
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
            self._forget_changed_indices(method, path, request)

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
        calls: list[RecordedCall] = []
        getattr(super(RerankingElasticsearch, self._copy(calls)), name)(**arguments)
        (call,) = calls
        with _span(name, call, query, rerank):
            send = partial(call.client._send, call)  # noqa: SLF001 - a copy of this client
            return call.respond(call.client._perform(_steps(name, call, query, rerank), send))  # noqa: SLF001

    def _send(self, call: RecordedCall, step: ClientStep) -> Any:
        client, request = self._request(step, call)
        response = client.perform_request(**request)
        if not isinstance(step, SideRequest):
            call.responses.append(response)
        return response.body


class RerankingAsyncElasticsearch(_RecordingClient, AsyncDriver, AsyncElasticsearch):  # type: ignore[override]
    """An ``elasticsearch.AsyncElasticsearch`` whose searches take ``rerank=``, as those of `RerankingElasticsearch`."""

    async def perform_request(self, method: str, path: str, **request: Any) -> Any:
        """Send a request, as elasticsearch-py does."""
        if self._calls is not None:
            return self._record(**request)
        try:
            return await super().perform_request(method, path, **request)
        finally:
            self._forget_changed_indices(method, path, request)

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
        calls: list[RecordedCall] = []
        await getattr(super(RerankingAsyncElasticsearch, self._copy(calls)), name)(**arguments)
        (call,) = calls
        with _span(name, call, query, rerank):
            send = partial(call.client._send, call)  # noqa: SLF001 - a copy of this client
            body = await call.client._perform(_steps(name, call, query, rerank), send)  # noqa: SLF001
            return call.respond(body)

    async def _send(self, call: RecordedCall, step: ClientStep) -> Any:
        client, request = self._request(step, call)
        response = await client.perform_request(**request)
        if not isinstance(step, SideRequest):
            call.responses.append(response)
        return response.body


def wrap_client(client: Any, models: RerankService, defaults: Defaults) -> Any:
    """Return a reranking client that has the transport, the credentials and the options of an existing client."""
    is_async = isinstance(client, AsyncElasticsearch)
    new: Any = object.__new__(_class_of(type(client), is_async))  # type: ignore[arg-type]
    searcher = Searcher(models, defaults, engine=Engine.ELASTICSEARCH, authentication=digest_authentication(client))
    state: dict[str, Any] = {
        "_searcher": searcher,
        "_background": set() if is_async else Background(),
        "is_owner": False,
    }
    new.__dict__ |= {**client.__dict__, "_headers": client._headers.copy(), **state}  # noqa: SLF001 - its credentials
    new.indices = type(client.indices)(new)
    return new


@lru_cache
def _class_of(base: Any, is_async: bool) -> Any:  # noqa: FBT001 - a part of the key
    """Return the reranking subclass of a client class, which may itself be a subclass of the application."""
    reranking = RerankingAsyncElasticsearch if is_async else RerankingElasticsearch
    return reranking if issubclass(reranking, base) else type(f"Reranking{base.__name__}", (reranking, base), {})
