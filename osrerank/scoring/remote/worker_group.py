"""Keep track of the workers to which a client may send chunks, and fail fast while their broker does not answer."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from redis import RedisError

from osrerank.errors import WorkerError
from osrerank.metrics import BROKER_AWAY, BROKER_FAILURES, WORKERS
from osrerank.scoring.remote.breaker import Breaker, BrokerAccess
from osrerank.scoring.remote.broker import CONNECT_S, PLAIN_ANSWER_S, no_broker
from osrerank.scoring.remote.messages import Heartbeat
from osrerank.scoring.remote.worker_registry import BEAT_S, WorkerRegistry
from osrerank.types import NEVER, Deadline

logger = logging.getLogger(__name__)

FRESH_S = 2 * BEAT_S
"""How long a reading of the registry is used before the next one, in seconds."""
MOST_STALE_S = 4.0
"""How long a reading is still used while the next one runs, in seconds: longer than the broker's timeouts."""
PROBE_WAIT_S = 0.05
"""How long a search waits for a probe or a reading whose result it can do without, in seconds; most end sooner."""
STILL_ASKED = "the broker did not answer in the time that a search had, and the client still waits for it"


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The live workers of the same model, at least one, by their latest heartbeats."""

    heartbeats: tuple[Heartbeat, ...]

    @property
    def first(self) -> Heartbeat:
        """The first worker's heartbeat; all agree on the model, its identity and its queue."""
        return self.heartbeats[0]

    @property
    def taken(self) -> int:
        """How many chunks the workers held at their latest heartbeats."""
        return sum(len(heartbeat.held) for heartbeat in self.heartbeats)

    @property
    def most_taken(self) -> int:
        """How many chunks the workers can hold: those being scored, and as many fetched in advance."""
        return 2 * sum(heartbeat.tasks for heartbeat in self.heartbeats)

    def wait_s(self, ahead: int) -> float:
        """Return how long a chunk is expected to wait behind ``ahead`` other chunks, in seconds."""
        costs = [heartbeat.seconds_per_chunk for heartbeat in self.heartbeats]
        return ahead * sum(costs) / len(costs) / len(costs)


