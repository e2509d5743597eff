"""Score on workers: what ``backend="workers"`` means."""

import contextlib
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from redis import RedisError

from osrerank.errors import Overloaded, TaskFailed, WorkerError
from osrerank.metrics import OVERLOADED
from osrerank.scoring.inputs import MOST_CHARACTERS
from osrerank.scoring.logistic import logistic
from osrerank.scoring.remote.broker import celery_app, connect, no_broker
from osrerank.scoring.remote.chunks import Chunk, divide, gather
from osrerank.scoring.remote.delivery import Courier, Parcel
from osrerank.scoring.remote.messages import Reply, Request, WorkerCard
from osrerank.scoring.remote.worker_registry import BEAT_S, Roster
from osrerank.types import NEVER, Deadline, Scores

logger = logging.getLogger(__name__)

MARGIN_S = 0.03
"""Workers must be done so long before the client's deadline, for the reply to be in time; a quarter of a short one."""
MOST_WAIT = 0.75
"""Of the time that is left may go by before a worker begins; the rest is for its work."""
FRESH_S = 2 * BEAT_S
"""For so long a look at the roster holds."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers that have the same model, at least one."""

    cards: tuple[WorkerCard, ...]

    @property
    def one(self) -> WorkerCard:
        """Any of them, for what they have in common."""
        return self.cards[0]

    @property
    def taken(self) -> int:
        """How many chunks they hold, at the time of their cards."""
        return sum(len(card.held) for card in self.cards)

    @property
    def most_taken(self) -> int:
        """How many chunks they can hold: those being worked on, and as many fetched for afterwards."""
        return 2 * sum(card.tasks for card in self.cards)

    def wait_s(self, ahead: int) -> float:
        """Return how long a chunk can be expected to wait behind others."""
        costs = [card.seconds_per_chunk for card in self.cards]
        return ahead * sum(costs) / len(costs) / len(costs)


