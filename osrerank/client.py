"""The client: an ``opensearchpy.OpenSearch`` whose searches can rerank.

A search is a generator of steps, such as requests. The client sends each request, and passes the response back.
"""

import difflib
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from opensearchpy import (
    ConnectionPool,
    ConnectionTimeout,
    OpenSearch,
    OpenSearchException,
    Transport,
    TransportError,
    Urllib3HttpConnection,
)
from opensearchpy.client.utils import query_params

from osrerank._connections import ForkSafeConnections
from osrerank.driver import SyncDriver
from osrerank.errors import ConfigError
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import Rerank, RerankOptions
from osrerank.retrieval.requests import SideRequest, digest_authentication, is_embedded, may_change_indices
from osrerank.search.calls import multi_search_steps, search_steps
from osrerank.search.plan import RerankArgument
from osrerank.search.searcher import Searcher
from osrerank.search.spans import multi_search_span, request_span, search_span
from osrerank.search.step import ClientStep, MultiSearchRequest, SearchRequest
from osrerank.search.templates import multi_template_steps, template_steps
from osrerank.service import RerankService
from osrerank.settings import Settings, expand_home, refuse_settings
from osrerank.types import Encoder, Scorer
from osrerank.types.engine import Engine
from osrerank.types.engine_errors import EngineError
from osrerank.vectors.background import BackgroundTasks

EMBEDDED_PREFIX = "embedded:"
"""The prefix of a URL that names the folder of the embedded engine instead of a server."""
FURTHER_OPTIONS = ("hosts", "transport_class", "scheme", "embedded_path", "clock")
"""Options that `connect` accepts, although no signature of opensearch-py contains their names."""
CREDENTIALS = ("http_auth", "api_key")
"""The arguments with which each method of opensearch-py accepts another user's credentials than the client's."""
CONNECTIONS_PER_HOST = 32
"""The number of open connections to each host. With the default of one, threads would wait for each other."""


def to_engine_error(error: Exception) -> EngineError:
    """Convert an exception of opensearch-py to the `EngineError` that searches handle."""
    if not isinstance(error, TransportError):  # the response is not JSON, for example
        return EngineError(error, external_message=str(error))
    status = error.status_code if isinstance(error.status_code, int) else None  # not a text such as "TIMEOUT"
    kind = error.error if status is not None and isinstance(error.error, str) else ""
    return EngineError(
        error, status=status, kind=kind, timed_out=isinstance(error, ConnectionTimeout), external_message=str(error)
    )


class OpenSearchPyClient:
    """What the synchronous and the asynchronous client of opensearch-py have in common."""

    transport: Any
    _send: Callable[..., Any]

    @staticmethod
    def _to_engine_error(error: Exception) -> Exception:
        return to_engine_error(error) if isinstance(error, OpenSearchException) else error

    def _sender(self, index: Any) -> Callable[[Any], Any]:
        """Return a function that sends a step's request to an index, without a caller's headers and options."""
        return partial(self._send, index=index, headers=None, options={})

    def __repr__(self) -> str:
        """Describe the client by its class and hosts, without credentials."""
        hosts = getattr(self.transport, "hosts", None) or []
        names = [f"{host.get('host')}:{host.get('port', 9200)}" for host in hosts]
        return f"<{type(self).__name__} of {', '.join(names) or 'the embedded engine'}>"


