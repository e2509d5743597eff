"""Load a model on first use, together with its score cache or its vector store."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osrerank._pause import Pause
from osrerank._platform import fork_safe_lock, renew_after_fork
from osrerank._threads import NATIVE_CODE
from osrerank.errors import ConfigError, MissingDependencyError, ModelLoadError, StillLoading, WorkerError
from osrerank.scoring import registry
from osrerank.scoring.card import Kind
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.registry import Model
from osrerank.settings import Settings
from osrerank.types import NEVER, Deadline, NeedsWorkers, Scorer, is_encoder

if TYPE_CHECKING:
    from osrerank.vectors.documents import DocumentVectors
    from osrerank.vectors.store import VectorStore

RETRY_LOAD_AFTER_S = 30.0
"""Time between a failed load and the next attempt, in seconds. Without it, every search would try to load."""
FIND_WORKERS_INTERVAL_S = 1.0
"""Minimum time between two attempts to find workers, in seconds, because a failed attempt takes time."""
FIND_WORKERS_FRACTION = 0.5
"""Fraction of the time left that an attempt to find workers may take. The rest is for scoring with stored vectors."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadyModel:
    """A loaded model, with its score cache or its document vectors.

    Attributes:
        model: an encoder or a scorer.
        vectors: computes and stores an encoder's document vectors, or None if the model is a scorer.
        scorer: the model as a scorer, with the score cache if one is configured. An encoder's scores are not cached,
            because its vectors are stored.
        disconnect: closes the connections to the score cache, or None if there is no score cache.
    """

    model: Model
    vectors: "DocumentVectors | None"
    scorer: Scorer
    disconnect: Callable[[], None] | None = None


