"""Score on workers, for ``backend="workers"``."""

import contextlib
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from redis import RedisError

from osrerank.errors import Overloaded, TaskFailed
from osrerank.metrics import OVERLOADED
from osrerank.scoring.card import logistic
from osrerank.scoring.inputs import MOST_CHARACTERS
from osrerank.scoring.remote.broker import celery_app, connect
from osrerank.scoring.remote.chunks import MOST_PAIRS, Chunk, divide, gather
from osrerank.scoring.remote.delivery import Delivery, PendingChunk
from osrerank.scoring.remote.messages import MOST_VECTOR_BYTES, Heartbeat, Reply, Request
from osrerank.scoring.remote.signing import UNSIGNED_RISK, Signer
from osrerank.scoring.remote.worker_group import LiveWorkers, WorkerGroup
from osrerank.scoring.remote.worker_registry import WorkerRegistry
from osrerank.tracing.spans import headers
from osrerank.types import NEVER, Advice, Deadline, Scores
from osrerank.vectors.record import Bits

logger = logging.getLogger(__name__)

MARGIN_S = 0.03
"""Workers' deadlines are this much earlier, so that replies are in time; at most a quarter of the time left."""
MOST_WAIT = 0.75
"""Share of the remaining time that a chunk may wait; the rest is for its scoring."""


class Encoded(NamedTuple):
    """Document vectors that workers computed.

    Attributes:
        identity: of the workers' model.
        found: index of a text -> its record without a digest, or why it has none; only of what came in time.
    """

    identity: str
    found: Mapping[int, bytes | str]


@dataclass(slots=True)
class _Place:
    """A call's share of the chunks under way.

    Attributes:
        chunks: how many it sends.
        is_taken: whether they are counted.
        is_left: whether the call has ended, so that they must not be counted.
    """

    chunks: int
    is_taken: bool = False
    is_left: bool = False


