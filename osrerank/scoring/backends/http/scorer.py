"""Score documents through a rerank server."""

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from osrerank._platform import renew_after_fork
from osrerank._threads import DaemonThreads
from osrerank.errors import DeadlineExceeded, EndpointError, InferenceError, OsrerankError, ScoringError
from osrerank.metrics import ENDPOINT_REQUESTS, HALVINGS
from osrerank.scoring.backends.http.answers import WrongScaleError, read
from osrerank.scoring.backends.http.connection import ATTEMPTS, CONNECTIONS, PATIENCE_S, TOO_LARGE, Connection
from osrerank.scoring.backends.http.dialects import Dialect, EndpointRequest
from osrerank.scoring.backends.http.target import Target, told_by_info, told_by_models
from osrerank.scoring.card import logistic
from osrerank.scoring.inputs import MOST_CHARACTERS
from osrerank.tracing.spans import carried
from osrerank.types import NEVER, Advice, Deadline, Scores

MOST_BATCH_CHARACTERS = 4 << 20
"""Of a request's documents."""
ASKING_S = 3.0
"""For a server to say what it speaks."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class EndpointBatch:
    """Documents that are sent together.

    Attributes:
        indices: which tuples of the call they are.
        texts: theirs.
        logits: the logits of those that the server scored, by index.
        failures: why it did not score others.
    """

    indices: Sequence[int]
    texts: Sequence[str]
    logits: dict[int, float] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def halves(self) -> "tuple[EndpointBatch, EndpointBatch]":
        """Return the documents in two batches."""
        middle = len(self.indices) // 2
        return EndpointBatch(self.indices[:middle], self.texts[:middle]), EndpointBatch(
            self.indices[middle:], self.texts[middle:]
        )

    def take(self, other: "EndpointBatch") -> None:
        """Add what became of another batch."""
        self.logits |= other.logits
        self.failures |= other.failures


class EndpointScorer:
    """Scores single documents through a rerank server; safe to use from many threads, and after a fork.

    ``Scores.values`` are logits: the server's own, or ``log(p / (1 - p))`` of its probabilities. What the deadline cuts
    off counts as not reached; documents that the server refuses or leaves out, as failed.

    Args:
        target: the server.
        key: what it wants as a bearer token; "" for none.
    """

    def __init__(self, target: Target, key: str = "") -> None:
        self._target = target
        self._key = key
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start without connections and threads: those of a parent process are its own."""
        self._connection = Connection(self._target.host, self._key)
        self._threads: DaemonThreads | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._dialect = self._target.dialect
        self._most = self._target.batch or (self._dialect.most_documents if self._dialect else 0)

    @property
    def model(self) -> str:
        return self._target.model or f"the model of {self._target.host}"

    @property
    def identity(self) -> str:
        return self._target.identity

    @property
    def advice(self) -> Advice:
        return Advice()

    def score(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        *,
        deadline: Deadline = NEVER,
    ) -> Scores:
        """Score on the server.

        Raises:
            DeadlineExceeded: the time ran out before the server said what it speaks.
            EndpointError: it cannot be asked, or refused all documents.
            Overloaded: it has too much to do.
        """
        if any(len(indices) != 1 for indices in tuples):
            raise ValueError("a rerank server scores single documents; pairs of documents need a duo model here")
        if not tuples:
            return Scores(np.empty(0, dtype=np.float32), identity=self.identity)
        dialect = self._speaks(deadline)
        batches = list(self._divided([text_to_send(documents[index]) for (index,) in tuples]))
        futures = [self._submit(dialect, text_to_send(query), batch, deadline) for batch in batches]
        left_s = deadline.remaining_s()
        try:
            wait(futures, timeout=None if deadline.at_s is None else max(0.0, left_s))
        finally:
            for future in futures:
                future.cancel()  # those without a thread; the others end at the deadline
        return self._gathered(len(tuples), batches, futures)

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the logistic function of logits ``(n,)``: of a server's probabilities, these again."""
        return logistic(logits)

    def check_server(self, deadline: Deadline = NEVER) -> None:
        """Return if the server can score now: after a failure it is asked for a pair, else only whether it is there.

        Raises:
            DeadlineExceeded: it does not say so in time.
            EndpointError, Overloaded: it cannot be asked, or refuses; `retryable` tells whether that may pass.
        """
        self._connection.check_rest()
        dialect = self._speaks(deadline, attempts=1)
        path = "/ready" if dialect.name == "osrerank" else "/health"
        if self._connection.is_there(self._target.base + path, deadline.within_ms(1000 * ASKING_S)):
            return
        pair = EndpointBatch([0], ["up"])
        self._send(dialect, "warm", pair, deadline, attempts=1)
        if pair.failures:
            raise EndpointError(pair.failures[0], model=self.model)

    def insist(self) -> None:
        """Wait minutes for a server that is busy, or away after it was there, where a call has no deadline."""
        self._connection.patience_s = PATIENCE_S

    def close(self) -> None:
        with self._lock:
            threads, self._threads = self._threads, None
            self._closed = True
        self._connection.close()
        if threads is not None:
            threads.close(wait=False)

    def _submit(
        self, dialect: Dialect, query: str, batch: EndpointBatch, deadline: Deadline
    ) -> "Future[EndpointBatch]":
        with self._lock:
            if self._closed:
                raise InferenceError(f"the scorer of {self.model} is closed; load the model again", model=self.model)
            if self._threads is None:
                self._threads = DaemonThreads(CONNECTIONS, "osrerank-http")
            return self._threads.submit(carried(self._scored), dialect, query, batch, deadline)

    def _scored(self, dialect: Dialect, query: str, batch: EndpointBatch, deadline: Deadline) -> EndpointBatch:
        """Score a batch; one that the server refuses for its size, or for a document of it, in halves.

        Raises:
            DeadlineExceeded, EndpointError, Overloaded: as `Connection.post`; the server also refused two documents
                sent alone, and took none.
        """
        waiting, refused, accepted = deque([batch]), 0, 0
        while waiting:
            is_far = refused > 0 and not accepted  # go on at the other end, far from the one that was refused
            part = waiting.pop() if is_far else waiting.popleft()
            try:
                self._send(dialect, query, part, deadline)
            except EndpointError as error:
                if error.status not in TOO_LARGE:
                    raise
                if len(part.indices) > 1:
                    HALVINGS.inc()
                    if is_far:
                        waiting.extend(part.halves())
                    else:
                        waiting.extendleft(reversed(part.halves()))
                    continue
                refused += 1
                if not accepted and (refused > 1 or not waiting):
                    raise  # it is not a matter of size, or of one document
                part.failures[part.indices[0]] = str(error)
            else:
                accepted = max(accepted, len(part.indices))
            if part is not batch:
                batch.take(part)
        if accepted < len(batch.indices) and not refused:
            with self._lock:
                self._most = min(self._most, accepted)
            logger.info("%s takes %d documents at a time, not %d", self._target.host, accepted, len(batch.indices))
        return batch

    def _send(
        self, dialect: Dialect, query: str, part: EndpointBatch, deadline: Deadline, *, attempts: int = ATTEMPTS
    ) -> None:
        """Let the server score a batch as it is."""
        scale = self._target.scale(dialect)
        body = dialect.body(EndpointRequest(query, part.texts, self._target.model, scale))
        address = self._target.address(dialect)
        is_ours = dialect.name == "osrerank"
        answer = self._connection.post(address, body, deadline, tells_time=is_ours, attempts=attempts)
        logits, failures = read(dialect, scale, answer.content, len(part.indices), answer.headers)
        part.logits |= {part.indices[at]: logit for at, logit in logits.items()}
        part.failures |= {part.indices[at]: reason for at, reason in failures.items()}

    def _divided(self, texts: Sequence[str]) -> Iterator[EndpointBatch]:
        """Yield batches of as many documents and characters as the server takes, in order."""
        indices: list[int] = []
        characters = 0
        for index, text in enumerate(texts):
            if indices and (len(indices) == self._most or characters + len(text) > MOST_BATCH_CHARACTERS):
                yield EndpointBatch(indices, [texts[at] for at in indices])
                indices, characters = [], 0
            indices.append(index)
            characters += len(text)
        yield EndpointBatch(indices, [texts[at] for at in indices])

    def _gathered(
        self, count: int, batches: Sequence[EndpointBatch], futures: "Sequence[Future[EndpointBatch]]"
    ) -> Scores:
        """Return what came in time.

        Raises:
            ScoringError: nothing did, for this reason; or the scores are not what the settings say.
        """
        values = np.full(count, np.nan, dtype=np.float32)
        failures: dict[int, str] = {}
        late: list[int] = []
        errors: list[OsrerankError] = []
        for batch, future in zip(batches, futures, strict=True):
            error = _error_of(future)
            if isinstance(error, DeadlineExceeded):
                ENDPOINT_REQUESTS.labels("late").inc()
                late += batch.indices
            elif error is not None:
                ENDPOINT_REQUESTS.labels("failed").inc()
                errors.append(error)
                failures |= dict.fromkeys(batch.indices, str(error))
            else:
                ENDPOINT_REQUESTS.labels("scored").inc()
                failures |= batch.failures
                for index, logit in batch.logits.items():
                    values[index] = logit
        if wrong := next((error for error in errors if isinstance(error, WrongScaleError)), None):
            raise wrong
        if errors and len(errors) == len(batches):
            raise max(errors, key=lambda error: getattr(error, "retry_after_s", None) or 0.0)
        for error in errors:
            logger.warning("[server-failed] a part of the documents was not scored: %s", error)
        scored = int(np.isfinite(values).sum())
        return Scores(values, failures, min(late, default=count), inferences=scored, identity=self.identity)

    def _speaks(self, deadline: Deadline, *, attempts: int = ATTEMPTS) -> Dialect:
        """Return the server's dialect; the first call asks it where its address does not tell.

        Raises:
            DeadlineExceeded: the time ran out.
            EndpointError, Overloaded: it cannot be asked, or says nothing that tells.
        """
        if self._dialect is not None:
            return self._dialect
        if not self._asking.acquire(timeout=-1 if deadline.at_s is None else max(0.0, deadline.remaining_s())):
            raise DeadlineExceeded(f"{self._target.host} did not say in time which dialect it speaks")
        try:
            if self._dialect is None:
                dialect = self._asked(deadline, attempts)
                self._most = self._most or dialect.most_documents
                self._dialect = dialect
                logger.info("%s speaks the dialect %s", self._target.host, dialect.name)
            return self._dialect
        finally:
            self._asking.release()

    def _asked(self, deadline: Deadline, attempts: int) -> Dialect:
        for path, told in (("/info", told_by_info), ("/v1/models", told_by_models)):
            content = self._connection.get(self._target.base + path, deadline, most_s=ASKING_S, attempts=attempts)
            dialect = told(content)
            if dialect is not None:
                if dialect.name == "tei" and not self._most:
                    self._most = _size_in(content)
                return dialect
        reason = f"{self._target.host} does not say what it speaks: name its dialect in [http] of osrerank.toml"
        raise EndpointError(reason, model=self.model)


def _error_of(future: "Future[EndpointBatch]") -> OsrerankError | None:
    """Return why a batch has no scores; what is no error of ours is raised."""
    if future.cancelled() or not future.done():
        return DeadlineExceeded("the deadline passed")
    error = future.exception()
    if error is None or isinstance(error, ScoringError):
        return error
    raise error


def _size_in(info: object) -> int:
    """Return how many documents TEI takes at a time, as its ``/info`` says."""
    size = info.get("max_client_batch_size") if isinstance(info, dict) else None
    return size if isinstance(size, int) and size > 0 else 0


def text_to_send(text: str) -> str:
    """Return what is sent of a text: as much as any model reads, without halves of surrogate pairs."""
    return text[: MOST_CHARACTERS + 1].encode("utf-8", "replace").decode("utf-8")
