"""Merge the sequences of concurrent calls into batches, so that the calls share the model."""

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from osrerank._platform import renew_after_fork
from osrerank._threads import NATIVE_CODE, DaemonThreads
from osrerank.errors import InferenceError
from osrerank.metrics import COMPUTE_SECONDS, HALVINGS
from osrerank.scoring.backends.base import Backend
from osrerank.scoring.inputs import Tokens
from osrerank.types import Deadline

Row = npt.NDArray[np.float32]

WEIGHT = 0.3
"""Weight of the newest batch in the moving average of seconds per token."""
RELAXED = 0.8
"""Factor by which a refused batch lowers that average, so that a model that was slow once is soon tried again."""


def batch_size(lengths: Iterable[int], budget_tokens: int, *, packed: bool = False) -> int:
    """Return how many of the first sequences fit into a batch, at least one if there is any.

    Args:
        lengths: tokens of each sequence, in order.
        budget_tokens: the most tokens of a batch; a single sequence that exceeds it is a batch of its own.
        packed: whether a batch costs the sum of its lengths; else it is padded, and costs their number times the
            longest.
    """
    size = longest = total = 0
    for length in lengths:
        longest, total = max(longest, length), total + length
        cost = total if packed else longest * (size + 1)
        if size and cost > budget_tokens:
            break
        size += 1
    return size


@dataclass(frozen=True, slots=True)
class BatcherOutput:
    """The results of a call's sequences, by the order in which they were added; the first has the index 0.

    A sequence in neither field was not computed before the deadline.

    Attributes:
        outputs: index -> the head's outputs ``(labels,)``, or the tokens' vectors ``(tokens, dimensions)``; all finite.
        failures: index -> why the sequence has no output.
    """

    outputs: dict[int, Row] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def reached(self, size: int) -> int:
        """Return how many sequences from the first on were attempted without a gap, of ``size`` in all."""
        return next((at for at in range(size) if at not in self.outputs and at not in self.failures), size)


class _Item(NamedTuple):
    call: "Call"
    number: int
    tokens: Tokens


