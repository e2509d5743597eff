"""Perform a search's steps with a client library: opensearch-py or elasticsearch-py, synchronous or asynchronous.

A search is a generator in `osrerank.search`. It yields steps (requests to send and computations to run), and a driver
sends each step's result back into it. So the search itself is written once for all client libraries.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from osrerank.options.rerank import Rerank
from osrerank.retrieval.fields import CheckedNames, FoundNames, SearchFields
from osrerank.retrieval.search_pipelines import SearchPipeline
from osrerank.search.coverage import WARM_SHARE, Coverage, is_warm, measure_coverage
from osrerank.search.plan import RerankArgument
from osrerank.search.rerank_only import WrappedResponse, rerank_response, rerank_texts
from osrerank.search.searcher import Searcher
from osrerank.search.step import Computation, QueueShadowRun, SendLater
from osrerank.types import Ranking
from osrerank.types.engine import Engine
from osrerank.types.engine_errors import PropagatedError
from osrerank.vectors.background import CLOSE_S, BackgroundTasks


@lru_cache
def combine_classes(reranking_class: Any, client_class: Any) -> Any:
    """Return a class with the methods of a reranking class and of an existing client's class.

    For ``Client`` and the application's ``ShopClient(OpenSearch)``, the new class is ``RerankingShopClient``.
    """
    if issubclass(reranking_class, client_class):
        return reranking_class
    if issubclass(client_class, reranking_class):
        return client_class
    return type(f"Reranking{client_class.__name__}", (reranking_class, client_class), {})


class Driver:
    """The base of clients that can rerank. Each subclass sends requests with another client library.

    Attributes:
        searcher: holds what the client's searches share, such as models, default options and caches.
        is_owner: whether ``close`` closes the connections. It is False if `osrerank.wrap` created the client.
    """

    searcher: Searcher
    is_owner = True

    @staticmethod
    @abstractmethod
    def _to_engine_error(error: Exception) -> Exception:
        """Convert an error of the client library to an `EngineError`. Return any other error unchanged."""

    @abstractmethod
    def _sender(self, index: Any) -> Callable[[Any], Any]:
        """Return a function that sends a step's request to an index, without a caller's headers and options."""


class SyncDriver(Driver):
    """A synchronous client that can rerank."""

    _background: BackgroundTasks

    def _perform(self, steps: Generator[Any, Any, Any], send: Callable[[Any], Any]) -> Any:
        """Perform a generator's steps until it ends, and return its value.

        Args:
            steps: the generator of steps.
            send: a function that sends a request and returns its response.
        """
        try:
            step = next(steps)
            while True:
                try:
                    value = self._perform_step(step, send)
                except Exception as error:  # noqa: BLE001 - the generator handles or raises it
                    step = steps.throw(self._to_engine_error(error))
                else:
                    step = steps.send(value)
        except StopIteration as end:
            return end.value
        except PropagatedError as raised:
            cause = raised.cause  # the error to raise to the caller, as it is
        raise cause  # outside the except block, so that its traceback has no context

    def _perform_step(self, step: Any, send: Callable[[Any], Any]) -> Any:
        """Perform a step, and return its result: a value, a response, or whether background work was queued."""
        if isinstance(step, Computation):
            return step.run()
        if isinstance(step, SendLater | QueueShadowRun):
            queue = self._background if isinstance(step, SendLater) else self.searcher.shadows
            return queue.submit(partial(self._perform, step.steps, send))
        return send(step)

    def perform_steps(self, steps: Generator[Any, Any, Any], index: Any = None) -> Any:
        """Perform a generator's steps without a caller's headers and options, and return its value.

        Args:
            steps: the generator of steps.
            index: the index of the generator's searches. None if the generator does not search.
        """
        return self._perform(steps, self._sender(index))

    def rerank(
        self, query: str, documents: Sequence[str | Mapping[str, Any]], *, options: RerankArgument = True
    ) -> Ranking:
        """Rank texts from any source, such as a k-NN search or another store, with the client's model.

        Args:
            query: the query's text.
            documents: texts in first-pass order, or mappings with ``text`` and optionally ``id`` or ``doc_id``,
                ``title`` and ``score``.
            options: the rerank options, as for ``search(rerank=...)``.

        Returns:
            The ranking. A candidate's id is the document's ``id``, or else its position in ``documents``, from 0.

        Raises:
            ConfigError: an option cannot be used, or has no effect without a search.
        """
        return rerank_texts(self.searcher.service, self.searcher.defaults.base, query, documents, rerank=options)

    def rerank_response(
        self, response: Mapping[str, Any] | WrappedResponse, query: str, *, options: RerankArgument = True
    ) -> dict[str, Any]:
        """Rerank the hits of any ``_search`` response, OpenSearch's or Elasticsearch's, with the client's model.

        All hits are reranked, as one page. The argument is not changed. If its hits are sorted by a field and have no
        scores, they keep their order, and the new response reports the reason.

        Raises:
            ConfigError: an option cannot be used, or has no effect without a search.
            ResponseFormatError: the response is not a search response.
        """
        return rerank_response(self.searcher.service, self.searcher.defaults.base, response, query, rerank=options)

    def options_of(self, index: Any, *, rerank: RerankArgument = True) -> Rerank:
        """Return the rerank options of a search, including the fields that it searches and that the model reads."""
        given_options, fields = self._find_fields(index, rerank)
        # warn now of named fields that the index lacks; which fields have text is not known before a search
        self.searcher.fields.warn(index, fields.check_names(fields_with_text=None))
        options = fields.update_options(given_options)
        if isinstance(options.fields, FoundNames) or not options.fields:  # the caller named no fields
            return options
        return replace(options, fields=CheckedNames(options.fields))  # so that searches with them do not warn again

    def fields_of(self, index: Any, *, rerank: RerankArgument = True, uses_build_fields: bool = True) -> SearchFields:
        """Return the fields of an index that a query text searches and that the model reads, with warnings about them.

        If the options name no fields, the model reads the fields of the last vector build. If ``uses_build_fields`` is
        False, it reads the text fields of the mapping.
        """
        _options, fields = self._find_fields(index, rerank, uses_build_fields=uses_build_fields)
        return fields

    @property
    def engine(self) -> Engine:
        """The search engine."""
        engine: Engine = self.perform_steps(self.searcher.engine.find())
        return engine

    def search_pipeline_of(self, index: Any) -> SearchPipeline:
        """Return the search pipeline that the searches of an index run under by default."""
        pipeline: SearchPipeline = self.perform_steps(self.searcher.pipelines.find_default(index), index)
        return pipeline

    def _find_fields(
        self, index: Any, rerank: RerankArgument, *, uses_build_fields: bool = True
    ) -> tuple[Rerank, SearchFields]:
        """Return the options of a search, with the defaults of its index, and the fields that they lead to."""
        defaults = self.searcher.defaults.options_for(index)
        options = Rerank.of(rerank, defaults) or defaults
        steps = self.searcher.find_fields(options, index, uses_build_fields=uses_build_fields)
        return options, self.perform_steps(steps, index)

    def coverage(self, index: str) -> Coverage:
        """Count the documents of an index that have vectors, without encoding any.

        The count is exact if ``osrerank vectors build`` has built the vectors. Otherwise, it is estimated from a
        sample.

        Raises:
            ConfigError: the model has no vectors, the first stage scores sentences, or the indices' models differ.
            ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
            opensearchpy.OpenSearchException: the index cannot be read.
        """
        counts: Coverage = self.perform_steps(measure_coverage(self.searcher, index), index)
        return counts

    def is_warm(self, index: str, *, at_least: float = WARM_SHARE) -> bool:
        """Return whether an index's model is loaded, and enough of its documents have vectors.

        A cross-encoder only has to be loaded. The errors are those of `coverage`.

        Args:
            index: a name, an alias or a pattern.
            at_least: the fraction of the documents that must have vectors, in [0, 1].
        """
        return bool(self.perform_steps(is_warm(self.searcher, index, at_least), index))

    def warm_up(self, index: Any = None) -> None:
        """Load the models of ``rerank=True`` now, so that the first search does not wait for them.

        Args:
            index: an index with its own model in the settings file. If None, the client's model is loaded.
        """
        self.searcher.warm_up(index)

    def close(self) -> None:
        """Finish writing the vectors of past searches, close the connections, and release the models.

        In shadow mode, searches are repeated with reranking. `close` waits for a running repetition, and drops the
        queued ones.
        """
        self.searcher.shadows.close()
        self._background.close()
        self.searcher.close()
        if self.is_owner:
            super().close()  # type: ignore[misc]


class AsyncDriver(Driver):
    """An asynchronous client that can rerank. Arguments, results and errors are those of `SyncDriver`.

    Models run in threads and do not block the event loop.
    """

    _background: set[asyncio.Task[Any]]

    async def _perform(self, steps: Generator[Any, Any, Any], send: Callable[[Any], Awaitable[Any]]) -> Any:
        """Perform a generator's steps until it ends, and return its value."""
        try:
            step = next(steps)
            while True:
                try:
                    value = await self._perform_step(step, send)
                except Exception as error:  # noqa: BLE001 - the generator handles or raises it
                    step = steps.throw(self._to_engine_error(error))
                else:
                    step = steps.send(value)
        except StopIteration as end:
            return end.value
        except PropagatedError as raised:
            cause = raised.cause
        raise cause  # outside the except block, so that its traceback has no context

    async def _perform_step(self, step: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
        """Perform a step, and return its result."""
        if isinstance(step, Computation):
            return await asyncio.to_thread(step.run)
        if isinstance(step, SendLater):
            task = asyncio.create_task(self._perform(step.steps, send))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            return None
        if isinstance(step, QueueShadowRun):
            begin = partial(self._perform, step.steps, send)
            return self.searcher.shadows.submit(partial(_run_in, asyncio.get_running_loop(), begin))
        return await send(step)

    async def perform_steps(self, steps: Generator[Any, Any, Any], index: Any) -> Any:
        """Perform a generator's steps without a caller's headers and options, and return its value."""
        return await self._perform(steps, self._sender(index))

    async def rerank(
        self, query: str, documents: Sequence[str | Mapping[str, Any]], *, options: RerankArgument = True
    ) -> Ranking:
        """Rank texts from any source with the client's model, as ``Client.rerank`` does."""
        return await asyncio.to_thread(
            rerank_texts, self.searcher.service, self.searcher.defaults.base, query, documents, rerank=options
        )

    async def rerank_response(
        self, response: Mapping[str, Any] | WrappedResponse, query: str, *, options: RerankArgument = True
    ) -> dict[str, Any]:
        """Rerank the hits of any ``_search`` response, as ``Client.rerank_response`` does."""
        return await asyncio.to_thread(
            rerank_response, self.searcher.service, self.searcher.defaults.base, response, query, rerank=options
        )

    async def warm_up(self, index: Any = None) -> None:
        """Load the models of ``rerank=True`` now, as ``SyncDriver.warm_up`` does."""
        await asyncio.to_thread(self.searcher.warm_up, index)

    async def coverage(self, index: str) -> Coverage:
        """Count an index's documents that have vectors, as ``SyncDriver.coverage`` does."""
        counts: Coverage = await self.perform_steps(measure_coverage(self.searcher, index), index)
        return counts

    async def is_warm(self, index: str, *, at_least: float = WARM_SHARE) -> bool:
        """Return whether an index's model is loaded and enough documents have vectors."""
        return bool(await self.perform_steps(is_warm(self.searcher, index, at_least), index))

    async def close(self) -> None:
        """Finish writing vectors, close the connections and release the models, as ``Client.close`` does."""
        await asyncio.to_thread(self.searcher.shadows.close)
        if self._background:
            await asyncio.wait(self._background, timeout=CLOSE_S)
        await asyncio.to_thread(self.searcher.close)  # it may wait for vectors to be written
        if self.is_owner:
            await super().close()  # type: ignore[misc]


def _run_in(loop: asyncio.AbstractEventLoop, begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine in the event loop of another thread, and return its result.

    Args:
        loop: the event loop.
        begin: a function that returns the coroutine.

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