class RemoteScorer:
    """A scorer whose model is on workers; safe to use from many threads, and after a fork.

    A search's pairs are divided among the workers that there are. What has not come back at the deadline counts as not
    reached, what was lost for good as failed. All pairs of a call are scored by workers of one identity: the one of the
    last call as long as a worker has it, so that an upgrade never mixes scores.

    Args:
        broker_url: the Redis where clients and workers meet.
        model: the name that the workers were started with (``--model``).
        queue_chunks: chunks that may wait for each worker.
    """

    def __init__(self, broker_url: str, model: str, *, queue_chunks: int) -> None:
        self._url = broker_url
        self._name = model
        self._queue_chunks = queue_chunks
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._process = 0
        self._crew: Crew | None = None
        self._looked_at = 0.0
        self._failure = ""
        self._under_way = 0
        self._calls = 0
        self._app: Any = None
        self._redis: Any = None
        self._roster: Roster
        self._courier: Courier

    @property
    def model(self) -> str:
        return self._name if self._crew is None else self._crew.one.model

    @property
    def identity(self) -> str:
        return self.crew().one.identity

    @property
    def first_pass_weight(self) -> float:
        return self.crew().one.first_pass_weight

    @property
    def prior_share(self) -> float:
        return self.crew().one.prior_share

    def score(
        self, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]], *, deadline: Deadline = NEVER
    ) -> Scores:
        """Score on workers.

        Raises:
            Overloaded: too much is waiting, or it would take longer than the time that is left.
            TaskFailed: no chunk could be scored.
            WorkerError: there is no worker, or no broker.
        """
        crew = self.crew()
        identity = crew.one.identity
        query, documents = _sent(query), [_sent(document) for document in documents]
        with self._share(len(crew.cards)) as workers:
            chunks = divide(documents, tuples, workers)
            if not chunks:
                return Scores(np.empty(0, dtype=np.float32), identity=identity)
            with self._admitted(crew, len(chunks), deadline):
                parcels = [self._parcel(chunk, crew.one, query, documents, tuples, deadline) for chunk in chunks]
                self._courier.carry(parcels, deadline)
        answers = [_answer(parcel, len(chunk.places), identity) for parcel, chunk in zip(parcels, chunks, strict=True)]
        if all(isinstance(answer, str) for answer in answers):
            raise TaskFailed(f"no worker could score it: {answers[0]}", task_id=parcels[0].chunk)
        return gather(len(tuples), chunks, answers, identity)

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the logistic function of logits ``(n,)``: workers calibrate them already."""
        return logistic(logits)

    def close(self) -> None:
        with self._lock:
            if self._process == os.getpid():
                self._courier.close()
                self._app.close()
                self._redis.close()
            self._process, self._crew = 0, None

    def crew(self) -> Crew:
        """Return the workers that take chunks, of one identity; asked of the roster at most twice a second.

        Raises:
            WorkerError: there are none, or the broker cannot be asked.
        """
        self._open()
        crew = self._crew
        if crew is not None and time.monotonic() - self._looked_at < FRESH_S:
            return crew
        asked_at = time.monotonic()
        with self._looking:
            if self._failure and self._looked_at >= asked_at:
                raise WorkerError(self._failure)  # who waited for a look that failed does not wait for one of his own
            if self._crew is None or self._crew is crew:
                self._crew = self._look(crew)
            return self._crew

    def _look(self, before: Crew | None) -> Crew:
        self._failure = ""
        try:
            cards = [card for card in self._roster.cards() if card.taking]
        except RedisError as error:
            self._crew = None
            self._failure = no_broker(error)
            raise WorkerError(self._failure) from error
        finally:
            self._looked_at = time.monotonic()
        if not cards:
            self._crew = None
            raise WorkerError(f"there is no worker of {self._name}: start one with osrerank worker")
        known = before.one.identity if before is not None else ""
        identity = known if any(card.identity == known for card in cards) else cards[0].identity
        if known not in ("", identity):
            logger.info("the workers of %s have changed their model", self._name)
        return Crew(tuple(card for card in cards if card.identity == identity))

    @contextlib.contextmanager
    def _share(self, workers: int) -> Iterator[int]:
        """Yield how many workers a call is divided among: all of them for the only one, few for one of many.

        Small chunks answer sooner while workers are idle, and cost more to carry; with as many calls as workers all are
        busy anyway.
        """
        with self._lock:
            self._calls += 1
            calls = self._calls
        try:
            yield math.ceil(workers / calls)
        finally:
            with self._lock:
                self._calls -= 1

    @contextlib.contextmanager
    def _admitted(self, crew: Crew, chunks: int, deadline: Deadline) -> Iterator[None]:
        """Count chunks as under way; refuse them at once, before anything is sent, when they would only wait.

        Raises:
            Overloaded: the queue is full, or what is ahead takes longer than the time that is left.
        """
        try:
            waiting = self._redis.llen(crew.one.queue)
        except RedisError as error:
            raise WorkerError(no_broker(error)) from error
        with self._lock:
            ahead = max(waiting + crew.taken, self._under_way)
            waiting = max(waiting, self._under_way - crew.most_taken)
            refusal = self._refusal(crew, ahead, waiting, chunks, deadline)
            self._under_way += 0 if refusal else chunks
        if refusal:
            OVERLOADED.inc()
            raise Overloaded(refusal, model=self.model)
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= chunks

    def _refusal(self, crew: Crew, ahead: int, waiting: int, chunks: int, deadline: Deadline) -> str:
        if crew.wait_s(ahead) > MOST_WAIT * deadline.remaining_s():
            return f"workers are busy for {crew.wait_s(ahead):.1f} s, too long for the time left; add workers"
        if waiting > 0 and waiting + chunks > self._queue_chunks * len(crew.cards):
            return f"{waiting} chunks are waiting for {len(crew.cards)} workers; add workers"
        return ""

    def _parcel(
        self,
        chunk: Chunk,
        card: WorkerCard,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        deadline: Deadline,
    ) -> Parcel:
        name = secrets.token_hex(12)
        clock = self._roster.clock
        request = Request(
            chunk=name,
            mailbox=self._courier.mailbox,
            identity=card.identity,
            sent_s=clock.at(time.monotonic()),
            deadline_s=None if deadline.at_s is None else clock.at(deadline.at_s - _margin_s(deadline)),
            query=query,
            documents=[documents[index] for index in chunk.documents],
            tuples=chunk.tuples(tuples),
        )
        return Parcel(name, card.queue, request.encode(), deadline)

    def _open(self) -> None:
        """Make what this process needs; what was inherited over a fork belongs to the parent."""
        if self._process == os.getpid():
            return
        with self._lock:
            if self._process == os.getpid():
                return
            self._app = celery_app(self._url)
            self._redis = connect(self._url)
            self._roster = Roster(self._redis, self._name)
            self._courier = Courier(self._app, self._redis, self._roster)
            self._looking = threading.Lock()
            self._crew, self._under_way, self._calls, self._failure = None, 0, 0, ""
            self._process = os.getpid()


def _margin_s(deadline: Deadline) -> float:
    return min(MARGIN_S, max(0.0, deadline.remaining_s()) / 4)


def _sent(text: str) -> str:
    """Return what of a text goes to a worker: all that its model looks at, and whether there is more."""
    return text[: MOST_CHARACTERS + 1]


def _answer(parcel: Parcel, size: int, identity: str) -> Scores | str | None:
    """Return a parcel's scores, why there are none, or None when no answer came."""
    reply = parcel.answer
    if not isinstance(reply, Reply):
        return reply
    if reply.scores is None:
        return reply.error or "the worker gave no reason"
    if reply.identity != identity:
        return "a worker with another model answered"
    if len(reply.scores.values) != size:
        return f"a worker gave {len(reply.scores.values)} scores for {size} pairs"
    return reply.scores
