"""Load a model on first use, together with the cache of its scores or the store of its vectors."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from osrerank._platform import fork_safe_lock, renew_after_fork
from osrerank._threads import NATIVE_CODE
from osrerank.errors import (
    ConfigError,
    MissingDependencyError,
    ModelLoadError,
    StillLoading,
    WorkerError,
)
from osrerank.scoring.card import Kind
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.registry import Model, load
from osrerank.settings import Settings
from osrerank.types import NEVER, Deadline, NeedsWorkers, Scorer, is_encoder

if TYPE_CHECKING:
    from osrerank.scoring.cache.scorer import CachedScorer
    from osrerank.vectors.documents import DocumentVectors

RETRY_LOAD_AFTER_S = 30.0
"""How long a model that failed to load is not tried again, in seconds; otherwise every search would wait for it."""
FIND_AGAIN_AFTER_S = 1.0
"""The least time between two attempts to find workers, in seconds, because an attempt in vain costs time."""
FINDING_SHARE = 0.5
"""Share of the time left that a search may spend on finding workers; in the rest, it scores documents with vectors."""


class LoadedModel:
    """A model that is loaded once, on first use, with the cache of its scores or the store of its vectors.

    Safe to use from many threads.

    Args:
        name: directory, hub id or shipped name; "" if none is named.
        kinds: the kinds that the model may have.
        settings: backend, threads, Redis.
        given: used instead of the named model; the caller closes it.
        fix: advice that is added to the error when the model cannot be loaded.
        clock: returns seconds.
        has_index: whether the documents are in an index; if not, a configured Redis stores their vectors.
        then: called after the named model is loaded, to load the models that are used with it.
    """

    def __init__(
        self,
        name: str,
        kinds: Sequence[Kind],
        settings: Settings,
        given: Model | None = None,
        fix: str = "",
        clock: Callable[[], float] = time.monotonic,
        *,
        has_index: bool = True,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        self._has_index, self._then = has_index, then
        self._name = name
        self._kinds = kinds
        self._settings = settings
        self._given = given
        self._fix = fix
        self._clock = clock
        self._lock = fork_safe_lock()
        self._loaded: Model | None = None
        self._cached: CachedScorer | None = None
        self._vectors: DocumentVectors | None = None
        self._failure: ModelLoadError | None = None
        self._failed_at_s = 0.0
        self._sought_at_s = -math.inf
        self._ended: threading.Event | None = None
        self.renew()
        renew_after_fork(self)

    @property
    def is_encoder(self) -> bool | None:
        """Whether the model encodes texts one by one; None while it is not loaded."""
        model = self._given or self._loaded
        return None if model is None else is_encoder(model)

    def model(self, deadline: Deadline = NEVER) -> Model:
        """Return the model, an encoder or a scorer; load it if that has not happened yet.

        Args:
            deadline: how long to wait for the model; the loading goes on after that.

        Raises:
            StillLoading: the model is not loaded by the deadline.
            ModelLoadError: the model cannot be loaded.
            MissingDependencyError: its backend is not installed.
        """
        if deadline.at_s is not None and self.is_encoder is None and not deadline.wait(self.begin()):
            fix = "client.warm_up() or connect(..., warm=True) loads it before the first search"
            raise StillLoading(f"the model {self._name} is still being loaded when the deadline passes: {fix}")
        with self._lock:
            return self._given or self._load()

    def begin(self) -> threading.Event:
        """Begin to load the model in another thread; return an event that is set when that has succeeded or failed."""
        with self._starting:
            if self._ended is None or self._ended.is_set():
                self._ended = threading.Event()
                threading.Thread(
                    target=self._load_apart, args=(self._ended,), name="osrerank-load", daemon=True
                ).start()
            return self._ended

    def _load_apart(self, ended: threading.Event) -> None:
        """Load the model; its error is raised again when it is used."""
        try:
            with contextlib.suppress(Exception), NATIVE_CODE, self._lock:
                self._load()
        finally:
            ended.set()

    def renew(self) -> None:
        """Start over in a forked child, where no thread is loading."""
        self._starting = threading.Lock()
        self._ended = None

    def vectors(self) -> "DocumentVectors | None":
        """Return the document vectors of the model, if it is an encoder; None if it is a scorer. Raises as `model`."""
        model = self.model()
        if not is_encoder(model):
            return None
        with self._lock:
            if self._vectors is None:
                from osrerank.vectors.configured import VectorStorage  # noqa: PLC0415 - for encoders alone
                from osrerank.vectors.documents import DocumentVectors  # noqa: PLC0415 - likewise

                storage = VectorStorage.of(self._settings, has_index=self._has_index)
                self._vectors = DocumentVectors(model, storage, self._clock)
            return self._vectors

    def expect(self, query: str) -> None:
        """Begin to encode a query while OpenSearch finds its candidates, if the model is a loaded encoder."""
        if self._vectors is not None:
            self._vectors.expect(query)

    def scorer(self, *, cached: bool = True) -> Scorer:
        """Return the model as a scorer, by default behind the score cache, if there is one. Raises as `model`.

        An encoder is wrapped in an `EncoderScorer`; its vectors are stored, so its scores are not cached. The scores of
        the caller's own scorer are cached only if a Redis is configured.
        """
        if (vectors := self.vectors()) is not None:
            return EncoderScorer(vectors)
        model = self.model()
        assert not is_encoder(model)  # it would have vectors
        with self._lock:
            in_redis = self._settings.redis_url is not None and self._settings.cache_mb > 0
            in_process = self._given is None and self._settings.cache_local_mb > 0
            if not cached or not (in_process or in_redis):
                return model
            if self._cached is None:
                from osrerank.scoring.cache.scorer import behind_cache  # noqa: PLC0415 - for searches alone

                self._cached = behind_cache(model, self._settings)
            return self._cached

    def find_workers(self, deadline: Deadline) -> None:
        """Look for the model's workers, if it needs any, in a part of the time left; at most once a second.

        It raises nothing: a caller that needs the workers or the model gets the error when it uses them, and does not
        wait a second time.
        """
        if self._clock() - self._sought_at_s < FIND_AGAIN_AFTER_S:
            return
        part = deadline.within_ms(1000 * FINDING_SHARE * deadline.remaining_s())
        with contextlib.suppress(ConfigError, ModelLoadError, MissingDependencyError, WorkerError):
            model = self.model()
            if isinstance(model, NeedsWorkers):
                model.find_workers(part)
        self._sought_at_s = self._clock()  # set only now: other threads would otherwise go on, and wait without a limit

    def close(self) -> None:
        """Release the model, unless the caller brought it, and the connections to the cache."""
        with self._lock:
            if self._cached is not None:
                self._cached.disconnect()
            if self._vectors is not None:
                self._vectors.close()
            if self._loaded is not None:
                self._loaded.close()
            self._loaded = self._cached = self._vectors = None

    def _load(self) -> Model:
        if self._loaded is not None:
            return self._loaded
        if self._failure is not None and self._clock() - self._failed_at_s < RETRY_LOAD_AFTER_S:
            raise ModelLoadError(str(self._failure), model=self._failure.model, path=self._failure.path)
        try:
            self._loaded = load(self._settings, self._kinds, model=self._name)
        except ModelLoadError as error:
            failure = ModelLoadError(f"{error}{self._fix}", model=error.model, path=error.path)
            self._failure, self._failed_at_s = failure, self._clock()
            raise failure from error
        self._then()
        return self._loaded
