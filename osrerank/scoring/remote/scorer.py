"""Score texts, and encode documents, on workers: the model of ``backend="workers"`` on the client's side."""

import contextlib
import logging
import math
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from redis import RedisError

from osrerank._platform import fork_safe_lock
from osrerank.errors import InferenceError, Overloaded, TaskFailed
from osrerank.metrics import OVERLOADED
from osrerank.scoring.card import logistic
from osrerank.scoring.inputs import MAX_TEXT_CHARACTERS
from osrerank.scoring.remote.broker import celery_app, connect
from osrerank.scoring.remote.chunks import MAX_CHUNK_TUPLES, Chunk, divide_tuples, join_replies
from osrerank.scoring.remote.delivery import Delivery, PendingChunk
from osrerank.scoring.remote.messages import MAX_VECTOR_BYTES, ChunkRequest, Heartbeat, Reply
from osrerank.scoring.remote.signing import UNSIGNED_RISK, Signer
from osrerank.scoring.remote.worker_group import LiveWorkers, WorkerGroup
from osrerank.scoring.remote.worker_registry import WorkerRegistry
from osrerank.tracing.spans import trace_headers
from osrerank.types import NEVER, Advice, Deadline, Scores
from osrerank.types.scores import single_documents
from osrerank.vectors.record import Bits

logger = logging.getLogger(__name__)

MARGIN_S = 0.03
"""Time before the search's deadline at which workers stop, in seconds, so that their replies arrive in time.

It is at most a quarter of the time left.
"""
MAX_WAIT_FRACTION = 0.75
"""Maximum fraction of the time left that a call's chunks may wait. The rest is for scoring them."""


@dataclass(slots=True)
class _Admission:
    """Whether a call's chunks count as in flight: from their admission to the end of the call.

    Attributes:
        n_chunks: the number of the call's chunks.
        is_counted: whether the chunks are counted now.
        has_ended: whether the call has ended. Chunks that are admitted afterwards are not counted.
    """

    n_chunks: int
    is_counted: bool = False
    has_ended: bool = False


Outcome = Reply | str | None
"""What became of a chunk: a reply with scores or vectors, an error, or None if no reply arrived in time."""


