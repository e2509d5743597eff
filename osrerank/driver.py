"""Perform the steps of searches (requests and computations that `osrerank.search` yields), for all client libraries."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from osrerank.options.rerank import Rerank
from osrerank.retrieval.fields import CheckedNames, FoundNames, SearchFields
from osrerank.retrieval.search_pipelines import SearchPipeline
from osrerank.search.coverage import WARM_SHARE, Coverage, coverage, is_warm
from osrerank.search.plan import RerankArgument
from osrerank.search.ranking import WrappedResponse, rank_response, rank_texts
from osrerank.search.searcher import Searcher
from osrerank.search.step import Computation, QueueShadowRun, SendLater
from osrerank.types import Ranking
from osrerank.types.engine import Engine
from osrerank.types.engine_errors import PropagatedError
from osrerank.vectors.background import CLOSE_S, BackgroundTasks


class Driver:
    """A client that can rerank; a subclass sends the requests through its client library.

    Attributes:
        searcher: the state that the client's searches share: models, default options, fields and so on.
        is_owner: whether ``close`` closes the connections; False if another client owns them (`osrerank.wrap`).
    """

    searcher: Searcher
    is_owner = True

    @staticmethod
    @abstractmethod
    def _as_failed(error: Exception) -> Exception:
        """Return an error of the client library as an `EngineError`, and any other error unchanged."""

    @abstractmethod
    def _sender(self, index: Any) -> Callable[[Any], Any]:
        """Return a function that sends a step's request to an index, without the headers and options of a caller."""


class SyncDriver(Driver):
    """A synchronous client that can rerank."""

    _background: BackgroundTasks

    def _perform(self, steps: Generator[Any, Any, Any], send: Callable[[Any], Any]) -> Any:
        """Perform the steps of a generator until it ends, and return its value.

        Args:
            steps: the generator of requests and computations.
            send: a function that sends a request and returns its response.
        """
        try:
            step = next(steps)
            while True:
                try:
                    value = self._perform_step(step, send)
                except Exception as error:  # noqa: BLE001 - the generator handles or raises it
                    step = steps.throw(self._as_failed(error))
                else:
                    step = steps.send(value)
        except StopIteration as end:
            return end.value
        except PropagatedError as raised:
            cause = raised.cause
        raise cause  # outside the except block, so that its traceback has no context

    def _perform_step(self, step: Any, send: Callable[[Any], Any]) -> Any:
        """Perform a step, and return its result."""
        if isinstance(step, Computation):
            return step.run()
        if isinstance(step, SendLater | QueueShadowRun):
            queue = self._background if isinstance(step, SendLater) else self.searcher.shadows
            return queue.submit(partial(self._perform, step.steps, send))
        return send(step)

    def result_of(self, steps: Generator[Any, Any, Any], index: Any = None) -> Any:
        """Perform the steps of a generator, without the headers and options of a caller, and return its value.

        Args:
            steps: the generator of requests and computations.
            index: the index that the requests search; None if no request is a search.
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
            options: the same as ``rerank`` of ``search``.

        Returns:
            The ranking. A candidate's id is the document's ``id``, or its index in ``documents``, from 0.

        Raises:
            ConfigError: an option cannot be used, or has no effect without a search.
        """
        return rank_texts(self.searcher.service, self.searcher.defaults.base, query, documents, rerank=options)

    def rerank_response(
        self, response: Mapping[str, Any] | WrappedResponse, query: str, *, options: RerankArgument = True
    ) -> dict[str, Any]:
        """Rerank the hits of any ``_search`` response, OpenSearch's or Elasticsearch's, with the client's model.

        All hits are reranked, as one page. The given response is not changed. If it is sorted by a field, without
        scores, the result keeps its order and reports the reason.

        Raises:
            ConfigError: an option cannot be used, or has no effect without a search.
            ResponseFormatError: it is not a search response.
        """
        return rank_response(self.searcher.service, self.searcher.defaults.base, response, query, rerank=options)

    def options_of(self, index: Any, *, rerank: RerankArgument = True) -> Rerank:
        """Return the rerank options of a search, with the searched fields and the model's text fields filled in."""
        given_options, fields = self._find_fields(index, rerank)
        self.searcher.fields.warn(index, fields.check_names(None))
        options = fields.update_options(given_options)
        if isinstance(options.fields, FoundNames) or not options.fields:
            return options
        return replace(options, fields=CheckedNames(options.fields))

    def fields_of(self, index: Any, *, rerank: RerankArgument = True, as_built: bool = True) -> SearchFields:
        """Return the fields of an index that a query text searches and that the model reads, with warnings about them.

        If the options name no fields and ``as_built`` is true, the model reads the fields of the last build of vectors.
        """
        return self._find_fields(index, rerank, as_built=as_built)[1]

    @property
    def engine(self) -> Engine:
        """The search engine."""
        engine: Engine = self.result_of(self.searcher.engine.find())
        return engine

    def search_pipeline_of(self, index: Any) -> SearchPipeline:
        """Return the search pipeline that the searches of an index run under by default."""
        pipeline: SearchPipeline = self.result_of(self.searcher.pipelines.find_default(index), index)
        return pipeline

    def _find_fields(self, index: Any, rerank: RerankArgument, *, as_built: bool = True) -> tuple[Rerank, SearchFields]:
        defaults = self.searcher.defaults.options_for(index)
        options = Rerank.of(rerank, defaults) or defaults
        return options, self.result_of(self.searcher.fields_of(options, index, as_built=as_built), index)

    def coverage(self, index: str) -> Coverage:
        """Count an index's documents that have vectors; nothing is encoded.

        The count is exact if `osrerank vectors build` has built them, and an estimate from a sample otherwise.

        Raises:
            ConfigError: the model has no vectors, the first stage scores sentences, or the indices' models differ.
            ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
            opensearchpy.OpenSearchException: the index cannot be read.
        """
        counts: Coverage = self.result_of(coverage(self.searcher, index), index)
        return counts

    def is_warm(self, index: str, *, at_least: float = WARM_SHARE) -> bool:
        """Return whether an index's model is loaded, and enough of its documents have vectors.

        A cross-encoder only has to be loaded. Raises as `coverage`.

        Args:
            index: a name, an alias or a pattern.
            at_least: the share of the documents that must have vectors, in [0, 1].
        """
        return bool(self.result_of(is_warm(self.searcher, index, at_least), index))

    def warm_up(self, index: Any = None) -> None:
        """Load the models that ``rerank=True`` uses now, so that the first search does not wait for them.

        Args:
            index: an index with a model of its own in the settings file; None for the client's model.
        """
        self.searcher.warm_up(index)

    def close(self) -> None:
        """Finish writing the vectors of past searches, close the connections, and release the models.

        In shadow mode, the current second run ends first, and queued second runs are dropped.
        """
        self.searcher.shadows.close()
        self._background.close()
        self.searcher.close()
        if self.is_owner:
            super().close()  # type: ignore[misc]


