"""The client: an ``opensearchpy.OpenSearch`` whose ``search`` can rerank."""

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
from urllib3 import HTTPConnectionPool

from osrerank._platform import renew_after_fork
from osrerank.driver import SyncDriver
from osrerank.errors import ConfigError
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import Rerank, RerankOptions
from osrerank.retrieval.requests import SideRequest, digest_authentication, is_embedded, may_change_indices
from osrerank.search.calls import multi_search_steps, search_steps
from osrerank.search.plan import RerankArgument
from osrerank.search.searcher import Searcher
from osrerank.search.step import ClientStep, MultiSearchRequest, SearchRequest
from osrerank.search.templates import multi_template_steps, template_steps
from osrerank.search.traced import multi_search_span, request_span, search_span
from osrerank.service import RerankService
from osrerank.settings import Settings, expand_home, refuse_settings
from osrerank.types import Encoder, Scorer
from osrerank.types.engine import Engine
from osrerank.types.engine_errors import EngineError
from osrerank.vectors.background import BackgroundTasks

EMBEDDED = "embedded:"
PASSED_ON = ("hosts", "transport_class", "scheme", "embedded_path", "clock")
"""Options that the client, opensearch-py and the embedded engine accept, but that no signature names."""
CONNECTIONS = 32
"""Connections kept open to each host; opensearch-py's default is one, for which threads would wait."""


def failed_of(error: Exception) -> EngineError:
    """Return an exception of opensearch-py as the `EngineError` that searches understand."""
    if not isinstance(error, TransportError):  # such as a response that is not JSON
        return EngineError(error, foreign=str(error))
    status = error.status_code if isinstance(error.status_code, int) else None
    kind = error.error if status is not None and isinstance(error.error, str) else ""
    return EngineError(
        error, status=status, kind=kind, timed_out=isinstance(error, ConnectionTimeout), foreign=str(error)
    )


class OpenSearchPyClient:
    """The code that the synchronous and the asynchronous client of opensearch-py share."""

    transport: Any
    _send: Callable[..., Any]

    @staticmethod
    def _as_failed(error: Exception) -> Exception:
        return failed_of(error) if isinstance(error, OpenSearchException) else error

    def _sender(self, index: Any) -> Callable[[Any], Any]:
        return partial(self._send, index=index, headers=None, options={})

    def __repr__(self) -> str:
        """Return the name of the class and its hosts, without credentials."""
        hosts = getattr(self.transport, "hosts", None) or []
        names = [f"{host.get('host')}:{host.get('port', 9200)}" for host in hosts]
        return f"<{type(self).__name__} of {', '.join(names) or 'the embedded engine'}>"


