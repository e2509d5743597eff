"""Batch the sequences of concurrent calls together, and compute the batches on a backend's threads."""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from osrerank._platform import renew_after_fork
from osrerank._threads import NATIVE_CODE, DaemonThreads
from osrerank.errors import InferenceError
from osrerank.metrics import COMPUTE_SECONDS, HALVINGS
from osrerank.scoring.backends.base import Backend, closed_error
from osrerank.scoring.inputs import Tokens
from osrerank.types import Deadline
from osrerank.types.scores import NOT_FINITE

Row = npt.NDArray[np.float32]
"""A model's output for one sequence: logits ``(labels,)``, a vector ``(dimensions,)`` or ``(tokens, dimensions)``."""

NEWEST_WEIGHT = 0.3
"""Weight of the newest batch in the moving average of seconds per token, from 0 to 1."""
REFUSAL_FACTOR = 0.8
"""The average is multiplied by this when it forbids a batch. Otherwise, one slow batch could forbid all others."""


def batch_size(lengths: Iterable[int], budget_tokens: int, *, packed: bool = False) -> int:
    """Return the number of leading sequences that fit into a batch. The first one always fits.

    Of sequences with 10, 10 and 30 tokens, two fit into 60 tokens with padding (3 * 30 > 60), and all three without.

    Args:
        lengths: the length of each sequence, in tokens.
        budget_tokens: maximum number of tokens in a batch, including padding.
        packed: whether batches are computed without padding. Otherwise, each sequence is padded to the longest one.
    """
    size = longest = total = 0
    for length in lengths:
        longest = max(longest, length)
        total += length
        cost = total if packed else longest * (size + 1)
        if size and cost > budget_tokens:
            break
        size += 1
    return size


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The results of a call. Sequences are numbered from 0 in the order in which `Call.add` received them.

    A sequence that has neither an output nor a failure was not computed before the deadline.

    Attributes:
        outputs: the model's output for a sequence, by its number. All values are finite.
        failures: why a sequence has no output, by its number.
    """

    outputs: dict[int, Row] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def count_reached(self, n_sequences: int) -> int:
        """Return how many of ``n_sequences`` precede the first one without a result: 2 if only 0, 1 and 3 have one."""
        for number in range(n_sequences):
            if number not in self.outputs and number not in self.failures:
                return number
        return n_sequences


class _CallSequence(NamedTuple):
    """A sequence, the call that it belongs to, and its number in the call."""

    call: "Call"
    number: int
    tokens: Tokens

    @property
    def n_tokens(self) -> int:
        return len(self.tokens.ids)


class Batcher:
    """Computes the sequences of concurrent calls on a backend's threads.

    Calls take turns, so that a small call does not wait for a large one. If a call leaves room in a batch, the next
    call fills it. A batch that fails is halved until the failing sequence is alone. A sequence is not started if it is
    expected to end after its call's deadline.

    Args:
        backend: computes the batches.
        model: the model's name, for error messages.
        clock: returns the time in seconds.
    """

    def __init__(self, backend: Backend, model: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._backend = backend
        self._model = model
        self._throughput = Throughput(clock)
        self._closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Drop all calls and threads in a forked child, where the parent's threads do not run."""
        self._lock = threading.Lock()
        self._queue: deque[Call] = deque()
        self._halved_batches: deque[list[_CallSequence]] = deque()
        self._open_calls: set[Call] = set()
        self._n_busy_threads = 0
        self._threads = DaemonThreads(self._backend.threads, "osrerank-batch")

    def call(self, deadline: Deadline) -> "Call":
        """Return a call for a ``with`` statement. At its end, the sequences that are not in a batch yet are dropped."""
        return Call(self, deadline, threading.Condition(self._lock))

    def close(self) -> None:
        """Finish the running batches. Waiting and new calls fail."""
        with self._lock:
            self._closed = True
            for call in self._queue:
                call.fail(closed_error(self._model))
            self._queue.clear()
        self._threads.close()

    def admit(self, call: "Call", sequences: Sequence[_CallSequence]) -> None:
        """Queue a call's sequences, and start threads to compute them, or raise `InferenceError` after `close`."""
        with self._lock:
            if self._closed:
                raise closed_error(self._model)
            call.waiting.extend(sequences)
            self._open_calls.add(call)
            if call.deadline.at_s is None:
                # the short sequences come last, so that all threads end at about the same time
                call.waiting = deque(sorted(call.waiting, key=lambda sequence: -sequence.n_tokens))
            if call.waiting and call not in self._queue:
                self._queue.append(call)
            n_idle_threads = self._backend.threads - self._n_busy_threads
            for _ in range(min(n_idle_threads, len(call.waiting))):
                self._threads.submit(self._work)
                self._n_busy_threads += 1

    def wait(self, call: "Call") -> None:
        """Wait for all sequences of a call. After its deadline, wait only for the sequences in running batches."""
        with self._lock:
            timeout_s = None if call.deadline.at_s is None else max(0.0, call.deadline.remaining_s())
            call.ended.wait_for(lambda: call.is_done, timeout_s)
            call.waiting.clear()
            call.ended.wait_for(lambda: call.is_done)  # for the running batches

    def end(self, call: "Call") -> None:
        """Drop the sequences of a call that are not in a batch yet."""
        with self._lock:
            call.waiting.clear()
            self._open_calls.discard(call)

    def _work(self) -> None:
        """Compute batches until no sequence waits. If the batcher itself fails, all calls fail with its error."""
        try:
            self._compute_batches()
        except BaseException as error:  # noqa: BLE001 - a thread that dies would leave its callers waiting
            with self._lock:
                self._n_busy_threads -= 1
                for call in self._open_calls:
                    call.fail(error)

    def _compute_batches(self) -> None:
        """Compute batches until no sequence waits. A batch that raises `InferenceError` is halved, see `_halve`."""
        while True:
            batch = self._next_batch()
            if not batch:
                return
            try:
                with self._throughput.timed(sum(sequence.n_tokens for sequence in batch)):
                    outputs = self._compute(batch)
            except InferenceError as error:
                self._halve(batch, str(error))
            except Exception as error:  # noqa: BLE001 - other callers are not affected
                self._fail(batch, error)
            else:
                self._complete(batch, outputs)

    def _compute(self, batch: Sequence[_CallSequence]) -> Sequence[Row]:
        with COMPUTE_SECONDS.time(), NATIVE_CODE:
            outputs: Any = self._backend.run([sequence.tokens for sequence in batch])
        # a late-interaction model returns a list of arrays
        values = outputs if isinstance(outputs, np.ndarray) else np.concatenate(outputs)
        if not np.isfinite(values).all():
            raise InferenceError(NOT_FINITE.format(model=self._model), model=self._model)
        return list(outputs)

    def _next_batch(self) -> list[_CallSequence]:
        """Return the next batch. If no sequence waits, return an empty batch, and count the thread as ended."""
        with self._lock:
            batch = self._next_halved_batch() or self._next_sequences()
            if not batch:
                self._n_busy_threads -= 1
            return batch

    def _next_halved_batch(self) -> list[_CallSequence]:
        """Return a half of a failed batch, without the sequences whose deadline has passed."""
        while self._halved_batches:
            batch: list[_CallSequence] = []
            for sequence in self._halved_batches.popleft():
                if sequence.call.deadline.passed:
                    self._finish([sequence])
                else:
                    batch.append(sequence)
            if batch:
                return batch
        return []

    def _next_sequences(self) -> list[_CallSequence]:
        """Return sequences of the first call in the queue, and of further calls while the batch has room."""
        batch: list[_CallSequence] = []
        for _ in range(len(self._queue)):  # each call at most once
            call = self._queue.popleft()
            size = self._count_fitting(batch, call)
            batch += [call.waiting.popleft() for _ in range(size)]
            call.n_running += size
            if not call.waiting:
                continue
            if size == 0:  # there is no room or no time: the call begins the next batch
                self._queue.appendleft(call)
            else:
                self._queue.append(call)
            break
        return batch

    def _count_fitting(self, batch: Sequence[_CallSequence], call: "Call") -> int:
        """Return how many of a call's waiting sequences fit into a batch.

        If the batch with the call's next sequence would end too late, return 0. If even a batch of only this sequence
        would, drop the call's sequences.
        """
        if not call.waiting:
            return 0
        lengths = [sequence.n_tokens for sequence in batch]
        next_length = call.waiting[0].n_tokens
        if not self._throughput.allows(sum(lengths) + next_length, call.deadline):
            if not batch:
                call.waiting.clear()
                call.notify()
            return 0
        calls = {call, *(sequence.call for sequence in batch)}
        max_tokens = min(
            self._throughput.limit_budget(self._backend.budget_tokens, each_call.deadline) for each_call in calls
        )
        n_parallel_batches = self._backend.threads if self._backend.is_parallel else 1
        max_added = math.ceil(len(call.waiting) / n_parallel_batches)  # each other thread can take as many sequences
        candidates = (sequence.n_tokens for sequence in islice(call.waiting, max_added))
        size = batch_size(chain(lengths, candidates), max_tokens, packed=self._backend.is_packed)
        return max(0, size - len(batch))

    def _halve(self, batch: Sequence[_CallSequence], reason: str) -> None:
        """Queue both halves of a failed batch, because its size or one sequence might be the cause.

        A batch of one sequence is not halved: the sequence has failed.
        """
        with self._lock:
            if len(batch) > 1:
                HALVINGS.inc()
                middle = len(batch) // 2
                self._halved_batches.extend([list(batch[:middle]), list(batch[middle:])])
                return
            sequence = batch[0]
            sequence.call.outcome.failures[sequence.number] = reason
            self._finish(batch)

    def _fail(self, batch: Sequence[_CallSequence], error: Exception) -> None:
        """End each call that has a sequence in the batch with an unexpected error."""
        with self._lock:
            for sequence in batch:
                sequence.call.fail(error)
            self._finish(batch)

    def _complete(self, batch: Sequence[_CallSequence], outputs: Iterable[Row]) -> None:
        with self._lock:
            for sequence, row in zip(batch, outputs, strict=True):
                sequence.call.outcome.outputs[sequence.number] = row.astype(np.float32)
            self._finish(batch)

    def _finish(self, batch: Iterable[_CallSequence]) -> None:
        """Count sequences as no longer running, and wake waiting threads. The caller of this method holds the lock."""
        for sequence in batch:
            sequence.call.n_running -= 1
            sequence.call.notify()


