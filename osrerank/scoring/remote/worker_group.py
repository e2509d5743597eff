"""The workers that a client may send chunks to, and what it does while their broker is away."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from redis import RedisError

from osrerank.errors import WorkerError
from osrerank.metrics import BROKER_AWAY, BROKER_FAILURES, WORKERS
from osrerank.scoring.remote.breaker import Attempt, Breaker
from osrerank.scoring.remote.broker import CONNECT_S, PLAIN_ANSWER_S, no_broker
from osrerank.scoring.remote.messages import Heartbeat
from osrerank.scoring.remote.worker_registry import BEAT_S, WorkerRegistry
from osrerank.types import NEVER, Deadline

logger = logging.getLogger(__name__)

FRESH_S = 2 * BEAT_S
"""The registry is read again after this long."""
MOST_STALE_S = 4.0
"""While it is being read, what was known is good for this long: longer than a silent broker is waited for."""
PROBE_WAIT_S = 0.05
"""A search that can do without waits this long for a probe of the broker, or a reading; most answer sooner."""
STILL_ASKED = "the broker has not answered in the time that a search had, and is still waited for"


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """Workers with the same model, at least one."""

    heartbeats: tuple[Heartbeat, ...]

    @property
    def first(self) -> Heartbeat:
        """The first of them; all agree on the model, its identity and its queue."""
        return self.heartbeats[0]

    @property
    def taken(self) -> int:
        """How many chunks they held at their last heartbeats."""
        return sum(len(heartbeat.held) for heartbeat in self.heartbeats)

    @property
    def most_taken(self) -> int:
        """How many chunks they can hold: those being scored, and as many fetched in advance."""
        return 2 * sum(heartbeat.tasks for heartbeat in self.heartbeats)

    def wait_s(self, ahead: int) -> float:
        """Return the expected wait behind other chunks, in seconds."""
        costs = [heartbeat.seconds_per_chunk for heartbeat in self.heartbeats]
        return ahead * sum(costs) / len(costs) / len(costs)


class LiveWorkers:
    """The live workers of a model in a client process; safe to use from many threads.

    After a failure of the broker a `Breaker` keeps everybody from it. Its probes and readings of the registry run in
    threads of their own, so that no search waits beyond its deadline for a broker that says nothing.

    Args:
        registry: of the model's workers.
        name: the model's.
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
        """The workers at the last reading; None where there were none."""
        return self._known

    def group(self, deadline: Deadline = NEVER) -> WorkerGroup:
        """Return the workers that take chunks, read at most once a second.

        Args:
            deadline: how long the broker may be waited for, if no workers are known just now.

        Raises:
            WorkerError: there are none, or the broker cannot be asked; at once while it is known to be away, or while
                an answer is awaited that has already taken a search beyond its deadline.
        """
        if self._breaker.attempt() is Attempt.PROBE:
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
        """Return the workers as the broker has them now; callers at the same time wait for one reading."""
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
        """Read the registry beside this search, which waits for it a little and goes on with what was known before."""
        with self._lock:
            reading = None if self._reading_under_way() else self._start_reading()
        if reading is not None:
            reading.wait(PROBE_WAIT_S)

    def _reading_under_way(self) -> threading.Event | None:
        return self._reading if self._reading is not None and not self._reading.is_set() else None

    def _start_reading(self) -> threading.Event:
        """Begin to read the registry, and return what is set at the end; the lock is held.

        Raises:
            WorkerError: there can be no thread for it.
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
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody may use the broker now
            self._note(error)
        finally:
            ended.set()

    def _refuse_while_away(self) -> None:
        if self._breaker.is_open:
            raise WorkerError(self._failure)

    def failed(self, error: RedisError) -> WorkerError:
        """Note that the broker failed; return the error to raise."""
        self._note(error)
        return WorkerError(self._failure)

    def close(self) -> None:
        """Wait for a probe and a reading that are under way."""
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
        """Probe the broker beside this search, which waits for it a little."""
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
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody may use the broker yet
            self._note(error, probed=True)
        else:
            logger.info("the broker answers again after %.1f s", self._clock() - self._away_since)
            self._breaker.close()

    def _look(self) -> None:
        """Read the registry."""
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
