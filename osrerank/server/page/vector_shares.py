"""Compute the share of an index's documents that have stored vectors, for the readiness check ``/ready?index=NAME``."""

import time
from collections.abc import Callable, Sequence

from opensearchpy import TransportError

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.retrieval.expiring import ExpiringCache
from osrerank.server.api.errors import RefusedRequest

CACHE_S = 10.0
"""Shares are cached this long, in seconds, because readiness checks come every few seconds."""


class VectorShares:
    """Computes and caches the share of each index's documents that have stored vectors.

    If ``indexes`` is empty, requests can ask for all indices.
    """

    def __init__(
        self, client: Client, indexes: Sequence[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._indexes = indexes
        self._cache: ExpiringCache[str, float] = ExpiringCache(clock, CACHE_S)

    def __call__(self, index: str) -> float:
        """Return the share, in [0, 1]. It is 1 if the model uses no document vectors, as with a cross-encoder.

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
        except ConfigError:  # there are no vectors: a cross-encoder, a sentence stage, or indices with different models
            return 1.0
        except TransportError as error:
            status = 404 if error.status_code == 404 else 502
            raise RefusedRequest(status, f"cannot read the index {index}: {error.error}") from error