class Call:
    """The sequences of one caller.

    Attributes:
        deadline: the time after which no sequence starts.
        outcome: the results so far.
        waiting: the sequences that are not in a batch yet.
        n_running: the number of sequences in running batches.
        error: the unexpected error that ended the call, or None.
        ended: a condition that uses the batcher's lock. It is notified when the call is done.
    """

    def __init__(self, batcher: Batcher, deadline: Deadline, ended: threading.Condition) -> None:
        self.deadline = deadline
        self.outcome = CallOutcome()
        self.waiting: deque[_CallSequence] = deque()
        self.n_running = 0
        self.error: BaseException | None = None
        self.ended = ended
        self._batcher = batcher
        self._n_added = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._batcher.end(self)

    @property
    def is_done(self) -> bool:
        """Whether no sequence waits or runs, or the call has failed."""
        return self.error is not None or not (self.waiting or self.n_running)

    def fail(self, error: BaseException) -> None:
        """End the call with an error. The caller of this method holds the lock."""
        self.error = error
        self.waiting.clear()
        self.ended.notify_all()

    def notify(self) -> None:
        """Wake the waiting thread if the call is done. The caller of this method holds the lock."""
        if self.is_done:
            self.ended.notify_all()

    def add(self, sequences: Iterable[Tokens]) -> None:
        """Add sequences, which are computed while the caller prepares more.

        Raises:
            InferenceError: the batcher is closed.
        """
        new_sequences = [_CallSequence(self, number, tokens) for number, tokens in enumerate(sequences, self._n_added)]
        self._n_added += len(new_sequences)
        self._batcher.admit(self, new_sequences)

    def result(self) -> CallOutcome:
        """Wait for all added sequences, or until the deadline, and return their results."""
        self._batcher.wait(self)
        if self.error is not None:
            raise self.error
        return self.outcome


