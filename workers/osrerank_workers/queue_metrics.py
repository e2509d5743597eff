"""Prometheus metrics of a worker's queue: how many chunks wait in it, and for how long."""

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
OLDEST_AGE = "osrerank_worker_queue_oldest_seconds"


class QueueCollector(Collector):
    """Collects a queue's length and the age of its oldest chunk. All workers of a queue report the same values.

    Each scrape requests the values from the broker. While the broker does not respond, no metric is reported.

    Args:
        redis: a client of the broker.
        registry: the registry of workers, which provides the broker's time.
        signer: the signer that verifies requests.
        queue: the queue's name.
    """

    def __init__(self, redis: Any, registry: WorkerRegistry, signer: Signer, queue: str) -> None:
        self._redis, self._registry, self._signer, self._queue = redis, registry, signer, queue

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, so that registration does not wait for the broker."""
        yield GaugeMetricFamily(DEPTH, "Chunks that wait in the queue of a worker's model.")
        yield GaugeMetricFamily(OLDEST_AGE, "Time since the oldest waiting chunk was sent; 0 if no chunk waits.")

    def collect(self) -> Iterator[Metric]:
        depth, oldest_age = self.describe()  # new metrics, still without values
        try:
            n_chunks = self._redis.llen(self._queue)
            oldest_message = self._redis.lindex(self._queue, -1)  # Kombu adds new messages at the other end
            now_s = self._registry.now_s()
        except RedisError:
            return
        depth.add_metric([], n_chunks)  # type: ignore[attr-defined]
        yield depth
        sent_s = now_s if oldest_message is None else self._read_sent_s(oldest_message)
        if sent_s is not None:
            oldest_age.add_metric([], max(0.0, now_s - sent_s))  # type: ignore[attr-defined]
            yield oldest_age

    def _read_sent_s(self, message: bytes) -> float | None:
        """Return when a chunk was sent, by the broker's clock, or None if the message is not a valid chunk.

        Celery's message is JSON. Its ``body`` is the task's arguments, as MessagePack in Base64. The first argument is
        the request.
        """
        msgpack = require("msgpack", extra="workers")
        try:
            arguments, *_ = msgpack.unpackb(base64.b64decode(json.loads(message)["body"]))
            return ChunkRequest.decode(self._signer.verify("request", arguments[0])).sent_s
        except Exception:  # noqa: BLE001 - a Redis list can contain anything; the worker that receives it refuses it
            return None
