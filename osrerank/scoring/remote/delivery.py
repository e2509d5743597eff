"""Send chunks, which are parts of a search, to workers and receive their replies, for all threads of a process.

Requests go through Celery. All replies to a process arrive in one Redis list, its reply queue. One thread reads this
list, so that a call opens neither a connection nor a subscription.

A worker holds a chunk from the time at which it takes the chunk from the queue until it replies. A chunk without a
reply is lost if it is not in the queue and no live worker holds it. A lost chunk is sent again, because Celery would
deliver it again only after an hour.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import RedisError

from osrerank._threads import DaemonThreads
from osrerank.errors import PayloadError, WorkerError
from osrerank.metrics import CHUNKS_LATE, CHUNKS_RESENT
from osrerank.scoring.remote.broker import CONNECTIONS, explain_broker_failure
from osrerank.scoring.remote.messages import SCORE, Reply
from osrerank.scoring.remote.signing import Signer, count_refusal
from osrerank.scoring.remote.worker_registry import BEAT_S, PREFIX, WorkerRegistry
from osrerank.types import Deadline

logger = logging.getLogger(__name__)

LOST_AFTER_S = 2.5 * BEAT_S
"""Time after which a missing chunk is lost, in seconds. By then, every live worker has sent two heartbeats."""
GIVE_UP_S = 4.0
"""Calls stop waiting after this time without workers or without the broker, in seconds."""
MAX_LOSSES = 3
"""A chunk fails when this many workers have died while they held it, because it might be the cause."""
MAX_SENDS = 6
"""Maximum number of times that a chunk is sent."""
NO_WORKER = "no worker is left"
"""The error of a chunk whose queue has had no worker for `GIVE_UP_S`."""
LOST = "all workers that received the texts were lost"
"""The error of a chunk that has been lost too often."""


@dataclass(slots=True, eq=False)
class PendingChunk:
    """A chunk that is sent, and waits for its reply.

    Attributes:
        chunk_id: the chunk's id.
        queue: the queue of the workers.
        message: the encoded request.
        deadline: the deadline of the search.
        outcome: the reply, or an error as a `str`. None while the chunk waits.
        message_number: the number of the chunk's latest message. This process numbers its messages from 1 in the order
            in which it sends them.
        n_sends: the number of times that the chunk was sent.
        missing_since_s: the time at which the chunk was first found to be neither in its queue nor held by a worker.
            None if it might be in one of these places.
        was_held: whether a worker has held the chunk since it was last sent.
        n_losses: the number of workers that died while they held the chunk.
        headers: the headers that continue the search's trace.
        task: the name of the Celery task that carries the chunk.
        has_outcome: set with the outcome.
    """

    chunk_id: str
    queue: str
    message: bytes
    deadline: Deadline
    outcome: Reply | str | None = None
    message_number: int = 0
    n_sends: int = 0
    missing_since_s: float | None = None
    was_held: bool = False
    n_losses: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    task: str = SCORE
    has_outcome: threading.Event = field(default_factory=threading.Event, repr=False)

    def complete(self, outcome: Reply | str) -> None:
        """Set the outcome, unless the chunk already has one."""
        if self.outcome is None:
            self.outcome = outcome
            self.has_outcome.set()


class Delivery:
    """Sends chunks and waits for their replies. Safe to use from many threads.

    Args:
        app: the Celery application of the broker.
        redis: a client of the same Redis.
        registry: lists the live workers of the model.
        signer: verifies the signatures of replies.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        app: Any,
        redis: Any,
        registry: WorkerRegistry,
        signer: Signer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.reply_queue = f"{PREFIX}replies:{secrets.token_hex(12)}"
        self._app = app
        self._redis = redis
        self._registry = registry
        self._signer = signer
        self._pending: dict[str, PendingChunk] = {}
        self._changed = threading.Condition()  # guards `_pending` and `_closed`
        self._n_sent_messages = 0
        self._last_taken_numbers: dict[
            str, int
        ] = {}  # queue -> highest `PendingChunk.message_number` that a worker has taken
        self._checked_at_s = 0.0
        self._last_served_at_s: dict[str, float] = {}  # queue -> latest time at which it had a worker
        self._closed = False
        self._thread: threading.Thread | None = None
        self._threads = DaemonThreads(CONNECTIONS, "osrerank-sending")

    def deliver(
        self, chunks: Sequence[PendingChunk], deadline: Deadline, admit: Callable[[], None] = lambda: None
    ) -> None:
        """Send chunks, and wait until all have an outcome or the deadline has passed.

        If there is a deadline, another thread sends the chunks, so that a broker that hangs does not delay the call.

        Args:
            chunks: the chunks of one call.
            deadline: the call's deadline.
            admit: called before the first chunk is sent. Raises an error if the chunks must not be sent.

        Raises:
            WorkerError: the broker does not accept the chunks.
        """
        self._register(chunks)
        try:
            if deadline.at_s is None:
                self._send_all(chunks, deadline, admit)
            else:
                sending = self._threads.submit(self._send_all, chunks, deadline, admit)
                sending_ended = threading.Event()
                sending.add_done_callback(lambda _: sending_ended.set())
                if deadline.wait(sending_ended):
                    sending.result()  # raises the error of sending, if there is one
            for pending in chunks:
                deadline.wait(pending.has_outcome)
        finally:
            self._unregister(chunks)
        CHUNKS_LATE.inc(sum(pending.outcome is None for pending in chunks))

    def _send_all(self, chunks: Sequence[PendingChunk], deadline: Deadline, admit: Callable[[], None]) -> None:
        """Call ``admit``, and send chunks until the deadline."""
        if not deadline.passed:
            admit()
        for pending in chunks:
            if deadline.passed:
                return
            self._send(pending)

    def close(self) -> None:
        """Stop receiving replies. All calls that wait for a reply fail."""
        self._threads.close(wait=False)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for pending in list(self._pending.values()):
            pending.complete("the client was closed")
        if self._thread is not None:
            self._thread.join(BEAT_S * 4)

    def _register(self, chunks: Sequence[PendingChunk]) -> None:
        with self._changed:
            if self._closed:
                raise WorkerError("the client is closed; connect again")
            now_s = self._clock()
            for pending in chunks:
                self._pending[pending.chunk_id] = pending
                self._last_served_at_s[pending.queue] = now_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="osrerank-replies", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _unregister(self, chunks: Sequence[PendingChunk]) -> None:
        with self._changed:
            for pending in chunks:
                self._pending.pop(pending.chunk_id, None)

    def _send(self, pending: PendingChunk) -> None:
        """Send a chunk to its queue. Raises `WorkerError` if the broker does not accept it."""
        with self._changed:
            self._n_sent_messages += 1
            pending.message_number = self._n_sent_messages
        pending.n_sends += 1
        pending.missing_since_s, pending.was_held = None, False
        try:
            self._app.send_task(
                pending.task,
                args=(pending.message,),
                task_id=pending.chunk_id,
                queue=pending.queue,
                headers=dict(pending.headers) or None,
                argsrepr="",  # by default, Celery adds the beginning of the texts
                kwargsrepr="",
                ignore_result=True,
                retry=True,
                retry_policy={"max_retries": 1, "interval_start": 0.05},
            )
        except Exception as error:
            raise WorkerError(explain_broker_failure(error), task_id=pending.chunk_id) from error

    def _listen(self) -> None:
        """Receive replies, and resend lost chunks, while calls wait."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                if self._closed:
                    return
            try:
                popped = self._redis.blpop([self.reply_queue], timeout=BEAT_S)
                if popped is not None:
                    self._receive(popped[1])
                if self._clock() - self._checked_at_s >= BEAT_S:
                    self._resend_lost()
            except RedisError as error:
                self._give_up_unless_served(served_queues=(), reason=explain_broker_failure(error))
                time.sleep(0.1)
            except Exception as error:  # the thread must go on: without it, no call would get a reply
                logger.exception("[replies-unread] the replies of workers could not be read")
                for pending in self._waiting_chunks():
                    pending.complete(f"the replies of workers could not be read ({type(error).__name__}: {error})")
                time.sleep(0.1)

    def _receive(self, message: bytes) -> None:
        """Pass a reply to the call that waits for it. Ignore late and repeated replies."""
        try:
            reply = Reply.decode(self._signer.verify("reply", message))
        except PayloadError as error:
            count_refusal("reply", error)
            return
        pending = self._pending.get(reply.chunk)
        if pending is None or pending.outcome is not None:
            return
        self._record_taken(pending)
        pending.complete(reply)

    def _record_taken(self, pending: PendingChunk) -> None:
        """Record that a chunk was taken by a worker. All chunks that were sent to its queue earlier were taken too."""
        self._last_taken_numbers[pending.queue] = max(
            self._last_taken_numbers.get(pending.queue, 0), pending.message_number
        )

    def _resend_lost(self) -> None:
        """Send lost chunks again, and complete the chunks of queues without live workers with an error."""
        self._checked_at_s = self._clock()
        heartbeats = self._registry.heartbeats()
        served_queues = {heartbeat.queue for heartbeat in heartbeats if heartbeat.taking or heartbeat.held}
        self._give_up_unless_served(served_queues, NO_WORKER)
        held_ids = {chunk for heartbeat in heartbeats for chunk in heartbeat.held}
        queues = {pending.queue for pending in self._waiting_chunks()}
        queue_lengths = {queue: self._redis.llen(queue) for queue in queues}
        for pending in self._waiting_chunks():
            if pending.chunk_id in held_ids:
                pending.was_held = True
                self._record_taken(pending)
        for pending in self._waiting_chunks():
            was_taken = pending.message_number <= self._last_taken_numbers.get(pending.queue, 0)
            might_be_queued = queue_lengths.get(pending.queue, 0) > 0 and not was_taken
            if pending.chunk_id in held_ids or might_be_queued:
                pending.missing_since_s = None
            elif pending.missing_since_s is None:
                pending.missing_since_s = self._checked_at_s
            elif self._checked_at_s - pending.missing_since_s >= LOST_AFTER_S:
                self._send_again(pending)

    def _send_again(self, pending: PendingChunk) -> None:
        """Send a lost chunk again, or complete it with an error if it was lost or sent too often."""
        if pending.deadline.passed:
            return
        if pending.was_held:
            pending.n_losses += 1
        if pending.n_losses >= MAX_LOSSES or pending.n_sends >= MAX_SENDS:
            pending.complete(LOST)
            return
        CHUNKS_RESENT.inc()
        try:
            self._send(pending)
        except WorkerError as error:
            pending.complete(str(error))

    def _give_up_unless_served(self, served_queues: Collection[str], reason: str) -> None:
        """Complete the chunks of queues that have had no worker for `GIVE_UP_S` with an error.

        Args:
            served_queues: the queues that have a worker now: it accepts their chunks, or holds some.
            reason: the error.
        """
        now_s = self._clock()
        for queue in served_queues:
            self._last_served_at_s[queue] = now_s
        for pending in self._waiting_chunks():
            if now_s - self._last_served_at_s.get(pending.queue, now_s) > GIVE_UP_S:
                pending.complete(reason)

    def _waiting_chunks(self) -> list[PendingChunk]:
        with self._changed:
            return [pending for pending in self._pending.values() if pending.outcome is None]