class RemoteScorer:
    """Scores tuples on workers. Safe to use from many threads, and after a fork.

    The tuples of a call are divided into chunks, one for each message to a worker. If a chunk has no reply by the
    deadline, its tuples count as not reached. If a chunk is lost, its tuples count as failed.

    All workers of a call have the same model identity, that of the previous call if possible, so that scores of two
    models are not mixed while workers are upgraded.

    Args:
        broker_url: the Redis through which clients and workers communicate.
        model: the model's name, as in the workers' ``--model``.
        queue_chunks: maximum number of chunks that wait for each worker.
        signer: signs requests and verifies replies. If None, messages are not signed.
    """

    def __init__(self, broker_url: str, model: str, *, queue_chunks: int, signer: Signer | None = None) -> None:
        self._url = broker_url
        self._name = model
        self._queue_chunks = queue_chunks
        self._signer = signer or Signer()
        self._lock = fork_safe_lock()
        self._connected_pid = 0  # the process that opened the connections, or 0 if they are not open
        self._n_chunks_in_flight = 0
        self._n_running_calls = 0
        self._app: Any = None
        self._redis: Any = None
        self._registry: WorkerRegistry
        self._live_workers: LiveWorkers
        self._delivery: Delivery

    @property
    def model(self) -> str:
        group = self._live_workers.latest_group if self._connected_pid == os.getpid() else None
        return self._name if group is None else group.first.model

    @property
    def identity(self) -> str:
        return self.workers().first.identity

    @property
    def advice(self) -> Advice:
        return self.workers().first.advice

    def score(
        self, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]], *, deadline: Deadline = NEVER
    ) -> Scores:
        """Score tuples on workers.

        Raises:
            Overloaded: too many chunks are waiting, or they would take too much of the time left.
            TaskFailed: every chunk failed.
            WorkerError: no worker is live, or the broker does not reply.
        """
        identity, outcomes = self._exchange(query, documents, tuples, deadline)
        if not outcomes:
            return Scores(np.empty(0, dtype=np.float32), identity=identity)
        chunks = [chunk for chunk, _ in outcomes]
        scores = [outcome.scores if isinstance(outcome, Reply) else outcome for _, outcome in outcomes]
        return join_replies(len(tuples), chunks, scores, identity)

    def encode_documents(
        self, texts: Sequence[str], *, identity: str, bits: Bits, max_bytes: int, deadline: Deadline = NEVER
    ) -> dict[int, bytes | str]:
        """Encode documents on workers.

        Args:
            texts: the documents' texts.
            identity: identity of the model that the workers must have.
            bits: precision of the vectors, in bits per number.
            max_bytes: maximum size of a document's record, in bytes.
            deadline: the time after which this call stops waiting.

        Returns:
            By index of the text, a record without a digest (`osrerank.vectors.record`), or an error as a `str`. Texts
            whose reply did not arrive in time are left out.

        Raises:
            InferenceError: the workers use another model.
            Overloaded, TaskFailed, WorkerError: see `score`.
        """
        if self.workers(deadline).first.identity != identity:
            raise self._other_model_error()
        tuples = single_documents(len(texts))
        max_tuples = max(1, min(MAX_CHUNK_TUPLES, MAX_VECTOR_BYTES // max_bytes))
        workers_identity, outcomes = self._exchange(
            "", texts, tuples, deadline, max_tuples=max_tuples, vector_bits=bits
        )
        if workers_identity != identity:  # the workers were upgraded after the check above
            raise self._other_model_error()
        contents: dict[int, bytes | str] = {}
        for chunk, outcome in outcomes:
            if isinstance(outcome, str):
                contents |= dict.fromkeys(chunk.indices, outcome)
            elif outcome is not None:
                contents |= zip(chunk.indices, outcome.vectors or (), strict=True)
        return {index: content for index, content in contents.items() if content}  # empty if the deadline passed

    def _other_model_error(self) -> InferenceError:
        reason = f"the workers run another {self.model} than this process; use the same model and version for both"
        return InferenceError(reason, model=self.model)

    def _exchange(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        deadline: Deadline,
        *,
        max_tuples: int = MAX_CHUNK_TUPLES,
        vector_bits: int = 0,
    ) -> tuple[str, list[tuple[Chunk, Outcome]]]:
        """Send tuples to workers in chunks of at most ``max_tuples``, and wait for the replies.

        ``vector_bits`` is the precision of the vectors to compute, or 0 if the tuples are to be scored.

        Returns:
            The identity of the workers' model, and each chunk with its outcome.

        Raises:
            Overloaded, TaskFailed, WorkerError: see `score`.
        """
        group = self.workers(deadline)
        identity = group.first.identity
        query = text_to_send(query)
        documents = [text_to_send(document) for document in documents]
        with self._share_workers(len(group.heartbeats)) as n_workers:
            chunks = divide_tuples(documents, tuples, n_workers, max_tuples=max_tuples)
            if not chunks:
                return identity, []
            pending = [
                self._create_pending(
                    chunk,
                    group.first,
                    query=query,
                    documents=documents,
                    tuples=tuples,
                    deadline=deadline,
                    vector_bits=vector_bits,
                )
                for chunk in chunks
            ]
            admission = _Admission(len(chunks))
            try:
                self._delivery.deliver(pending, deadline, lambda: self._admit(group, admission, deadline))
            finally:
                self._release(admission)
        outcomes = [
            _validate_outcome(pending_chunk, n_tuples=len(chunk.indices), identity=identity)
            for pending_chunk, chunk in zip(pending, chunks, strict=True)
        ]
        if all(isinstance(outcome, str) for outcome in outcomes):
            raise TaskFailed(f"no worker could score the texts: {outcomes[0]}", task_id=pending[0].chunk_id)
        return identity, list(zip(chunks, outcomes, strict=True))

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the probabilities ``(n,)`` of calibrated logits, by the logistic function."""
        return logistic(logits)

    def close(self) -> None:
        with self._lock:
            if self._connected_pid == os.getpid():
                self._delivery.close()
                self._live_workers.close()
                self._app.close()
                self._redis.close()
            self._connected_pid = 0

    def find_workers(self, deadline: Deadline = NEVER) -> int:
        """Return the number of live workers. Raises `WorkerError` if there are none by the deadline."""
        return len(self.workers(deadline).heartbeats)

    def workers(self, deadline: Deadline = NEVER) -> WorkerGroup:
        """Return the workers that accept chunks; see `LiveWorkers.find_group`."""
        self._open()
        return self._live_workers.find_group(deadline)

    @contextlib.contextmanager
    def _share_workers(self, n_workers: int) -> Iterator[int]:
        """Yield the number of workers among which a call divides its tuples: 4 of 8 if another call is running.

        Division among more workers needs more messages, and gains nothing if other calls keep these workers busy.
        """
        with self._lock:
            self._n_running_calls += 1
            n_running_calls = self._n_running_calls
        try:
            yield math.ceil(n_workers / n_running_calls)
        finally:
            with self._lock:
                self._n_running_calls -= 1

    def _admit(self, group: WorkerGroup, admission: _Admission, deadline: Deadline) -> None:
        """Count a call's chunks as in flight, or raise `Overloaded`, before the first chunk is sent."""
        try:
            n_queued_chunks = self._redis.llen(group.first.queue)
        except RedisError as error:
            raise self._live_workers.record_broker_error(error) from error
        with self._lock:
            # Chunks that this process has in flight may not be in the queue yet.
            n_earlier_chunks = max(n_queued_chunks + group.held_chunks, self._n_chunks_in_flight)
            n_waiting_chunks = max(n_queued_chunks, self._n_chunks_in_flight - group.capacity)
            refusal = self._refusal_reason(
                group,
                deadline,
                n_earlier_chunks=n_earlier_chunks,
                n_waiting_chunks=n_waiting_chunks,
                n_new_chunks=admission.n_chunks,
            )
            if not refusal and not admission.has_ended:
                admission.is_counted = True
                self._n_chunks_in_flight += admission.n_chunks
        if refusal:
            OVERLOADED.inc()
            raise Overloaded(refusal, model=self.model)

    def _release(self, admission: _Admission) -> None:
        """Stop counting a call's chunks as in flight, also if they are admitted later."""
        with self._lock:
            if admission.is_counted:
                self._n_chunks_in_flight -= admission.n_chunks
            admission.is_counted = False
            admission.has_ended = True

    def _refusal_reason(
        self, group: WorkerGroup, deadline: Deadline, *, n_earlier_chunks: int, n_waiting_chunks: int, n_new_chunks: int
    ) -> str:
        """Return the reason to refuse a call's new chunks, or "" if they are accepted.

        Args:
            group: the workers.
            deadline: the call's deadline.
            n_earlier_chunks: the number of chunks that are scored before the new ones.
            n_waiting_chunks: the number of chunks that no worker has taken yet.
            n_new_chunks: the number of the call's chunks.
        """
        wait_s = group.wait_s(n_earlier_chunks)
        if wait_s > MAX_WAIT_FRACTION * deadline.remaining_s():
            return f"workers are busy for {wait_s:.1f} s, which leaves too little time; add workers"
        if n_waiting_chunks > 0 and n_waiting_chunks + n_new_chunks > self._queue_chunks * len(group.heartbeats):
            return f"{n_waiting_chunks} chunks are waiting for {len(group.heartbeats)} workers; add workers"
        return ""

    def _create_pending(
        self,
        chunk: Chunk,
        heartbeat: Heartbeat,
        *,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        deadline: Deadline,
        vector_bits: int,
    ) -> PendingChunk:
        """Return a chunk with its signed request, ready to be sent to the queue in the ``heartbeat``.

        The other arguments are those of `_exchange`, for all chunks of the call.
        """
        chunk_id = secrets.token_hex(12)
        clock = self._registry.clock
        request = ChunkRequest(
            chunk=chunk_id,
            reply_queue=self._delivery.reply_queue,
            identity=heartbeat.identity,
            sent_s=clock.to_broker(time.monotonic()),
            deadline_s=None if deadline.at_s is None else clock.to_broker(deadline.at_s - _margin_s(deadline)),
            query=query,
            documents=[documents[index] for index in chunk.documents],
            tuples=[] if vector_bits else chunk.local_tuples(tuples),
            vector_bits=vector_bits,
        )
        message = self._signer.sign("request", request.encode())
        return PendingChunk(chunk_id, heartbeat.queue, message, deadline, headers=trace_headers(), task=request.task)

    def _open(self) -> None:
        """Open connections once in each process, because a forked child cannot use its parent's connections."""
        if self._connected_pid == os.getpid():
            return
        with self._lock:
            if self._connected_pid == os.getpid():
                return
            self._app = celery_app(self._url)
            self._redis = connect(self._url)
            self._registry = WorkerRegistry(self._redis, self._name, self._signer)
            self._live_workers = LiveWorkers(self._registry, self._name)
            self._delivery = Delivery(self._app, self._redis, self._registry, self._signer)
            self._n_chunks_in_flight, self._n_running_calls = 0, 0
            if not self._signer.has_key:
                logger.warning("[unsigned] %s", UNSIGNED_RISK)
            self._connected_pid = os.getpid()


def _margin_s(deadline: Deadline) -> float:
    """Return the time before a search's deadline at which workers stop, in seconds; see `MARGIN_S`."""
    return min(MARGIN_S, max(0.0, deadline.remaining_s()) / 4)


def text_to_send(text: str) -> str:
    """Truncate a text to one character more than a model can use, so that the model reports the truncation."""
    return text[: MAX_TEXT_CHARACTERS + 1]


def _validate_outcome(pending: PendingChunk, *, n_tuples: int, identity: str) -> Outcome:
    """Return a chunk's outcome. A reply with an error, another model's identity or a wrong size becomes an error."""
    reply = pending.outcome
    if not isinstance(reply, Reply):  # an error, or None
        return reply
    scores_or_vectors = reply.vectors if reply.scores is None else reply.scores.values
    if scores_or_vectors is None:
        return reply.error or "the worker gave no reason"
    if reply.identity != identity:
        return "a worker with another model replied; use the same model and version for all workers"
    if len(scores_or_vectors) != n_tuples:
        return f"a worker returned {len(scores_or_vectors)} scores or vectors for {n_tuples} texts"
    return reply
