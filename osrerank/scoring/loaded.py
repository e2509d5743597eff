"""A model that is loaded on first use, and the cache of its scores."""

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from osrerank.errors import ConfigError, MissingDependencyError, ModelLoadError, WorkerError
from osrerank.scoring.card import Kind
from osrerank.scoring.registry import load
from osrerank.settings import Settings
from osrerank.types import Deadline, NeedsWorkers, Scorer

if TYPE_CHECKING:
    from osrerank.scoring.cache.scorer import CachedScorer

RETRY_LOAD_AFTER_S = 30.0
"""Seconds before a model that failed to load is tried again; otherwise every search would wait for it."""
FIND_AGAIN_AFTER_S = 1.0
"""Searches look for workers this often: what they found is known for longer, and where there are none it costs time."""
FINDING_SHARE = 0.5
"""Part of the time left in which a search must know its workers; in the rest it scores what has vectors without them."""


class LoadedModel:
    """A model that is loaded once, on first use, and the cache of its scores.

    Safe to use from many threads.

    Args:
        name: directory, hub id or shipped name; "" where none is named.
        kind: ``mono`` or ``duo``.
        settings: backend, threads, Redis.
        scorer: used in place of the named model; the caller closes it.
        fix: advice that is added to the error when the model cannot be loaded.
        clock: returns seconds.
    """

    def __init__(
        self,
        name: str,
        kind: Kind,
        settings: Settings,
        scorer: Scorer | None = None,
        fix: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._kind: Kind = kind
        self._settings = settings
        self._given = scorer
        self._fix = fix
        self._clock = clock
        self._lock = threading.Lock()
        self._loaded: Scorer | None = None
        self._cached: CachedScorer | None = None
        self._failure: ModelLoadError | None = None
        self._failed_at_s = 0.0
        self._sought_at_s = -math.inf

    def scorer(self, *, cached: bool) -> Scorer:
        """Return the model's scorer, through the cache if asked for.

        A scorer that the caller brought is only cached where Redis is configured.

        Raises:
            ModelLoadError: the model cannot be loaded.
            MissingDependencyError: its backend is not installed.
        """
        with self._lock:
            scorer = self._given or self._load()
            in_process = self._given is None and self._settings.cache_local_mb > 0
            if not cached or not (in_process or self._settings.redis_url):
                return scorer
            if self._cached is None:
                from osrerank.scoring.cache.scorer import behind_cache  # noqa: PLC0415 - for searches alone

                self._cached = behind_cache(scorer, self._settings)
            return self._cached

    def find_workers(self, deadline: Deadline) -> None:
        """Look for the model's workers, if it is on any, for a part of the time that is left; at most once a second.

        Who cannot do without them, or without the model, is told so when it is used, and does not wait for the broker
        once more.
        """
        if self._clock() - self._sought_at_s < FIND_AGAIN_AFTER_S:
            return
        part = deadline.within_ms(1000 * FINDING_SHARE * deadline.remaining_s())
        with contextlib.suppress(ConfigError, ModelLoadError, MissingDependencyError, WorkerError):
            scorer = self.scorer(cached=False)
            if isinstance(scorer, NeedsWorkers):
                scorer.find_workers(part)
        self._sought_at_s = self._clock()  # not before, or others would go on and wait without a limit

    def close(self) -> None:
        """Release the model, unless the caller brought it, and the connections to the cache."""
        with self._lock:
            if self._cached is not None:
                self._cached.disconnect()
            if self._loaded is not None:
                self._loaded.close()
            self._loaded = self._cached = None

    def _load(self) -> Scorer:
        if self._loaded is not None:
            return self._loaded
        if self._failure is not None and self._clock() - self._failed_at_s < RETRY_LOAD_AFTER_S:
            raise ModelLoadError(str(self._failure), model=self._failure.model, path=self._failure.path)
        try:
            self._loaded = load(self._settings, self._kind, model=self._name)
        except ModelLoadError as error:
            failure = ModelLoadError(f"{error}{self._fix}", model=error.model, path=error.path)
            self._failure, self._failed_at_s = failure, self._clock()
            raise failure from error
        return self._loaded
