"""Records in a real Redis: what is bounded, and what an absent, full or flushed one costs."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from osrerank.errors import OsrerankError
from osrerank.vectors.redis import KEPT, KEPT_BYTES, OLD, RECORD_OVERHEAD, YOUNG, RedisStore
from tests import servers
from tests.unit.vectors.test_file import MEGABYTE, key, records


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    client = Redis.from_url(redis_url)
    client.flushall()
    yield client
    client.flushall()
    client.close()


def opened(redis_url: str, *, most_bytes: int = 4 * MEGABYTE, ttl_s: float = 3600) -> RedisStore:
    return RedisStore(redis_url, most_bytes=most_bytes, ttl_s=ttl_s)


def test_pruning_makes_nothing_younger_and_leaves_no_key_where_nothing_is_kept(redis_url: str, client: Redis) -> None:
    store = opened(redis_url, ttl_s=100)
    store.write(records(5))
    client.pexpire(YOUNG, 60_000)
    assert store.prune([[key(1), key(4)]]) == 2
    assert store._redis.exists(KEPT, KEPT_BYTES) == 0
    assert store.size().stored == 2 * (2_004 + RECORD_OVERHEAD)
    assert 0 < client.pttl(YOUNG) <= 60_000
    store.prune([])
    assert client.dbsize() == 0
    store.close()


def test_old_records_make_room_for_new_ones(redis_url: str, client: Redis) -> None:
    store = opened(redis_url)
    for start in range(0, 4000, 100):
        assert store.write(records(100, start)) == 100
        assert store.size().stored <= 4.3 * MEGABYTE
    kept = [number for number in range(4000) if store.read([key(number)])]
    assert kept == list(range(kept[0], 4000))
    assert len(kept) > 900
    taken = sum(client.memory_usage(generation, samples=0) or 0 for generation in (YOUNG, OLD))
    assert 0.9 < taken / store.size().stored < 1.4


def test_a_record_is_gone_after_its_time(redis_url: str, client: Redis) -> None:
    store = opened(redis_url, ttl_s=60.0)
    store.write(records(1))
    assert store.read([key(0)])
    for name in client.scan_iter("*"):
        client.pexpire(name, client.pttl(name) - 61_000)
    assert store.read([key(0)]) == {}
    assert client.dbsize() == 0
    assert store.write(records(2)) == 2  # as after a flush
    assert len(store.read([key(0), key(1)])) == 2


def test_large_records_go_in_pieces(redis_url: str, client: Redis) -> None:
    store = opened(redis_url, most_bytes=100 * MEGABYTE)
    many = {one: bytes(300_000) for one in records(40)}
    assert store.write(many) == 40
    assert store.read(list(many)) == many
    assert store.read(list(many)) == many  # now it knows how large they are


def test_another_kind_of_value_is_no_record(redis_url: str, client: Redis, caplog: pytest.LogCaptureFixture) -> None:
    client.set(YOUNG, "taken")
    store = opened(redis_url)
    with caplog.at_level(logging.WARNING):
        assert store.read([key(0)]) == {}
        assert store.write(records(1)) == 0
    assert "no read of document vectors" in caplog.text


def test_an_absent_redis_costs_a_line(caplog: pytest.LogCaptureFixture) -> None:
    store = opened(f"redis://127.0.0.1:{servers.free_port()}/0")
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            assert store.read([key(0)]) == {}
            assert store.write(records(1)) == 0
    assert time.monotonic() - began < 3
    assert len(caplog.records) == 2
    for ask in (store.size, store.drop, lambda: store.prune([[key(0)]])):
        with pytest.raises(OsrerankError, match="the document vectors in Redis cannot be used"):
            ask()
    store.close()


@pytest.mark.long
def test_a_full_redis_gets_back_what_vectors_take(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ("--maxmemory", "6mb", "--maxmemory-policy", "noeviction")
    with servers.start_redis(servers.redis_binary(), tmp_path, options=options) as (url, _):
        store = RedisStore(url, most_bytes=100 * MEGABYTE, ttl_s=3600, rest_s=0.0)
        with caplog.at_level(logging.WARNING):
            written = [store.write(records(50, start)) for start in range(0, 5000, 50)]
        assert 0 in written
        assert written[-1] == 50 or 50 in written[-4:]  # what it gave back is used again
        assert "no write of document vectors" in caplog.text


def older(redis_url: str, client: Redis) -> None:
    """Write three records under the keys of 0.2."""
    opened(redis_url).write(records(3))
    for name in client.keys("{osrerank:vectors:1}:*"):
        client.rename(name, name.replace(b"vectors", b"states"))


def test_keys_of_02_are_taken_over(redis_url: str, client: Redis, caplog: pytest.LogCaptureFixture) -> None:
    older(redis_url, client)
    store = opened(redis_url)
    assert store.read(list(records(4))) == records(3)
    assert (store.size().records, store.older()) == (3, 0)
    assert "[vectors-taken-over]" in caplog.text


def test_keys_that_02_writes_later_are_counted_and_dropped(redis_url: str, client: Redis) -> None:
    older(redis_url, client)
    client.copy("{osrerank:states:1}:young", "{osrerank:vectors:1}:young")
    store = opened(redis_url)
    assert (store.size().records, store.older()) == (3, 3)
    assert store.drop() == 6
    assert client.keys("{osrerank:*") == []
