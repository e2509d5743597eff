"""Calls that share batches: turns, merging, failures, deadlines, closing."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from osrerank.errors import InferenceError
from osrerank.scoring.batcher import Batcher, BatcherOutput
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
        self.budget_tokens, self.threads, self.packed, self.parallel = budget_tokens, threads, packed, parallel
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


def compute(batcher: Batcher, marks: Sequence[int], deadline: Deadline = NEVER) -> BatcherOutput:
    with batcher.call(deadline) as call:
        call.add([tokens(mark) for mark in marks])
        return call.result()


def held(
    backend: Recorder, batcher: Batcher, threads: ThreadPoolExecutor, *calls: Sequence[int]
) -> list[BatcherOutput]:
    """Run the calls while the backend is busy with another, so that all of them wait when it is free again."""
    backend.gate.clear()
    first = threads.submit(compute, batcher, [0])
    assert backend.begun.wait(10)
    waiting = []
    for marks in calls:
        waiting.append(threads.submit(compute, batcher, marks))
        wait_until(lambda: len(batcher._turns) == len(waiting))
    backend.gate.set()
    first.result(10)
    return [call.result(10) for call in waiting]


def test_each_output_comes_back_to_its_place() -> None:
    outcome = compute(Batcher(Recorder(budget_tokens=35, threads=3), "m"), range(50))
    assert {place: float(row[0]) for place, row in outcome.outputs.items()} == {place: place for place in range(50)}


def test_waiting_calls_share_a_batch() -> None:
    backend = Recorder(budget_tokens=1000)
    with ThreadPoolExecutor(4) as threads:
        outcomes = held(backend, Batcher(backend, "m"), threads, [1, 2], [3], [4, 5])
    assert backend.batches == [[0], [1, 2, 3, 4, 5]]
    assert [len(outcome.outputs) for outcome in outcomes] == [2, 1, 2]


def test_a_small_call_does_not_wait_for_a_large_one() -> None:
    backend = Recorder(budget_tokens=20)
    with ThreadPoolExecutor(4) as threads:
        held(backend, Batcher(backend, "m"), threads, range(100, 140), [1])
    assert [1] in [batch[:1] for batch in backend.batches[:4]]


@pytest.mark.parametrize(("packed", "sizes"), [(True, [2, 2]), (False, [1, 3])])
def test_the_budget_counts_padding_where_there_is_some(packed: bool, sizes: list[int]) -> None:
    backend = Recorder(budget_tokens=110, packed=packed)
    with Batcher(backend, "m").call(NEVER) as call:
        call.add([tokens(1, 10), tokens(2, 100), tokens(3, 10), tokens(4, 10)])
        call.result()
    assert [len(batch) for batch in backend.batches] == sizes


@pytest.mark.parametrize(("parallel", "sizes"), [(True, [20, 10, 5, 3, 1, 1]), (False, [40])])
def test_no_lane_takes_what_leaves_another_idle(parallel: bool, sizes: list[int]) -> None:
    backend = Recorder(budget_tokens=1000, threads=2, parallel=parallel)
    outcome = compute(Batcher(backend, "m"), range(40))
    assert sorted(map(len, backend.batches), reverse=True) == sizes
    assert len(outcome.outputs) == 40


def test_a_mistake_in_the_backend_is_raised_and_the_next_call_works() -> None:
    batcher = Batcher(Recorder(), "m")
    with pytest.raises(TypeError, match="mistake"):
        compute(batcher, [1, 2, -2, 3])
    assert len(compute(batcher, [1]).outputs) == 1


def test_a_deadline_leaves_what_was_not_begun() -> None:
    backend = Recorder()
    backend.pause_s = 1.0
    deadline = Deadline.after_ms(10_500, backend.clock)
    outcome = compute(Batcher(backend, "m", backend.clock), range(1000), deadline)
    assert outcome.reached(1000) == len(outcome.outputs) == 10


def test_a_call_stuck_behind_others_ends_at_its_deadline() -> None:
    backend = Recorder()
    batcher = Batcher(backend, "m")
    backend.gate.clear()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(compute, batcher, [0])
        assert backend.begun.wait(10)
        assert compute(batcher, [1, 2], Deadline.after_ms(50)).reached(2) == 0
        backend.gate.set()
        assert first.result(10).reached(1) == 1


def test_an_interrupted_caller_leaves_nothing_behind() -> None:
    backend = Recorder()
    batcher = Batcher(backend, "m")
    backend.gate.clear()
    with batcher.call(NEVER) as call:  # ends as an interrupt would end it, without its result
        call.add([tokens(mark) for mark in range(50)])
    backend.gate.set()
    assert compute(batcher, [7]).reached(1) == 1
    assert sum(map(len, backend.batches)) <= 3


def test_closing_ends_what_runs_and_refuses_the_rest() -> None:
    backend = Recorder()
    batcher = Batcher(backend, "m")
    backend.gate.clear()
    with ThreadPoolExecutor(2) as threads:
        call = threads.submit(compute, batcher, [1, 2, 3])
        assert backend.begun.wait(10)
        closing = threads.submit(batcher.close)
        wait_until(lambda: batcher._closed)
        backend.gate.set()
        closing.result(10)
        with pytest.raises(InferenceError, match="closed"):
            call.result(10)
    assert backend.batches == [[1]]
    with pytest.raises(InferenceError, match="closed"):
        compute(batcher, [1])


def test_many_callers_get_their_own() -> None:
    batcher = Batcher(Recorder(budget_tokens=64, threads=3), "m")
    start = threading.Barrier(16)

    def work(caller: int) -> bool:
        start.wait()
        for turn in range(20):
            marks = range(1000 * caller + 10 * turn, 1000 * caller + 10 * turn + 7)
            found = compute(batcher, marks).outputs
            if [float(found[place][0]) for place in range(7)] != list(marks):
                return False
        return True

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(work, range(16)))
    batcher.close()  # its threads have ended after it
    assert batcher._busy == 0


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


def test_an_error_of_the_thread_itself_reaches_all_callers_and_the_next_call_works() -> None:
    class Failing(Recorder):
        @property
        def packed(self) -> bool:  # asked for while sequences are put together
            if self.fails:
                raise OverflowError("cannot plan a batch")
            return True

        @packed.setter
        def packed(self, value: bool) -> None:
            self.fails = False

    backend = Failing()
    batcher = Batcher(backend, "m")
    backend.gate.clear()
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(compute, batcher, [0])
        assert backend.begun.wait(10)
        others = [threads.submit(compute, batcher, [mark]) for mark in (1, 2)]
        wait_until(lambda: len(batcher._turns) == 2)
        backend.fails = True
        backend.gate.set()
        for call in others:
            with pytest.raises(OverflowError, match="cannot plan"):
                call.result(10)
        assert first.exception(10) is None or isinstance(first.exception(10), OverflowError)
    backend.fails = False
    assert len(compute(batcher, [3]).outputs) == 1


@pytest.mark.parametrize("far", [1e18, float("inf"), 1e308])
def test_a_deadline_far_away_is_waited_for(far: float) -> None:
    assert len(compute(Batcher(Recorder(), "m"), [1], Deadline.after_ms(far)).outputs) == 1
