"""Calls that share batches: turns, merging, failures, deadlines, closing; how large and how long a batch is."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.errors import InferenceError
from osrerank.scoring.batcher import REFUSAL_FACTOR, Batcher, CallOutcome, Throughput, batch_size
from osrerank.scoring.inputs import Tokens
from osrerank.testing import ManualClock
from osrerank.types import NEVER, Deadline
from tests.waiting import wait_until


class Recorder:
    """Gives each sequence its first id, and keeps what came together; waits for ``gate`` before each batch."""

    precision, files = "fp32", ()

    def __init__(
        self, budget_tokens: int = 1, threads: int = 1, *, packed: bool = True, parallel: bool = False
    ) -> None:
        self.budget_tokens, self.threads, self.is_packed, self.is_parallel = budget_tokens, threads, packed, parallel
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.batches: list[list[int]] = []
        self.clock = ManualClock()
        self.pause_s = 0.0

    def run(self, sequences: Sequence[Tokens]) -> np.ndarray:
        self.begun.set()
        assert self.gate.wait(10)
        self.clock.sleep(self.pause_s)
        marks = [int(tokens.ids[0]) for tokens in sequences]
        self.batches.append(marks)
        if -1 in marks:
            raise InferenceError("minus one")
        if -2 in marks:
            raise TypeError("a mistake in the backend")
        return np.array(marks, dtype=np.float32)[:, None]

    def close(self) -> None:
        self.gate.set()


def tokens(mark: int, length: int = 10) -> Tokens:
    ids = np.full(length, mark, dtype=np.int64)
    return Tokens(ids, np.zeros_like(ids))


def compute(batcher: Batcher, marks: Sequence[int], deadline: Deadline = NEVER) -> CallOutcome:
    with batcher.call(deadline) as call:
        call.add([tokens(mark) for mark in marks])
        return call.result()


@contextmanager
def held(backend: Recorder, batcher: Batcher, *calls: Sequence[int]) -> Iterator[list[Future[CallOutcome]]]:
    """Yield calls of which the first is under way, and the others wait; at the end the backend goes on."""
    backend.gate.clear()
    with ThreadPoolExecutor(1 + len(calls)) as threads:
        futures = [threads.submit(compute, batcher, [0])]
        assert backend.begun.wait(10)
        for turn, marks in enumerate(calls, start=1):
            futures.append(threads.submit(compute, batcher, marks))
            wait_until(lambda turn=turn: len(batcher._queue) == turn)
        yield futures
        backend.gate.set()


def test_each_output_has_the_position_of_its_sequence() -> None:
    outcome = compute(Batcher(Recorder(budget_tokens=35, threads=3), "m"), range(50))
    assert {row_index: float(row[0]) for row_index, row in outcome.outputs.items()} == {
        index: index for index in range(50)
    }


def test_waiting_calls_share_a_forward_pass() -> None:
    backend = Recorder(budget_tokens=1000)
    with held(backend, Batcher(backend, "m"), [1, 2], [3], [4, 5]) as calls:
        pass
    assert backend.batches == [[0], [1, 2, 3, 4, 5]]
    assert [len(call.result().outputs) for call in calls] == [1, 2, 1, 2]


def test_a_small_call_does_not_wait_for_a_large_one() -> None:
    backend = Recorder(budget_tokens=20)
    with held(backend, Batcher(backend, "m"), range(100, 140), [1]):
        pass
    assert [1] in [batch[:1] for batch in backend.batches[:4]]


@pytest.mark.parametrize(("packed", "sizes"), [(True, [2, 2]), (False, [1, 3])])
def test_the_token_budget_counts_padding(packed: bool, sizes: list[int]) -> None:
    backend = Recorder(budget_tokens=110, packed=packed)
    with Batcher(backend, "m").call(NEVER) as call:
        call.add([tokens(1, 10), tokens(2, 100), tokens(3, 10), tokens(4, 10)])
        call.result()
    assert [len(batch) for batch in backend.batches] == sizes


@pytest.mark.parametrize(("parallel", "sizes"), [(True, [20, 10, 5, 3, 1, 1]), (False, [40])])
def test_no_thread_takes_sequences_that_leave_another_thread_idle(parallel: bool, sizes: list[int]) -> None:
    backend = Recorder(budget_tokens=1000, threads=2, parallel=parallel)
    outcome = compute(Batcher(backend, "m"), range(40))
    assert sorted(map(len, backend.batches), reverse=True) == sizes
    assert len(outcome.outputs) == 40


def test_an_error_in_the_backend_is_raised_and_the_next_call_works() -> None:
    batcher = Batcher(Recorder(), "m")
    with pytest.raises(TypeError, match="mistake"):
        compute(batcher, [1, 2, -2, 3])
    assert len(compute(batcher, [1]).outputs) == 1


def test_sequences_of_batches_not_begun_at_the_deadline_are_unscored() -> None:
    backend = Recorder()
    backend.pause_s = 1.0
    deadline = Deadline.after_ms(10_500, backend.clock)
    outcome = compute(Batcher(backend, "m", backend.clock), range(1000), deadline)
    assert outcome.count_reached(1000) == len(outcome.outputs) == 10


def test_a_call_stuck_behind_others_ends_at_its_deadline() -> None:
    backend = Recorder()
    batcher = Batcher(backend, "m")
    with held(backend, batcher) as (first,):
        assert compute(batcher, [1, 2], Deadline.after_ms(50)).count_reached(2) == 0
    assert first.result(10).count_reached(1) == 1
    for far in (1e18, float("inf"), 1e308):  # a deadline far away is waited for
        assert len(compute(batcher, [1], Deadline.after_ms(far)).outputs) == 1


def test_an_interrupted_call_leaves_no_sequences_in_the_queue() -> None:
    backend = Recorder()
    batcher = Batcher(backend, "m")
    backend.gate.clear()
    with batcher.call(NEVER) as call:  # ends as an interrupt would end it, without its result
        call.add([tokens(mark) for mark in range(50)])
    backend.gate.set()
    assert compute(batcher, [7]).count_reached(1) == 1
    assert sum(map(len, backend.batches)) <= 3


def test_closing_a_batcher_ends_the_running_batch_and_refuses_the_rest() -> None:
    backend = Recorder()
    batcher = Batcher(backend, "m")
    with ThreadPoolExecutor(1) as threads, held(backend, batcher, [1, 2, 3]) as (first, call):
        closing = threads.submit(batcher.close)
        wait_until(lambda: batcher._closed)
    closing.result(10)
    assert (backend.batches, first.result(10).count_reached(1)) == ([[0]], 1)
    with pytest.raises(InferenceError, match="closed"):
        call.result(10)
    with pytest.raises(InferenceError, match="closed"):
        compute(batcher, [1])


def test_many_callers_get_the_outputs_of_their_own_sequences() -> None:
    batcher = Batcher(Recorder(budget_tokens=64, threads=3), "m")
    start = threading.Barrier(16)

    def work(caller: int) -> bool:
        start.wait()
        for turn in range(20):
            marks = range(1000 * caller + 10 * turn, 1000 * caller + 10 * turn + 7)
            outputs = compute(batcher, marks).outputs
            if [float(outputs[index][0]) for index in range(7)] != list(marks):
                return False
        return True

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(work, range(16)))
    batcher.close()  # its threads have ended after it
    assert batcher._n_busy_threads == 0


def test_an_error_in_the_batching_thread_reaches_all_callers_and_the_next_call_works() -> None:
    class Failing(Recorder):
        fails = False

        @property
        def is_packed(self) -> bool:  # asked for while sequences are put together
            if self.fails:
                raise OverflowError("cannot plan a batch")
            return True

        @is_packed.setter
        def is_packed(self, value: bool) -> None: ...

    backend = Failing()
    batcher = Batcher(backend, "m")
    with held(backend, batcher, [1], [2]) as (first, *held_call):
        backend.fails = True
    for call in held_call:
        with pytest.raises(OverflowError, match="cannot plan"):
            call.result(10)
    assert first.exception(10) is None or isinstance(first.exception(10), OverflowError)
    backend.fails = False
    assert len(compute(batcher, [3]).outputs) == 1


class ThreeReads(Deadline):
    """Passes when it has been asked about three times."""

    reads: list[None] = []  # noqa: RUF012 - one instance

    @property
    def passed(self) -> bool:
        self.reads.append(None)
        return len(self.reads) > 3


def test_a_deadline_that_passes_while_a_failed_batch_is_halved_loses_no_sequence() -> None:
    batcher = Batcher(Recorder(budget_tokens=35), "m")
    with ThreadPoolExecutor(1) as thread:
        outcome = thread.submit(compute, batcher, [-1, 5, 6], ThreeReads()).result(10)
    assert outcome.failures.keys() | outcome.outputs.keys() <= {0, 1, 2}
    assert len(ThreeReads.reads) >= 3


def cost(lengths: list[int], *, packed: bool) -> int:
    return sum(lengths) if packed else max(lengths) * len(lengths)


@given(st.lists(st.integers(1, 512), max_size=60), st.integers(1, 4096), st.booleans())
def test_a_batch_is_the_longest_beginning_within_the_budget(lengths: list[int], budget: int, packed: bool) -> None:
    size = batch_size(lengths, budget, packed=packed)
    assert (size == 0) == (not lengths)
    if size > 1:
        assert cost(lengths[:size], packed=packed) <= budget
    if size < len(lengths):
        assert cost(lengths[: size + 1], packed=packed) > budget


def measured(seconds_per_token):
    throughput = Throughput()
    throughput.seconds_per_token = seconds_per_token
    return throughput


def test_a_batch_that_cannot_end_in_time_is_not_begun():
    throughput = measured(0.001)
    assert throughput.allows(100, Deadline.after_ms(5_000))
    assert not throughput.allows(6_000, Deadline.after_ms(5_000))
    assert throughput.seconds_per_token == pytest.approx(
        0.001 * REFUSAL_FACTOR
    )  # a refusal is forgotten little by little
    assert not Throughput().allows(1, Deadline(0.0))
    assert measured(9.0).allows(10**9, NEVER)


def test_a_batch_takes_at_most_a_quarter_of_the_remaining_time():
    deadline = Deadline.after_ms(4_000, ManualClock())
    assert measured(0.0078125).limit_budget(2048, deadline) == 128
    assert measured(0.0078125).limit_budget(50, deadline) == 50
    assert measured(4.0).limit_budget(2048, deadline) == 1
    assert measured(9.0).limit_budget(2048, NEVER) == 2048


def test_the_average_time_of_a_token_follows_measurements():
    clock = ManualClock()
    throughput = Throughput(clock)
    with throughput.timed(10):
        clock.sleep(20)
    assert throughput.seconds_per_token == 2.0
    with throughput.timed(10):
        clock.sleep(10)
    assert throughput.seconds_per_token == pytest.approx(0.7 * 2.0 + 0.3 * 1.0)
