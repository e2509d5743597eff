"""Load a model on first use, together with the cache of its scores or the store of its vectors."""

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
from osrerank.scoring.card import Kind
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.registry import Model, load
from osrerank.settings import Settings
from osrerank.types import NEVER, Deadline, NeedsWorkers, Scorer, is_encoder

if TYPE_CHECKING:
    from osrerank.vectors.documents import DocumentVectors
    from osrerank.vectors.store import VectorStore

RETRY_LOAD_AFTER_S = 30.0
"""How long a model that failed to load is not tried again, in seconds; otherwise every search would wait for it."""
FIND_AGAIN_AFTER_S = 1.0
"""The least time between two attempts to find workers, in seconds, because an attempt in vain costs time."""
FINDING_SHARE = 0.5
"""Share of the time left that a search may spend on finding workers; in the rest, it scores documents with vectors."""


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A model that can be used.

    Attributes:
        model: an encoder or a scorer.
        vectors: the document vectors of an encoder; None for a scorer.
        scorer: the model as a scorer, behind the score cache if there is one. An encoder is wrapped; its vectors are
            stored, so its scores are not cached.
        disconnect: closes the connections to the score cache; None if there is none.
    """

    model: Model
    vectors: "DocumentVectors | None"
    scorer: Scorer
    disconnect: Callable[[], None] | None = None


class _Loading:
    """A load under way: an event that is set at its end, and the error if it failed."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: Exception | None = None


