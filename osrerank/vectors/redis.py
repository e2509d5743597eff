"""Store records in a bounded part of a Redis that machines share.

The records are in two hashes: the young and the old generation. New records go to the young generation. When it has
half of the bytes allowed, or is half as old as records may get, the old generation is dropped and the young one takes
its place. So reading writes nothing, and the bound holds without an eviction policy of the server.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from osrerank._redis import open_redis
from osrerank.vectors.store import PAUSE_S, Guard, Size

PREFIX = "{osrerank:vectors:1}:"
"""The prefix of all keys. Its number changes with the format of the entries; its braces keep all keys in one slot."""
YOUNG, OLD, YOUNG_BYTES, OLD_BYTES = (PREFIX + name for name in ("young", "old", "young-bytes", "old-bytes"))
KEPT, KEPT_BYTES = (PREFIX + name for name in ("kept", "kept-bytes"))
"""The records that pruning has copied so far, and their size."""
CONNECT_S, ANSWER_S = 0.2, 0.5
"""The timeouts of a connection and of a response, in seconds."""
BATCH_BYTES = 1 << 20
"""The approximate limit of a reply and of a request, in bytes."""
RECORD_OVERHEAD = 100
"""The approximate overhead of Redis for each record, in bytes."""
FIRST_RECORD_BYTES = 10_000
"""The assumed size of a record until one is read, in bytes."""
WRITE = """
for i = 4, #ARGV, 2 do
  if redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) == 1 then
    redis.call('INCRBY', KEYS[3], #ARGV[i + 1] + tonumber(ARGV[3]))
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
"""A script that writes records, and makes the young generation the old one when it is large or old enough."""


class RedisStore:
    """A store in Redis, with one round trip to read and one to write. An absent, slow or full Redis only costs time.

    Args:
        redis: a URL, or a client made with ``decode_responses=False``.
        max_bytes: the maximum memory that records may take, in bytes.
        ttl_s: how long a record is kept at most, in seconds.
        pause_s: the pause after a failure, in seconds.
    """

    name = "redis"

    def __init__(self, redis: str | Any, *, max_bytes: int, ttl_s: float, pause_s: float = PAUSE_S) -> None:
        is_url = isinstance(redis, str)
        self._redis: Any = open_redis(redis, connect_s=CONNECT_S, response_s=ANSWER_S) if is_url else redis
        self._max_bytes = max_bytes
        self._ttl_ms = int(ttl_s * 1000)
        self._record_bytes = FIRST_RECORD_BYTES
        self._guard = Guard(self.name, "Redis", pause_s)

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return self._guard.read.attempt(lambda: self._read(keys), {}) if keys else {}

    def write(self, records: Mapping[bytes, bytes]) -> int:
        return self._guard.write.attempt(lambda: self._write(records), 0) if records else 0

    def size(self) -> Size:
        with self._guard.translate_errors(RedisError):
            return self._size()

    def prune(self, keys_to_keep: Iterable[Sequence[bytes]]) -> int:
        with self._guard.translate_errors(RedisError):
            return self._prune(keys_to_keep)

    def drop(self) -> int:
        with self._guard.translate_errors(RedisError):
            return self._drop()

    def close(self) -> None:
        with suppress(Exception):
            self._redis.close()

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        batch_size = max(1, BATCH_BYTES // self._record_bytes)
        records: dict[bytes, bytes] = {}
        for generation in (YOUNG, OLD):
            batches = list(_split([key for key in keys if key not in records], batch_size))
            pipeline = self._redis.pipeline(transaction=False)
            for batch in batches:
                pipeline.hmget(generation, batch)
            for batch, values in zip(batches, pipeline.execute() if batches else (), strict=True):
                records |= {key: value for key, value in zip(batch, values, strict=True) if isinstance(value, bytes)}
        if records:
            self._record_bytes = max(1, sum(map(len, records.values())) // len(records))
        return records

    def _write(self, records: Mapping[bytes, bytes]) -> int:
        largest_bytes = max(map(len, records.values()))
        try:
            for batch in _split(list(records.items()), max(1, BATCH_BYTES // largest_bytes)):
                arguments = [value for pair in batch for value in pair]
                keys = (YOUNG, OLD, YOUNG_BYTES, OLD_BYTES)
                bounds = (self._max_bytes // 2, self._ttl_ms, RECORD_OVERHEAD)
                self._redis.eval(WRITE, len(keys), *keys, *bounds, *arguments)
        except (OutOfMemoryError, ResponseError) as error:
            if "OOM" not in str(error) and not isinstance(error, OutOfMemoryError):
                raise
            self._free_memory()
            raise
        return len(records)

    def _free_memory(self) -> None:
        """Drop the old generation, and make the young one the old one, because other programs need the memory."""
        self._redis.unlink(OLD, OLD_BYTES)
        for young, old in ((YOUNG, OLD), (YOUNG_BYTES, OLD_BYTES)):
            with suppress(ResponseError):  # the young generation does not exist
                self._redis.rename(young, old)

    def _size(self) -> Size:
        pipeline = self._redis.pipeline(transaction=False)
        for generation, size_key in ((YOUNG, YOUNG_BYTES), (OLD, OLD_BYTES)):
            pipeline.hlen(generation)
            pipeline.get(size_key)
        young, young_bytes, old, old_bytes = pipeline.execute()
        return Size(young + old, int(young_bytes or 0) + int(old_bytes or 0), self._max_bytes)

    def _prune(self, keys_to_keep: Iterable[Sequence[bytes]]) -> int:
        """Copy the records to keep, and drop all others; the copies expire when the oldest record would have."""
        times_ms = [self._redis.pttl(generation) for generation in (YOUNG, OLD)]
        left_ms = min((time_ms for time_ms in times_ms if time_ms > 0), default=self._ttl_ms)
        self._redis.unlink(KEPT, KEPT_BYTES)
        try:
            for keys in keys_to_keep:
                if records := self._read(keys):
                    copies = self._redis.hmget(KEPT, list(records))
                    pairs = zip(records.values(), copies, strict=True)
                    size = sum(len(record) + RECORD_OVERHEAD for record, copy in pairs if copy is None)
                    self._redis.hset(KEPT, mapping=records)
                    self._redis.incrby(KEPT_BYTES, size)
            count = int(self._redis.hlen(KEPT))
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.unlink(YOUNG, OLD, YOUNG_BYTES, OLD_BYTES)
            for source, target in ((KEPT, YOUNG), (KEPT_BYTES, YOUNG_BYTES)) if count else ():
                pipeline.rename(source, target)
                pipeline.pexpire(target, left_ms)
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


def _split(values: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Yield values in lists of at most ``size``."""
    remaining = iter(values)
    while batch := list(islice(remaining, size)):
        yield batch
