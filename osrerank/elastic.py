"""Elasticsearch clients whose searches can rerank (extra ``elasticsearch``). `osrerank.wrap` creates them.

elasticsearch-py turns the arguments of a search method into a request. The method is called on a copy of the client,
whose `perform_request` sends this request as a reranked search. So the methods of an application's subclass get the
reranked response.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

from osrerank._connections import ForkSafeConnections
from osrerank._optional import require
from osrerank.driver import AsyncDriver, SyncDriver, combine_classes
from osrerank.options.defaults import Defaults
from osrerank.retrieval.requests import SideRequest, build_path, digest_authentication, may_change_indices
from osrerank.search.calls import multi_search_steps, search_steps
from osrerank.search.lockstep import ClientSteps
from osrerank.search.plan import RerankArgument
from osrerank.search.searcher import Searcher
from osrerank.search.spans import multi_search_span, search_span
from osrerank.search.step import ClientStep, MultiSearchRequest, SearchRequest
from osrerank.search.templates import multi_template_steps, template_steps
from osrerank.service import RerankService
from osrerank.types.engine import Engine
from osrerank.types.engine_errors import EngineError
from osrerank.vectors.background import BackgroundTasks

require("elasticsearch", extra="elasticsearch")

from elastic_transport import ConnectionTimeout, TransportError  # noqa: E402 - after `require`
from elasticsearch import ApiError, AsyncElasticsearch, Elasticsearch  # noqa: E402 - see above

__all__ = ["RerankingAsyncElasticsearch", "RerankingElasticsearch"]

SHARED_ATTRIBUTES = ("_searcher", "_background", "_connections", "_reranking", "is_owner")
"""The attributes that ``client.options(...)`` copies to the new client."""


class Reranking(NamedTuple):
    """How a client reranks the request of a search method.

    Attributes:
        method: the search method, such as ``msearch``. It is also the ``endpoint_id`` of the request.
        query: the text to search for. If None, the request contains the query.
        rerank: the caller's ``rerank`` argument.
    """

    method: str
    query: str | None
    rerank: RerankArgument


class RecordedCall(NamedTuple):
    """The request that a search method sends.

    Attributes:
        client: the client that sends the call's requests, with the options of the call.
        params: the URL parameters.
        body: the body of the request.
        indices: the indices to search, separated by commas. If None, all are searched.
        responses: the responses that the call has received so far.
    """

    client: Any
    params: Mapping[str, Any]
    body: Any
    indices: str | None
    responses: list[Any]

    def build_response(self, body: Any) -> Any:
        """Return elasticsearch-py's response object for a body, with the status and headers of the last response."""
        last = self.responses[-1]
        if body is last.body:
            return last
        return type(last)(body=body, meta=last.meta)


class _RerankingClient:
    """The base of the synchronous and the asynchronous client."""

    _searcher: Searcher
    _headers: Any
    _request_timeout: Any
    _reranking: Reranking | None = None
    _send: Callable[..., Any]

    @property
    def searcher(self) -> Searcher:
        """The models and caches for searches with this client's credentials."""
        return self._searcher.for_user(self._headers)

    def options(self, **options: Any) -> Self:
        """Return a client with the same models and other options, such as credentials."""
        client: Self = super().options(**options)  # type: ignore[misc]
        client.__dict__ |= {name: self.__dict__[name] for name in SHARED_ATTRIBUTES if name in self.__dict__}
        return client

    def _copy(self, **attributes: Any) -> Self:
        """Return a copy with some attributes changed, made without the constructor of the application's class."""
        copy = object.__new__(type(self))
        copy.__dict__ |= {**self.__dict__, **attributes}
        return copy

    def _record(self, *, params: Any = None, body: Any = None, path_parts: Any = None, **_: Any) -> RecordedCall:
        """Return a request to record instead of sending it. The arguments are those of ``perform_request``."""
        index = unquote((path_parts or {}).get("index", ""))
        sending_client = self._copy(_reranking=None)
        return RecordedCall(sending_client, params or {}, body, indices=index or None, responses=[])

    def _forget_changed_indices(self, method: str, path: str, request: Mapping[str, Any]) -> None:
        """Forget what is cached about indices after a request of ``client.indices`` that might have changed them."""
        if str(request.get("endpoint_id")).startswith("indices.") and may_change_indices(method, path):
            self._searcher.forget_indices()

    def _prepare_request(self, step: ClientStep, call: RecordedCall) -> tuple[Self, dict[str, Any]]:
        """Return the client that sends a step's request, and the arguments of its ``perform_request``."""
        if isinstance(step, SideRequest):
            return self._prepare_side_request(step)
        if isinstance(step, SearchRequest):
            action = "search"
            content = _headers_and_body(step.body)
            params: Mapping[str, Any] = step.params
        else:
            assert isinstance(step, MultiSearchRequest)
            action = "msearch"
            content = _headers_and_body(step.lines, is_lines=True)
            params = {**call.params, **step.params}  # a `MultiSearchRequest` has only the additional parameters
        if step.is_template:
            endpoint, endpoint_id = f"_{action}/template", f"{action}_template"
        else:
            endpoint, endpoint_id = f"_{action}", action
        request = {
            **content,
            "method": "POST",
            "path": build_path(call.indices, endpoint),
            "params": params,
            "endpoint_id": endpoint_id,
            "path_parts": {"index": call.indices} if call.indices else {},
        }
        return self, request

    def _prepare_side_request(self, step: SideRequest) -> tuple[Self, dict[str, Any]]:
        """Prepare an additional request of a search. Its timeout is at most the client's."""
        client = self
        timeout_s = step.params.get("request_timeout")
        client_timeout_s = self._request_timeout if isinstance(self._request_timeout, int | float) else math.inf
        if timeout_s is not None and timeout_s <= client_timeout_s:
            client = self._copy(_request_timeout=timeout_s)
        url_params = {name: value for name, value in step.params.items() if name != "request_timeout"}
        request = {"method": step.method, "path": step.path, "params": url_params}
        return client, {**_headers_and_body(step.body), **request}

    def _sender(self, index: Any) -> Callable[[Any], Any]:
        """Return a function that sends steps to an index, without a recorded call."""
        return partial(self._send, RecordedCall(self, params={}, body=None, indices=index, responses=[]))

    @staticmethod
    def _to_engine_error(error: Exception) -> Exception:
        if isinstance(error, ApiError):
            # The body is such as {"error": {"type": "...", "root_cause": [{"type": "index_not_found_exception"}]}}.
            details = error.body.get("error") if isinstance(error.body, Mapping) else None
            cause: Mapping[str, Any] = {}
            if isinstance(details, Mapping):
                cause = next(iter(details.get("root_cause") or ()), details)
            return EngineError(
                error, status=error.status_code, kind=str(cause.get("type") or ""), external_message=str(error)
            )
        if isinstance(error, TransportError):
            return EngineError(error, timed_out=isinstance(error, ConnectionTimeout), external_message=str(error))
        return error


