"""What a client makes of workers and a broker that do not behave."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from osrerank.errors import WorkerError
from osrerank.scoring.remote.broker import PLAIN_ANSWER_S
from osrerank.scoring.remote.delivery import PendingChunk
from osrerank.scoring.remote.messages import Reply
from osrerank.scoring.remote.scorer import RemoteScorer, _answer
from osrerank.types import NEVER, Scores


def test_a_reply_of_another_size_is_no_answer():
    reply = Reply("c1", "w1", "model", Scores(np.ones(1, dtype=np.float32)))
    chunk = PendingChunk("c1", "queue", b"", NEVER, reply)
    assert _answer(chunk, 1, "model") is reply
    assert _answer(chunk, 3, "model") == "a worker gave 1 scores or vectors for 3 texts"


@pytest.mark.long
def test_a_broker_that_says_nothing_is_waited_for_once_by_all():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent, ThreadPoolExecutor(8) as threads:
        scorer = RemoteScorer(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", "m", queue_chunks=1)
        started = time.monotonic()
        calls = [threads.submit(scorer.score, "q", ["a"], [(0,)]) for _ in range(8)]
        failures = [call.exception(60) for call in calls]
        took_s = time.monotonic() - started
        scorer.close()
    assert {type(failure) for failure in failures} == {WorkerError}
    assert took_s < 2 * PLAIN_ANSWER_S


def test_calls_at_the_same_time_share_the_workers():
    scorer = RemoteScorer("redis://127.0.0.1:1", "m", queue_chunks=1)
    with scorer._share(8) as alone:
        with scorer._share(8) as second, scorer._share(8) as third:
            assert (alone, second, third) == (8, 4, 3)
        with scorer._share(1) as only:
            assert only == 1
    with scorer._share(8) as again:
        assert again == 8
