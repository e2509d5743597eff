"""The asynchronous client: an ``opensearchpy.AsyncOpenSearch`` whose ``search`` can rerank (extra ``async``)."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from typing import Any

from osrerank._optional import require
from osrerank.client import (
    embedded_folder,
    failed_of,
    refuse_unknown,
    represent,
    searcher_of,
    server_options,
    split_params,
    timed,
)
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import Rerank, RerankOptions
from osrerank.retrieval.requests import SideRequest
from osrerank.search.calls import multi_search_steps, search_steps
from osrerank.search.coverage import AT_LEAST, Coverage, coverage, is_warm
from osrerank.search.plan import RerankArgument
from osrerank.search.ranking import WrappedResponse, rank_response, rank_texts
from osrerank.search.step import ClientStep, Computation, Later, MultiSearchRequest, Shadow
from osrerank.search.templates import multi_template_steps, template_steps
from osrerank.search.traced import multi_search_span, request_span, search_span
from osrerank.service import RerankService
from osrerank.settings import Settings, refuse_settings
from osrerank.types import Encoder, Ranking, Scorer
from osrerank.types.failed import Raised
from osrerank.vectors.background import CLOSE_S

require("aiohttp", extra="async")

from opensearchpy import (  # noqa: E402 - defined only where aiohttp is
    AIOHttpConnection,
    AsyncOpenSearch,
    AsyncTransport,
    ConnectionPool,
    OpenSearchException,
)

__all__ = ["AsyncClient", "connect_async"]


class AsyncClient(AsyncOpenSearch):
    """An ``opensearchpy.AsyncOpenSearch`` that understands ``await search(..., rerank=True)``.

    Arguments, results and errors are those of ``osrerank.Client``. Models score in a thread, so the event loop stays
    free.
    """

    is_owner = True

    def __init__(
        self,
        hosts: Any = None,
        *,
        models: RerankService | None = None,
        defaults: Defaults | None = None,
        **options: Any,
    ) -> None:
        super().__init__(hosts, **options)
        self._later: set[asyncio.Task[Any]] = set()
        self.searcher = searcher_of(self, models, defaults)

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
        """Search, and rerank the hits if asked to, as ``Client.search`` does."""
        given = {**(params or {}), **options}
        steps = search_steps(self.searcher, query, body, given, index=index, rerank=rerank, headers=headers)
        perform = partial(self._perform, index=index, headers=headers, options=options)
        with search_span(self, index, rerank, query):
            return await _performed(steps, perform)

    async def _perform(self, step: ClientStep, *, index: Any, headers: Any, options: Mapping[str, Any]) -> Any:
        if isinstance(step, Computation):
            return await asyncio.to_thread(step.run)
        if isinstance(step, Later):
            perform = partial(self._perform, index=index, headers=headers, options=options)
            task = asyncio.create_task(_performed(step.steps, perform))
            self._later.add(task)
            return task.add_done_callback(self._later.discard)
        if isinstance(step, Shadow):
            perform = partial(self._perform, index=index, headers=headers, options=options)
            begin = partial(_performed, step.steps, perform)
            return self.searcher.shadows.submit(partial(_run_in, asyncio.get_running_loop(), begin))
        with request_span(self, step, index):
            if isinstance(step, SideRequest):
                return await self.transport.perform_request(
                    step.method, step.path, headers=headers, params=timed(step, options), body=step.body
                )
            if isinstance(step, MultiSearchRequest):
                send = super().msearch_template if step.is_template else super().msearch
                return await send(body=list(step.lines), index=index, **options)
            in_url, named = split_params(step.params, options)
            send = super().search_template if step.is_template else super().search
            return await send(index=index, body=step.body, params=in_url, headers=headers, **named)

    async def msearch(self, *, body: Any, rerank: RerankArgument = False, index: Any = None, **options: Any) -> Any:
        """Run several searches in one request, and rerank each if asked to, as ``Client.msearch`` does."""
        if rerank is False:
            return await super().msearch(body=body, index=index, **options)
        steps = multi_search_steps(self.searcher, body, index, rerank=rerank, params=options)
        perform = partial(self._perform, index=index, headers=options.get("headers"), options=options)
        with multi_search_span(self, index):
            return await _performed(steps, perform)

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
        """Search with a search template, and rerank the hits if asked to, as ``Client.search_template`` does."""
        if rerank is False:
            return await super().search_template(body=body, index=index, params=params, headers=headers, **options)
        given = {**(params or {}), **options}
        steps = template_steps(self.searcher, body, given, index=index, rerank=rerank, headers=headers)
        perform = partial(self._perform, index=index, headers=headers, options=options)
        with search_span(self, index, rerank, None):
            return await _performed(steps, perform)

    async def msearch_template(
        self, *, body: Any, rerank: RerankArgument = False, index: Any = None, **options: Any
    ) -> Any:
        """Search with several templates in one request, and rerank each, as ``Client.msearch_template`` does."""
        if rerank is False:
            return await super().msearch_template(body=body, index=index, **options)
        steps = multi_template_steps(self.searcher, body, index, rerank=rerank, params=options)
        perform = partial(self._perform, index=index, headers=options.get("headers"), options=options)
        with multi_search_span(self, index):
            return await _performed(steps, perform)

    async def rerank(
        self, query: str, documents: Sequence[str | Mapping[str, Any]], *, options: RerankArgument = True
    ) -> Ranking:
        """Rank texts from any source with the client's model, as ``Client.rerank`` does."""
        return await asyncio.to_thread(
            rank_texts, self.searcher.service, self.searcher.defaults.base, query, documents, rerank=options
        )

    async def rerank_response(
        self, response: Mapping[str, Any] | WrappedResponse, query: str, *, options: RerankArgument = True
    ) -> dict[str, Any]:
        """Rerank the hits of any ``_search`` response, as ``Client.rerank_response`` does."""
        return await asyncio.to_thread(
            rank_response, self.searcher.service, self.searcher.defaults.base, response, query, rerank=options
        )

    def __repr__(self) -> str:
        return represent(self)

    async def warm_up(self, index: Any = None) -> None:
        """Load now the models that ``rerank=True`` uses, as ``Client.warm_up`` does."""
        await asyncio.to_thread(self.searcher.warm_up, index)

    async def result_of(self, steps: Generator[Any, Any, Any], index: Any) -> Any:
        """Perform the steps that a generator yields, without a caller's headers and options, and return its value."""
        return await _performed(steps, partial(self._perform, index=index, headers=None, options={}))

    async def coverage(self, index: str) -> Coverage:
        """Count an index's documents that have vectors, as ``Client.coverage`` does."""
        found: Coverage = await self.result_of(coverage(self.searcher, index), index)
        return found

    async def is_warm(self, index: str, *, at_least: float = AT_LEAST) -> bool:
        """Return whether an index's model is loaded and enough documents have vectors, as ``Client.is_warm`` does."""
        return bool(await self.result_of(is_warm(self.searcher, index, at_least), index))

    async def close(self) -> None:
        """Finish writing vectors, close the connections and release the models, as ``Client.close`` does."""
        await asyncio.to_thread(self.searcher.shadows.close)
        if self._later:
            await asyncio.wait(self._later, timeout=CLOSE_S)
        await asyncio.to_thread(self.searcher.close)  # it may wait for vectors to be written
        if self.is_owner:
            await super().close()


