"""One model of a process: loaded once, when it is first needed, with the cache of its scores."""

import threading
import time
from typing import TYPE_CHECKING

from osrerank.errors import ModelLoadError
from osrerank.scoring.card import Kind
from osrerank.settings import Settings
from osrerank.types import Scorer

if TYPE_CHECKING:
    from osrerank.scoring.cache.scorer import CachedScorer  # imported when a cache is configured: it brings Redis

RETRY_LOAD_AFTER_S = 30.0
"""A model that failed to load is not tried again sooner: every search would wait for it."""


class LoadedModel:
    """One model of a process, loaded once, when it is first needed, with the cache of its scores.

    Safe to use from many threads.

    Args:
        name: directory, hub id or shipped name.
        kind: ``mono`` or ``duo``.
        settings: backend, threads, Redis.
        scorer: scores instead; stays the caller's to close.
        fix: what to do where the model cannot be loaded, put behind the reason.
    """

    def __init__(self, name: str, kind: Kind, settings: Settings, scorer: Scorer | None = None, fix: str = "") -> None:
        self._name = name
        self._kind: Kind = kind
        self._settings = settings
        self._given = scorer
        self._fix = fix
        self._lock = threading.Lock()
        self._loaded: Scorer | None = None
        self._cached: CachedScorer | None = None
        self._failure: ModelLoadError | None = None
        self._failed_at_s = 0.0

    def scorer(self, *, cached: bool) -> Scorer:
        """Return the model's scorer, behind the cache where there is one and it is asked for.

        Raises:
            ModelLoadError: the model cannot be loaded.
            MissingDependencyError: its backend is not installed.
        """
        with self._lock:
            scorer = self._given or self._load()
            if not cached or self._settings.redis_url is None:
                return scorer
            if self._cached is None:
                from osrerank.scoring.cache.scorer import behind_cache  # noqa: PLC0415 - imports redis

                self._cached = behind_cache(scorer, self._settings)
            return self._cached

    def close(self) -> None:
        """Release the model where this loaded it, and the connections to the cache."""
        with self._lock:
            if self._cached is not None:
                self._cached.disconnect()
            if self._loaded is not None:
                self._loaded.close()
            self._loaded = self._cached = None

    def _load(self) -> Scorer:
        if self._loaded is not None:
            return self._loaded
        if self._failure is not None and time.monotonic() - self._failed_at_s < RETRY_LOAD_AFTER_S:
            raise ModelLoadError(str(self._failure), model=self._failure.model, path=self._failure.path)
        try:
            self._loaded = _load_scorer(self._name, self._kind, self._settings)
        except ModelLoadError as error:
            told = ModelLoadError(f"{error}{self._fix}", model=error.model, path=error.path)
            self._failure, self._failed_at_s = told, time.monotonic()
            raise told from error
        return self._loaded


def _load_scorer(name: str, kind: Kind, settings: Settings) -> Scorer:
    if settings.backend == "workers":
        from osrerank.scoring.remote.scorer import RemoteScorer  # noqa: PLC0415 - imports redis and celery

        return RemoteScorer(settings.broker(), name, queue_chunks=settings.queue_chunks)
    from osrerank.scoring.registry import load_scorer  # noqa: PLC0415 - imports onnxruntime or torch

    return load_scorer(
        name,
        backend=settings.backend,
        threads=settings.threads,
        dtype=settings.dtype,
        compiled=settings.torch_compile,
        kind=kind,
    )
