"""Store records in a bounded part of a Redis that machines share.

Redis holds two hashes, the young and the old generation. Records are written to the young one; when that has half of
the bytes allowed, or is half as old as records may get, it becomes the old one and the old one is dropped. So reading
writes nothing, and the bound holds without an eviction policy of the server.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from osrerank._redis import open_redis
from osrerank.vectors.store import REST_S, Guard, Size

PREFIX = "{osrerank:vectors:1}:"
"""Prefix of all keys. Its number changes with the form of keys or values; its braces keep all keys in one slot."""
YOUNG, OLD, YOUNG_BYTES, OLD_BYTES = (PREFIX + name for name in ("young", "old", "young-bytes", "old-bytes"))
KEPT, KEPT_BYTES = (PREFIX + name for name in ("kept", "kept-bytes"))
"""Records to be kept, collected while pruning."""
CONNECT_S, ANSWER_S = 0.2, 0.5
"""How long to wait for a connection, and for an answer, in seconds."""
PIECE_BYTES = 1 << 20
"""Approximate limit of a reply's or a request's bytes."""
RECORD_OVERHEAD = 100
"""Approximate bytes that Redis adds to each record."""
USUAL_BYTES = 10_000
"""Assumed bytes of a record until the first is read."""
WRITE = """
for at = 4, #ARGV, 2 do
  if redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) == 1 then
    redis.call('INCRBY', KEYS[3], #ARGV[at + 1] + tonumber(ARGV[3]))
  end
end
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[3], ARGV[2])
  left = tonumber(ARGV[2])
end
if tonumber(redis.call('GET', KEYS[3]) or 0) >= tonumber(ARGV[1]) or left < tonumber(ARGV[2]) / 2 then
  redis.call('UNLINK', KEYS[2], KEYS[4])
  redis.call('RENAME', KEYS[1], KEYS[2])
  redis.call('RENAME', KEYS[3], KEYS[4])
end
return 1
"""
"""Writes records, and lets the young generation become the old one when it is large or old enough."""


class RedisStore:
    """Records in Redis: one round trip to read, one to write. An absent, slow or full Redis only costs time.

    Args:
        redis: a URL, or a client made with ``decode_responses=False``.
        most_bytes: memory that records may take.
        ttl_s: most seconds that a record is kept.
        rest_s: pause after a failure, in seconds.
    """

    name = "redis"

    def __init__(self, redis: str | Any, *, most_bytes: int, ttl_s: float, rest_s: float = REST_S) -> None:
        is_url = isinstance(redis, str)
        self._redis: Any = open_redis(redis, connect_s=CONNECT_S, answer_s=ANSWER_S) if is_url else redis
        self._most = most_bytes
        self._ttl_ms = int(ttl_s * 1000)
        self._usual_bytes = USUAL_BYTES
        self._guard = Guard(self.name, "Redis", rest_s)

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return self._guard.read.attempt(lambda: self._read(keys), {}) if keys else {}

    def write(self, records: Mapping[bytes, bytes]) -> int:
        return self._guard.write.attempt(lambda: self._write(records), 0) if records else 0

    def size(self) -> Size:
        with self._guard.asked(RedisError):
            return self._size()

    def prune(self, kept: Iterable[Sequence[bytes]]) -> int:
        with self._guard.asked(RedisError):
            return self._prune(kept)

    def drop(self) -> int:
        with self._guard.asked(RedisError):
            return self._drop()

    def close(self) -> None:
        with suppress(Exception):
            self._redis.close()

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        pieces = list(_pieces(keys, max(1, PIECE_BYTES // self._usual_bytes)))
        found: dict[bytes, bytes] = {}
        for generation in (YOUNG, OLD):
            pipeline = self._redis.pipeline(transaction=False)
            asked = [[key for key in piece if key not in found] for piece in pieces]
            asked = [piece for piece in asked if piece]
            for piece in asked:
                pipeline.hmget(generation, piece)
            for piece, values in zip(asked, pipeline.execute() if asked else (), strict=True):
                found |= {key: value for key, value in zip(piece, values, strict=True) if isinstance(value, bytes)}
        if found:
            self._usual_bytes = max(1, sum(map(len, found.values())) // len(found))
        return found

    def _write(self, records: Mapping[bytes, bytes]) -> int:
        largest = max(map(len, records.values()))
        try:
            for piece in _pieces(list(records.items()), max(1, PIECE_BYTES // largest)):
                flat = [part for pair in piece for part in pair]
                keys = (YOUNG, OLD, YOUNG_BYTES, OLD_BYTES)
                self._redis.eval(WRITE, len(keys), *keys, self._most // 2, self._ttl_ms, RECORD_OVERHEAD, *flat)
        except (OutOfMemoryError, ResponseError) as error:
            if "OOM" not in str(error) and not isinstance(error, OutOfMemoryError):
                raise
            self._give_back()
            raise
        return len(records)

    def _give_back(self) -> None:
        """Drop the old generation, and make the young one the old one: others need this Redis's memory."""
        self._redis.unlink(OLD, OLD_BYTES)
        for young, old in ((YOUNG, OLD), (YOUNG_BYTES, OLD_BYTES)):
            with suppress(ResponseError):  # there is no young one
                self._redis.rename(young, old)

    def _size(self) -> Size:
        pipeline = self._redis.pipeline(transaction=False)
        for generation, counted in ((YOUNG, YOUNG_BYTES), (OLD, OLD_BYTES)):
            pipeline.hlen(generation)
            pipeline.get(counted)
        young, young_bytes, old, old_bytes = pipeline.execute()
        return Size(young + old, int(young_bytes or 0) + int(old_bytes or 0), self._most)

    def _prune(self, kept: Iterable[Sequence[bytes]]) -> int:
        """Copy the records to keep, which expire when the oldest would have, and drop all others."""
        left_ms = min((left for name in (YOUNG, OLD) if (left := self._redis.pttl(name)) > 0), default=self._ttl_ms)
        self._redis.unlink(KEPT, KEPT_BYTES)
        try:
            for keys in kept:
                if found := self._read(keys):
                    new = self._redis.hmget(KEPT, list(found))
                    size = sum(
                        len(record) + RECORD_OVERHEAD
                        for record, known in zip(found.values(), new, strict=True)
                        if known is None
                    )
                    self._redis.hset(KEPT, mapping=found)
                    self._redis.incrby(KEPT_BYTES, size)
            count = int(self._redis.hlen(KEPT))
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.unlink(YOUNG, OLD, YOUNG_BYTES, OLD_BYTES)
            for before, after in ((KEPT, YOUNG), (KEPT_BYTES, YOUNG_BYTES)) if count else ():
                pipeline.rename(before, after)
                pipeline.pexpire(after, left_ms)
            pipeline.execute()
        except BaseException:
            with suppress(RedisError):
                self._redis.unlink(KEPT, KEPT_BYTES)
            raise
        return count

    def _drop(self) -> int:
        count = self._size().records
        self._redis.unlink(YOUNG, OLD, YOUNG_BYTES, OLD_BYTES, KEPT, KEPT_BYTES)
        return count


def _pieces(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Yield items in lists of at most ``size``."""
    left = iter(items)
    while piece := list(islice(left, size)):
        yield piece
