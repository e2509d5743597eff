"""Let threads share a ``cachetools`` cache, which has no lock."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from cachetools import Cache

from osrerank._platform import renew_after_fork

CacheType = TypeVar("CacheType", bound=Cache)  # type: ignore[type-arg]


class SharedCache(Generic[CacheType]):
    """Locks a cache inside a ``with`` block: ``with shared_cache as cache: ...``.

    A forked child process gets an empty cache, because a thread of the parent might have been changing the old one.

    Args:
        create: a function that returns a new cache.
    """

    def __init__(self, create: Callable[[], CacheType]) -> None:
        self._create = create
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Create an empty cache and an unlocked lock. This also runs in each forked child."""
        self._lock = threading.Lock()
        self._cache = self._create()

    def __enter__(self) -> CacheType:
        self._lock.acquire()
        return self._cache

    def __exit__(self, *_error: object) -> None:
        self._lock.release()
