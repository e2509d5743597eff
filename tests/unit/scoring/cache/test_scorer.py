"""The score cache, in the process and in Redis: bounds, waiting calls, failures, and signatures."""

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis import Redis

from osrerank.errors import InferenceError
from osrerank.scoring.cache.in_flight import InFlight, PendingScore
from osrerank.scoring.cache.local import ENTRY_BYTES, LocalStore
from osrerank.scoring.cache.scorer import CachedScorer, add_cache, score_keys
from osrerank.scoring.cache.signing import EntrySigner
from osrerank.scoring.cache.store import OLD, ONE_NUMBER, PREFIX, REDIS_ENTRY_BYTES, YOUNG, RedisStore, connect
from osrerank.scoring.cross_encoder import CrossEncoder
from osrerank.scoring.registry import load_scorer
from osrerank.scoring.remote.signing import KINDS, SIGNATURE_BYTES, SIGNED, Kind, Signer
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer, ManualClock
from osrerank.types import NEVER, Deadline, Scorer, Scores
from tests import servers
from tests.rerank_server import Reply, answering
from tests.waiting import in_a_child, wait_until

MODEL = str(Path(__file__).parents[3] / "data" / "tiny-bert-one-label")
DOCUMENTS = ["low blood pressure", "the wing", "", "heat flow"]
TUPLES = [(index,) for index in range(4)]


def behind(scorer: Scorer, redis: Redis | str, *, local: int = 0, **options: Any) -> CachedScorer:
    """The scorer behind a cache in Redis, and in the process for so many scores."""
    remote = RedisStore(redis, **{"ttl_s": 60, "max_bytes": 10_000 * REDIS_ENTRY_BYTES, **options})
    return CachedScorer(scorer, remote, LocalStore(local * ENTRY_BYTES))