class Client(OpenSearchPyClient, SyncDriver, OpenSearch):
    """An ``opensearchpy.OpenSearch`` that understands ``search(..., rerank=True)``; everything else works as before.

    Args:
        hosts: as for ``opensearchpy.OpenSearch``.
        models: the service that holds the models; by default, that of the environment's settings. `connect` creates it
            from its arguments.
        defaults: the options of ``rerank=True`` for each index; by default, those of the settings file.
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
        self._background = BackgroundTasks()
        self.searcher = searcher_of(self, models, defaults)

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
        """Search, and rerank the hits if ``rerank`` is set.

        ```python
        from osrerank import connect

        client = connect("embedded:./data")
        client.index(index="notes", id="1", body={"text": "Aspirin lowers the blood pressure."}, refresh=True)
        response = client.search("what lowers blood pressure", index="notes", rerank=True)
        assert response["rerank"]["applied"] is True
        assert response["hits"]["hits"][0]["_id"] == "1"
        ```

        Args:
            query: a text that is searched in ``query_fields``; or a query-DSL clause; or None for ``body``'s query.
            rerank: True for the client's defaults, a dict of options that override them, or a ``Rerank``; False for an
                ordinary search.
            index: as for ``opensearchpy``.
            body: an ordinary ``_search`` body.
            params: URL parameters.
            headers: as for ``opensearchpy``.
            options: any other argument of ``opensearchpy``'s ``search``: ``size``, ``from_``, ``_source`` and so on.

        Returns:
            The search response. With ``rerank``, ``response["rerank"]`` reports what happened, the hits' ``_score``
            decreases in the new order, and each hit's ``_rerank`` has the scores of the stages.

        Raises:
            ConfigError: an option in ``rerank`` cannot be used; or ``on_failure`` is ``"raise"``, and the search has no
                single query text.
            ScoringError: reranking failed and ``on_failure`` is ``"raise"``.
            opensearchpy.OpenSearchException: OpenSearch itself failed.
        """
        all_params = {**(params or {}), **options}
        steps = search_steps(self.searcher, query, body, all_params, index=index, rerank=rerank, headers=headers)
        send = partial(self._send, index=index, headers=headers, options=options)
        with search_span(self, index, rerank, query):
            return self._perform(steps, send)

    def _send(self, step: ClientStep, *, index: Any, headers: Any, options: Mapping[str, Any]) -> Any:
        with request_span(self, step, index):
            if isinstance(step, SideRequest):
                return self.transport.perform_request(
                    step.method, step.path, headers=headers, params=with_timeout(step, options), body=step.body
                )
            if isinstance(step, MultiSearchRequest):
                send = super().msearch_template if step.is_template else super().msearch
                return send(body=list(step.lines), index=index, **with_params(options, step.params))
            assert isinstance(step, SearchRequest)
            url_params, keywords = split_params(step.params, options)
            send = super().search_template if step.is_template else super().search
            return send(index=index, body=step.body, params=url_params, headers=headers, **keywords)

    def msearch(self, *, body: Any, rerank: RerankArgument = False, index: Any = None, **options: Any) -> Any:
        """Run several searches in one request, and rerank each if ``rerank`` is set.

        Args:
            body: headers and search bodies in turn, as a list or as newline-delimited JSON.
            rerank: as for ``search``; it applies to every search. Each takes its query text from its own body.
            index: the index of searches whose header names none.
            options: any other argument of ``opensearchpy``'s ``msearch``.
        """
        if rerank is False:
            return super().msearch(body=body, index=index, **options)
        steps = multi_search_steps(self.searcher, body, index, rerank=rerank, params=options)
        send = partial(self._send, index=index, headers=options.get("headers"), options=options)
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
        """Search with a search template, and rerank the hits if ``rerank`` is set.

        OpenSearch renders the template first. The rendered search is performed and reranked as by ``search``.

        Args:
            body: the template's ``id`` or ``source``, and its ``params``.
            rerank: as for ``search``.
            index: as for ``opensearchpy``.
            params: URL parameters.
            headers: as for ``opensearchpy``.
            options: any other argument of ``opensearchpy``'s ``search_template``.
        """
        if rerank is False:
            return super().search_template(body=body, index=index, params=params, headers=headers, **options)
        all_params = {**(params or {}), **options}
        steps = template_steps(self.searcher, body, all_params, index=index, rerank=rerank, headers=headers)
        send = partial(self._send, index=index, headers=headers, options=options)
        with search_span(self, index, rerank, None):
            return self._perform(steps, send)

    def msearch_template(self, *, body: Any, rerank: RerankArgument = False, index: Any = None, **options: Any) -> Any:
        """Search with several search templates in one request, and rerank each search if ``rerank`` is set.

        Args:
            body: headers and templates in turn, as a list or as newline-delimited JSON.
            rerank: as for ``msearch``.
            index: the index of searches whose header names none.
            options: any other argument of ``opensearchpy``'s ``msearch_template``.
        """
        if rerank is False:
            return super().msearch_template(body=body, index=index, **options)
        steps = multi_template_steps(self.searcher, body, index, rerank=rerank, params=options)
        send = partial(self._send, index=index, headers=options.get("headers"), options=options)
        with multi_search_span(self, index):
            return self._perform(steps, send)


class ForkSafeConnections:
    """Gives a forked child process new connections: processes that share one would read each other's responses.

    Args:
        transport: the transport of opensearch-py; urllib3 or requests keeps its connections open.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the connections of the parent process, so that the child opens new connections."""
        for connection in getattr(getattr(self._transport, "connection_pool", None), "connections", ()):
            pool = getattr(connection, "pool", None)  # of urllib3
            if isinstance(pool, HTTPConnectionPool) and pool.pool is not None:
                size = pool.pool.maxsize
                pool.pool = pool.QueueCls(size)
                for _ in range(size):
                    pool.pool.put(None)
            for adapter in getattr(getattr(connection, "session", None), "adapters", {}).values():  # of requests
                adapter.init_poolmanager(adapter._pool_connections, adapter._pool_maxsize, adapter._pool_block)  # noqa: SLF001


def split_params(params: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a search's parameters into opensearch-py's ``params`` and its keyword arguments, which it checks by name.

    Args:
        params: the parameters of the request.
        options: the caller's keyword arguments.
    """
    keywords = {name: value for name, value in params.items() if name in options}
    return {name: value for name, value in params.items() if name not in keywords}, keywords


