"""A client's broker: how it is reached, when it is left alone, and what is made of one that does not behave."""

import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.exceptions import OperationalError
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import ResponseError

from osrerank.errors import ConfigError, WorkerError
from osrerank.scoring.remote import chunks
from osrerank.scoring.remote.breaker import PAUSES_S, Breaker, BrokerAccess
from osrerank.scoring.remote.broker import REPLY_TIMEOUT_S, celery_app, explain_broker_failure, read_error_code
from osrerank.scoring.remote.chunks import divide_tuples, join_replies
from osrerank.scoring.remote.delivery import PendingChunk
from osrerank.scoring.remote.messages import Reply
from osrerank.scoring.remote.scorer import RemoteScorer, _validate_outcome
from osrerank.scoring.remote.worker_registry import BrokerClock
from osrerank.testing import ManualClock
from osrerank.types import NEVER, Scores


def test_broker_connections_keep_tls_and_accept_only_messagepack(tmp_path):
    certificate = tmp_path / "ca.pem"
    certificate.touch()
    conf = celery_app("rediss://:p@host:6380/1").conf
    assert conf.broker_use_ssl["ssl_cert_reqs"] is ssl.CERT_REQUIRED
    assert conf.broker_use_ssl["ssl_check_hostname"] is True
    assert (conf.task_serializer, conf.accept_content) == ("msgpack", ["msgpack"])
    chosen = celery_app(f"rediss://host/0?ssl_ca_certs={certificate}&ssl_cert_reqs=none").conf
    assert chosen.broker_url == "rediss://host:6379/0"
    assert chosen.broker_use_ssl["ssl_ca_certs"] == str(certificate)
    assert chosen.broker_use_ssl["ssl_cert_reqs"] is ssl.CERT_NONE
    on_a_socket = celery_app("unix:///run/redis.sock?db=2").conf.broker_url
    assert on_a_socket == "redis+socket:///run/redis.sock?virtual_host=2"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://host?db=4", "redis://host:6379/4"),
        ("redis://:p%40ss@[::1]:7/3?db=4", "redis://:p%40ss@[::1]:7/4"),
        ("redis://host/1?password=a%2Fb", "redis://:a%2Fb@host:6379/1"),
        ("unix:///run/s?password=a%2Fb&username=u", "redis+socket://u:a%2Fb@/run/s?virtual_host=0"),
        ("unix://u:p@/run/s", "redis+socket://u:p@/run/s?virtual_host=0"),
    ],
)
def test_a_brokers_url_is_read_as_redis_py_reads_it(url, address):
    assert celery_app(url).conf.broker_url == address


def test_options_of_a_brokers_url_reach_celery_and_its_timeout_stays_above_its_waits():
    url = "redis://host?health_check_interval=5&client_name=shop&max_connections=50&socket_timeout=3&protocol=3"
    options = celery_app(url).conf.broker_transport_options
    assert options == {
        "health_check_interval": 5,
        "client_name": "shop",
        "max_connections": 50,
        "socket_timeout": 5.0,
        "socket_connect_timeout": 1.0,
        "socket_keepalive": True,
    }


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (
            "redis://host?decode_responses=true",
            "'decode_responses' is not an option of a broker URL; the options are client_name, db,",
        ),
        (
            "redis://host?ssl_cert_reqs=none",
            "'ssl_cert_reqs' is not an option of a broker URL; TLS options need rediss:",
        ),
        ("rediss://host?ssl_cert_reqs=maybe", "ssl_cert_reqs is 'maybe'; it must be none, optional or required"),
        ("rediss://host?ssl_ca_certs=/absent/ca.pem", "ssl_ca_certs is '/absent/ca.pem', but there is no such file"),
    ],
)
def test_an_invalid_option_of_a_broker_url_is_named(url, reason):
    with pytest.raises(ConfigError) as error:
        celery_app(url)
    assert str(error.value).startswith("broker_url (OSRERANK_BROKER_URL")
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("answer", "fix"),
    [
        ("READONLY You can't write against a read only replica.", "(READONLY): it is a replica; set an address"),
        ("MASTERDOWN Link with MASTER is down", "(MASTERDOWN): it is a replica; set an address"),
        (
            "NOPERM this user has no permissions to run the 'brpop' command",
            "(NOPERM): its user lacks permissions; grant those",
        ),
        ("NOAUTH Authentication required.", "(NOAUTH): set its password in the URL"),
        ("MISCONF Redis is configured to save RDB snapshots", "(MISCONF): it cannot write to its disk"),
        ("OOM command not allowed when used memory", "(OOM): it is full"),
        ("NOREPLICAS Not enough good replicas", "(NOREPLICAS): check its log"),
        ("CLUSTERDOWN Hash slot not served", "a node of a Redis Cluster"),
    ],
)
def test_an_error_of_the_broker_is_named_by_its_code_with_a_remedy(answer, fix):
    error = BaseParser.parse_error(answer)
    of_celery = OperationalError(str(error))
    of_celery.__cause__ = error
    assert fix in explain_broker_failure(error)
    assert fix in explain_broker_failure(of_celery)


def test_an_error_in_a_redis_pipeline_is_recognised_by_its_code():
    in_pipeline = ResponseError("Command # 1 (SET K V) of pipeline caused error: MISCONF Redis is configured to")
    assert read_error_code(in_pipeline) == "MISCONF"
    assert read_error_code(NoConnection("Error 111 connecting to localhost")) == ""