class RemoteScorer:
    """Scores on workers; safe to use from many threads, and after a fork.

    The pairs of a call are divided among the workers. Pairs whose chunk is not back at the deadline count as not
    reached, pairs of a lost chunk as failed. All workers of a call have the same model identity, that of the last call
    while a worker still has it: an upgrade never mixes scores.

    Args:
        broker_url: the Redis where clients and workers meet.
        model: the name that the workers were started with (``--model``).
        queue_chunks: how many chunks may wait for each worker.
        signer: signs the requests and checks what comes back; None for messages without signatures.
    """

    def __init__(self, broker_url: str, model: str, *, queue_chunks: int, signer: Signer | None = None) -> None:
        self._url = broker_url
        self._name = model
        self._queue_chunks = queue_chunks
        self._signer = signer or Signer()
        self._lock = threading.Lock()
        self._process = 0
        self._under_way = 0
        self._calls = 0
        self._app: Any = None
        self._redis: Any = None
        self._registry: WorkerRegistry
        self._live: LiveWorkers
        self._delivery: Delivery

    @property
    def model(self) -> str:
        group = self._live.known if self._process == os.getpid() else None
        return self._name if group is None else group.first.model

    @property
    def identity(self) -> str:
        return self.workers().first.identity

    @property
    def advice(self) -> Advice:
        return self.workers().first.advice

    def score(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        *,
        deadline: Deadline = NEVER,
    ) -> Scores:
        """Score on workers.

        Raises:
            Overloaded: too much is waiting, or it would take longer than the time that is left.
            TaskFailed: no chunk could be scored.
            WorkerError: there is no worker, or no broker.
        """
        identity, answers = self._exchange(query, documents, tuples, deadline)
        if not answers:
            return Scores(np.empty(0, dtype=np.float32), identity=identity)
        chunks = [chunk for chunk, _ in answers]
        scores = [answer.scores if isinstance(answer, Reply) else answer for _, answer in answers]
        return gather(len(tuples), chunks, scores, identity)

    def encode_documents(
        self, texts: Sequence[str], *, identity: str, bits: Bits, most_bytes: int, deadline: Deadline = NEVER
    ) -> Encoded:
        """Let workers encode documents; ask them for nothing if they have another model.

        Args:
            texts: the documents'.
            identity: of the model that they must have.
            bits: of each number of a vector.
            most_bytes: of a document's record.
            deadline: as for `score`.

        Raises:
            Overloaded, TaskFailed, WorkerError: as `score`.
        """
        if self.workers(deadline).first.identity != identity:
            return Encoded(self.identity, {})
        tuples = [(at,) for at in range(len(texts))]
        most = max(1, min(MOST_PAIRS, MOST_VECTOR_BYTES // most_bytes))
        theirs, answers = self._exchange("", texts, tuples, deadline, most=most, vector_bits=bits)
        found: dict[int, bytes | str] = {}
        for chunk, answer in answers:
            if isinstance(answer, str):
                found |= dict.fromkeys(chunk.places, answer)
            elif answer is not None:
                found |= zip(chunk.places, answer.vectors or (), strict=True)
        return Encoded(theirs, {at: one for at, one in found.items() if one})

    def _exchange(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        deadline: Deadline,
        *,
        most: int = MOST_PAIRS,
        vector_bits: int = 0,
    ) -> tuple[str, list[tuple[Chunk, Reply | str | None]]]:
        """Send tuples to workers, and return their model's identity and each chunk's answer.

        An answer is a reply with scores or vectors, or why there is none, or None when none came in time.

        Raises:
            Overloaded, TaskFailed, WorkerError: as `score`.
        """
        group = self.workers(deadline)
        identity = group.first.identity
        query, documents = sent(query), [sent(document) for document in documents]
        with self._share(len(group.heartbeats)) as workers:
            chunks = divide(documents, tuples, workers, most=most)
            if not chunks:
                return identity, []
            pending = [
                self._pending(chunk, group.first, query, documents, tuples, deadline, vector_bits=vector_bits)
                for chunk in chunks
            ]
            place = _Place(len(chunks))
            try:
                self._delivery.deliver(pending, deadline, lambda: self._admit(group, place, deadline))
            finally:
                self._leave(place)
        answers = [_answer(one, len(chunk.places), identity) for one, chunk in zip(pending, chunks, strict=True)]
        if all(isinstance(answer, str) for answer in answers):
            raise TaskFailed(f"no worker could score it: {answers[0]}", task_id=pending[0].chunk_id)
        return identity, list(zip(chunks, answers, strict=True))

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the logistic function of logits ``(n,)``: workers calibrate them already."""
        return logistic(logits)

    def close(self) -> None:
        with self._lock:
            if self._process == os.getpid():
                self._delivery.close()
                self._live.close()
                self._app.close()
                self._redis.close()
            self._process = 0

    def find_workers(self, deadline: Deadline = NEVER) -> None:
        """As in `osrerank.types.NeedsWorkers`."""
        self.workers(deadline)

    def workers(self, deadline: Deadline = NEVER) -> WorkerGroup:
        """Return the workers that take chunks, all of one identity; read from the registry at most once a second.

        Raises:
            WorkerError: as `LiveWorkers.group`.
        """
        self._open()
        return self._live.group(deadline)

    @contextlib.contextmanager
    def _share(self, workers: int) -> Iterator[int]:
        """Yield the number of workers that a call is divided among: all, or fewer while other calls run.

        Small chunks come back sooner while workers are idle, but each costs a message; with as many calls as workers
        all workers are busy anyway.
        """
        with self._lock:
            self._calls += 1
            calls = self._calls
        try:
            yield math.ceil(workers / calls)
        finally:
            with self._lock:
                self._calls -= 1

    def _admit(self, group: WorkerGroup, place: _Place, deadline: Deadline) -> None:
        """Count a call's chunks as under way; refuse them before anything is sent when they would only wait.

        Raises:
            Overloaded: the queue is full, or the chunks ahead take longer than the remaining time.
        """
        try:
            waiting = self._redis.llen(group.first.queue)
        except RedisError as error:
            raise self._live.failed(error) from error
        with self._lock:
            ahead = max(waiting + group.taken, self._under_way)
            waiting = max(waiting, self._under_way - group.most_taken)
            refusal = self._refusal(group, ahead, waiting, place.chunks, deadline)
            place.is_taken = not (refusal or place.is_left)
            self._under_way += place.chunks if place.is_taken else 0
        if refusal:
            OVERLOADED.inc()
            raise Overloaded(refusal, model=self.model)

    def _leave(self, place: _Place) -> None:
        """Stop counting a call's chunks, even if it is not admitted yet."""
        with self._lock:
            self._under_way -= place.chunks if place.is_taken else 0
            place.is_taken, place.is_left = False, True

    def _refusal(self, group: WorkerGroup, ahead: int, waiting: int, chunks: int, deadline: Deadline) -> str:
        if group.wait_s(ahead) > MOST_WAIT * deadline.remaining_s():
            return f"workers are busy for {group.wait_s(ahead):.1f} s, too long for the time left; add workers"
        if waiting > 0 and waiting + chunks > self._queue_chunks * len(group.heartbeats):
            return f"{waiting} chunks are waiting for {len(group.heartbeats)} workers; add workers"
        return ""

    def _pending(
        self,
        chunk: Chunk,
        worker: Heartbeat,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        deadline: Deadline,
        *,
        vector_bits: int,
    ) -> PendingChunk:
        name = secrets.token_hex(12)
        clock = self._registry.clock
        request = Request(
            chunk=name,
            reply_queue=self._delivery.reply_queue,
            identity=worker.identity,
            sent_s=clock.at(time.monotonic()),
            deadline_s=None if deadline.at_s is None else clock.at(deadline.at_s - _margin_s(deadline)),
            query=query,
            documents=[documents[index] for index in chunk.documents],
            tuples=[] if vector_bits else chunk.tuples(tuples),
            vector_bits=vector_bits,
        )
        message = self._signer.seal("request", request.encode())
        return PendingChunk(name, worker.queue, message, deadline, headers=headers(), task=request.task)

    def _open(self) -> None:
        """Open the connections of this process; those inherited by a fork belong to the parent."""
        if self._process == os.getpid():
            return
        with self._lock:
            if self._process == os.getpid():
                return
            self._app = celery_app(self._url)
            self._redis = connect(self._url)
            self._registry = WorkerRegistry(self._redis, self._name, self._signer)
            self._live = LiveWorkers(self._registry, self._name)
            self._delivery = Delivery(self._app, self._redis, self._registry, self._signer)
            self._under_way, self._calls = 0, 0
            if not self._signer.signs:
                logger.warning("[unsigned] %s", UNSIGNED_RISK)
            self._process = os.getpid()


def _margin_s(deadline: Deadline) -> float:
    return min(MARGIN_S, max(0.0, deadline.remaining_s()) / 4)


def sent(text: str) -> str:
    """Return the part of a text that a worker needs: all that its model reads, and one character to show a cut."""
    return text[: MOST_CHARACTERS + 1]


def _answer(pending: PendingChunk, size: int, identity: str) -> Reply | str | None:
    """Return a chunk's reply if it has its scores or vectors, why there are none, or None when no reply came."""
    reply = pending.answer
    if not isinstance(reply, Reply):
        return reply
    content = reply.vectors if reply.scores is None else reply.scores.values
    if content is None:
        return reply.error or "the worker gave no reason"
    if reply.identity != identity:
        return "a worker with another model answered"
    return reply if len(content) == size else f"a worker gave {len(content)} scores or vectors for {size} texts"