class Throughput:
    """Estimates how long a batch takes, by a moving average of seconds per token.

    Threads share it without a lock, because a lost update hardly changes the estimate.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds_per_token = 0.0
        self._clock = clock

    @contextlib.contextmanager
    def timed(self, n_tokens: int) -> Iterator[None]:
        """Measure the time of a ``with`` block that computes a batch of this many tokens, and update the average."""
        started_at_s = self._clock()
        yield
        newest = (self._clock() - started_at_s) / max(n_tokens, 1)
        average = self.seconds_per_token
        if average > 0:
            self.seconds_per_token = (1 - NEWEST_WEIGHT) * average + NEWEST_WEIGHT * newest
        else:  # the first batch
            self.seconds_per_token = newest

    def limit_budget(self, budget_tokens: int, deadline: Deadline) -> int:
        """Return how many tokens can be computed in a quarter of the time left, but at most ``budget_tokens``."""
        if deadline.at_s is None or self.seconds_per_token == 0:
            return budget_tokens
        return max(1, int(min(budget_tokens, deadline.remaining_s() / 4 / self.seconds_per_token)))

    def allows(self, n_tokens: int, deadline: Deadline) -> bool:
        """Return whether a batch of this many tokens is expected to end in time. If not, lower the average."""
        if deadline.is_withdrawn:  # the caller has given up; the average is not the reason
            return False
        if deadline.remaining_s() > n_tokens * self.seconds_per_token:
            return True
        self.seconds_per_token *= REFUSAL_FACTOR
        return False
