"""Score documents on a rerank server, in requests that are small enough for the server."""

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
from osrerank.errors import DeadlineExceeded, EndpointError, OsrerankError, ScoringError
from osrerank.metrics import ENDPOINT_REQUESTS, HALVINGS
from osrerank.scoring.backends.base import closed_error
from osrerank.scoring.backends.http.connection import (
    MAX_ATTEMPTS,
    MAX_CONNECTIONS,
    REFUSED_CONTENT_STATUSES,
    RETRY_BUDGET_S,
    Connection,
)
from osrerank.scoring.backends.http.dialects import Dialect, EndpointRequest
from osrerank.scoring.backends.http.responses import WrongScaleError, read_scores
from osrerank.scoring.backends.http.target import Target, dialect_from_info, dialect_from_models
from osrerank.scoring.card import logistic
from osrerank.scoring.inputs import MAX_TEXT_CHARACTERS
from osrerank.tracing.spans import bind_trace
from osrerank.types import NEVER, Advice, Deadline, Scores
from osrerank.types.reasons import log_message
from osrerank.types.values import replace_surrogates

MAX_BATCH_CHARACTERS = 4 << 20
"""The documents of a request have at most this many characters in total, unless it has only one document."""
DETECTION_S = 3.0
"""Timeout of requests that detect the server's dialect or check its health, in seconds."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class EndpointBatch:
    """The documents of one request, and their scores.

    Attributes:
        indices: the documents' positions in the ``tuples`` of `EndpointScorer.score`.
        texts: the documents' texts.
        logits: the logits of the documents that the server scored, by index.
        failures: why the server did not score other documents, by index.
    """

    indices: Sequence[int]
    texts: Sequence[str]
    logits: dict[int, float] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def split_in_half(self) -> "tuple[EndpointBatch, EndpointBatch]":
        middle = len(self.indices) // 2
        first = EndpointBatch(self.indices[:middle], self.texts[:middle])
        return first, EndpointBatch(self.indices[middle:], self.texts[middle:])


class EndpointScorer:
    """Scores documents on a rerank server, each by itself. Safe to use from many threads, and after a fork.

    ``Scores.values`` are logits: the server's logits, or ``log(p / (1 - p))`` of its probabilities p. If the deadline
    passes while batches are unfinished, `Scores.reached` is the number of documents before the first unfinished batch.
    A document that the server refuses or does not score is in `Scores.failures`.
    """

    def __init__(self, target: Target, key: str = "") -> None:
        self._target = target
        self._key = key
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start without connections and threads, because a forked process cannot use its parent's."""
        self._connection = Connection(self._target.host, self._key)
        self._threads: DaemonThreads | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._detection_lock = threading.Lock()
        self._dialect = self._target.dialect
        self._max_documents = self._target.max_documents  # 0 until the dialect is known
        if self._dialect is not None:
            self._max_documents = self._max_documents or self._dialect.max_documents

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
        """Score documents on the server. Each of the ``tuples``, such as ``(3,)``, contains the index of one document.

        Raises:
            DeadlineExceeded: the time ran out before the scorer knew the server's dialect.
            EndpointError: the server cannot be reached, or refused all documents.
            Overloaded: the server is overloaded.
        """
        if any(len(indices) != 1 for indices in tuples):
            raise ValueError("a rerank server scores single documents; to compare pairs, name a duo model (duo_model)")
        if not tuples:
            return Scores(np.empty(0, dtype=np.float32), identity=self.identity)
        dialect = self._find_dialect(deadline)
        batches = list(self._split_batches([prepare_text(documents[index]) for (index,) in tuples]))
        futures = [self._submit(dialect, prepare_text(query), batch, deadline) for batch in batches]
        timeout_s = None if deadline.at_s is None else max(0.0, deadline.remaining_s())
        try:
            wait(futures, timeout_s)
        finally:
            for future in futures:
                future.cancel()  # drops batches that no thread has started; the others end at the deadline
        return self._collect_scores(len(tuples), batches, futures)

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return logistic(logits)

    def check_server(self, deadline: Deadline = NEVER) -> None:
        """Check that the server can score: by its health check or, if that fails, by scoring a short document.

        Raises:
            DeadlineExceeded: the server does not respond in time.
            EndpointError, Overloaded: the server cannot be reached or refuses. `retryable` states whether a retry
                might help.
        """
        self._connection.check_retry_after()
        dialect = self._find_dialect(deadline, attempts=1)
        path = "/ready" if dialect.name == "osrerank" else "/health"
        if self._connection.is_healthy(self._target.base_url + path, deadline.within_ms(1000 * DETECTION_S)):
            return
        probe = EndpointBatch(indices=[0], texts=["up"])
        self._send(dialect, "warm", probe, deadline, attempts=1)  # any query and document will do
        if probe.failures:
            raise EndpointError(probe.failures[0], model=self.model)

    def allow_long_retries(self) -> None:
        """Let calls without a deadline retry for `RETRY_BUDGET_S` while the server is busy or unavailable."""
        self._connection.retry_budget_s = RETRY_BUDGET_S

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
                raise closed_error(self.model)
            if self._threads is None:
                self._threads = DaemonThreads(MAX_CONNECTIONS, "osrerank-http")
            return self._threads.submit(bind_trace(self._score_batch), dialect, query, batch, deadline)

    def _score_batch(self, dialect: Dialect, query: str, batch: EndpointBatch, deadline: Deadline) -> EndpointBatch:
        """Score a batch. Split it into halves while the server refuses its size or one of its documents.

        If the server refuses a single document before it has accepted anything, the last part of the batch is sent
        next, to find out whether only that document is at fault. If it refuses a second document, the batch fails.
        """
        pending = deque([batch])
        n_refused_documents = 0
        max_accepted = 0  # number of documents in the largest request that the server accepted
        while pending:
            from_end = n_refused_documents > 0 and max_accepted == 0
            part = pending.pop() if from_end else pending.popleft()
            try:
                self._send(dialect, query, part, deadline)
            except EndpointError as error:
                if error.status not in REFUSED_CONTENT_STATUSES:
                    raise
                if len(part.indices) > 1:
                    HALVINGS.inc()
                    if from_end:  # here and below, the halves take the place of the part
                        pending.extend(part.split_in_half())
                    else:
                        pending.extendleft(reversed(part.split_in_half()))
                    continue
                n_refused_documents += 1
                if max_accepted == 0 and (n_refused_documents > 1 or not pending):
                    raise  # neither the size nor a single document is the cause
                part.failures[part.indices[0]] = str(error)
            else:
                max_accepted = max(max_accepted, len(part.indices))
            if part is not batch:  # otherwise, the results are in the batch already
                batch.logits |= part.logits
                batch.failures |= part.failures
        size = len(batch.indices)
        if max_accepted < size and n_refused_documents == 0:  # only the size was refused
            with self._lock:
                self._max_documents = min(self._max_documents, max_accepted)
            logger.info(
                "the rerank server %s accepts %d documents in a request, not %d", self._target.host, max_accepted, size
            )
        return batch

    def _send(
        self, dialect: Dialect, query: str, batch: EndpointBatch, deadline: Deadline, *, attempts: int = MAX_ATTEMPTS
    ) -> None:
        """Send a batch in one request, and store the server's scores and failures in the batch."""
        scale = self._target.choose_scale(dialect)
        body = dialect.build_body(EndpointRequest(query, batch.texts, self._target.model, scale))
        url = self._target.request_url(dialect)
        send_deadline = dialect.name == "osrerank"
        response = self._connection.post(url, body, deadline, send_deadline=send_deadline, attempts=attempts)
        logits, failures = read_scores(dialect, scale, response.content, len(batch.indices), response.headers)
        batch.logits |= {batch.indices[position]: logit for position, logit in logits.items()}
        batch.failures |= {batch.indices[position]: reason for position, reason in failures.items()}

    def _split_batches(self, texts: Sequence[str]) -> Iterator[EndpointBatch]:
        """Yield the documents in order, in batches of at most `_max_documents` and `MAX_BATCH_CHARACTERS`."""
        indices: list[int] = []
        characters = 0
        for index, text in enumerate(texts):
            is_full = len(indices) == self._max_documents or characters + len(text) > MAX_BATCH_CHARACTERS
            if indices and is_full:
                yield EndpointBatch(indices, texts[indices[0] : index])
                indices, characters = [], 0
            indices.append(index)
            characters += len(text)
        yield EndpointBatch(indices, texts[indices[0] :])

    def _collect_scores(
        self, n_documents: int, batches: Sequence[EndpointBatch], futures: "Sequence[Future[EndpointBatch]]"
    ) -> Scores:
        """Return the scores of all documents. Raises an error if all batches failed, or the scale is wrong."""
        values = np.full(n_documents, np.nan, dtype=np.float32)
        failures: dict[int, str] = {}
        late_indices: list[int] = []
        errors: list[OsrerankError] = []
        for batch, future in zip(batches, futures, strict=True):
            error = _batch_error(future)
            if isinstance(error, DeadlineExceeded):
                ENDPOINT_REQUESTS.labels("late").inc()
                late_indices += batch.indices
            elif error is not None:
                ENDPOINT_REQUESTS.labels("failed").inc()
                errors.append(error)
                failures |= dict.fromkeys(batch.indices, str(error))
            else:
                ENDPOINT_REQUESTS.labels("scored").inc()
                failures |= batch.failures
                for index, logit in batch.logits.items():
                    values[index] = logit
        for error in errors:
            if isinstance(error, WrongScaleError):
                raise error
        if errors and len(errors) == len(batches):  # the caller gets the longest Retry-After
            raise max(errors, key=lambda error: getattr(error, "retry_after_s", None) or 0.0)
        for error in errors:
            logger.warning("[server-failed] some documents were not scored: %s", log_message(error))
        scored = int(np.isfinite(values).sum())
        reached = min(late_indices, default=n_documents)
        return Scores(values, failures, reached, inferences=scored, identity=self.identity)

    def _find_dialect(self, deadline: Deadline, *, attempts: int = MAX_ATTEMPTS) -> Dialect:
        """Return the server's dialect. The first call asks the server, unless the settings or the address tell it."""
        if self._dialect is not None:
            return self._dialect
        timeout_s = -1 if deadline.at_s is None else max(0.0, deadline.remaining_s())  # -1 is no limit
        if not self._detection_lock.acquire(timeout=timeout_s):
            raise DeadlineExceeded(f"the rerank server {self._target.host} has not reported its dialect in time")
        try:
            if self._dialect is None:
                dialect = self._detect_dialect(deadline, attempts)
                self._max_documents = self._max_documents or dialect.max_documents
                self._dialect = dialect
                logger.info("%s uses the dialect %s", self._target.host, dialect.name)
            return self._dialect
        finally:
            self._detection_lock.release()

    def _detect_dialect(self, deadline: Deadline, attempts: int) -> Dialect:
        """Ask the server for ``/info`` and then ``/v1/models``, and infer the dialect from its responses."""
        for path, detect in (("/info", dialect_from_info), ("/v1/models", dialect_from_models)):
            url = self._target.base_url + path
            content = self._connection.get(url, deadline, timeout_s=DETECTION_S, attempts=attempts)
            dialect = detect(content)
            if dialect is not None:
                if dialect.name == "tei" and not self._max_documents:
                    self._max_documents = _read_tei_batch_size(content)
                return dialect
        reason = (
            f"the rerank server {self._target.host} does not report its dialect; set dialect in [http] of osrerank.toml"
        )
        raise EndpointError(reason, model=self.model)


def _batch_error(future: "Future[EndpointBatch]") -> OsrerankError | None:
    """Return the error with which a batch failed, or None. Errors other than `ScoringError` are raised."""
    if future.cancelled() or not future.done():
        return DeadlineExceeded("the deadline passed")
    error = future.exception()
    if error is None or isinstance(error, ScoringError):
        return error
    raise error


def _read_tei_batch_size(info: object) -> int:
    """Read the maximum number of documents in a request from TEI's ``/info``. 0 if it sets none."""
    size = info.get("max_client_batch_size") if isinstance(info, dict) else None
    return size if isinstance(size, int) and size > 0 else 0


def prepare_text(text: str) -> str:
    """Replace unpaired surrogates in a query or document with "?", and truncate it.

    One character above the limit is kept, so that an osrerank server still reports the document as truncated.
    """
    return replace_surrogates(text[: MAX_TEXT_CHARACTERS + 1])
