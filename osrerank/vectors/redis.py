"""Store document vectors in a Redis that several machines share, within a maximum size and age.

The records are in two Redis hashes, the young and the old generation. Writes go to the young generation. When it
reaches half of the maximum size or age, it replaces the old generation. So reads write nothing, and Redis needs no
eviction policy.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from osrerank._redis import open_redis
from osrerank.vectors.store import Guard, Size

PREFIX = "{osrerank:vectors:1}:"
"""The prefix of all keys, with the version of the format. The braces put all keys in one slot of a Redis Cluster."""
YOUNG, OLD, YOUNG_BYTES, OLD_BYTES = (PREFIX + name for name in ("young", "old", "young-bytes", "old-bytes"))
"""The keys of the two generations, and of their sizes in bytes."""
KEPT, KEPT_BYTES = PREFIX + "kept", PREFIX + "kept-bytes"
"""Temporary keys for the records that `RedisStore.prune` keeps, and for their size in bytes."""
CONNECT_TIMEOUT_S = 0.2
RESPONSE_TIMEOUT_S = 0.5
BATCH_BYTES = 1024 * 1024
"""The approximate size of a batch in a request or response, in bytes."""
RECORD_OVERHEAD_BYTES = 100
"""The approximate memory that Redis uses for a record in addition to its bytes."""
INITIAL_RECORD_BYTES = 10_000
"""The assumed mean size of a record until records have been read, in bytes."""
WRITE_SCRIPT = """
local young, old, young_bytes, old_bytes = unpack(KEYS)
local max_bytes, max_age_ms, overhead_bytes = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
for i = 4, #ARGV, 2 do
  if redis.call('HSET', young, ARGV[i], ARGV[i + 1]) == 1 then
    redis.call('INCRBY', young_bytes, #ARGV[i + 1] + overhead_bytes)
  end
end
local ttl_ms = redis.call('PTTL', young)
if ttl_ms < 0 then
  redis.call('PEXPIRE', young, ARGV[2])
  redis.call('PEXPIRE', young_bytes, ARGV[2])
  ttl_ms = max_age_ms
end
if tonumber(redis.call('GET', young_bytes) or 0) >= max_bytes or ttl_ms < max_age_ms / 2 then
  redis.call('UNLINK', old, old_bytes)
  redis.call('RENAME', young, old)
  redis.call('RENAME', young_bytes, old_bytes)
end
return 1
"""
"""Writes records to the young generation. When the young generation is large or old enough, it replaces the old one.

KEYS are `YOUNG`, `OLD`, `YOUNG_BYTES` and `OLD_BYTES`. ARGV has the maximum size of a generation in bytes, the maximum
age of a record in milliseconds, the overhead of a record in bytes, and then alternating keys and records.
"""


class RedisStore:
    """A `VectorStore` in Redis, which reads or writes a batch of records in one round trip.

    Args:
        redis: a URL, or a client with ``decode_responses=False``.
        max_bytes: the maximum memory of the records, in bytes.
        ttl_s: the maximum age of a record, in seconds.
    """

    name = "redis"

    def __init__(self, redis: str | Any, *, max_bytes: int, ttl_s: float) -> None:
        if isinstance(redis, str):
            redis = open_redis(redis, connect_s=CONNECT_TIMEOUT_S, response_s=RESPONSE_TIMEOUT_S)
        self._redis: Any = redis
        self._max_bytes = max_bytes
        self._ttl_ms = int(ttl_s * 1000)
        self._mean_record_bytes = INITIAL_RECORD_BYTES
        self._guard = Guard(self.name, "Redis", RedisError)

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return self._guard.read_pause.attempt(lambda: self._read(keys), {}) if keys else {}

    def write(self, records: Mapping[bytes, bytes]) -> int:
        return self._guard.write_pause.attempt(lambda: self._write(records), 0) if records else 0

    def size(self) -> Size:
        pipeline = self._redis.pipeline(transaction=False)
        for generation, size_key in ((YOUNG, YOUNG_BYTES), (OLD, OLD_BYTES)):
            pipeline.hlen(generation)
            pipeline.get(size_key)
        with self._guard.translate_errors():
            young, young_bytes, old, old_bytes = pipeline.execute()
        return Size(young + old, int(young_bytes or 0) + int(old_bytes or 0), self._max_bytes)

    def prune(self, keys_to_keep: Iterable[Sequence[bytes]]) -> int:
        with self._guard.translate_errors():
            return self._prune(keys_to_keep)

    def drop(self) -> int:
        n_records = self.size().records
        with self._guard.translate_errors():
            self._redis.unlink(YOUNG, OLD, YOUNG_BYTES, OLD_BYTES, KEPT, KEPT_BYTES)
        return n_records

    def close(self) -> None:
        with suppress(Exception):
            self._redis.close()

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        batch_size = max(1, BATCH_BYTES // self._mean_record_bytes)
        records: dict[bytes, bytes] = {}
        for generation in (YOUNG, OLD):
            batches = list(_split_batches([key for key in keys if key not in records], batch_size))
            if not batches:
                break
            pipeline = self._redis.pipeline(transaction=False)
            for batch in batches:
                pipeline.hmget(generation, batch)
            for batch, values in zip(batches, pipeline.execute(), strict=True):
                # the value of a key without a record is None
                records |= {key: value for key, value in zip(batch, values, strict=True) if isinstance(value, bytes)}
        if records:
            self._mean_record_bytes = max(1, sum(map(len, records.values())) // len(records))
        return records

    def _write(self, records: Mapping[bytes, bytes]) -> int:
        largest_bytes = max(map(len, records.values()))
        batch_size = max(1, BATCH_BYTES // largest_bytes)
        hash_keys = (YOUNG, OLD, YOUNG_BYTES, OLD_BYTES)
        limits = (self._max_bytes // 2, self._ttl_ms, RECORD_OVERHEAD_BYTES)
        try:
            for batch in _split_batches(list(records.items()), batch_size):
                keys_and_records = [value for pair in batch for value in pair]
                self._redis.eval(WRITE_SCRIPT, len(hash_keys), *hash_keys, *limits, *keys_and_records)
        except (OutOfMemoryError, ResponseError) as error:
            is_full = isinstance(error, OutOfMemoryError) or "OOM" in str(error)
            if is_full:
                self._free_memory()  # for the next write
            raise
        return len(records)

    def _free_memory(self) -> None:
        """Replace the old generation by the young one, because Redis is full."""
        self._redis.unlink(OLD, OLD_BYTES)
        for young, old in ((YOUNG, OLD), (YOUNG_BYTES, OLD_BYTES)):
            with suppress(ResponseError):  # raised if the young generation does not exist
                self._redis.rename(young, old)

    def _prune(self, keys_to_keep: Iterable[Sequence[bytes]]) -> int:
        """Copy the records to keep, and replace both generations by the copies.

        The copies expire when the older generation would have expired.
        """
        remaining_ms = [self._redis.pttl(generation) for generation in (YOUNG, OLD)]
        ttl_ms = min((remaining for remaining in remaining_ms if remaining > 0), default=self._ttl_ms)
        self._redis.unlink(KEPT, KEPT_BYTES)
        try:
            for keys in keys_to_keep:
                records = self._read(keys)
                if records:
                    copies = self._redis.hmget(KEPT, list(records))  # not None for a text that occurred before
                    uncopied = [record for record, copy in zip(records.values(), copies, strict=True) if copy is None]
                    new_bytes = sum(len(record) + RECORD_OVERHEAD_BYTES for record in uncopied)
                    self._redis.hset(KEPT, mapping=records)
                    self._redis.incrby(KEPT_BYTES, new_bytes)
            n_kept = int(self._redis.hlen(KEPT))
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.unlink(YOUNG, OLD, YOUNG_BYTES, OLD_BYTES)
            if n_kept:
                for source, target in ((KEPT, YOUNG), (KEPT_BYTES, YOUNG_BYTES)):
                    pipeline.rename(source, target)
                    pipeline.pexpire(target, ttl_ms)
            pipeline.execute()
        except BaseException:
            with suppress(RedisError):
                self._redis.unlink(KEPT, KEPT_BYTES)
            raise
        return n_kept


def _split_batches(values: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Yield values in lists of at most ``size`` values."""
    remaining = iter(values)
    while batch := list(islice(remaining, size)):
        yield batch
