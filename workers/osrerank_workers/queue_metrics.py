"""How many chunks wait in a worker's queue, and since when: read from the broker when the metrics are asked for."""

import base64
import json
from collections.abc import Iterator
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from redis import RedisError

from osrerank._optional import require
from osrerank.scoring.remote.messages import ChunkRequest
from osrerank.scoring.remote.signing import Signer
from osrerank.scoring.remote.worker_registry import WorkerRegistry

DEPTH = "osrerank_worker_queue_chunks"
OLDEST = "osrerank_worker_queue_oldest_seconds"


class QueueCollector(Collector):
    """Both metrics of one queue; all of its workers show the same. While the broker is away there are none.

    Args:
        redis: a client of the broker.
        registry: knows the broker's time.
        signer: opens the requests.
        queue: the queue's name.
    """

    def __init__(self, redis: Any, registry: WorkerRegistry, signer: Signer, queue: str) -> None:
        self._redis, self._registry, self._signer, self._queue = redis, registry, signer, queue

    def describe(self) -> Iterator[Metric]:
        """Yield the names alone, without asking the broker."""
        yield GaugeMetricFamily(DEPTH, "Chunks that wait in the queue of a worker's model.")
        yield GaugeMetricFamily(OLDEST, "Time since the oldest waiting chunk was sent; 0 where none waits.")

    def collect(self) -> Iterator[Metric]:
        depth, oldest = self.describe()
        try:
            waiting = self._redis.llen(self._queue)
            message = self._redis.lindex(self._queue, -1)
            now_s = self._registry.now_s()
        except RedisError:
            return
        depth.add_metric([], waiting)  # type: ignore[attr-defined]
        yield depth
        sent_s = now_s if message is None else self._sent_s(message)
        if sent_s is not None:
            oldest.add_metric([], max(0.0, now_s - sent_s))  # type: ignore[attr-defined]
            yield oldest

    def _sent_s(self, message: bytes) -> float | None:
        """Return when a waiting chunk was sent; None where it is none."""
        msgpack = require("msgpack", extra="workers")
        try:
            arguments, *_ = msgpack.unpackb(base64.b64decode(json.loads(message)["body"]))
            return ChunkRequest.decode(self._signer.open("request", arguments[0])).sent_s
        except Exception:  # noqa: BLE001 - anything may lie in a Redis list; the worker refuses it when it comes to it
            return None
