"""Choose where document vectors are stored, and how precisely, by the settings ``vectors`` and ``vectors_*``."""

import hashlib
import logging
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from osrerank._log_throttle import LogThrottle
from osrerank.errors import ConfigError
from osrerank.settings import Settings, expand_home
from osrerank.vectors.file import file_store
from osrerank.vectors.record import EXACT_BITS, PROFILES, Bits
from osrerank.vectors.store import VectorStore

MEGABYTE = 1_000_000
SECRET_BYTES = 32
"""The size of the secret that is derived from the setting ``vectors_key``, in bytes."""
LOCAL_HOSTS = frozenset({None, "localhost", "127.0.0.1", "::1"})
"""Names of this machine. Unencrypted connections to it are safe. None stands for the host of a Unix socket."""

logger = logging.getLogger(__name__)
log_throttle = LogThrottle()


@dataclass(frozen=True, slots=True)
class VectorStorage:
    """How document vectors are stored. ``VectorStorage()`` neither stores nor rounds them.

    Attributes:
        store: the store, or None if vectors are not stored.
        bits: the bits per dimension.
        secret: the key of the digests that protect records from forgery. Empty if the user set no ``vectors_key``.
    """

    store: VectorStore | None = None
    bits: Bits = EXACT_BITS
    secret: bytes = b""

    @classmethod
    def from_settings(cls, settings: Settings, *, has_index: bool = True) -> Self:
        """Create the storage that the settings describe. Files and connections are opened on first use.

        If ``vectors`` is ``index``, the store is this machine's file, which caches records of the side indices.

        Args:
            settings: the settings.
            has_index: whether the documents are in an index. If not, the default for ``vectors`` is ``redis``, provided
                that ``redis_url`` is set.

        Raises:
            ConfigError: ``vectors`` is ``redis``, and ``redis_url`` is not set.
        """
        store: VectorStore | None = None
        defaults_to_redis = settings.vectors is None and settings.redis_url is not None and not has_index
        if settings.vectors == "redis" or defaults_to_redis:
            store = _open_redis_store(settings)
        elif settings.vectors != "off":
            store = _open_file_store(settings)
        user_key = settings.vectors_key.get_secret_value().encode() if settings.vectors_key else b""
        secret = hashlib.blake2b(user_key, digest_size=SECRET_BYTES).digest() if user_key else b""
        return cls(store, PROFILES[settings.vectors_profile], secret)


def _open_file_store(settings: Settings) -> VectorStore | None:
    """Return the store in ``vectors_folder``, or None if the user has no home directory for it."""
    try:
        folder = expand_home(settings.vectors_folder, "vectors_folder")
    except ConfigError as error:
        if log_throttle.should_log("home"):
            logger.warning(
                "[vectors-away] document vectors are not stored: %s; or set OSRERANK_VECTORS=off to store none", error
            )
        return None
    return file_store(folder, max_bytes=int(settings.vectors_mb * MEGABYTE), ttl_s=settings.vectors_ttl_s)


def _open_redis_store(settings: Settings) -> VectorStore:
    from osrerank.vectors.redis import RedisStore  # noqa: PLC0415 - importing redis is slow

    if settings.redis_url is None:
        reason = "OSRERANK_VECTORS is redis, but OSRERANK_REDIS_URL is not set: set OSRERANK_REDIS_URL to your Redis"
        raise ConfigError(reason, setting="redis_url", source="OSRERANK_REDIS_URL")
    max_mb = settings.vectors_mb
    if settings.cache_mb:  # this Redis also has the cached scores: `cache_mb` limits both, each by itself
        max_mb = min(max_mb, settings.cache_mb)
    url = settings.redis_url.get_secret_value()
    host = urlsplit(url).hostname
    if url.startswith("redis:") and host not in LOCAL_HOSTS:
        logger.warning(
            "[vectors-in-clear] vectors go to %s without TLS, and they reveal the documents: use rediss://", host
        )
    return RedisStore(url, max_bytes=int(max_mb * MEGABYTE), ttl_s=settings.vectors_ttl_s)