class LiveWorkers:
    """Finds the live workers of a model for a client process; safe to use from many threads.

    After a failure of the broker, a `Breaker` prevents further calls. Probes and readings of the registry run in
    threads of their own, so that no search waits beyond its deadline for a broker that does not answer.

    Args:
        registry: the registry of the model's workers.
        name: the model's name.
        clock: returns seconds.
    """

    def __init__(self, registry: WorkerRegistry, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._name = name
        self._clock = clock
        self._breaker = Breaker(clock)
        self._lock = threading.Lock()
        self._reading: threading.Event | None = None
        self._given_up: threading.Event | None = None
        self._known: WorkerGroup | None = None
        self._looked_at = 0.0
        self._failure = ""
        self._away_since = 0.0
        self._probing: threading.Thread | None = None

    @property
    def known(self) -> WorkerGroup | None:
        """The workers at the latest reading; None if there were none."""
        return self._known

    def group(self, deadline: Deadline = NEVER) -> WorkerGroup:
        """Return the workers that take chunks; the registry is read at most once a second.

        Args:
            deadline: how long to wait for the broker, if no workers are known now.

        Raises:
            WorkerError: there are no workers, or the broker cannot be asked. It is raised at once while the broker is
                known to be down, or while another search has already waited for its answer beyond a deadline.
        """
        if self._breaker.attempt() is BrokerAccess.PROBE:
            self._start_probe()
        self._refuse_while_away()
        group = self._known
        if group is not None and self._clock() - self._looked_at < FRESH_S:
            return group
        if group is not None and self._clock() - self._looked_at < MOST_STALE_S:
            self._look_beside()
            self._refuse_while_away()
            group = self._known
        else:
            group = self._looked(group, deadline)
        if group is None:
            raise WorkerError(self._nobody())
        return group

    def _looked(self, group: WorkerGroup | None, deadline: Deadline) -> WorkerGroup | None:
        """Read the registry and return the workers; concurrent callers share one reading."""
        with self._lock:
            self._refuse_while_away()  # a caller that comes after a failed reading does not start another
            if self._known is not None and self._known is not group:
                return self._known
            reading = self._reading_under_way() or self._start_reading()
            if reading is self._given_up:
                raise WorkerError(STILL_ASKED)
        if not deadline.wait(reading):
            self._given_up = reading
            raise WorkerError(STILL_ASKED)
        self._refuse_while_away()
        return self._known

    def _look_beside(self) -> None:
        """Read the registry in the background; the search waits a moment, then goes on with the workers it knows."""
        with self._lock:
            reading = None if self._reading_under_way() else self._start_reading()
        if reading is not None:
            reading.wait(PROBE_WAIT_S)

    def _reading_under_way(self) -> threading.Event | None:
        return self._reading if self._reading is not None and not self._reading.is_set() else None

    def _start_reading(self) -> threading.Event:
        """Begin to read the registry, and return an event that is set when that has ended; the lock is held.

        Raises:
            WorkerError: no thread can be started.
        """
        reading = threading.Event()
        try:
            threading.Thread(target=self._read, args=(reading,), name="osrerank-workers", daemon=True).start()
        except RuntimeError as error:  # no more threads, or the interpreter ends
            self._note(error)
            raise WorkerError(self._failure) from error
        self._reading = reading
        return reading

    def _read(self, ended: threading.Event) -> None:
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - after any error, the broker must not be used for a while
            self._note(error)
        finally:
            ended.set()

    def _refuse_while_away(self) -> None:
        if self._breaker.is_open:
            raise WorkerError(self._failure)

    def failed(self, error: RedisError) -> WorkerError:
        """Record that the broker failed, and return the error to raise."""
        self._note(error)
        return WorkerError(self._failure)

    def close(self) -> None:
        """Wait until a running probe and a running reading have ended."""
        if self._probing is not None:
            self._probing.join(CONNECT_S + PLAIN_ANSWER_S)
        if self._reading is not None:
            self._reading.wait(CONNECT_S + PLAIN_ANSWER_S)

    def _note(self, error: Exception, *, probed: bool = False) -> None:
        BROKER_FAILURES.inc()
        BROKER_AWAY.labels(self._name).set(1)
        self._failure = no_broker(error)
        if not self._breaker.is_open:
            self._away_since = self._clock()
            logger.warning("[broker-away] %s; searches keep their first pass until it answers", self._failure)
        self._known = None
        self._breaker.trip(probed=probed)

    def _start_probe(self) -> None:
        """Probe the broker in the background; the search waits a moment for the result."""
        probing = threading.Thread(target=self._probe, name="osrerank-probe", daemon=True)
        try:
            probing.start()
        except RuntimeError as error:  # no more threads, or the interpreter ends
            self._note(error, probed=True)
            return
        self._probing = probing
        probing.join(PROBE_WAIT_S)

    def _probe(self) -> None:
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - after any error, the broker must not be used yet
            self._note(error, probed=True)
        else:
            logger.info("the broker answers again after %.1f s", self._clock() - self._away_since)
            self._breaker.close()

    def _look(self) -> None:
        """Read the registry, and keep the workers of one identity: the previous one while a worker still has it."""
        heartbeats = [heartbeat for heartbeat in self._registry.heartbeats() if heartbeat.taking]
        before = self._known
        self._looked_at = self._clock()
        BROKER_AWAY.labels(self._name).set(0)
        WORKERS.labels(self._name).set(len(heartbeats))
        if not heartbeats:
            self._known = None
            return
        known = before.first.identity if before is not None else ""
        identity = known if any(heartbeat.identity == known for heartbeat in heartbeats) else heartbeats[0].identity
        if known not in ("", identity):
            logger.info("the workers of %s have changed their model", self._name)
        self._known = WorkerGroup(tuple(heartbeat for heartbeat in heartbeats if heartbeat.identity == identity))

    def _nobody(self) -> str:
        if self._breaker.is_open:
            return self._failure
        if refused := self._registry.refused:
            return f"there is no worker of {self._name} that can be trusted: {refused}"
        return f"there is no worker of {self._name}: start one with osrerank worker"