def _headers_and_body(body: Any, *, is_lines: bool = False) -> dict[str, Any]:
    """Return a request's ``headers``, and its ``body`` if any. A text body that ends in a newline is sent as NDJSON."""
    if body is None:
        return {"headers": {"accept": "application/json"}}
    is_lines = is_lines or (isinstance(body, str) and body.endswith("\n"))
    content_type = "application/x-ndjson" if is_lines else "application/json"
    return {"headers": {"accept": "application/json", "content-type": content_type}, "body": body}


def _make_steps(call: RecordedCall, reranking: Reranking) -> ClientSteps:
    """Return the generator of steps that perform and rerank a recorded call."""
    method, query, rerank = reranking
    searcher, index = call.client.searcher, call.indices
    if method == "search":
        return search_steps(searcher, query, call.body, call.params, index=index, rerank=rerank)
    if method == "search_template":
        return template_steps(searcher, call.body, call.params, index=index, rerank=rerank)
    if method == "msearch":
        return multi_search_steps(searcher, call.body, index, rerank=rerank, params=call.params)
    return multi_template_steps(searcher, call.body, index, rerank=rerank, params=call.params)


def _open_span(call: RecordedCall, reranking: Reranking) -> Any:
    """Return the tracing span of a recorded call."""
    method, query, rerank = reranking
    if method in ("msearch", "msearch_template"):
        return multi_search_span(call.client, call.indices)
    return search_span(call.client, call.indices, rerank, query)