class _BackgroundLoad:
    """A load in a background thread. ``ended`` is set at the thread's end. ``error`` is None unless the load failed."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: Exception | None = None


class LoadedModel:
    """A model that is loaded on first use, together with its score cache or its vector store.

    A background thread loads the model, so that a search waits no longer than its deadline. Safe to use from many
    threads.

    Args:
        name: directory, hub id or shipped name. It is "" if no model is configured.
        kinds: the accepted kinds of models, such as ``("duo",)``.
        settings: backend, threads, Redis.
        provided: a model to use instead of the named one. The caller closes it.
        fix: what is appended to the error if the model cannot be loaded, such as "; name one with duo_model".
        clock: returns the time in seconds.
        has_index: whether the documents are in an index. If not, a configured Redis stores their vectors.
        on_loaded: called after the named model is loaded.

    Attributes:
        side_index_stores: vector stores on OpenSearch. Each keeps the vectors of an index's documents in a second
            index, the side index.
    """

    def __init__(
        self,
        name: str,
        kinds: Sequence[Kind],
        settings: Settings,
        provided: Model | None = None,
        fix: str = "",
        clock: Callable[[], float] = time.monotonic,
        *,
        has_index: bool = True,
        on_loaded: Callable[[], None] = lambda: None,
    ) -> None:
        self._has_index, self._on_loaded = has_index, on_loaded
        self.side_index_stores: Sequence[VectorStore] = ()
        self._name = name
        self._kinds = kinds
        self._settings = settings
        self._provided = provided
        self._fix = fix
        self._clock = clock
        self._lock = fork_safe_lock()
        self._ready: ReadyModel | None = None
        self._failure: ModelLoadError | None = None
        self._retry_pause = Pause(RETRY_LOAD_AFTER_S, clock=clock)
        self._last_find_at_s = -math.inf
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the running load in a forked child, where its thread does not run."""
        self._background_load: _BackgroundLoad | None = None

    @property
    def is_encoder(self) -> bool | None:
        """Whether the model encodes each text separately, or None until the model is loaded."""
        model = self._model_if_loaded()
        return None if model is None else is_encoder(model)

    @property
    def ready_model(self) -> ReadyModel | None:
        """The loaded model, or None until it is loaded. A provided model is ready at once."""
        return self.load() if self._provided is not None else self._ready

    def _model_if_loaded(self) -> Model | None:
        if self._provided is not None:
            return self._provided
        return None if self._ready is None else self._ready.model

    def load(self, deadline: Deadline = NEVER) -> ReadyModel:
        """Return the model, after loading it if necessary.

        Args:
            deadline: the time after which this call stops waiting. The background thread goes on.

        Raises:
            StillLoading: the model was not loaded by the deadline.
            ModelLoadError: the model cannot be loaded.
            MissingDependencyError: the model's backend is not installed.
            WorkerError: there are no workers.
        """
        if self._provided is not None:  # needs no thread
            with self._lock:
                self._ready = self._ready or self._load_with_caches()
        while True:  # a second round is needed if `close` has removed the model that was just loaded
            ready = self._ready
            if ready is not None:
                return ready
            running_load = self._ensure_load()
            if not deadline.wait(running_load.ended):
                fix = "client.warm_up() or connect(..., warm=True) loads a model before the first search"
                raise StillLoading(f"the model {self._name} was not loaded by the deadline; {fix}")
            if running_load.error is not None:
                raise running_load.error

    def model(self, deadline: Deadline = NEVER) -> Model:
        """Return the model, an encoder or a scorer. For the errors, see `load`."""
        return self._provided or self.load(deadline).model

    def vectors(self) -> "DocumentVectors | None":
        """Load the model, and return an encoder's document vectors, or None if the model is a scorer."""
        return self.load().vectors

    def scorer(self, *, cached: bool = True) -> Scorer:
        """Return the model as a scorer, by default with the configured score cache. For the errors, see `load`."""
        ready = self.load()
        return ready.scorer if cached or is_encoder(ready.model) else ready.model

    def start_loading(self) -> None:
        """Load the model in the background. If this fails, the error is raised when the model is used."""
        if self._ready is None and self._provided is None:
            self._ensure_load()

    def find_workers(self, deadline: Deadline) -> None:
        """Look for live workers if the model runs on workers, within half of the time left and at most once a second.

        Errors are ignored here. They are raised, without another wait, when the workers are used.
        """
        model: object = self._model_if_loaded()
        if not isinstance(model, NeedsWorkers) or self._clock() - self._last_find_at_s < FIND_WORKERS_INTERVAL_S:
            return
        with contextlib.suppress(ConfigError, ModelLoadError, MissingDependencyError, WorkerError):
            model.find_workers(deadline.within_ms(1000 * FIND_WORKERS_FRACTION * deadline.remaining_s()))
        # Set only now, so that a thread that comes during the attempt also waits for workers.
        self._last_find_at_s = self._clock()

    def close(self) -> None:
        """Wait for a running load, then close the model and its caches. A provided model is left open."""
        if self._background_load is not None:
            self._background_load.ended.wait()
        with self._lock:
            ready, self._ready = self._ready, None
        if ready is None:
            return
        if ready.vectors is not None:
            ready.vectors.close()
        if ready.disconnect is not None:
            ready.disconnect()
        if ready.model is not self._provided:
            ready.model.close()

    def _ensure_load(self) -> _BackgroundLoad:
        """Return the load that is running or has loaded the model. If there is none, start one."""
        with self._lock:
            latest = self._background_load
            if latest is None or (latest.ended.is_set() and self._ready is None):  # it failed, or `close` was called
                latest = _BackgroundLoad()
                threading.Thread(target=self._run_load, args=(latest,), name="osrerank-load", daemon=True).start()
                self._background_load = latest
            return latest

    def _run_load(self, background_load: _BackgroundLoad) -> None:
        try:
            with NATIVE_CODE:
                self._ready = self._load_with_caches()
        except Exception as error:  # noqa: BLE001 - raised by the threads that wait
            background_load.error = error
        finally:
            background_load.ended.set()

    def _load_with_caches(self) -> ReadyModel:
        model = self._provided or self._load_named()
        if is_encoder(model):
            from osrerank.vectors.documents import DocumentVectors  # noqa: PLC0415 - only encoders need it
            from osrerank.vectors.storage import VectorStorage  # noqa: PLC0415 - only encoders need it

            storage = VectorStorage.from_settings(self._settings, has_index=self._has_index)
            vectors = DocumentVectors(model, storage, self._clock, side_indices=self.side_index_stores)
            return ReadyModel(model, vectors, EncoderScorer(vectors))
        uses_redis = self._settings.redis_url is not None and self._settings.cache_mb > 0
        # without Redis, the scores of a provided scorer are not cached
        uses_memory = self._settings.cache_local_mb > 0 and self._provided is None
        if not (uses_memory or uses_redis):
            return ReadyModel(model, None, model)
        from osrerank.scoring.cache.scorer import add_cache  # noqa: PLC0415 - only scorers need it

        cached = add_cache(model, self._settings)
        return ReadyModel(model, None, cached, cached.disconnect)

    def _load_named(self) -> Model:
        """Load the named model. After a failure, raise the same error again until the pause ends."""
        if self._failure is not None and self._retry_pause.is_on:
            raise ModelLoadError(str(self._failure), model=self._failure.model, path=self._failure.path)
        try:
            model = registry.load(self._settings, self._kinds, model=self._name)
        except ModelLoadError as error:
            self._failure = ModelLoadError(f"{error}{self._fix}", model=error.model, path=error.path)
            self._retry_pause.begin(error)
            raise self._failure from error
        self._on_loaded()
        return model
