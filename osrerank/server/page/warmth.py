"""Tell readiness probes which share of an index's documents has vectors."""

import time
from collections.abc import Callable, Sequence

from opensearchpy import TransportError

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.retrieval.found_fields import ExpiringCache
from osrerank.server.api.errors import RefusedRequest

KEPT_S = 10.0
"""How long a share is kept before it is looked up again, in seconds; probes come all the time."""


class Shares:
    """The share of each index's documents that have vectors, looked up at most once in ten seconds.

    Args:
        client: reads the indexes.
        indexes: names that may be asked for; empty for all.
        clock: returns seconds.
    """

    def __init__(
        self, client: Client, indexes: Sequence[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._indexes = client, indexes
        self._known: ExpiringCache[str, float] = ExpiringCache(clock, KEPT_S)

    def __call__(self, index: str) -> float:
        """Return the share, in [0, 1]; 1 if the model needs no vectors.

        Raises:
            RefusedRequest: the index is not offered, or cannot be read.
        """
        if self._indexes and index not in self._indexes:
            raise RefusedRequest(404, f"the index {index} is not offered here; there are {', '.join(self._indexes)}")
        if (share := self._known.get(index)) is None:
            share = self._look(index)
            self._known.put(index, share)
        return share

    def _look(self, index: str) -> float:
        try:
            return self._client.coverage(index).share
        except ConfigError:  # a cross-encoder has none
            return 1.0
        except TransportError as error:
            missing = error.status_code == 404
            raise RefusedRequest(404 if missing else 502, f"the index {index} cannot be read: {error.error}") from error
