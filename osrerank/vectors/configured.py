"""Read from the settings where document vectors are stored, how precisely, and with which secret."""

import hashlib
import logging
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from osrerank._log_throttle import LogThrottle
from osrerank.errors import ConfigError
from osrerank.settings import Settings, expand_home
from osrerank.vectors.file import file_store
from osrerank.vectors.record import EXACT, PROFILES, Bits
from osrerank.vectors.store import VectorStore

MEGABYTE = 1_000_000
SECRET_BYTES = 32
LOCAL_HOSTS = frozenset({None, "localhost", "127.0.0.1", "::1"})
"""Hosts to which a connection needs no TLS."""

logger = logging.getLogger(__name__)
due = LogThrottle()


@dataclass(frozen=True, slots=True)
class VectorStorage:
    """How a bi-encoder's document vectors are stored; by default they are neither rounded nor stored.

    Attributes:
        store: the store; None if vectors are not stored.
        bits: the bits of each stored number.
        secret: the key of the records' digests; nobody can forge a record without it.
    """

    store: VectorStore | None = None
    bits: Bits = EXACT
    secret: bytes = b""

    @classmethod
    def of(cls, settings: Settings, *, has_index: bool = True) -> Self:
        """Return the storage that the settings describe; it opens files and connections at the first use.

        If ``vectors`` is ``index``, it is the machine's file; searches read side indices by other means.

        Args:
            settings: the settings.
            has_index: whether the documents are in an index. Vectors of other documents go to the Redis of
                ``redis_url``, if it is set and ``vectors`` is not.

        Raises:
            ConfigError: ``vectors`` is ``redis``, and ``redis_url`` is not set.
        """
        store: VectorStore | None = None
        is_shared = settings.vectors is None and settings.redis_url is not None and not has_index
        if settings.vectors == "redis" or is_shared:
            store = _redis(settings)
        elif settings.vectors != "off":
            store = _file(settings)
        key = settings.vectors_key.get_secret_value().encode() if settings.vectors_key else b""
        secret = hashlib.blake2b(key, digest_size=SECRET_BYTES).digest() if key else b""
        return cls(store, PROFILES[settings.vectors_profile], secret)


def _file(settings: Settings) -> VectorStore | None:
    """Return the store in ``vectors_folder``; None if that is in a home that the user does not have."""
    try:
        folder = expand_home(settings.vectors_folder, "vectors_folder")
    except ConfigError as error:
        if due.is_due("home"):
            logger.warning("[vectors-away] document vectors are not stored: %s; or set OSRERANK_VECTORS=off", error)
        return None
    return file_store(folder, max_bytes=int(settings.vectors_mb * MEGABYTE), ttl_s=settings.vectors_ttl_s)


def _redis(settings: Settings) -> VectorStore:
    from osrerank.vectors.redis import RedisStore  # noqa: PLC0415 - imports redis

    if settings.redis_url is None:
        reason = "OSRERANK_VECTORS is redis, and OSRERANK_REDIS_URL is not set: set it to the URL of your Redis"
        raise ConfigError(reason, setting="redis_url", source="OSRERANK_REDIS_URL")
    max_mb = min(settings.vectors_mb, settings.cache_mb or settings.vectors_mb)  # scores may take as much
    url = settings.redis_url.get_secret_value()
    host = urlsplit(url).hostname
    if url.startswith("redis:") and host not in LOCAL_HOSTS:
        logger.warning(
            "[vectors-in-clear] vectors go to %s without TLS, and they reveal the documents: use rediss://", host
        )
    return RedisStore(url, max_bytes=int(max_mb * MEGABYTE), ttl_s=settings.vectors_ttl_s)