class RerankingElasticsearch(_RerankingClient, SyncDriver, Elasticsearch):  # type: ignore[override]
    """An ``elasticsearch.Elasticsearch`` whose search methods accept ``rerank=``, as in ``osrerank.Client``.

    Arguments, options, response objects, exceptions and retries are unchanged.
    """

    def perform_request(self, method: str, path: str, **request: Any) -> Any:
        """Send a request, as elasticsearch-py does. If a search method is to be reranked, rerank its request."""
        if self._reranking is not None and request.get("endpoint_id") == self._reranking.method:
            return self._perform_reranked(self._record(**request), self._reranking)
        try:
            return super().perform_request(method, path, **request)
        finally:  # a failed request might have changed some indices
            self._forget_changed_indices(method, path, request)

    def search(self, query: Any = None, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Search, and optionally rerank the hits.

        Args:
            query: a text to search for in ``query_fields``, or a query-DSL clause. If None, the query is in ``body``
                or another argument.
            rerank: True, False or options, as for ``osrerank.Client.search``.
            arguments: the arguments of ``Elasticsearch.search``.
        """
        if isinstance(query, str):
            return self._call_reranked("search", rerank, query, arguments)
        if query is not None:
            arguments = {**arguments, "query": query}
        if rerank is False:
            return super().search(**arguments)
        return self._call_reranked("search", rerank, None, arguments)

    def msearch(self, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Run several searches in one request, and optionally rerank them."""
        if rerank is False:
            return super().msearch(**arguments)
        return self._call_reranked("msearch", rerank, None, arguments)

    def search_template(self, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Search with a search template, and optionally rerank the hits."""
        if rerank is False:
            return super().search_template(**arguments)
        return self._call_reranked("search_template", rerank, None, arguments)

    def msearch_template(self, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Run several template searches in one request, and optionally rerank them."""
        if rerank is False:
            return super().msearch_template(**arguments)
        return self._call_reranked("msearch_template", rerank, None, arguments)

    def _call_reranked(
        self, method: str, rerank: RerankArgument, query: str | None, arguments: Mapping[str, Any]
    ) -> Any:
        """Call elasticsearch-py's method, or that of the application's subclass, so that its request is reranked."""
        client = self._copy(_reranking=Reranking(method, query, rerank))
        return getattr(super(RerankingElasticsearch, client), method)(**arguments)

    def _perform_reranked(self, call: RecordedCall, reranking: Reranking) -> Any:
        """Perform and rerank a recorded call, and return the response."""
        with _open_span(call, reranking):
            send = partial(call.client._send, call)  # noqa: SLF001 - a copy of this client
            body = call.client._perform(_make_steps(call, reranking), send)  # noqa: SLF001 - see above
            return call.build_response(body)

    def _send(self, call: RecordedCall, step: ClientStep) -> Any:
        """Send a step's request, and return the body of the response."""
        client, request = self._prepare_request(step, call)
        response = client.perform_request(**request)
        if not isinstance(step, SideRequest):
            call.responses.append(response)
        return response.body


class RerankingAsyncElasticsearch(_RerankingClient, AsyncDriver, AsyncElasticsearch):  # type: ignore[override]
    """An ``elasticsearch.AsyncElasticsearch`` whose search methods accept ``rerank=``."""

    async def perform_request(self, method: str, path: str, **request: Any) -> Any:
        """Send a request, as elasticsearch-py does. If a search method is to be reranked, rerank its request."""
        if self._reranking is not None and request.get("endpoint_id") == self._reranking.method:
            return await self._perform_reranked(self._record(**request), self._reranking)
        try:
            return await super().perform_request(method, path, **request)
        finally:
            self._forget_changed_indices(method, path, request)

    async def search(self, query: Any = None, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Search, and optionally rerank the hits."""
        if isinstance(query, str):
            return await self._call_reranked("search", rerank, query, arguments)
        if query is not None:
            arguments = {**arguments, "query": query}
        if rerank is False:
            return await super().search(**arguments)
        return await self._call_reranked("search", rerank, None, arguments)

    async def msearch(self, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Run several searches in one request, and optionally rerank them."""
        if rerank is False:
            return await super().msearch(**arguments)
        return await self._call_reranked("msearch", rerank, None, arguments)

    async def search_template(self, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Search with a search template, and optionally rerank the hits."""
        if rerank is False:
            return await super().search_template(**arguments)
        return await self._call_reranked("search_template", rerank, None, arguments)

    async def msearch_template(self, *, rerank: RerankArgument = False, **arguments: Any) -> Any:
        """Run several template searches in one request, and optionally rerank them."""
        if rerank is False:
            return await super().msearch_template(**arguments)
        return await self._call_reranked("msearch_template", rerank, None, arguments)

    async def _call_reranked(
        self, method: str, rerank: RerankArgument, query: str | None, arguments: Mapping[str, Any]
    ) -> Any:
        """Call elasticsearch-py's method, or that of the application's subclass, so that its request is reranked."""
        client = self._copy(_reranking=Reranking(method, query, rerank))
        return await getattr(super(RerankingAsyncElasticsearch, client), method)(**arguments)

    async def _perform_reranked(self, call: RecordedCall, reranking: Reranking) -> Any:
        """Perform and rerank a recorded call, and return the response."""
        with _open_span(call, reranking):
            send = partial(call.client._send, call)  # noqa: SLF001 - a copy of this client
            body = await call.client._perform(_make_steps(call, reranking), send)  # noqa: SLF001 - see above
            return call.build_response(body)

    async def _send(self, call: RecordedCall, step: ClientStep) -> Any:
        """Send a step's request, and return the body of the response."""
        client, request = self._prepare_request(step, call)
        response = await client.perform_request(**request)
        if not isinstance(step, SideRequest):
            call.responses.append(response)
        return response.body


def wrap_client(client: Any, models: RerankService, defaults: Defaults) -> Any:
    """Return a reranking client with the transport, credentials and options of an existing client."""
    is_async = isinstance(client, AsyncElasticsearch)
    reranking_class = RerankingAsyncElasticsearch if is_async else RerankingElasticsearch
    # the class of the existing client can have methods of its own
    new_client: Any = object.__new__(combine_classes(reranking_class, client.__class__))
    state: dict[str, Any] = {
        "_headers": client._headers.copy(),  # noqa: SLF001 - the credentials
        "_searcher": Searcher(
            models, defaults, engine=Engine.ELASTICSEARCH, authentication=digest_authentication(client)
        ),
        "_background": set() if is_async else BackgroundTasks(),
        "_connections": ForkSafeConnections(client.transport),
        "is_owner": False,
    }
    new_client.__dict__ |= {**client.__dict__, **state}
    new_client.indices = type(client.indices)(new_client)  # sends its requests with the new client
    return new_client
