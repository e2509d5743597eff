"""Merge the sequences that all callers wait for into batches, so that concurrent requests share the model."""

import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from osrerank._platform import renew_after_fork
from osrerank.errors import InferenceError
from osrerank.metrics import BATCH_TOKENS, COMPUTE_SECONDS, HALVINGS, PADDING_TOKENS
from osrerank.scoring.backend import Backend
from osrerank.scoring.inputs import Tokens
from osrerank.scoring.pace import Pace
from osrerank.types import Deadline

Row = npt.NDArray[np.float32]


def batch_size(lengths: Iterable[int], budget_tokens: int, *, packed: bool = False) -> int:
    """Return how many leading sequences fit a batch, at least one where there is one.

    Args:
        lengths: tokens of each sequence, in order.
        budget_tokens: most tokens of a batch; a single sequence that exceeds it is a batch of its own.
        packed: whether a batch costs the sum of its lengths, or its longest times their number, as padding does.
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
class Outcome:
    """What came of a call's sequences, by their place among those added; one in neither was not reached.

    Attributes:
        outputs: the head's outputs ``(labels,)``, all finite.
        failures: why there are none.
    """

    outputs: dict[int, Row] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    def reached(self, size: int) -> int:
        """Return how many of the first ``size`` sequences were attempted before the first that was not."""
        return next((at for at in range(size) if at not in self.outputs and at not in self.failures), size)


class _Item(NamedTuple):
    call: "Call"
    place: int
    tokens: Tokens


class Batcher:
    """Computes sequences of any number of concurrent calls on a backend's lanes.

    Calls take turns, so that a small one does not wait for a large one; a batch that one call does not fill is filled
    up from the next. A sequence that fails is isolated by halving its batch. Once a call's deadline has passed, or its
    next sequence cannot be expected to end in time, nothing more of it is begun.

    Args:
        backend: computes a batch.
        model: the model's name, for errors.
    """

    def __init__(self, backend: Backend, model: str) -> None:
        self._backend = backend
        self._model = model
        self._pace = Pace()
        self._closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Begin without calls and without threads, as a forked child must: the lanes are its parent's."""
        self._lock = threading.Lock()
        self._turns: deque[Call] = deque()
        self._halves: deque[list[_Item]] = deque()
        self._busy = 0
        self._lanes = ThreadPoolExecutor(self._backend.lanes, thread_name_prefix="osrerank-lane")

    def call(self, deadline: Deadline) -> "Call":
        """Begin a call; use it in a ``with`` statement, which takes back what was not computed."""
        return Call(self, deadline, threading.Condition(self._lock))

    def close(self) -> None:
        """Let what is being computed end, and refuse everything else."""
        with self._lock:
            self._closed = True
            for call in self._turns:
                call.error = self._refusal()
                call.waiting.clear()
                call.ended.notify_all()
            self._turns.clear()
        self._lanes.shutdown(wait=True)

    def admit(self, call: "Call", items: Sequence[_Item]) -> None:
        """Take a call's sequences in.

        Raises:
            InferenceError: this is closed.
        """
        with self._lock:
            if self._closed:
                raise self._refusal()
            call.waiting.extend(items)
            if call.deadline.at_s is None:  # any order will do, and long ones last would leave lanes idle
                call.waiting = deque(sorted(call.waiting, key=lambda item: -len(item.tokens.ids)))
            if call.waiting and call not in self._turns:
                self._turns.append(call)
            for _ in range(min(self._backend.lanes - self._busy, len(call.waiting))):
                self._busy += 1
                self._lanes.submit(self._work)

    def wait(self, call: "Call") -> None:
        """Return when no sequence of the call is being computed, and none waits or its deadline has passed."""
        with self._lock:
            remaining_s = call.deadline.remaining_s()
            call.ended.wait_for(lambda: call.is_done, None if remaining_s == math.inf else max(0.0, remaining_s))
            call.waiting.clear()
            call.ended.wait_for(lambda: call.is_done)

    def withdraw(self, call: "Call") -> None:
        """Take back the call's sequences that no batch has yet."""
        with self._lock:
            call.waiting.clear()

    def _work(self) -> None:
        """Compute batches until nothing waits."""
        while batch := self._take():
            try:
                with self._pace.timed(sum(len(item.tokens.ids) for item in batch)):
                    outputs = self._outputs(batch)
            except InferenceError as error:
                self._isolate(batch, str(error))
            except Exception as error:  # noqa: BLE001 - a lane that dies would leave its callers waiting
                self._abandon(batch, error)
            else:
                self._settle(batch, outputs)

    def _outputs(self, batch: Sequence[_Item]) -> npt.NDArray[np.float32]:
        lengths = [len(item.tokens.ids) for item in batch]
        BATCH_TOKENS.observe(sum(lengths))
        if not self._backend.packed:
            PADDING_TOKENS.inc(max(lengths) * len(lengths) - sum(lengths))
        with COMPUTE_SECONDS.time():
            outputs = self._backend.run([item.tokens for item in batch])
        if not np.isfinite(outputs).all():
            raise InferenceError(f"{self._model} gave a score that is not a finite number", model=self._model)
        return outputs

    def _take(self) -> list[_Item]:
        """Return the next batch; an empty one ends the lane."""
        with self._lock:
            batch = self._half() or self._gather()
            if not batch:
                self._busy -= 1
            return batch

    def _half(self) -> list[_Item]:
        """Return a part of a batch that failed, without what is past its deadline."""
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
            if call.waiting and size == 0:  # it did not fit, and is the next
                self._turns.appendleft(call)
                break
            if call.waiting:
                self._turns.append(call)
                break
        return batch

    def _fitting(self, batch: Sequence[_Item], call: "Call") -> int:
        """Return how many sequences of a call join a batch; a call that is out of time loses those that wait."""
        lengths = [len(item.tokens.ids) for item in batch]
        if call.waiting and not self._pace.allows(sum(lengths) + len(call.waiting[0].tokens.ids), call.deadline):
            if not batch:
                call.waiting.clear()
                call.notify()
            return 0
        most = min(self._most(one.deadline) for one in (call, *(item.call for item in batch)))
        share = -(-len(call.waiting) // (self._backend.lanes if self._backend.parallel else 1))
        more = (len(item.tokens.ids) for item in islice(call.waiting, share))
        return max(0, batch_size(chain(lengths, more), most, packed=self._backend.packed) - len(batch))

    def _isolate(self, batch: Sequence[_Item], reason: str) -> None:
        """Halve a batch that failed: one bad sequence must not fail its neighbours, nor one batch too large."""
        with self._lock:
            if len(batch) > 1:
                HALVINGS.inc()
                middle = len(batch) // 2
                self._halves.extend([list(batch[:middle]), list(batch[middle:])])
                return
            item = batch[0]
            item.call.outcome.failures[item.place] = reason
            self._release(batch)

    def _abandon(self, batch: Sequence[_Item], error: Exception) -> None:
        """Give an error that is no failure of the model to the callers."""
        with self._lock:
            for item in batch:
                item.call.error = error
                item.call.waiting.clear()
            self._release(batch)

    def _settle(self, batch: Sequence[_Item], outputs: npt.NDArray[np.float32]) -> None:
        with self._lock:
            for item, row in zip(batch, outputs.astype(np.float32), strict=True):
                item.call.outcome.outputs[item.place] = row
            self._release(batch)

    def _release(self, batch: Iterable[_Item]) -> None:
        """Count sequences as no longer running; the lock is held."""
        for item in batch:
            item.call.running -= 1
            item.call.notify()

    def _most(self, deadline: Deadline) -> int:
        return self._pace.budget_tokens(self._backend.budget_tokens, deadline)

    def _refusal(self) -> InferenceError:
        return InferenceError(f"the scorer of {self._model} is closed; load the model again", model=self._model)


class Call:
    """The sequences of one caller.

    Attributes:
        deadline: after it none is begun.
        outcome: what has come of them so far.
        waiting: those that no batch has.
        running: how many are in a batch.
        error: what went wrong beside the model.
        ended: told, with the batcher's lock held, when nothing waits or runs any more.
    """

    def __init__(self, batcher: Batcher, deadline: Deadline, ended: threading.Condition) -> None:
        self.deadline = deadline
        self.outcome = Outcome()
        self.waiting: deque[_Item] = deque()
        self.running = 0
        self.error: Exception | None = None
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
        """Whether nothing waits or runs."""
        return not self.waiting and self.running == 0

    def notify(self) -> None:
        """Wake the caller where there is nothing more to wait for; the lock is held."""
        if self.is_done:
            self.ended.notify_all()

    def add(self, sequences: Iterable[Tokens]) -> None:
        """Let sequences be computed, from now on, while more are being made.

        Raises:
            InferenceError: the batcher is closed.
        """
        items = [_Item(self, place, tokens) for place, tokens in enumerate(sequences, self._added)]
        self._added += len(items)
        self._batcher.admit(self, items)

    def result(self) -> Outcome:
        """Wait for all that was added, or as much of it as the deadline allowed."""
        self._batcher.wait(self)
        if self.error is not None:
            raise self.error
        return self.outcome