def test_the_brokers_clock_takes_the_middle_of_a_round_trip():
    clock = BrokerClock()
    clock.adjust((1_000, 500_000), 10.0, 11.0)
    assert clock.to_broker(10.5) == 1_000.5
    assert clock.to_local(1_001.5) == 11.5


def test_an_absent_broker_gets_only_one_probe_after_each_pause():
    clock = ManualClock()
    breaker = Breaker(clock)
    assert breaker.attempt() is BrokerAccess.USE
    breaker.trip()
    breaker.trip()  # of a call that was under way: the same failure
    assert breaker.attempt() is BrokerAccess.NONE
    clock.sleep(PAUSES_S[0])
    assert [breaker.attempt() for _ in range(3)] == [BrokerAccess.PROBE, BrokerAccess.NONE, BrokerAccess.NONE]
    breaker.trip(is_probe=True)
    assert breaker.attempt() is BrokerAccess.NONE
    clock.sleep(PAUSES_S[1] / 2 - 0.01)
    assert breaker.attempt() is BrokerAccess.NONE
    clock.sleep(PAUSES_S[1])
    assert breaker.attempt() is BrokerAccess.PROBE
    breaker.close()
    assert [breaker.attempt() for _ in range(3)] == [BrokerAccess.USE] * 3


def test_ten_minutes_without_a_broker_take_few_probes():
    clock, probes = ManualClock(0), 0
    breaker = Breaker(clock)
    breaker.trip()
    while clock() < 600:
        if breaker.attempt() is BrokerAccess.PROBE:
            probes += 1
            breaker.trip(is_probe=True)
        clock.sleep(0.01)
    assert 150 <= probes <= 320


def test_a_reply_with_another_number_of_scores_is_ignored():
    reply = Reply("c1", "w1", "model", Scores(np.ones(1, dtype=np.float32)))
    chunk = PendingChunk("c1", "queue", b"", NEVER, reply)
    assert _validate_outcome(chunk, n_tuples=1, identity="model") is reply
    assert _validate_outcome(chunk, n_tuples=3, identity="model") == "a worker returned 1 scores or vectors for 3 texts"


@pytest.mark.long
def test_all_searches_together_wait_once_for_a_silent_broker():
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent, ThreadPoolExecutor(8) as threads:
        scorer = RemoteScorer(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", "m", queue_chunks=1)
        started = time.monotonic()
        calls = [threads.submit(scorer.score, "q", ["a"], [(0,)]) for _ in range(8)]
        failures = [call.exception(60) for call in calls]
        took_s = time.monotonic() - started
        scorer.close()
    assert {type(failure) for failure in failures} == {WorkerError}
    assert took_s < 2 * REPLY_TIMEOUT_S


def test_calls_at_the_same_time_share_the_workers():
    scorer = RemoteScorer("redis://127.0.0.1:1", "m", queue_chunks=1)
    with scorer._share_workers(8) as alone:
        with scorer._share_workers(8) as second, scorer._share_workers(8) as third:
            assert (alone, second, third) == (8, 4, 3)
        with scorer._share_workers(1) as only:
            assert only == 1
    with scorer._share_workers(8) as again:
        assert again == 8


@pytest.mark.long
@given(
    st.lists(st.integers(0, 20_000), min_size=1, max_size=300),
    st.integers(1, 9),
    st.integers(1, 2),
    st.randoms(use_true_random=False),
)
def test_every_tuple_is_in_one_chunk_that_has_its_documents(lengths, workers, width, rng):
    documents = ["x" * length for length in lengths]
    tuples = [tuple(rng.randrange(len(documents)) for _ in range(width)) for _ in range(rng.randrange(400))]
    found = divide_tuples(documents, tuples, workers)
    assert sorted(index for chunk in found for index in chunk.indices) == list(range(len(tuples)))
    for chunk in found:
        assert len(chunk.indices) <= chunks.MAX_CHUNK_TUPLES
        assert chunk.characters <= chunks.MAX_CHUNK_CHARACTERS or len(chunk.indices) == 1
        chunk_documents = list(chunk.documents)
        members = [tuple(chunk_documents[i] for i in indices) for indices in chunk.local_tuples(tuples)]
        assert members == [tuples[index] for index in chunk.indices]


def test_chunks_have_similar_cost_and_the_first_tuples_go_first():
    documents = ["x" * (100 + 37 * (n % 50)) for n in range(96)]
    shares = divide_tuples(documents, [(n,) for n in range(96)], 4)
    costs = [chunk.cost for chunk in shares]
    assert len(shares) == 4
    assert max(costs) - min(costs) < 2_000
    assert len(divide_tuples(["short"] * 20, [(n,) for n in range(20)], 8)) == 1  # what is small is not divided
    rounds = divide_tuples(["x" * 300] * 1_000, [(n,) for n in range(1_000)], 2)
    assert len(rounds) == 10
    assert {index for chunk in rounds[:2] for index in chunk.indices} == set(range(200))


def test_replies_of_workers_are_joined():
    found = divide_tuples(["x" * 3_000] * 6, [(n,) for n in range(6)], 3)
    assert [chunk.indices for chunk in found] == [[0, 3], [1, 4], [2, 5]]
    first = Scores(np.array([1.0, np.nan], dtype=np.float32), {1: "odd"}, inferences=2, truncated=1)
    scores = join_replies(6, found, [first, "lost", None], "id")
    np.testing.assert_array_equal(scores.values, np.array([1, *[np.nan] * 5], dtype=np.float32))
    assert scores.failures == {1: "lost", 3: "odd", 4: "lost"}
    assert (scores.reached, scores.attempted, scores.inferences, scores.identity) == (2, [0, 1, 3, 4], 2, "id")
