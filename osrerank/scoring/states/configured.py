"""Where states are kept and how much of them, as settings say it."""

import hashlib
import logging
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from osrerank.errors import ConfigError
from osrerank.scoring.states.file import file_store
from osrerank.scoring.states.record import EXACT, PROFILES, Bits
from osrerank.scoring.states.store import StateStore
from osrerank.settings import Settings

MEGABYTE = 1_000_000
SECRET_BYTES = 32
LOCAL = frozenset({None, "localhost", "127.0.0.1", "::1"})

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class States:
    """How a bi-encoder's document vectors are kept; by default nothing is rounded, and nothing kept.

    Attributes:
        store: where records are kept; None for nowhere.
        bits: of a stored number.
        secret: without it nobody can forge a record.
    """

    store: StateStore | None = None
    bits: Bits = EXACT
    secret: bytes = b""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return what the settings say. Nothing is opened or made yet.

        Raises:
            ConfigError: states are to be kept in Redis, and none is named.
        """
        store: StateStore | None = None
        most_bytes = int(settings.states_mb * MEGABYTE)
        if settings.states == "file":
            store = file_store(settings.states_folder, most_bytes=most_bytes, ttl_s=settings.states_ttl_s)
        elif settings.states == "redis":
            store = _redis(settings, most_bytes)
        key = settings.states_key.get_secret_value().encode() if settings.states_key else b""
        secret = hashlib.blake2b(key, digest_size=SECRET_BYTES).digest() if key else b""
        return cls(store, PROFILES[settings.states_profile], secret)


def _redis(settings: Settings, most_bytes: int) -> StateStore:
    from osrerank.scoring.states.redis import RedisStore  # noqa: PLC0415 - imports redis

    if settings.states_redis_url is None:
        reason = "states are to be kept in Redis, and none is named: set OSRERANK_STATES_REDIS_URL"
        raise ConfigError(reason, setting="states_redis_url", source="OSRERANK_STATES_REDIS_URL")
    url = settings.states_redis_url.get_secret_value()
    host = urlsplit(url).hostname
    if url.startswith("redis:") and host not in LOCAL:
        logger.warning(
            "[states-in-clear] states go to %s without TLS, and they reveal the documents: use rediss://", host
        )
    return RedisStore(url, most_bytes=most_bytes, ttl_s=settings.states_ttl_s)