class Client(OpenSearchPyClient, SyncDriver, OpenSearch):
    """An ``opensearchpy.OpenSearch`` that understands ``search(..., rerank=True)``. All other methods are unchanged.

    Args:
        hosts: as for ``opensearchpy.OpenSearch``.
        models: the service that holds the models. `connect` creates it from its arguments. If None, the models are
            those of the settings.
        defaults: the default rerank options of each index. If None, they come from the settings file.
        options: passed to ``opensearchpy.OpenSearch``.
    """

    def __init__(
        self,
        hosts: Any = None,
        *,
        models: RerankService | None = None,
        defaults: Defaults | None = None,
        **options: Any,
    ) -> None:
        super().__init__(hosts, **options)
        self._connections = ForkSafeConnections(self.transport)
        self._background = BackgroundTasks()  # `SyncDriver` adds requests that no caller waits for
        self.searcher = create_searcher(self, models, defaults)

    def search(
        self,
        query: str | Mapping[str, Any] | None = None,
        *,
        rerank: RerankArgument = False,
        index: Any = None,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Any = None,
        **options: Any,
    ) -> Any:
        """Search, and optionally rerank the hits.

        ```python
        from osrerank import connect

        client = connect("embedded:./data")
        client.index(index="notes", id="1", body={"text": "Aspirin lowers the blood pressure."}, refresh=True)
        response = client.search("what lowers blood pressure", index="notes", rerank=True)
        assert response["rerank"]["applied"] is True
        assert response["hits"]["hits"][0]["_id"] == "1"
        ```

        Args:
            query: a text to search for in ``query_fields``, or a query-DSL clause. If None, the query is in ``body``.
            rerank: True for the client's default options, or a dict of options that override them, or a ``Rerank``.
                False does not rerank.
            index: as for ``opensearchpy``.
            body: an ordinary ``_search`` body.
            params: URL parameters.
            headers: as for ``opensearchpy``.
            options: any other argument of ``opensearchpy``'s ``search``, such as ``size``, ``from_`` or ``_source``.

        Returns:
            The search response. With ``rerank``, ``response["rerank"]`` reports what happened, the hits' ``_score``
            decreases in the new order, and each hit's ``_rerank`` has the scores of the stages.

        Raises:
            ConfigError: an option in ``rerank`` cannot be used, or ``on_failure`` is ``"raise"`` and the query has no
                text or several.
            ScoringError: reranking failed, and ``on_failure`` is ``"raise"``.
            opensearchpy.OpenSearchException: OpenSearch itself failed.
        """
        headers, options = move_credentials(headers, options)
        all_params = {**(params or {}), **options}
        steps = search_steps(self.searcher, query, body, all_params, index=index, rerank=rerank, headers=headers)
        send = partial(self._send, index=index, headers=headers, options=options)
        with search_span(self, index, rerank, query):
            return self._perform(steps, send)

    def _send(self, step: ClientStep, *, index: Any, headers: Any, options: Mapping[str, Any]) -> Any:
        """Send a step's request with opensearch-py, and return the response.

        Args:
            step: the search itself, or an additional request.
            index: the index that the caller searches.
            headers: the caller's headers.
            options: the caller's keyword arguments.
        """
        with request_span(self, step, index):
            if isinstance(step, SideRequest):
                return self.transport.perform_request(
                    step.method, step.path, headers=headers, params=with_timeout(step, options), body=step.body
                )
            if isinstance(step, MultiSearchRequest):
                send = super().msearch_template if step.is_template else super().msearch
                return send(body=list(step.lines), **given(index=index), **with_params(options, step.params))
            assert isinstance(step, SearchRequest)
            send = super().search_template if step.is_template else super().search
            url_params, keywords = split_params(step.params, options)
            arguments = given(index=index, body=step.body, params=url_params or None, headers=headers)
            return send(**arguments, **keywords)

    def msearch(self, *, body: Any, rerank: RerankArgument = False, index: Any = None, **options: Any) -> Any:
        """Run several searches in one request, and optionally rerank them.

        Args:
            body: a header and a body for each search, as a list or as newline-delimited JSON.
            rerank: as for ``search``. It applies to every search. The query text comes from the body of each search.
            index: the index of searches whose header names none.
            options: any other argument of ``opensearchpy``'s ``msearch``.
        """
        if rerank is False:
            return super().msearch(body=body, **given(index=index), **options)
        headers, options = move_multi_search_credentials(options)
        steps = multi_search_steps(self.searcher, body, index, rerank=rerank, params=options)
        send = partial(self._send, index=index, headers=headers, options=options)
        with multi_search_span(self, index):
            return self._perform(steps, send)

    def search_template(
        self,
        *,
        body: Any,
        rerank: RerankArgument = False,
        index: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Any = None,
        **options: Any,
    ) -> Any:
        """Search with a search template, and optionally rerank the hits.

        OpenSearch renders the template first. The rendered search is then run and reranked, as by ``search``.

        Args:
            body: the template's ``id`` or ``source``, and its ``params``.
            rerank: as for ``search``.
            index: as for ``opensearchpy``.
            params: URL parameters.
            headers: as for ``opensearchpy``.
            options: any other argument of ``opensearchpy``'s ``search_template``.
        """
        if rerank is False:
            arguments = given(index=index, params=params, headers=headers)
            return super().search_template(body=body, **arguments, **options)
        headers, options = move_credentials(headers, options)
        all_params = {**(params or {}), **options}
        steps = template_steps(self.searcher, body, all_params, index=index, rerank=rerank, headers=headers)
        send = partial(self._send, index=index, headers=headers, options=options)
        with search_span(self, index, rerank, None):
            return self._perform(steps, send)

    def msearch_template(self, *, body: Any, rerank: RerankArgument = False, index: Any = None, **options: Any) -> Any:
        """Run several template searches in one request, and optionally rerank them.

        Args:
            body: a header and a template for each search, as a list or as newline-delimited JSON.
            rerank: as for ``msearch``.
            index: the index of searches whose header names none.
            options: any other argument of ``opensearchpy``'s ``msearch_template``.
        """
        if rerank is False:
            return super().msearch_template(body=body, **given(index=index), **options)
        headers, options = move_multi_search_credentials(options)
        steps = multi_template_steps(self.searcher, body, index, rerank=rerank, params=options)
        send = partial(self._send, index=index, headers=headers, options=options)
        with multi_search_span(self, index):
            return self._perform(steps, send)