class Claims(InFlight):
    """Says when a caller has claimed its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.made = threading.Semaphore(0)

    def claim(self, keys: Iterable[bytes]) -> tuple[list[bytes], dict[bytes, PendingScore]]:
        claimed = super().claim(keys)
        self.made.release()
        return claimed


@dataclass(frozen=True)
class Counting(FunctionScorer):
    """Notes how many pairs each call computes; its first call ends when so many callers need its scores, or fails."""

    callers: int = 1
    fail_first: bool = False
    claims: Claims = field(default_factory=Claims)
    calls: list[int] = field(default_factory=list)

    def score(self, query, documents, tuples, *, deadline=NEVER):
        self.calls.append(len(tuples))
        if len(self.calls) == 1:
            for _ in range(self.callers):
                assert self.claims.made.acquire(timeout=30)
            if self.fail_first:
                raise InferenceError("the first call fails")
        return super().score(query, documents, tuples, deadline=deadline)


@dataclass(frozen=True)
class Turning(FunctionScorer):
    """A scorer whose model changes between saying its identity and scoring."""

    state: dict[str, str] = field(default_factory=lambda: {"now": "old", "next": ""})

    @property
    def identity(self) -> str:
        return self.state["now"]

    def score(self, query, documents, tuples, *, deadline=NEVER):
        self.state["now"] = self.state["next"] or self.state["now"]
        value = 1.0 if self.state["now"] == "old" else 2.0
        return Scores(np.full(len(tuples), value, dtype=np.float32), identity=self.state["now"])


@pytest.fixture(scope="module")
def scorer() -> CrossEncoder:
    return load_scorer(MODEL, backend="onnx", threads=1)


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    client = connect(redis_url)
    _empty(client)
    yield client
    _empty(client)
    client.close()


def _empty(client: Redis) -> None:
    for key in client.scan_iter(PREFIX + b"*"):
        client.delete(key)


@pytest.fixture
def plain_scores(scorer: CrossEncoder) -> np.ndarray:
    return scorer.score("pressure", DOCUMENTS, TUPLES).values


def test_cached_scores_expire_and_take_four_bytes(scorer: CrossEncoder, redis: Redis) -> None:
    behind(scorer, redis).score("pressure", DOCUMENTS, TUPLES)
    assert list(redis.scan_iter(PREFIX + b"*")) == [YOUNG]
    assert 30 < redis.ttl(YOUNG) <= 60
    assert [len(value) for value in redis.hvals(YOUNG)] == [4] * 4


def test_cache_entries_that_are_no_scores_are_computed_again(
    scorer: CrossEncoder, redis: Redis, plain_scores: np.ndarray
) -> None:
    keys = score_keys(scorer.identity, "pressure", DOCUMENTS, TUPLES)
    redis.hset(YOUNG, mapping=dict(zip(keys, (b"", b"abcde", b"\x00\x00\xc0\x7f"), strict=False)))  # the last is a NaN
    scores = behind(scorer, redis).score("pressure", DOCUMENTS, TUPLES)
    assert scores.inferences == 4
    np.testing.assert_array_equal(scores.values, plain_scores)
    redis.delete(YOUNG)
    redis.lpush(YOUNG, "a list")
    np.testing.assert_array_equal(behind(scorer, redis).score("pressure", DOCUMENTS, TUPLES).values, plain_scores)


def test_cached_scores_count_whatever_the_deadline(scorer: CrossEncoder, redis: Redis) -> None:
    cached = behind(scorer, redis)
    cached.score("pressure", DOCUMENTS, [(0,), (3,)])
    scores = cached.score("pressure", DOCUMENTS, TUPLES, deadline=Deadline.after_ms(0))
    assert (scores.reached, scores.cached, scores.inferences) == (1, 2, 0)
    assert scores.attempted == [0, 3]
    assert np.isfinite(scores.values).tolist() == [True, False, False, True]


def test_a_repeated_document_is_scored_once(scorer: CrossEncoder, redis: Redis, plain_scores: np.ndarray) -> None:
    scores = behind(scorer, redis).score("pressure", [*DOCUMENTS, DOCUMENTS[0]], [*TUPLES, (4,), (0,)])
    assert (scores.inferences, scores.cached) == (4, 2)
    np.testing.assert_array_equal(scores.values, plain_scores[[0, 1, 2, 3, 0, 0]])


def test_scores_are_cached_in_the_process_without_redis(scorer: CrossEncoder, plain_scores: np.ndarray) -> None:
    cached = behind(scorer, f"redis://127.0.0.1:{servers.free_port()}/0", local=3)
    cached.score("pressure", DOCUMENTS, TUPLES)
    again = cached.score("pressure", DOCUMENTS, TUPLES)
    assert (again.cached, again.inferences) == (3, 1)
    np.testing.assert_array_equal(again.values, plain_scores)


@pytest.mark.parametrize(("form", "cached"), [("one-label", 3), ("bi-encoder", 0)])
def test_scores_of_a_cross_encoder_are_cached_and_those_of_a_bi_encoder_are_not(form: str, cached: int) -> None:
    service = RerankService(Settings.load(model=MODEL.replace("one-label", form), vectors="off"))
    service.score("pressure", DOCUMENTS, NEVER)
    assert service.score("pressure", DOCUMENTS, NEVER).cached == cached
    service.close()


def test_the_least_recently_used_score_leaves_the_process_cache() -> None:
    store = LocalStore(2 * ENTRY_BYTES)
    store.write({b"a": 1.0, b"b": 2.0})
    store.read([b"a"])
    store.write({b"c": 3.0})
    assert store.read([b"a", b"b", b"c"]) == {b"a": 1.0, b"c": 3.0}


def test_the_cache_in_redis_is_bounded_and_keeps_used_scores(redis: Redis) -> None:
    store = RedisStore(redis, ttl_s=60, max_bytes=100 * REDIS_ENTRY_BYTES)
    for start in range(0, 1_000, 10):
        store.write({b"%d" % number: float(number) for number in range(start, start + 10)})
        value, fading = store.read([b"0"])
        store.write(fading)
        assert value == {b"0": 0.0}
        assert redis.hlen(YOUNG) + redis.hlen(OLD) <= 110
    assert store.read([b"1", b"995"])[0] == {b"995": 995.0}


def age(redis: Redis, seconds: int) -> None:
    """Have everything in Redis be gone so much earlier."""
    for key in redis.scan_iter(PREFIX + b"*"):
        redis.pexpire(key, redis.pttl(key) - 1000 * seconds)


def test_old_scores_make_room_for_new_scores(redis: Redis) -> None:
    store = RedisStore(redis, ttl_s=60, max_bytes=1e6)
    store.write({b"a": 1.0})
    age(redis, 31)
    store.write({b"b": 2.0})  # more than half of the time has passed: both are old now
    assert redis.exists(YOUNG, OLD) == 1
    assert store.read([b"a", b"b"])[1] == {b"a": 1.0, b"b": 2.0}
    age(redis, 61)
    assert store.read([b"a", b"b"])[0] == {}


@pytest.mark.long
def test_a_full_redis_gets_back_what_scores_took(tmp_path: Path) -> None:
    with servers.start_redis(servers.redis_binary(), tmp_path) as (url, _process):
        client = connect(url)
        clock = ManualClock()
        store = RedisStore(url, ttl_s=60, max_bytes=1e7, pause_s=5, clock=clock)
        store.write({b"%d" % number: 1.0 for number in range(10_000)})
        client.rename(YOUNG, OLD)
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 1)
        client.close()
        full = connect(url)
        store.write({b"%d" % number: 1.0 for number in range(10_000, 30_000)})
        assert not full.exists(OLD)
        wait_until(lambda: full.info("memory")["lazyfree_pending_objects"] == 0)
        clock.sleep(5)
        store.write({b"a": 1.0})
        assert store.read([b"a"])[0] == {b"a": 1.0}
        full.close()
        store.close()


def test_threads_that_need_the_same_score_compute_it_once(redis: Redis) -> None:
    counted = Counting(callers=8)
    cached = behind(counted, redis)
    cached._in_flight = counted.claims

    def score() -> np.ndarray:
        return cached.score("q", [str(number) for number in range(20)], [(number,) for number in range(20)]).values

    with ThreadPoolExecutor(8) as threads:
        results = [future.result() for future in [threads.submit(score) for _ in range(8)]]
    assert sum(counted.calls) == 20
    assert all((values == results[0]).all() for values in results)


def test_a_call_that_waited_for_a_failed_score_computes_it(redis: Redis) -> None:
    counted = Counting(callers=2, fail_first=True)
    cached = behind(counted, redis)
    cached._in_flight = counted.claims
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(cached.score, "q", ["a"], [(0,)]) for _ in range(2)]
        outcomes = [call.exception() for call in calls]
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["InferenceError", "NoneType"]
    assert len(counted.calls) == 2


def test_no_score_is_cached_under_another_model_if_the_model_changes(redis: Redis) -> None:
    turning = Turning()
    cached = behind(turning, redis, local=100)
    cached.score("q", ["a", "b"], [(0,)])
    turning.state["next"] = "new"
    scores = cached.score("q", ["a", "b"], [(0,), (1,)])
    assert scores.values.tolist() == [2.0, 2.0]
    again = cached.score("q", ["a", "b"], [(0,), (1,)])
    assert (again.values.tolist(), again.identity) == ([2.0, 2.0], "new")


def test_a_waiting_call_gets_no_score_of_a_changed_model(redis: Redis) -> None:
    turning = Turning()
    cached = behind(turning, redis, local=100)
    cached.score("q", ["a", "b"], [(0,)])
    pending = score_keys("old", "q", ["a", "b"], [(1,)])
    cached._in_flight = claims = Claims()
    claims.claim(pending)  # another call computes the second pair, and fails
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(cached.score, "q", ["a", "b"], [(0,), (1,)])
        assert claims.made.acquire(timeout=10)
        assert claims.made.acquire(timeout=10)
        turning.state["next"] = "new"
        cached._in_flight.complete(pending, {})
        scores = call.result(10)
    assert (scores.values.tolist(), scores.identity) == ([2.0, 2.0], "new")
    assert cached._read(pending)[0] == {}


def test_scores_are_computed_if_redis_is_absent(
    scorer: CrossEncoder, plain_scores: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    cached = behind(scorer, f"redis://127.0.0.1:{servers.free_port()}/0")
    for _ in range(3):
        np.testing.assert_array_equal(cached.score("pressure", DOCUMENTS, TUPLES).values, plain_scores)
    assert len(caplog.records) == 1


@pytest.mark.long
def test_the_cache_is_used_again_after_redis_restarts(
    scorer: CrossEncoder, plain_scores: np.ndarray, tmp_path: Path
) -> None:
    port, clock = servers.free_port(), ManualClock()
    with servers.start_redis(servers.redis_binary(), tmp_path, port=port) as (url, process):
        cached = behind(scorer, url, pause_s=5, clock=clock)
        cached.score("pressure", DOCUMENTS, TUPLES)
        process.kill()
        process.wait(10)
        np.testing.assert_array_equal(cached.score("pressure", DOCUMENTS, TUPLES).values, plain_scores)
    clock.sleep(5)
    with servers.start_redis(servers.redis_binary(), tmp_path, port=port):
        first, second = (cached.score("pressure", DOCUMENTS, TUPLES) for _ in range(2))
    assert (first.inferences, second.cached) == (4, 4)


@pytest.mark.parametrize("speaks", [False, True])
def test_a_silent_or_malfunctioning_redis_costs_at_most_its_timeout(
    scorer: CrossEncoder, plain_scores: np.ndarray, speaks: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, answering(lambda _: Reply({})) as confused:
        port = confused.server_port if speaks else silent.getsockname()[1]
        cached, started = behind(scorer, f"redis://127.0.0.1:{port}/0"), time.monotonic()
        for _ in range(2):
            np.testing.assert_array_equal(cached.score("pressure", DOCUMENTS, TUPLES).values, plain_scores)
        assert time.monotonic() - started < 2


@pytest.mark.long
def test_waiting_for_anothers_score_ends_at_the_deadline_and_in_a_forked_child() -> None:
    in_flight = InFlight()
    in_flight.claim([b"a"])
    _own, others_claims = in_flight.claim([b"a"])
    started = time.monotonic()
    assert others_claims[b"a"].wait(Deadline.after_ms(30)) is None
    assert time.monotonic() - started < 5
    assert in_a_child(lambda: in_flight.claim([b"a"])[0] == [b"a"])
    assert in_flight.claim([b"a"])[0] == []


# What whoever writes to Redis can forge: scores are believed without a key, refused with one.
OURS, OLDER, THEIRS = "the-key-of-our-deployment", "the-key-before-that-one!", "the-key-of-an-attacker!!"
QUERY, TEXTS, PLACES = "low", ["low pressure", "wing"], [(0,), (1,)]
TRUE, FORGED = [1.0, 0.0], 99.0


def forged_keys() -> list[bytes]:
    return score_keys(FunctionScorer().identity, QUERY, TEXTS, PLACES)


def scored(redis_url: str, key: str) -> Scores:
    """Return scores behind the cache in Redis alone, as a deployment with this key has it."""
    store_options = {"redis_url": redis_url, "cache_local_mb": 0.0, "signing_key": key or None}
    scorer = add_cache(FunctionScorer(), Settings.load(**store_options))
    scores = scorer.score(QUERY, TEXTS, PLACES)
    scorer.disconnect()
    return scores


def values_of(redis_url: str, key: str) -> list[float]:
    return list(scored(redis_url, key).values.tolist())


@pytest.mark.parametrize("key", ["", OURS], ids=["without a key", "with a key"])
@pytest.mark.parametrize("generation", [YOUNG, OLD])
def test_only_with_a_signing_key_a_forged_score_is_refused(
    redis: Redis, redis_url: str, key: str, generation: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    redis.hset(generation, forged_keys()[0], ONE_NUMBER.pack(FORGED))
    assert values_of(redis_url, key) == (TRUE if key else [FORGED, 0.0])
    assert ("[score-refused] ignored a cached score, and computed it again: it is not" in caplog.text) is bool(key)
    assert values_of(redis_url, key) == (TRUE if key else [FORGED, 0.0])  # the forged one was replaced


def test_cached_scores_are_signed(redis: Redis, redis_url: str) -> None:
    assert values_of(redis_url, OURS) == TRUE
    assert scored(redis_url, OURS).cached == 2
    assert {len(value) for value in redis.hvals(YOUNG)} == {ONE_NUMBER.size + 16}


def test_a_cached_score_that_was_moved_altered_or_signed_with_another_key_is_refused(
    redis: Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = forged_keys()
    our_signer, their_signer = EntrySigner([OURS.encode()]), EntrySigner([THEIRS.encode()])
    value = ONE_NUMBER.pack(FORGED)
    altered = ONE_NUMBER.pack(FORGED + 1) + our_signer.sign(first, value)[ONE_NUMBER.size :]
    for forged in (our_signer.sign(second, value), their_signer.sign(first, value), altered):
        redis.hset(YOUNG, first, forged)
        assert values_of(redis_url, OURS) == TRUE
    assert caplog.text.count("it is signed with another OSRERANK_SIGNING_KEY") == 3
    redis.hset(YOUNG, first, our_signer.sign(first, value))
    assert values_of(redis_url, OURS) == [FORGED, 0.0]  # what has the key is believed
    assert values_of(redis_url, "") == TRUE  # a process without the key computes it


@pytest.mark.parametrize("kind", KINDS)
def test_a_signed_message_does_not_pass_as_a_signed_score(kind: Kind) -> None:
    forged_key, value = forged_keys()[0], ONE_NUMBER.pack(FORGED)
    sealed = Signer([OURS.encode()]).sign(kind, forged_key + value)
    signature = sealed[len(SIGNED) : len(SIGNED) + SIGNATURE_BYTES]
    assert EntrySigner([OURS.encode()]).verify(forged_key, value + signature[:16], ONE_NUMBER.size) is None


def test_the_signing_key_can_be_changed_while_scores_are_cached(redis: Redis, redis_url: str) -> None:
    values_of(redis_url, OLDER)
    for keys_named, from_cache in ((f"{OURS},{OLDER}", 2), (OURS, 0), (OURS, 2)):
        assert scored(redis_url, keys_named).cached == from_cache


def test_refused_cached_scores_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    signer = EntrySigner([OURS.encode()])
    for _ in range(5):
        assert signer.verify(b"key", ONE_NUMBER.pack(FORGED), ONE_NUMBER.size) is None
        assert signer.verify(b"key", ONE_NUMBER.pack(FORGED) + bytes(16), ONE_NUMBER.size) is None
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert all(line.startswith("[score-refused] ignored a cached score") for line in messages)
    assert "OSRERANK_SIGNING_KEY" in messages[0]
