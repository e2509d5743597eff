"""Find the live workers of a model. While the broker does not reply, searches fail at once instead of waiting."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from redis import RedisError

from osrerank.errors import WorkerError
from osrerank.metrics import BROKER_AWAY, BROKER_FAILURES, WORKERS
from osrerank.scoring.remote.breaker import Breaker, BrokerAccess
from osrerank.scoring.remote.broker import CONNECT_TIMEOUT_S, REPLY_TIMEOUT_S, explain_broker_failure
from osrerank.scoring.remote.messages import Heartbeat
from osrerank.scoring.remote.worker_registry import BEAT_S, WorkerRegistry
from osrerank.types import NEVER, Deadline

logger = logging.getLogger(__name__)

FRESH_S = 2 * BEAT_S
"""The age at which the workers are read again, in seconds."""
MAX_STALE_S = 4.0
"""The maximum age of the workers that searches use while they are read again, in seconds. It is above the broker's
timeouts, so that a slow read ends in time."""
BACKGROUND_WAIT_S = 0.05
"""The maximum time that a search waits for a probe or a read in the background before it continues, in seconds."""
NO_REPLY = "the broker has not replied in time"
"""The error of a search that waited until its deadline."""


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The live workers of one model. There is at least one, and all have the same queue and model identity.

    The identity says which weights and settings compute the scores. Workers score groups of pairs, called chunks.

    Attributes:
        heartbeats: the latest heartbeat of each worker.
    """

    heartbeats: tuple[Heartbeat, ...]

    @property
    def first(self) -> Heartbeat:
        """The first worker's heartbeat, which has the model, identity and queue of all workers."""
        return self.heartbeats[0]

    @property
    def held_chunks(self) -> int:
        """The number of chunks that the workers held at their latest heartbeats."""
        return sum(len(heartbeat.held) for heartbeat in self.heartbeats)

    @property
    def capacity(self) -> int:
        """The number of chunks that the workers can hold: those being scored, and as many fetched in advance."""
        return 2 * sum(heartbeat.tasks for heartbeat in self.heartbeats)

    def wait_s(self, n_earlier_chunks: int) -> float:
        """Return the estimated wait of a chunk that is scored after ``n_earlier_chunks`` others, in seconds."""
        mean_s = sum(heartbeat.seconds_per_chunk for heartbeat in self.heartbeats) / len(self.heartbeats)
        return n_earlier_chunks * mean_s / len(self.heartbeats)