def given(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that are not None. The others are not passed on.

    An application's subclass may override a method without the other parameters, or with its own defaults for them,
    such as ``search(self, body, index="articles")``.
    """
    return {name: value for name, value in arguments.items() if value is not None}


def move_credentials(headers: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a caller's headers and keyword arguments, with a request's own credentials moved to the headers.

    All requests of a search are sent with its headers, and caches are kept apart by them.

    Args:
        headers: the caller's headers.
        options: the caller's keyword arguments, which may contain ``http_auth`` or ``api_key``.

    Raises:
        ValueError: both ``http_auth`` and ``api_key`` are given.
    """
    credentials = {name: options[name] for name in CREDENTIALS if options.get(name) is not None}
    if credentials:
        headers = _format_headers(headers=headers, **credentials)
    return headers, {name: value for name, value in options.items() if name not in CREDENTIALS}


def move_multi_search_credentials(options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Move credentials to the headers, as `move_credentials` does, where the keyword arguments contain the headers."""
    headers, others = move_credentials(options.get("headers"), options)
    return headers, {**others, **given(headers=headers)}


@query_params()
def _format_headers(*, params: Any, headers: Any) -> Any:  # noqa: ARG001 - opensearch-py passes both
    """Return the headers that opensearch-py makes of the arguments of a method, such as ``http_auth``."""
    return headers


def split_params(params: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a request's parameters into opensearch-py's ``params`` and its keyword arguments.

    With the options ``{"size": 10}``, the parameters ``{"size": 50, "preference": "a"}`` become
    ``({"preference": "a"}, {"size": 50})``.

    Args:
        params: the parameters of the request.
        options: the caller's keyword arguments. Parameters with the same names are returned as keyword arguments.
    """
    keywords = {name: value for name, value in params.items() if name in options}
    url_params = {name: value for name, value in params.items() if name not in options}
    return url_params, keywords


def with_params(options: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the caller's keyword arguments, with the URL parameters ``params`` added to those of the caller."""
    if not params:
        return dict(options)
    callers_params = options.get("params") or {}
    return {**options, "params": {**callers_params, **params}}


def with_timeout(step: SideRequest, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of an additional request of a search. Its timeout is at most the caller's.

    Args:
        step: the additional request.
        options: the caller's keyword arguments.
    """
    callers_timeout_s = options.get("request_timeout", (options.get("params") or {}).get("request_timeout"))
    timeout_s = step.params.get("request_timeout")
    if callers_timeout_s is None or (timeout_s is not None and timeout_s <= callers_timeout_s):
        return dict(step.params)
    return {**step.params, "request_timeout": callers_timeout_s}


def connect(
    url: str | None = None,
    *,
    model: str | None = None,
    vector_model: str | None = None,
    duo_model: str | None = None,
    backend: str | None = None,
    dtype: str | None = None,
    redis_url: str | None = None,
    rerank: Rerank | RerankOptions | None = None,
    scorer: Scorer | Encoder | None = None,
    duo_scorer: Scorer | None = None,
    encoder: Encoder | None = None,
    engine: str | None = None,
    api_key: str | None = None,
    warm: bool = False,
    **options: Any,
) -> Client:
    """Return a client for a server, or for the embedded engine.

    An argument that is None gets its value from the environment, such as ``OSRERANK_URL``, or else the default of
    ``Settings``.

    Args:
        url: ``http(s)://[user:password@]host:port``, or several such addresses separated by commas, or a cloud id of
            Elastic Cloud, or ``embedded:FOLDER``.
        model: a directory or hub id in Hugging Face layout, or the name of a shipped model. It overrides the settings
            file's models of all indices.
        vector_model: the bi-encoder of the stage ``vectors`` if ``model`` is a cross-encoder: a directory, hub id or
            name, as for ``model``.
        duo_model: the model that compares pairs of candidates: a directory, hub id or name, as for ``model``.
        backend: ``auto``, ``onnx``, ``torch``, ``workers`` or ``http``.
        dtype: the precision of the torch backend: ``auto``, ``fp32``, ``bf16`` or ``fp16``.
        redis_url: the URL of Redis for the score cache, and for workers unless ``OSRERANK_BROKER_URL`` is set.
        rerank: this client's default rerank options, which override ``[rerank]`` in the settings file.
        scorer: your own scorer or encoder, used instead of ``model``.
        duo_scorer: your own scorer of pairs, used instead of ``duo_model``.
        encoder: your own encoder, used instead of ``vector_model``.
        engine: ``opensearch`` or ``elasticsearch``. If None, the client asks the server.
        api_key: an API key of Elasticsearch, in the encoded form.
        warm: whether to load the models now, as `Client.warm_up` does.
        options: passed to ``opensearchpy.OpenSearch``.

    Raises:
        ConfigError: a setting cannot be used.
        ModelLoadError, MissingDependencyError, WorkerError, ScoringError: with ``warm``, a model cannot be loaded.
    """
    refuse_settings(options)
    refuse_unknown(options, Transport, ConnectionPool, Urllib3HttpConnection)
    models = {"model": model, "vector_model": vector_model, "duo_model": duo_model}
    address = {"url": url, "engine": engine, "api_key": api_key}
    settings = Settings.load(**address, **models, backend=backend, dtype=dtype, redis_url=redis_url)
    clock = options.pop("clock", time.monotonic)  # tests set it
    client = Client(
        models=RerankService(settings, scorer, duo_scorer, clock, encoder=encoder, has_index=True),
        defaults=Defaults.load(settings, rerank, model=model),
        **{**connection_options(settings), **options},
    )
    if warm:
        client.warm_up()
    return client


def create_searcher(client: Any, models: RerankService | None, defaults: Defaults | None) -> Searcher:
    """Create the `Searcher` of a client, which is synchronous or asynchronous. ``Client`` describes the arguments."""
    searcher = Searcher(
        models or RerankService(Settings.load(), has_index=True),
        defaults,
        engine=Engine.EMBEDDED if is_embedded(client) else None,
        authentication=digest_authentication(client),
    )
    for namespace in (client.indices, client.search_pipeline):
        namespace.client = ChangeObserver(client, searcher.forget_indices)
    return searcher


class ChangeObserver:
    """Stands in for the client in ``client.indices`` and similar namespaces, to notice requests that change indices.

    Args:
        client: the client, synchronous or asynchronous.
        on_change: a function that is called after each request that might have changed an index.
    """

    def __init__(self, client: Any, on_change: Callable[[], None]) -> None:
        self._client, self._on_change = client, on_change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @property
    def transport(self) -> "ChangeObserver":
        """This object, because namespaces send a request with ``client.transport.perform_request``."""
        return self

    def perform_request(self, method: str, url: str, *arguments: Any, **options: Any) -> Any:
        """Send a request as the client's transport does."""
        send = partial(self._client.transport.perform_request, method, url, *arguments, **options)
        if not may_change_indices(method, url):
            return send()
        try:
            response = send()
        finally:  # a failed request might have changed some indices
            self._on_change()
        return self._await_response(response) if inspect.isawaitable(response) else response

    async def _await_response(self, response: Awaitable[Any]) -> Any:
        """Return the response of an asynchronous client, which may arrive after `perform_request` has returned."""
        try:
            return await response
        finally:
            self._on_change()


def refuse_unknown(options: Mapping[str, Any], *classes: type) -> None:
    """Reject options that neither `connect` nor opensearch-py accepts. opensearch-py would silently ignore them.

    Nothing is rejected if the caller passes a transport or connection class, because that class can have more options.

    Args:
        options: the caller's options.
        classes: the classes of opensearch-py that receive the options.

    Raises:
        ConfigError: an option is unknown. The message suggests the most similar name.
    """
    if {"transport_class", "connection_class", "connection_pool_class"} & set(options):
        return
    accepted_names = set(FURTHER_OPTIONS)
    bases = {base for opensearch_class in classes for base in opensearch_class.__mro__} - {object}
    for base in bases:
        accepted_names |= set(inspect.signature(base).parameters) - {"args", "kwargs"}
    for name in sorted(set(options) - accepted_names):
        nearest = difflib.get_close_matches(name, [*accepted_names, *inspect.signature(connect).parameters], 1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ConfigError(f"connect has no argument {name!r}{hint}", setting=name, source="argument")


def connection_options(settings: Settings) -> dict[str, Any]:
    """Return the options of opensearch-py's synchronous client for the settings' URL."""
    folder = embedded_folder(settings)
    if folder is None:
        return server_options(settings)
    from osrerank.embedded.transport import EmbeddedTransport  # noqa: PLC0415 - imports tantivy

    return {"transport_class": EmbeddedTransport, "embedded_path": folder}


def embedded_folder(settings: Settings) -> Path | None:
    """Return the embedded engine's folder, or None if the URL is that of a server."""
    address = settings.url.get_secret_value()
    if not address.startswith(EMBEDDED_PREFIX):
        return None
    return expand_home(Path(address.removeprefix(EMBEDDED_PREFIX)), "url")


def server_options(settings: Settings) -> dict[str, Any]:
    """Return opensearch-py's options for the servers of the settings' URL."""
    hosts = [part.strip() for part in settings.url.get_secret_value().split(",")]
    key = settings.api_key
    credentials = {"headers": {"authorization": f"ApiKey {key.get_secret_value()}"}} if key is not None else {}
    return {"hosts": hosts, "pool_maxsize": CONNECTIONS_PER_HOST, **credentials}
