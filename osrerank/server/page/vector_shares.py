"""Look up the share of an index's documents that have vectors, for readiness probes."""

import time
from collections.abc import Callable, Sequence

from opensearchpy import TransportError

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.retrieval.expiring import ExpiringCache
from osrerank.server.api.errors import RefusedRequest

KEPT_S = 10.0
"""The seconds for which a share is cached, because probes come often."""


class VectorShares:
    """Looks up the share of an index's documents that have vectors, at most once in ten seconds per index.

    Args:
        client: the client that reads the indexes.
        indexes: the indexes that a probe may name; empty for all.
        clock: a function that returns the time in seconds.
    """

    def __init__(
        self, client: Client, indexes: Sequence[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._indexes = client, indexes
        self._cache: ExpiringCache[str, float] = ExpiringCache(clock, KEPT_S)

    def __call__(self, index: str) -> float:
        """Return the share, in [0, 1]; 1 for models without vectors, such as a cross-encoder.

        Raises:
            RefusedRequest: the index is not offered, or cannot be read.
        """
        if self._indexes and index not in self._indexes:
            raise RefusedRequest(404, f"this server does not offer the index {index}, only {', '.join(self._indexes)}")
        if (share := self._cache.get(index)) is None:
            share = self._look_up(index)
            self._cache.put(index, share)
        return share

    def _look_up(self, index: str) -> float:
        try:
            return self._client.coverage(index).share
        except ConfigError:  # no vectors to count: a cross-encoder, a sentence stage, or indices with different models
            return 1.0
        except TransportError as error:
            missing = error.status_code == 404
            raise RefusedRequest(404 if missing else 502, f"the index {index} cannot be read: {error.error}") from error
