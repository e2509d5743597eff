"""Carry chunks to workers and their replies back, for all threads of a process.

Requests go out through Celery. Replies come to one Redis list for the process, which one thread reads; so neither a
connection nor a subscription is made for a call. What a worker lost is noticed here: a chunk that no live worker has,
that is not in the queue and that was not answered is sent again, as Celery's own redelivery takes an hour on Redis.
"""

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import RedisError

from osrerank.errors import PayloadError, WorkerError
from osrerank.metrics import CHUNKS_LATE, CHUNKS_RESENT, CHUNKS_SENT, ROUND_TRIP_SECONDS
from osrerank.scoring.remote.broker import TASK
from osrerank.scoring.remote.messages import Reply, WorkerCard
from osrerank.scoring.remote.worker_registry import BEAT_S, PREFIX, Roster
from osrerank.types import Deadline

logger = logging.getLogger(__name__)

LOST_AFTER_S = 2.5 * BEAT_S
"""A chunk that nobody has for so long is lost: more than two cards of every worker have come in the meantime."""
GIVE_UP_S = 4.0
"""Without any worker, or without the broker, for so long there is no answer to wait for."""
MOST_LOSSES = 3
"""A chunk that was lost with so many workers may be what ends them."""
MOST_SENDS = 6
"""A chunk that was lost so often, with workers or on the way, is given up."""
NO_WORKER = "no worker is left"
NO_BROKER = "the broker cannot be reached"
LOST = "workers that had it were lost again and again"


@dataclass(slots=True, eq=False)
class Parcel:
    """A chunk on its way.

    Attributes:
        chunk: its id.
        queue: where it was put.
        message: the encoded request.
        deadline: of its search.
        answer: the reply, or why there will be none.
        order: counts what this process has put into queues.
        sends: how often it was sent.
        sent_at: when it was sent last, on the monotonic clock.
        unseen_since: since when nobody has it.
        is_held: whether a worker was seen with it since it was sent last.
        losses: how many workers were lost with it.
    """

    chunk: str
    queue: str
    message: bytes
    deadline: Deadline
    answer: Reply | str | None = None
    order: int = 0
    sends: int = 0
    sent_at: float = 0.0
    unseen_since: float | None = None
    is_held: bool = False
    losses: int = 0
    _call: "_Call | None" = field(default=None, repr=False)

    def settle(self, answer: Reply | str) -> None:
        """Give the answer to who waits for it."""
        self.answer = answer
        if self._call is not None:
            self._call.count_down()


