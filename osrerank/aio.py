"""The asynchronous client: an ``opensearchpy.AsyncOpenSearch`` whose ``search`` can rerank. Needs extra ``async``."""

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from osrerank._optional import require
from osrerank.client import (
    OpenSearchPyClient,
    create_searcher,
    embedded_folder,
    given,
    move_credentials,
    move_multi_search_credentials,
    refuse_unknown,
    server_options,
    split_params,
    with_params,
    with_timeout,
)
from osrerank.driver import AsyncDriver
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import Rerank, RerankOptions
from osrerank.retrieval.requests import SideRequest
from osrerank.search.calls import multi_search_steps, search_steps
from osrerank.search.plan import RerankArgument
from osrerank.search.spans import multi_search_span, request_span, search_span
from osrerank.search.step import ClientStep, MultiSearchRequest, SearchRequest
from osrerank.search.templates import multi_template_steps, template_steps
from osrerank.service import RerankService
from osrerank.settings import Settings, refuse_settings
from osrerank.types import Encoder, Scorer

require("aiohttp", extra="async")

from opensearchpy import (  # noqa: E402 - opensearch-py defines these only if aiohttp is installed
    AIOHttpConnection,
    AsyncOpenSearch,
    AsyncTransport,
    ConnectionPool,
)

__all__ = ["AsyncClient", "connect_async"]


class AsyncClient(OpenSearchPyClient, AsyncDriver, AsyncOpenSearch):
    """An ``opensearchpy.AsyncOpenSearch`` whose ``search`` accepts ``rerank=True``.

    Its methods have the same arguments, results and errors as in ``osrerank.Client``. Models run in threads and do not
    block the event loop.
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
        self._background: set[asyncio.Task[Any]] = set()  # `AsyncDriver` adds requests that no caller waits for
        self.searcher = create_searcher(self, models, defaults)

    async def search(
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
        """Search, and optionally rerank the hits, as ``Client.search`` does."""
        headers, options = move_credentials(headers, options)
        all_params = {**(params or {}), **options}
        steps = search_steps(self.searcher, query, body, all_params, index=index, rerank=rerank, headers=headers)
        send = partial(self._send, index=index, headers=headers, options=options)
        with search_span(self, index, rerank, query):
            return await self._perform(steps, send)

    async def _send(self, step: ClientStep, *, index: Any, headers: Any, options: Mapping[str, Any]) -> Any:
        """Send a step's request, as ``Client._send`` does."""
        with request_span(self, step, index):
            if isinstance(step, SideRequest):
                return await self.transport.perform_request(
                    step.method, step.path, headers=headers, params=with_timeout(step, options), body=step.body
                )
            if isinstance(step, MultiSearchRequest):
                send = super().msearch_template if step.is_template else super().msearch
                return await send(body=list(step.lines), **given(index=index), **with_params(options, step.params))
            assert isinstance(step, SearchRequest)
            send = super().search_template if step.is_template else super().search
            url_params, keywords = split_params(step.params, options)
            arguments = given(index=index, body=step.body, params=url_params or None, headers=headers)
            return await send(**arguments, **keywords)

    async def msearch(self, *, body: Any, rerank: RerankArgument = False, index: Any = None, **options: Any) -> Any:
        """Run several searches in one request, and optionally rerank them, as ``Client.msearch`` does."""
        if rerank is False:
            return await super().msearch(body=body, **given(index=index), **options)
        headers, options = move_multi_search_credentials(options)
        steps = multi_search_steps(self.searcher, body, index, rerank=rerank, params=options)
        send = partial(self._send, index=index, headers=headers, options=options)
        with multi_search_span(self, index):
            return await self._perform(steps, send)

    async def search_template(
        self,
        *,
        body: Any,
        rerank: RerankArgument = False,
        index: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Any = None,
        **options: Any,
    ) -> Any:
        """Search with a search template, and optionally rerank the hits, as ``Client.search_template`` does."""
        if rerank is False:
            arguments = given(index=index, params=params, headers=headers)
            return await super().search_template(body=body, **arguments, **options)
        headers, options = move_credentials(headers, options)
        all_params = {**(params or {}), **options}
        steps = template_steps(self.searcher, body, all_params, index=index, rerank=rerank, headers=headers)
        send = partial(self._send, index=index, headers=headers, options=options)
        with search_span(self, index, rerank, query=None):
            return await self._perform(steps, send)

    async def msearch_template(
        self, *, body: Any, rerank: RerankArgument = False, index: Any = None, **options: Any
    ) -> Any:
        """Run several template searches in one request, and optionally rerank them, as ``msearch`` does."""
        if rerank is False:
            return await super().msearch_template(body=body, **given(index=index), **options)
        headers, options = move_multi_search_credentials(options)
        steps = multi_template_steps(self.searcher, body, index, rerank=rerank, params=options)
        send = partial(self._send, index=index, headers=headers, options=options)
        with multi_search_span(self, index):
            return await self._perform(steps, send)


def connect_async(
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
) -> AsyncClient:
    """Return an asynchronous client for a server, or for the embedded engine.

    The arguments are those of ``osrerank.connect``, except that ``warm`` only starts to load the models, in other
    threads. ``await client.warm_up()`` waits until all are loaded, and raises an error if one cannot be loaded.
    """
    refuse_settings(options)
    refuse_unknown(options, AsyncTransport, ConnectionPool, AIOHttpConnection)
    models = {"model": model, "vector_model": vector_model, "duo_model": duo_model}
    address = {"url": url, "engine": engine, "api_key": api_key}
    settings = Settings.load(**address, **models, backend=backend, dtype=dtype, redis_url=redis_url)
    clock = options.pop("clock", time.monotonic)  # tests set it
    client = AsyncClient(
        models=RerankService(settings, scorer, duo_scorer, clock, encoder=encoder, has_index=True),
        defaults=Defaults.load(settings, rerank, model=model),
        **{**_async_connection_options(settings), **options},
    )
    if warm:
        client.searcher.service.start_loading(client.searcher.defaults.base)
    return client


def _async_connection_options(settings: Settings) -> dict[str, Any]:
    folder = embedded_folder(settings)
    if folder is None:
        return server_options(settings)
    from osrerank.embedded.aio import AsyncEmbeddedTransport  # noqa: PLC0415 - imports tantivy

    return {"transport_class": AsyncEmbeddedTransport, "embedded_path": folder}
