"""The queue of the HTTP server: fair turns, expected waits, divided requests, and clients that leave."""

import asyncio
import threading
import time

import pytest

from osrerank.server.api.limits import ServerLimits
from osrerank.server.api.queue import QueuedTask, TaskQueue, TokenRate
from osrerank.server.api.service import ApiService, Busy, Question
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer, ManualClock
from osrerank.types import NEVER, Deadline, Scores


def test_the_rate_of_scoring_is_measured():
    now = [0.0]
    rate = TokenRate(lambda: now[0])
    assert rate.tokens_per_s == float("inf")
    for _ in range(20):
        rate.start(1_000)
        now[0] += 0.5
        rate.finish(1_000)
        now[0] += 100.0  # nothing runs
    assert rate.tokens_per_s == pytest.approx(2_000)
    rate.start(1_000)
    now[0] += 60.0  # it hangs
    assert rate.tokens_per_s < 200


def test_a_small_request_does_not_wait_for_large_ones():
    order = []
    may_go_on = threading.Event()

    def task(name, tokens):
        return QueuedTask(tokens, lambda: (may_go_on.wait(10) and order.append(name)) or name)

    async def scenario():
        queue = TaskQueue(1)
        large = [asyncio.ensure_future(queue.run([task(name, 1_000) for _ in range(20)])) for name in "AB"]
        asyncio.get_running_loop().call_soon(may_go_on.set)  # when the small one waits, too
        assert await queue.run([task("small", 10)]) == ["small"]
        assert queue.estimate_wait_s(10) <= queue.estimate_wait_s(1 << 62)
        assert [await request for request in large] == [["A"] * 20, ["B"] * 20]
        queue.close()

    asyncio.run(scenario())
    assert order.index("small") < 3
    turns = [name for name in order if name != "small"]
    assert abs(turns[:20].count("A") - 10) <= 1


def test_small_requests_do_not_starve_a_large_one():
    async def scenario():
        queue = TaskQueue(1)
        small = 0

        async def keep_busy(large):
            nonlocal small
            while not large.done():
                await asyncio.gather(*(queue.run([QueuedTask(100, lambda: None)]) for _ in range(4)))
                small += 4
                assert small < 2_000

        tasks = [QueuedTask(1_000, lambda: None) for _ in range(3)]
        await keep_busy(asyncio.gather(queue.run(tasks)))
        queue.close()

    asyncio.run(scenario())


def service(scorer, clock=time.monotonic, **limits):
    return ApiService(RerankService(Settings.load(), scorer, clock=clock), ServerLimits(**limits))


def question(count, size=8_000):
    return [Question("low", tuple("x" * size for _ in range(count)))]


def test_scoring_ends_if_the_client_disconnects():
    scored, begun, may_go_on = [], threading.Event(), threading.Event()

    def score(_query, document):
        begun.set()
        scored.append(document)
        return float(may_go_on.wait(10))

    async def scenario():
        reranks = service(FunctionScorer(score))
        leaving = asyncio.ensure_future(reranks.score_questions(question(500), NEVER))
        await asyncio.to_thread(begun.wait, 10)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        may_go_on.set()
        reranks.close()  # waits for what runs

    asyncio.run(scenario())
    assert 0 < len(scored) < 10


@pytest.mark.parametrize("limits", [{"max_wait_s": 0.5}, {}])
def test_a_request_that_would_miss_its_deadline_is_refused_at_once(limits):
    clock, tenth, may_go_on = ManualClock(), threading.Event(), threading.Event()
    scored = []

    def sleep(seconds):
        clock.sleep(seconds)
        scored.append(seconds)
        if len(scored) >= 10:
            tenth.set()
            assert may_go_on.wait(10)

    async def scenario():
        reranks = service(FunctionScorer(seconds_per_pair=0.05, sleep=sleep), clock, **limits)
        first = asyncio.ensure_future(reranks.score_questions(question(200), NEVER))
        await asyncio.to_thread(tenth.wait, 10)
        deadline = NEVER if limits else Deadline.after_ms(2_000, clock)
        with pytest.raises(Busy, match="would wait") as caught:
            await reranks.score_questions(question(200), deadline)
        assert 1 <= caught.value.retry_after_s <= 30  # the server's timeout
        may_go_on.set()
        small = await reranks.score_questions(question(1, 4), Deadline.after_ms(60_000, clock))
        assert small[0].order == (0,)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        reranks.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("wait_s", "request_s", "after_s"), [(0.0, 30.0, 1), (2.1, 30.0, 3), (25.2, 30.0, 26), (600.0, 29.5, 30)]
)
def test_retry_after_is_the_time_of_the_queue_within_the_request_timeout(wait_s, request_s, after_s):
    busy = Busy("full", wait_s, request_s)
    assert (busy.retry_after_s, f"try again in {after_s} s" in str(busy)) == (after_s, True)


def test_the_expected_wait_counts_running_and_fairly_shared_requests():
    may_go_on = threading.Event()

    async def scenario():
        clock = ManualClock()
        queue = TaskQueue(1, clock)
        queue.rate.start(1_000)
        clock.sleep(1.0)
        queue.rate.finish(1_000)  # a thousand tokens a second
        task = QueuedTask(100, lambda: may_go_on.wait(10))
        bulk = asyncio.ensure_future(queue.run([task] * 200))
        await asyncio.sleep(0)
        tokens = 2 * queue.task_tokens
        expected = pytest.approx((tokens + 100) / queue.rate.tokens_per_s)
        assert queue.estimate_wait_s(tokens) == expected
        assert queue.estimate_wait_s(1 << 62) == pytest.approx(20_000 / queue.rate.tokens_per_s)
        bulk.cancel()
        may_go_on.set()
        await asyncio.gather(bulk, return_exceptions=True)
        queue.close()

    asyncio.run(scenario())


def test_scores_of_a_divided_request_are_joined():
    scorer = FunctionScorer(lambda _query, text: float(len(text)), unscorable=frozenset({"x" * 9_000}))
    texts = tuple("x" * size for size in (8_000, 9_000, 30_000, 1, 20_000))

    async def scenario():
        reranks = service(scorer)
        (judged,) = await reranks.score_questions([Question("low", texts)], NEVER)
        reranks.close()
        return judged

    judged = asyncio.run(scenario())
    assert judged.order == (2, 4, 0, 3, 1)
    assert judged.unscored == 1


def test_a_request_whose_model_changes_midway_is_scored_again():
    calls = []

    class Changing(FunctionScorer):
        def score(self, query, documents, tuples, *, deadline=NEVER, states=None):
            scores = super().score(query, documents, tuples, deadline=deadline)
            calls.append(len(tuples))
            return Scores(scores.values, identity="old" if len(calls) == 1 else "new")

    async def scenario():
        reranks = service(Changing())
        await reranks.score_questions(question(9), NEVER)
        reranks.close()

    asyncio.run(scenario())
    assert calls[-1] == 9
    assert len(calls) > 2
