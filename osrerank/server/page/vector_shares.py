"""Compute how many of an index's documents have stored vectors, for the readiness check ``/ready?index=NAME``.

A bi-encoder can score documents fast only if their vectors are stored.
"""

import time
from collections.abc import Callable, Sequence

from opensearchpy import TransportError

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.retrieval.expiring import ExpiringCache
from osrerank.server.api.errors import RefusedRequest

CACHE_S = 10.0
"""How long the share of an index is cached, in seconds. An orchestrator sends readiness checks every few seconds."""


class VectorShares:
    """Computes and caches the share of each index's documents that have stored vectors, such as 0.95.

    Args:
        client: the client that counts the vectors.
        indexes: the indices that requests can name. If there are none, requests can name any index.
        clock: returns a time in seconds, for the cache.
    """

    def __init__(
        self, client: Client, indexes: Sequence[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._indexes = indexes
        self._cache: ExpiringCache[str, float] = ExpiringCache(clock, CACHE_S)

    def __call__(self, index: str) -> float:
        """Return the share of documents that have stored vectors: 0 for none, 1 for all.

        If the model uses no document vectors, such as a cross-encoder, the share is 1.

        Raises:
            RefusedRequest: the server does not offer the index, or cannot read it.
        """
        if self._indexes and index not in self._indexes:
            raise RefusedRequest(404, f"this server does not offer the index {index}, only {', '.join(self._indexes)}")
        share = self._cache.get(index)
        if share is None:
            share = self._compute_share(index)
            self._cache.put(index, share)
        return share

    def _compute_share(self, index: str) -> float:
        try:
            return self._client.coverage(index).share
        except ConfigError:  # no vectors to count: a cross-encoder, a sentence stage, or indices with different models
            return 1.0
        except TransportError as error:
            status = 404 if error.status_code == 404 else 502
            raise RefusedRequest(status, f"cannot read the index {index}: {error.error}") from error
