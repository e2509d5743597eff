"""Measure a worker's queue: how many chunks wait in it, and since when. The broker is asked at each scrape."""

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
    """Collects a queue's length and the age of its oldest chunk, the same values in every worker of the queue.

    While the broker does not respond, neither metric is reported.

    Args:
        redis: a client of the broker.
        registry: the registry of workers, for the broker's time.
        signer: the signer that verifies requests.
        queue: the queue's name.
    """

    def __init__(self, redis: Any, registry: WorkerRegistry, signer: Signer, queue: str) -> None:
        self._redis, self._registry, self._signer, self._queue = redis, registry, signer, queue

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, so that registration does not wait for the broker."""
        yield GaugeMetricFamily(DEPTH, "Chunks that wait in the queue of a worker's model.")
        yield GaugeMetricFamily(OLDEST, "Time since the oldest waiting chunk was sent; 0 if no chunk waits.")

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
        """Return the time when a waiting chunk was sent; None if the entry is not a valid chunk."""
        msgpack = require("msgpack", extra="workers")
        try:
            arguments, *_ = msgpack.unpackb(base64.b64decode(json.loads(message)["body"]))
            return ChunkRequest.decode(self._signer.open("request", arguments[0])).sent_s
        except Exception:  # noqa: BLE001 - anything may lie in a Redis list; a worker refuses it when it takes it
            return None