class _Call:
    """The parcels that one thread waits for."""

    def __init__(self, parcels: Iterable[Parcel]) -> None:
        self._open = 0
        self._lock = threading.Lock()
        self.done = threading.Event()
        for parcel in parcels:
            parcel._call = self  # noqa: SLF001 - of this module
            self._open += 1

    def count_down(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self.done.set()


class Courier:
    """Sends parcels and waits for their answers; safe to use from many threads.

    Args:
        app: the Celery application of the broker.
        redis: a client of the same Redis.
        roster: who the workers are.
    """

    def __init__(self, app: Any, redis: Any, roster: Roster) -> None:
        self.mailbox = f"{PREFIX}mailbox:{secrets.token_hex(12)}"
        self._app = app
        self._redis = redis
        self._roster = roster
        self._parcels: dict[str, Parcel] = {}
        self._changed = threading.Condition()
        self._order = 0
        self._popped: dict[str, int] = {}
        self._looked_at = 0.0
        self._well_at: dict[str, float] = {}
        self._closed = False
        self._thread: threading.Thread | None = None

    def carry(self, parcels: Sequence[Parcel], deadline: Deadline) -> None:
        """Send parcels and return when all have an answer or the deadline has passed.

        Raises:
            WorkerError: the broker takes nothing.
        """
        call = _Call(parcels)
        self._register(parcels)
        try:
            for parcel in parcels:
                self._send(parcel)
            remaining_s = deadline.remaining_s()
            call.done.wait(None if deadline.at_s is None else max(0.0, remaining_s))
        finally:
            self._forget(parcels)
        late = sum(parcel.answer is None for parcel in parcels)
        CHUNKS_LATE.inc(late)

    def close(self) -> None:
        """Stop listening; who still waits is told so."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for parcel in list(self._parcels.values()):
            self._settle(parcel, "the client was closed")
        if self._thread is not None:
            self._thread.join(BEAT_S * 4)

    def _register(self, parcels: Sequence[Parcel]) -> None:
        with self._changed:
            if self._closed:
                raise WorkerError("the client is closed")
            now = time.monotonic()
            for parcel in parcels:
                self._parcels[parcel.chunk] = parcel
                self._well_at[parcel.queue] = now
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="osrerank-courier", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _forget(self, parcels: Sequence[Parcel]) -> None:
        with self._changed:
            for parcel in parcels:
                self._parcels.pop(parcel.chunk, None)

    def _send(self, parcel: Parcel) -> None:
        with self._changed:
            self._order += 1
            parcel.order = self._order
        parcel.sends += 1
        parcel.sent_at = time.monotonic()
        parcel.unseen_since, parcel.is_held = None, False
        try:
            self._app.send_task(
                TASK,
                args=(parcel.message,),
                task_id=parcel.chunk,
                queue=parcel.queue,
                argsrepr="",  # Celery would put the beginning of the texts there
                kwargsrepr="",
                ignore_result=True,
                retry=True,
                retry_policy={"max_retries": 1, "interval_start": 0.05},
            )
        except Exception as error:
            raise WorkerError(f"{NO_BROKER} ({type(error).__name__})", task_id=parcel.chunk) from error
        CHUNKS_SENT.inc()

    def _listen(self) -> None:
        """Read replies as long as somebody waits, and look after what is late."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._parcels or self._closed)
                if self._closed:
                    return
            try:
                found = self._redis.blpop([self.mailbox], timeout=BEAT_S)
                if found is not None:
                    self._open(found[1])
                if time.monotonic() - self._looked_at >= BEAT_S:
                    self._look_after()
            except RedisError:
                self._give_up_unless_well({}, NO_BROKER)
                time.sleep(0.1)
            except Exception:  # this thread is all that answers; it must not end
                logger.exception("the replies of workers could not be read")
                time.sleep(0.1)

    def _open(self, message: bytes) -> None:
        """Hand a reply to who waits for it; a second one, or one that comes late, is nobody's."""
        try:
            reply = Reply.decode(message)
        except PayloadError as error:
            logger.warning("a reply was refused: %s", error)
            return
        parcel = self._parcels.get(reply.chunk)
        if parcel is None or parcel.answer is not None:
            return
        self._popped[parcel.queue] = max(self._popped.get(parcel.queue, 0), parcel.order)
        ROUND_TRIP_SECONDS.observe(max(0.0, time.monotonic() - parcel.sent_at - reply.scoring_s))
        self._settle(parcel, reply)

    def _settle(self, parcel: Parcel, answer: Reply | str) -> None:
        if parcel.answer is None:
            parcel.settle(answer)

    def _look_after(self) -> None:
        """Send lost parcels again, and give those up that no worker is left for."""
        self._looked_at = time.monotonic()
        cards = self._roster.cards()
        by_queue: dict[str, list[WorkerCard]] = {}
        for card in cards:
            by_queue.setdefault(card.queue, []).append(card)
        self._give_up_unless_well(by_queue, NO_WORKER)
        held = {chunk for card in cards for chunk in card.held}
        waiting = {queue: self._redis.llen(queue) for queue in {parcel.queue for parcel in self._all()}}
        for parcel in self._all():
            if parcel.chunk in held:
                parcel.is_held = True
                self._popped[parcel.queue] = max(self._popped.get(parcel.queue, 0), parcel.order)
        for parcel in self._all():
            may_wait = waiting.get(parcel.queue, 0) > 0 and parcel.order > self._popped.get(parcel.queue, 0)
            if parcel.chunk in held or may_wait:
                parcel.unseen_since = None
            elif parcel.unseen_since is None:
                parcel.unseen_since = self._looked_at
            elif self._looked_at - parcel.unseen_since >= LOST_AFTER_S:
                self._send_again(parcel)

    def _send_again(self, parcel: Parcel) -> None:
        if parcel.deadline.passed:
            return
        parcel.losses += parcel.is_held
        if parcel.losses >= MOST_LOSSES or parcel.sends >= MOST_SENDS:
            self._settle(parcel, LOST)
            return
        CHUNKS_RESENT.inc()
        try:
            self._send(parcel)
        except WorkerError as error:
            self._settle(parcel, str(error))

    def _give_up_unless_well(self, by_queue: Mapping[str, Sequence[WorkerCard]], reason: str) -> None:
        now = time.monotonic()
        for queue in by_queue:
            self._well_at[queue] = now
        for parcel in self._all():
            if now - self._well_at.get(parcel.queue, now) > GIVE_UP_S:
                self._settle(parcel, reason)

    def _all(self) -> list[Parcel]:
        with self._changed:
            return [parcel for parcel in self._parcels.values() if parcel.answer is None]