class AsyncDriver(Driver):
    """An asynchronous client that can rerank. Arguments, results and errors are those of `SyncDriver`.

    Models score in a thread, so the event loop stays free.
    """

    _background: set[asyncio.Task[Any]]

    async def _perform(self, steps: Generator[Any, Any, Any], send: Callable[[Any], Awaitable[Any]]) -> Any:
        """Perform the steps of a generator until it ends, and return its value."""
        try:
            step = next(steps)
            while True:
                try:
                    value = await self._perform_step(step, send)
                except Exception as error:  # noqa: BLE001 - the generator handles or raises it
                    step = steps.throw(self._as_failed(error))
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
            return task.add_done_callback(self._background.discard)
        if isinstance(step, QueueShadowRun):
            begin = partial(self._perform, step.steps, send)
            return self.searcher.shadows.submit(partial(_run_in, asyncio.get_running_loop(), begin))
        return await send(step)

    async def result_of(self, steps: Generator[Any, Any, Any], index: Any) -> Any:
        """Perform the steps of a generator, without the headers and options of a caller, and return its value."""
        return await self._perform(steps, self._sender(index))

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

    async def warm_up(self, index: Any = None) -> None:
        """Load the models that ``rerank=True`` uses now, as ``SyncDriver.warm_up`` does."""
        await asyncio.to_thread(self.searcher.warm_up, index)

    async def coverage(self, index: str) -> Coverage:
        """Count an index's documents that have vectors, as ``SyncDriver.coverage`` does."""
        counts: Coverage = await self.result_of(coverage(self.searcher, index), index)
        return counts

    async def is_warm(self, index: str, *, at_least: float = WARM_SHARE) -> bool:
        """Return whether an index's model is loaded and enough documents have vectors."""
        return bool(await self.result_of(is_warm(self.searcher, index, at_least), index))

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