class LiveWorkers:
    """Finds the live workers of a model. Safe to use from many threads.

    After the broker has failed, a `Breaker` prevents further requests. Background threads probe the broker and read the
    worker registry, so that a broker that hangs delays no search beyond its deadline.

    Args:
        registry: the registry of the model's workers.
        name: the model's name.
        clock: returns the time in seconds.
    """

    def __init__(self, registry: WorkerRegistry, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._name = name
        self._clock = clock
        self._breaker = Breaker(clock)
        self._lock = threading.Lock()
        # each event is a read of the registry, and is set when the read has ended
        self._latest_read: threading.Event | None = None
        self._timed_out_read: threading.Event | None = None  # the latest for which a search waited until its deadline
        self._group: WorkerGroup | None = None
        self._read_at_s = 0.0
        self._failure = ""
        self._failed_at_s = 0.0
        self._probe_thread: threading.Thread | None = None

    @property
    def latest_group(self) -> WorkerGroup | None:
        """The workers that the latest read found, or None if it found none."""
        return self._group

    def find_group(self, deadline: Deadline = NEVER) -> WorkerGroup:
        """Return the workers that accept chunks. The registry is read at most every `FRESH_S` seconds.

        Args:
            deadline: the latest time to wait for the broker, if the workers were not read recently.

        Raises:
            WorkerError: there are no workers, or the broker does not reply. The error is raised without waiting if the
                broker failed a moment ago, or if another search has waited in vain for the read that is still running.
        """
        if self._breaker.attempt() is BrokerAccess.PROBE:
            self._start_probe()
        self._raise_if_broker_failed()
        group = self._group
        age_s = self._clock() - self._read_at_s
        if group is not None and age_s < FRESH_S:
            return group
        if group is not None and age_s < MAX_STALE_S:
            self._read_in_background()
            self._raise_if_broker_failed()  # the read may have failed while this search waited for it
            group = self._group
        else:
            group = self._read_now(group, deadline)
        if group is None:
            raise WorkerError(self._no_worker_reason())
        return group

    def _read_now(self, stale_group: WorkerGroup | None, deadline: Deadline) -> WorkerGroup | None:
        """Read the registry and return the workers. Concurrent callers share one read."""
        with self._lock:
            self._raise_if_broker_failed()  # another thread might have failed meanwhile
            if self._group is not None and self._group is not stale_group:  # another thread has read it meanwhile
                return self._group
            read_ended = self._running_read() or self._start_read()
            if read_ended is self._timed_out_read:
                raise WorkerError(NO_REPLY)
        if not deadline.wait(read_ended):
            self._timed_out_read = read_ended
            raise WorkerError(NO_REPLY)
        self._raise_if_broker_failed()
        return self._group

    def _read_in_background(self) -> None:
        """Read the registry in the background, and wait up to `BACKGROUND_WAIT_S` for the workers."""
        with self._lock:
            read_ended = None if self._running_read() else self._start_read()
        if read_ended is not None:
            read_ended.wait(BACKGROUND_WAIT_S)

    def _running_read(self) -> threading.Event | None:
        """Return the read of the registry that has not ended, or None if there is none."""
        if self._latest_read is None or self._latest_read.is_set():
            return None
        return self._latest_read

    def _start_read(self) -> threading.Event:
        """Start a thread that reads the registry, and return the event of this read. The caller holds the lock."""
        read_ended = threading.Event()
        try:
            threading.Thread(target=self._run_read, args=(read_ended,), name="osrerank-workers", daemon=True).start()
        except RuntimeError as error:  # the process has too many threads, or the interpreter exits
            self._record_failure(error)
            raise WorkerError(self._failure) from error
        self._latest_read = read_ended
        return read_ended

    def _run_read(self, ended: threading.Event) -> None:
        try:
            self._read_registry()
        except Exception as error:  # noqa: BLE001 - any error counts as a failure of the broker
            self._record_failure(error)
        finally:
            ended.set()

    def _raise_if_broker_failed(self) -> None:
        """Raise the broker's last failure until the broker replies again, so that no search waits for it."""
        if self._breaker.is_open:
            raise WorkerError(self._failure)

    def record_broker_error(self, error: RedisError) -> WorkerError:
        """Record a failure of the broker, and return the error to raise."""
        self._record_failure(error)
        return WorkerError(self._failure)

    def close(self) -> None:
        """Wait for the background threads to end."""
        if self._probe_thread is not None:
            self._probe_thread.join(CONNECT_TIMEOUT_S + REPLY_TIMEOUT_S)
        if self._latest_read is not None:
            self._latest_read.wait(CONNECT_TIMEOUT_S + REPLY_TIMEOUT_S)

    def _record_failure(self, error: Exception, *, is_probe: bool = False) -> None:
        """Record that a request to the broker failed, and forget the workers. Searches fail until a probe succeeds."""
        BROKER_FAILURES.inc()
        BROKER_AWAY.labels(self._name).set(1)
        self._failure = explain_broker_failure(error)
        if not self._breaker.is_open:
            self._failed_at_s = self._clock()
            logger.warning(
                "[broker-away] %s; searches keep their first-pass order until the broker replies", self._failure
            )
        self._group = None
        self._breaker.trip(is_probe=is_probe)

    def _start_probe(self) -> None:
        """Probe the broker in the background, and wait up to `BACKGROUND_WAIT_S` for the result."""
        thread = threading.Thread(target=self._probe, name="osrerank-probe", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the process has too many threads, or the interpreter exits
            self._record_failure(error, is_probe=True)
            return
        self._probe_thread = thread
        thread.join(BACKGROUND_WAIT_S)

    def _probe(self) -> None:
        try:
            self._read_registry()
        except Exception as error:  # noqa: BLE001 - any error counts as a failure of the broker
            self._record_failure(error, is_probe=True)
        else:
            logger.info("the broker replies again after %.1f s", self._clock() - self._failed_at_s)
            self._breaker.close()

    def _read_registry(self) -> None:
        """Read the registry, and select the workers of one model identity: the previous one if it still has workers."""
        heartbeats = [heartbeat for heartbeat in self._registry.heartbeats() if heartbeat.taking]
        previous = self._group
        self._read_at_s = self._clock()
        BROKER_AWAY.labels(self._name).set(0)
        WORKERS.labels(self._name).set(len(heartbeats))
        if not heartbeats:
            self._group = None
            return
        identity = heartbeats[0].identity
        if previous is not None:
            if any(heartbeat.identity == previous.first.identity for heartbeat in heartbeats):
                identity = previous.first.identity
            else:
                logger.info("the workers of %s now use another model", self._name)
        self._group = WorkerGroup(tuple(heartbeat for heartbeat in heartbeats if heartbeat.identity == identity))

    def _no_worker_reason(self) -> str:
        if self._breaker.is_open:
            return self._failure
        if self._registry.refusal:
            return f"no worker of {self._name} sends messages that are accepted: {self._registry.refusal}"
        return f"there is no worker of {self._name}; start one with osrerank worker"
