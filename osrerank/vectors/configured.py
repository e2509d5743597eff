"""Turn settings into the store of document vectors, its precision and its secret."""

import hashlib
import logging
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from osrerank.errors import ConfigError
from osrerank.settings import Settings
from osrerank.vectors.file import file_store
from osrerank.vectors.record import EXACT, PROFILES, Bits
from osrerank.vectors.store import VectorStore

MEGABYTE = 1_000_000
SECRET_BYTES = 32
LOCAL = frozenset({None, "localhost", "127.0.0.1", "::1"})
"""Hosts of a Redis that needs no TLS."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VectorStorage:
    """How a bi-encoder's document vectors are stored; by default they are neither rounded nor stored.

    Attributes:
        store: where records are kept; None for nowhere.
        bits: bits of each stored number.
        secret: key of the records' digests; nobody can forge a record without it.
    """

    store: VectorStore | None = None
    bits: Bits = EXACT
    secret: bytes = b""

    @classmethod
    def of(cls, settings: Settings, *, has_index: bool = True) -> Self:
        """Return the storage that the settings describe; nothing is opened or created yet.

        Args:
            settings: say where vectors are kept.
            has_index: whether the documents are in an index. If not, vectors are kept in the Redis that the settings
                name, if any, unless they set ``vectors``.

        Raises:
            ConfigError: the setting ``vectors`` is ``redis``, and no Redis is named.
        """
        store: VectorStore | None = None
        most_bytes = int(settings.vectors_mb * MEGABYTE)
        is_shared = not has_index and "vectors" not in settings.model_fields_set
        if is_shared and (settings.vectors_redis_url or settings.redis_url):
            store = _redis(settings, most_bytes)
        elif settings.vectors == "file":
            store = file_store(settings.vectors_folder, most_bytes=most_bytes, ttl_s=settings.vectors_ttl_s)
        elif settings.vectors == "redis":
            store = _redis(settings, most_bytes)
        key = settings.vectors_key.get_secret_value().encode() if settings.vectors_key else b""
        secret = hashlib.blake2b(key, digest_size=SECRET_BYTES).digest() if key else b""
        return cls(store, PROFILES[settings.vectors_profile], secret)


def _redis(settings: Settings, most_bytes: int) -> VectorStore:
    from osrerank.vectors.redis import RedisStore  # noqa: PLC0415 - imports redis

    named = settings.vectors_redis_url or settings.redis_url
    if named is None:
        reason = "OSRERANK_VECTORS is redis, and no Redis is named: set OSRERANK_VECTORS_REDIS_URL"
        raise ConfigError(reason, setting="vectors_redis_url", source="OSRERANK_VECTORS_REDIS_URL")
    if settings.vectors_redis_url is None and settings.cache_mb > 0:  # take at most as many bytes as cached scores do
        most_bytes = min(most_bytes, int(settings.cache_mb * MEGABYTE))
    url = named.get_secret_value()
    host = urlsplit(url).hostname
    if url.startswith("redis:") and host not in LOCAL:
        logger.warning(
            "[vectors-in-clear] vectors go to %s without TLS, and they reveal the documents: use rediss://", host
        )
    return RedisStore(url, most_bytes=most_bytes, ttl_s=settings.vectors_ttl_s)