async def _performed(steps: Generator[Any, Any, Any], perform: Callable[[Any], Awaitable[Any]]) -> Any:
    """Perform the steps that a generator yields, until it ends, and return its value."""
    try:
        step = next(steps)
        while True:
            try:
                result = await perform(step)
            except OpenSearchException as error:
                step = steps.throw(failed_of(error))
            except Exception as error:  # noqa: BLE001 - the steps deal with it, or raise it
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value
    except Raised as raised:
        cause = raised.cause
    raise cause  # outside the except block, so that the caller sees nothing of how it came here


def _run_in(loop: asyncio.AbstractEventLoop, begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine in the event loop of another thread, and return its result.

    Raises:
        RuntimeError: the loop is closed.
    """
    coroutine = begin()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise
    return future.result()


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
    warm: bool = False,
    **options: Any,
) -> AsyncClient:
    """Return an asynchronous client for a server, or for the embedded engine.

    The arguments are those of ``osrerank.connect``, except that with ``warm``, the first stage's models only begin to
    load in other threads; a search that comes before they are loaded waits for them. ``await client.warm_up()`` loads
    all models, and raises the error if one cannot be loaded.
    """
    refuse_settings(options)
    refuse_unknown(options, AsyncTransport, ConnectionPool, AIOHttpConnection)
    models = {"model": model, "vector_model": vector_model, "duo_model": duo_model}
    settings = Settings.load(url=url, **models, backend=backend, dtype=dtype, redis_url=redis_url, engine=engine)
    clock = options.pop("clock", time.monotonic)
    client = AsyncClient(
        models=RerankService(settings, scorer, duo_scorer, clock, encoder=encoder, has_index=True),
        defaults=Defaults.load(settings, rerank, model=model),
        **{**_async_connection_options(settings), **options},
    )
    if warm:
        for loading in client.searcher.service.models_of(client.searcher.defaults.base):
            loading.begin()
    return client


def _async_connection_options(settings: Settings) -> dict[str, Any]:
    folder = embedded_folder(settings)
    if folder is None:
        return server_options(settings)
    from osrerank.embedded.aio import AsyncEmbeddedTransport  # noqa: PLC0415 - imports tantivy

    return {"transport_class": AsyncEmbeddedTransport, "embedded_path": folder}