def with_params(options: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return opensearch-py's keyword arguments with more URL parameters."""
    return {**options, "params": {**(options.get("params") or {}), **params}} if params else dict(options)


def with_timeout(step: SideRequest, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request that a search adds; its timeout is at most the caller's.

    Args:
        step: the request.
        options: the caller's keyword arguments.
    """
    given_s = options.get("request_timeout", (options.get("params") or {}).get("request_timeout"))
    timeout_s = step.params.get("request_timeout")
    if given_s is None or (timeout_s is not None and timeout_s <= given_s):
        return dict(step.params)
    return {**step.params, "request_timeout": given_s}


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

    An argument that is None comes from the environment (``OSRERANK_URL`` and so on), then from the defaults of
    ``Settings``.

    Args:
        url: ``http(s)://[user:password@]host:port``, several of them comma-separated; a cloud id of Elastic Cloud; or
            ``embedded:FOLDER``.
        model: a directory or hub id in Hugging Face layout, or the name of a shipped model. It
            overrides the settings file's models for every index.
        vector_model: the bi-encoder of the stage ``vectors``, if ``model`` is a cross-encoder; named like ``model``.
        duo_model: the model that compares pairs of candidates; named like ``model``.
        backend: ``auto``, ``onnx``, ``torch``, ``workers`` or ``http``.
        dtype: the precision of the torch backend: ``auto``, ``fp32``, ``bf16`` or ``fp16``.
        redis_url: the URL of Redis for the score cache, and for workers unless ``OSRERANK_BROKER_URL`` is set.
        rerank: the options of ``rerank=True`` in this client's searches; they override ``[rerank]`` in the settings
            file.
        scorer: your own scorer or encoder, used instead of ``model``.
        duo_scorer: your own scorer of pairs, used instead of ``duo_model``.
        encoder: your own encoder, used instead of ``vector_model``.
        engine: ``opensearch`` or ``elasticsearch``; if None, the server is asked which one it is.
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
    clock = options.pop("clock", time.monotonic)
    client = Client(
        models=RerankService(settings, scorer, duo_scorer, clock, encoder=encoder, has_index=True),
        defaults=Defaults.load(settings, rerank, model=model),
        **{**connection_options(settings), **options},
    )
    if warm:
        client.warm_up()
    return client


def searcher_of(client: Any, models: RerankService | None, defaults: Defaults | None) -> Searcher:
    """Return the `Searcher` of a client, synchronous or asynchronous; the arguments are those of `Client`."""
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
    """Replaces the client in its namespaces, such as ``client.indices``, and observes requests that may change indices.

    Args:
        client: the client, synchronous or asynchronous.
        on_change: the callback that is called after such a request.
    """

    def __init__(self, client: Any, on_change: Callable[[], None]) -> None:
        self._client, self._on_change = client, on_change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    @property
    def transport(self) -> "ChangeObserver":
        return self

    def perform_request(self, method: str, url: str, *arguments: Any, **options: Any) -> Any:
        """Send a request as the client's transport does."""
        send = partial(self._client.transport.perform_request, method, url, *arguments, **options)
        if not may_change_indices(method, url):
            return send()
        try:
            response = send()
        finally:  # a request that failed may have changed some indices
            self._on_change()
        return self._finish(response) if inspect.isawaitable(response) else response

    async def _finish(self, response: Awaitable[Any]) -> Any:
        try:
            return await response
        finally:
            self._on_change()


def refuse_unknown(options: Mapping[str, Any], *classes: type) -> None:
    """Reject options that neither `connect` nor opensearch-py accepts; opensearch-py would silently ignore them.

    Nothing is rejected if the caller names a transport or connection class, because it may accept other options.

    Args:
        options: the caller's options.
        classes: the classes of opensearch-py that receive the options.

    Raises:
        ConfigError: an option is unknown; the message has the nearest name.
    """
    if {"transport_class", "connection_class", "connection_pool_class"} & set(options):
        return
    names = set(PASSED_ON)
    for base in {base for kind in classes for base in kind.__mro__} - {object}:
        names |= set(inspect.signature(base).parameters) - {"args", "kwargs"}
    for name in sorted(set(options) - names):
        nearest = difflib.get_close_matches(name, [*names, *inspect.signature(connect).parameters], 1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(f"connect has no argument {name}{hint}", setting=name, source="argument")


def connection_options(settings: Settings) -> dict[str, Any]:
    """Return the options of opensearch-py's synchronous client for the settings' URL."""
    folder = embedded_folder(settings)
    if folder is None:
        return server_options(settings)
    from osrerank.embedded.transport import EmbeddedTransport  # noqa: PLC0415 - imports tantivy

    return {"transport_class": EmbeddedTransport, "embedded_path": folder}


def embedded_folder(settings: Settings) -> Path | None:
    """Return the embedded engine's folder; None if the URL is a server's."""
    address = settings.url.get_secret_value()
    return expand_home(Path(address.removeprefix(EMBEDDED)), "url") if address.startswith(EMBEDDED) else None


def server_options(settings: Settings) -> dict[str, Any]:
    """Return opensearch-py's options for the servers of the settings' URL."""
    hosts = [part.strip() for part in settings.url.get_secret_value().split(",")]
    key = settings.api_key
    credentials = {"headers": {"authorization": f"ApiKey {key.get_secret_value()}"}} if key is not None else {}
    return {"hosts": hosts, "pool_maxsize": CONNECTIONS, **credentials}
