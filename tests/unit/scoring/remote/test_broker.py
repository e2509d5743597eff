"""A client's broker: how it is reached, when it is left alone, and what is made of one that does not behave."""

import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from osrerank.errors import WorkerError
from osrerank.scoring.remote.breaker import PAUSES_S, Attempt, Breaker
from osrerank.scoring.remote.broker import PLAIN_ANSWER_S, celery_app
from osrerank.scoring.remote.delivery import PendingChunk
from osrerank.scoring.remote.messages import Reply
from osrerank.scoring.remote.scorer import RemoteScorer, _answer
from osrerank.scoring.remote.worker_registry import BrokerClock
from osrerank.testing import ManualClock
from osrerank.types import NEVER, Scores


def test_tls_is_never_left_out_only_messagepack_is_accepted_and_sockets_are_named_as_by_kombu():
    conf = celery_app("rediss://:p@host:6380/1").conf
    assert conf.broker_use_ssl["ssl_cert_reqs"] is ssl.CERT_REQUIRED
    assert conf.broker_use_ssl["ssl_check_hostname"] is True
    assert (conf.task_serializer, conf.accept_content) == ("msgpack", ["msgpack"])
    chosen = celery_app("rediss://host/0?ssl_ca_certs=/ca.pem&ssl_cert_reqs=none&x=1").conf
    assert chosen.broker_url == "rediss://host/0?x=1"
    assert chosen.broker_use_ssl["ssl_ca_certs"] == "/ca.pem"
    assert chosen.broker_use_ssl["ssl_cert_reqs"] is ssl.CERT_NONE
    on_a_socket = celery_app("unix:///run/redis.sock?db=2").conf.broker_url
    assert on_a_socket == "redis+socket:///run/redis.sock?virtual_host=2"


def test_the_brokers_clock_takes_the_middle_of_a_round_trip():
    clock = BrokerClock()
    clock.adjust((1_000, 500_000), 10.0, 11.0)
    assert clock.at(10.5) == 1_000.5
    assert clock.local(1_001.5) == 11.5


def test_one_probe_after_each_pause_and_nothing_else_until_the_broker_answers():
    clock = ManualClock()
    breaker = Breaker(clock)
    assert breaker.attempt() is Attempt.USE
    breaker.trip()
    breaker.trip()  # of a call that was under way: the same failure
    assert breaker.attempt() is Attempt.NONE
    clock.sleep(PAUSES_S[0])
    assert [breaker.attempt() for _ in range(3)] == [Attempt.PROBE, Attempt.NONE, Attempt.NONE]
    breaker.trip(probed=True)
    assert breaker.attempt() is Attempt.NONE
    clock.sleep(PAUSES_S[1] / 2 - 0.01)
    assert breaker.attempt() is Attempt.NONE
    clock.sleep(PAUSES_S[1])
    assert breaker.attempt() is Attempt.PROBE
    breaker.close()
    assert [breaker.attempt() for _ in range(3)] == [Attempt.USE] * 3


def test_ten_minutes_take_few_probes():
    clock, probes = ManualClock(0), 0
    breaker = Breaker(clock)
    breaker.trip()
    while clock() < 600:
        if breaker.attempt() is Attempt.PROBE:
            probes += 1
            breaker.trip(probed=True)
        clock.sleep(0.01)
    assert 150 <= probes <= 320


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
