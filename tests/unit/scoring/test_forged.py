"""What whoever writes to Redis can forge of scores: believed without a key, refused with it.

Forged heartbeats and replies are in `remote`, forged vectors in tests/unit/vectors, whole forgers beside real workers
in tests/integration/test_workers_broker.py.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from osrerank.scoring.cache.scorer import CachedScorer, behind_cache, score_keys
from osrerank.scoring.cache.signing import REFUSED, EntrySigner
from osrerank.scoring.cache.store import OLD, VALUE, YOUNG, connect
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer

OURS, OLDER, THEIRS = "the-key-of-our-deployment", "the-key-before-that-one!", "the-key-of-an-attacker!!"
QUERY, DOCUMENTS, TUPLES = "low", ["low pressure", "wing"], [(0,), (1,)]
TRUE, FORGED = [1.0, 0.0], 99.0


@pytest.fixture
def redis(redis_url: str) -> Iterator[Any]:
    with connect(redis_url) as client:
        client.delete(YOUNG, OLD)
        yield client
        client.delete(YOUNG, OLD)


def cached(redis_url: str, key: str) -> CachedScorer:
    """A scorer behind the cache in Redis alone, as a deployment with this key has it."""
    own = {"redis_url": redis_url, "cache_local_mb": 0.0, "cache_key": key or None}
    return behind_cache(FunctionScorer(), Settings.load(**own))


def keys() -> list[bytes]:
    return score_keys(FunctionScorer().identity, QUERY, DOCUMENTS, TUPLES)


def score(redis_url: str, key: str) -> list[float]:
    scorer = cached(redis_url, key)
    found: list[float] = scorer.score(QUERY, DOCUMENTS, TUPLES).values.tolist()
    scorer.disconnect()
    return found


def refused(reason: str) -> float:
    return REFUSED.labels(reason)._value.get()


@pytest.mark.parametrize("key", ["", OURS], ids=["without a key", "with a key"])
@pytest.mark.parametrize("generation", [YOUNG, OLD])
def test_a_score(redis: Any, redis_url: str, key: str, generation: bytes) -> None:
    before = refused("unsigned")
    redis.hset(generation, keys()[0], VALUE.pack(FORGED))
    assert score(redis_url, key) == (TRUE if key else [FORGED, 0.0])
    assert refused("unsigned") == before + bool(key)
    assert score(redis_url, key) == (TRUE if key else [FORGED, 0.0])  # what was computed has replaced the forged one
    assert refused("unsigned") == before + (bool(key) if generation == YOUNG else 2 * bool(key))


def test_a_score_is_kept_signed(redis: Any, redis_url: str) -> None:
    assert score(redis_url, OURS) == TRUE
    scorer = cached(redis_url, OURS)
    assert scorer.score(QUERY, DOCUMENTS, TUPLES).cached == 2
    scorer.disconnect()
    assert {len(value) for value in redis.hvals(YOUNG)} == {VALUE.size + 16}


def test_a_score_moved_to_another_pair_signed_by_another_or_altered_is_refused(redis: Any, redis_url: str) -> None:
    first, second = keys()
    own, other = EntrySigner([OURS.encode()]), EntrySigner([THEIRS.encode()])
    value = VALUE.pack(FORGED)
    altered = VALUE.pack(FORGED + 1) + own.seal(first, value)[VALUE.size :]
    before = refused("wrong_key")
    for forged in (own.seal(second, value), other.seal(first, value), altered):
        redis.hset(YOUNG, first, forged)
        assert score(redis_url, OURS) == TRUE
    assert refused("wrong_key") == before + 3
    redis.hset(YOUNG, first, own.seal(first, value))
    assert score(redis_url, OURS) == [FORGED, 0.0]  # what has the key is believed
    assert score(redis_url, "") == TRUE  # a process without the key computes it


def test_keys_are_changed_while_scores_are_kept(redis: Any, redis_url: str) -> None:
    score(redis_url, OLDER)
    for keys_named, from_cache in ((f"{OURS},{OLDER}", 2), (OURS, 0), (OURS, 2)):
        scorer = cached(redis_url, keys_named)
        assert scorer.score(QUERY, DOCUMENTS, TUPLES).cached == from_cache
        scorer.disconnect()


def test_refusals_are_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    signer = EntrySigner([OURS.encode()])
    for _ in range(5):
        assert signer.open(b"key", VALUE.pack(FORGED), VALUE.size) is None
        assert signer.open(b"key", VALUE.pack(FORGED) + bytes(16), VALUE.size) is None
    found = [record.getMessage() for record in caplog.records]
    assert len(found) == 2
    assert all(line.startswith("[score-refused] refused a cached score") for line in found)
    assert "OSRERANK_CACHE_KEY" in found[0]