class LoadedModel:
    """A model that is loaded once, on first use, with the cache of its scores or the store of its vectors.

    Another thread loads it, so that a search waits no longer than its deadline. Safe to use from many threads.

    Args:
        name: directory, hub id or shipped name; "" if none is named.
        kinds: the kinds that the model may have.
        settings: backend, threads, Redis.
        given: used instead of the named model; the caller closes it.
        fix: advice that is added to the error when the model cannot be loaded.
        clock: returns seconds.
        has_index: whether the documents are in an index; if not, a configured Redis stores their vectors.
        then: called after the named model is loaded, to load the models that are used with it.

    Attributes:
        sides: further stores of vectors, which are read for texts outside a search.
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
        self.sides: Sequence[VectorStore] = ()
        self._name = name
        self._kinds = kinds
        self._settings = settings
        self._given = given
        self._fix = fix
        self._clock = clock
        self._lock = fork_safe_lock()
        self._ready: Ready | None = None
        self._failure: ModelLoadError | None = None
        self._rest = Pause(RETRY_LOAD_AFTER_S, clock=clock)
        self._sought_at_s = -math.inf
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start over in a forked child, where no thread is loading."""
        self._loading: _Loading | None = None

    @property
    def is_encoder(self) -> bool | None:
        """Whether the model encodes texts one by one; None while it is not loaded."""
        model: Model | None = self._given or (None if self._ready is None else self._ready.model)
        return None if model is None else is_encoder(model)

    @property
    def kept(self) -> Ready | None:
        """The model, if it can be used at once; else None."""
        return self.ready() if self._given is not None else self._ready

    def ready(self, deadline: Deadline = NEVER) -> Ready:
        """Return the model; load it if that has not happened yet.

        Args:
            deadline: how long to wait for the model; the loading goes on after that.

        Raises:
            StillLoading: the model is not loaded by the deadline.
            ModelLoadError: the model cannot be loaded.
            MissingDependencyError: its backend is not installed.
            WorkerError: there are no workers.
        """
        if self._given is not None:
            with self._lock:
                self._ready = self._ready or self._made()
        while (ready := self._ready) is None:
            loading = self._begun()
            if not deadline.wait(loading.ended):
                fix = "client.warm_up() or connect(..., warm=True) loads it before the first search"
                raise StillLoading(f"the model {self._name} was not loaded by the deadline: {fix}")
            if loading.error is not None:
                raise loading.error
        return ready

    def model(self, deadline: Deadline = NEVER) -> Model:
        """Return the model, an encoder or a scorer. Raises as `ready`."""
        return self._given or self.ready(deadline).model

    def vectors(self) -> "DocumentVectors | None":
        """Return the document vectors of the model, if it is an encoder; None if it is a scorer. Raises as `ready`."""
        return self.ready().vectors

    def scorer(self, *, cached: bool = True) -> Scorer:
        """Return the model as a scorer, by default behind the score cache, if there is one. Raises as `ready`."""
        ready = self.ready()
        return ready.scorer if cached or is_encoder(ready.model) else ready.model

    def begin(self) -> None:
        """Begin to load the model in another thread; its error is raised when it is used."""
        if self._ready is None and self._given is None:
            self._begun()

    def find_workers(self, deadline: Deadline) -> None:
        """Look for the model's workers, if it needs any, in a part of the time left; at most once a second.

        It raises nothing: a caller that needs the workers gets the error when it uses them, and does not wait a second
        time.
        """
        model: object = self._given or (None if self._ready is None else self._ready.model)
        if not isinstance(model, NeedsWorkers) or self._clock() - self._sought_at_s < FIND_AGAIN_AFTER_S:
            return
        with contextlib.suppress(ConfigError, ModelLoadError, MissingDependencyError, WorkerError):
            model.find_workers(deadline.within_ms(1000 * FINDING_SHARE * deadline.remaining_s()))
        self._sought_at_s = self._clock()  # only now: other threads would otherwise skip this, and wait without a limit

    def close(self) -> None:
        """Wait for a load under way; release the model, unless the caller brought it, and the cache's connections."""
        if (loading := self._loading) is not None:
            loading.ended.wait()
        with self._lock:
            ready, self._ready = self._ready, None
        if ready is None:
            return
        if ready.vectors is not None:
            ready.vectors.close()
        if ready.disconnect is not None:
            ready.disconnect()
        if ready.model is not self._given:
            ready.model.close()

    def _begun(self) -> _Loading:
        """Return the load under way; begin one if there is none."""
        with self._lock:
            if self._loading is None or (self._loading.ended.is_set() and self._ready is None):
                loading = _Loading()
                threading.Thread(target=self._load, args=(loading,), name="osrerank-load", daemon=True).start()
                self._loading = loading
            return self._loading

    def _load(self, loading: _Loading) -> None:
        try:
            with NATIVE_CODE:
                self._ready = self._made()
        except Exception as error:  # noqa: BLE001 - whoever waits for the model raises it
            loading.error = error
        finally:
            loading.ended.set()

    def _made(self) -> Ready:
        """Load the model, and return it with what is used with it."""
        model = self._given or self._read()
        if is_encoder(model):
            from osrerank.vectors.configured import VectorStorage  # noqa: PLC0415 - only encoders need it
            from osrerank.vectors.documents import DocumentVectors  # noqa: PLC0415 - only encoders need it

            storage = VectorStorage.of(self._settings, has_index=self._has_index)
            vectors = DocumentVectors(model, storage, self._clock, sides=self.sides)
            return Ready(model, vectors, EncoderScorer(vectors))
        in_redis = self._settings.redis_url is not None and self._settings.cache_mb > 0
        in_process = self._given is None and self._settings.cache_local_mb > 0
        if not (in_process or in_redis):  # the scores of the caller's own scorer are cached in a Redis alone
            return Ready(model, None, model)
        from osrerank.scoring.cache.scorer import behind_cache  # noqa: PLC0415 - only scorers need it

        cached = behind_cache(model, self._settings)
        return Ready(model, None, cached, cached.disconnect)

    def _read(self) -> Model:
        if self._failure is not None and self._rest.is_on:
            raise ModelLoadError(str(self._failure), model=self._failure.model, path=self._failure.path)
        try:
            model = load(self._settings, self._kinds, model=self._name)
        except ModelLoadError as error:
            self._failure = ModelLoadError(f"{error}{self._fix}", model=error.model, path=error.path)
            self._rest.begin(error)
            raise self._failure from error
        self._then()
        return model