class Batcher:
    """Computes the sequences of concurrent calls on a backend's threads.

    Calls take turns, so that a small call does not wait for a large one; if a call leaves room in a batch, the next one
    fills it. A sequence that fails is isolated by halving its batch. No sequence of a call starts after the call's
    deadline, or if it is not expected to end in time.

    Args:
        backend: computes a batch.
        model: the model's name, for errors.
        clock: returns seconds.
    """

    def __init__(self, backend: Backend, model: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._backend = backend
        self._model = model
        self._throughput = Throughput(clock)
        self._closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start over without calls and threads in a forked child, because threads are not inherited."""
        self._lock = threading.Lock()
        self._turns: deque[Call] = deque()
        self._halves: deque[list[_Item]] = deque()
        self._open: set[Call] = set()
        self._busy = 0
        self._threads = DaemonThreads(self._backend.threads, "osrerank-batch")

    def call(self, deadline: Deadline) -> "Call":
        """Open a call for a ``with`` statement, whose end withdraws the sequences that were not computed."""
        return Call(self, deadline, threading.Condition(self._lock))

    def close(self) -> None:
        """Finish the batches in progress; all other calls fail, and new ones are refused."""
        with self._lock:
            self._closed = True
            for call in self._turns:
                call.fail(self._refusal())
            self._turns.clear()
        self._threads.close()

    def admit(self, call: "Call", items: Sequence[_Item]) -> None:
        """Add sequences to those of the call that wait for a batch, and start threads for them.

        Raises:
            InferenceError: the batcher is closed.
        """
        with self._lock:
            if self._closed:
                raise self._refusal()
            call.waiting.extend(items)
            self._open.add(call)
            if call.deadline.at_s is None:  # the order is free; long ones last would leave threads idle
                call.waiting = deque(sorted(call.waiting, key=lambda item: -len(item.tokens.ids)))
            if call.waiting and call not in self._turns:
                self._turns.append(call)
            for _ in range(min(self._backend.threads - self._busy, len(call.waiting))):
                self._threads.submit(self._work)
                self._busy += 1

    def wait(self, call: "Call") -> None:
        """Wait until all sequences of the call are computed; after its deadline, only for those in a running batch."""
        with self._lock:
            most_s = None if call.deadline.at_s is None else max(0.0, call.deadline.remaining_s())
            call.ended.wait_for(lambda: call.is_done, most_s)
            call.waiting.clear()
            call.ended.wait_for(lambda: call.is_done)

    def withdraw(self, call: "Call") -> None:
        """Remove the call's sequences that are in no batch yet."""
        with self._lock:
            call.waiting.clear()
            self._open.discard(call)

    def _work(self) -> None:
        """Compute batches until no sequence waits; an error of this thread itself is raised to all callers."""
        try:
            self._compute()
        except BaseException as error:  # noqa: BLE001 - a thread that dies would leave its callers waiting
            with self._lock:
                self._busy -= 1
                for call in self._open:
                    call.fail(error)

    def _compute(self) -> None:
        while batch := self._take():
            try:
                with self._throughput.timed(sum(len(item.tokens.ids) for item in batch)):
                    outputs = self._outputs(batch)
            except InferenceError as error:
                self._isolate(batch, str(error))
            except Exception as error:  # noqa: BLE001 - the callers of other batches go on
                self._abandon(batch, error)
            else:
                self._settle(batch, outputs)

    def _outputs(self, batch: Sequence[_Item]) -> Sequence[Row]:
        with COMPUTE_SECONDS.time(), NATIVE_CODE:
            outputs: Any = self._backend.run([item.tokens for item in batch])
        if not np.isfinite(outputs if isinstance(outputs, np.ndarray) else np.concatenate(outputs)).all():
            raise InferenceError(f"{self._model} gave a score that is not a finite number", model=self._model)
        return list(outputs)

    def _take(self) -> list[_Item]:
        """Return the next batch; an empty batch ends the thread."""
        with self._lock:
            batch = self._half() or self._gather()
            if not batch:
                self._busy -= 1
            return batch

    def _half(self) -> list[_Item]:
        """Return a half of a failed batch, without the sequences whose deadline has passed."""
        while self._halves:
            in_time: list[_Item] = []
            late: list[_Item] = []
            for item in self._halves.popleft():
                (late if item.call.deadline.passed else in_time).append(item)
            self._release(late)
            if in_time:
                return in_time
        return []

    def _gather(self) -> list[_Item]:
        """Return the next sequences of the call whose turn it is, filled up from the calls after it."""
        batch: list[_Item] = []
        for _ in range(len(self._turns)):
            call = self._turns.popleft()
            size = self._fitting(batch, call)
            batch += [call.waiting.popleft() for _ in range(size)]
            call.running += size
            if call.waiting and size == 0:  # it did not fit; its turn is next
                self._turns.appendleft(call)
                break
            if call.waiting:
                self._turns.append(call)
                break
        return batch

    def _fitting(self, batch: Sequence[_Item], call: "Call") -> int:
        """Return how many sequences of a call join a batch; a call that is out of time drops its waiting sequences."""
        lengths = [len(item.tokens.ids) for item in batch]
        if call.waiting and not self._throughput.allows(sum(lengths) + len(call.waiting[0].tokens.ids), call.deadline):
            if not batch:
                call.waiting.clear()
                call.notify()
            return 0
        most = min(self._most(member.deadline) for member in (call, *(item.call for item in batch)))
        share = -(-len(call.waiting) // (self._backend.threads if self._backend.parallel else 1))
        more = (len(item.tokens.ids) for item in islice(call.waiting, share))
        return max(0, batch_size(chain(lengths, more), most, packed=self._backend.packed) - len(batch))

    def _isolate(self, batch: Sequence[_Item], reason: str) -> None:
        """Halve a failed batch, so that neither one bad sequence nor a batch that is too large fails the others."""
        with self._lock:
            if len(batch) > 1:
                HALVINGS.inc()
                middle = len(batch) // 2
                self._halves.extend([list(batch[:middle]), list(batch[middle:])])
                return
            item = batch[0]
            item.call.outcome.failures[item.number] = reason
            self._release(batch)

    def _abandon(self, batch: Sequence[_Item], error: Exception) -> None:
        """Pass an error that is not the model's to the callers whose sequences are in the batch."""
        with self._lock:
            for item in batch:
                item.call.fail(error)
            self._release(batch)

    def _settle(self, batch: Sequence[_Item], outputs: Iterable[Row]) -> None:
        with self._lock:
            for item, row in zip(batch, outputs, strict=True):
                item.call.outcome.outputs[item.number] = row.astype(np.float32)
            self._release(batch)

    def _release(self, batch: Iterable[_Item]) -> None:
        """Count sequences as no longer running; the lock is held."""
        for item in batch:
            item.call.running -= 1
            item.call.notify()

    def _most(self, deadline: Deadline) -> int:
        return self._throughput.budget_tokens(self._backend.budget_tokens, deadline)

    def _refusal(self) -> InferenceError:
        return InferenceError(f"the scorer of {self._model} is closed; load the model again", model=self._model)


class Call:
    """The sequences of one caller.

    Attributes:
        deadline: no sequence starts after it.
        outcome: the results so far.
        waiting: the sequences that are in no batch yet.
        running: the number of sequences in batches that are being computed.
        error: an error that is not the model's; the caller then stops waiting.
        ended: notified, with the batcher's lock held, when no sequence waits or runs any more.
    """

    def __init__(self, batcher: Batcher, deadline: Deadline, ended: threading.Condition) -> None:
        self.deadline = deadline
        self.outcome = BatcherOutput()
        self.waiting: deque[_Item] = deque()
        self.running = 0
        self.error: BaseException | None = None
        self.ended = ended
        self._batcher = batcher
        self._added = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._batcher.withdraw(self)

    @property
    def is_done(self) -> bool:
        """Whether no sequence waits or runs, or the call has failed."""
        return self.error is not None or not (self.waiting or self.running)

    def fail(self, error: BaseException) -> None:
        """Give the caller an error instead of results; the lock is held."""
        self.error = error
        self.waiting.clear()
        self.ended.notify_all()

    def notify(self) -> None:
        """Wake the caller if the call is done; the lock is held."""
        if self.is_done:
            self.ended.notify_all()

    def add(self, sequences: Iterable[Tokens]) -> None:
        """Add sequences; they are computed while the caller prepares more.

        Raises:
            InferenceError: the batcher is closed.
        """
        items = [_Item(self, number, tokens) for number, tokens in enumerate(sequences, self._added)]
        self._added += len(items)
        self._batcher.admit(self, items)

    def result(self) -> BatcherOutput:
        """Wait for all added sequences, or until the deadline, and return their results."""
        self._batcher.wait(self)
        if self.error is not None:
            raise self.error
        return self.outcome


class Throughput:
    """Estimates how long a batch takes, by a moving average of seconds per token.

    Threads share it without a lock, because a lost update only makes the estimate a little older.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds_per_token = 0.0
        self._clock = clock

    @contextlib.contextmanager
    def timed(self, tokens: int) -> Iterator[None]:
        """Add the time of a batch of this many padded tokens to the average."""
        started = self._clock()
        yield
        newest = (self._clock() - started) / max(tokens, 1)
        known = self.seconds_per_token
        self.seconds_per_token = newest if known == 0 else (1 - WEIGHT) * known + WEIGHT * newest

    def budget_tokens(self, most: int, deadline: Deadline) -> int:
        """Return the most tokens of a batch: ``most``, but no more than a quarter of the time left allows."""
        if deadline.at_s is None or self.seconds_per_token == 0:
            return most
        return max(1, int(min(most, deadline.remaining_s() / 4 / self.seconds_per_token)))

    def allows(self, tokens: int, deadline: Deadline) -> bool:
        """Return whether a batch of this many tokens is expected to end before the deadline."""
        if deadline.is_withdrawn:
            return False
        remaining_s = deadline.remaining_s()
        if remaining_s == math.inf:
            return True
        if remaining_s > tokens * self.seconds_per_token:
            return True
        self.seconds_per_token *= RELAXED
        return False
