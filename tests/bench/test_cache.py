"""What a cached score takes, in the process and in Redis: ``make bench TEST_OPTIONS="-k cache -s"``."""

import os
import tracemalloc

import pytest

from osrerank.scoring.cache.local import LOCAL_ENTRY_BYTES, LocalStore
from osrerank.scoring.cache.store import REMOTE_ENTRY_BYTES, YOUNG, RemoteStore, connect

pytestmark = pytest.mark.bench


def test_cache_entries_take_the_bytes_that_are_reckoned(redis_url):
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    local = LocalStore(1e9)
    local.write({os.urandom(16): float(number) for number in range(100_000)})
    near = (tracemalloc.get_traced_memory()[0] - before) / 100_000
    tracemalloc.stop()
    redis = connect(redis_url)
    redis.delete(YOUNG)
    remote = RemoteStore(redis_url, ttl_s=600, most_bytes=1e9)
    far = 0.0
    for number in range(1, 271):
        remote.write({os.urandom(16): 1.0 for _ in range(1_000)})
        if number > 50:
            far = max(far, redis.memory_usage(YOUNG, samples=0) / (1_000 * number))
    redis.delete(YOUNG)
    redis.close()
    print(f"\nan entry takes {near:.0f} bytes in the process, {far:.0f} in Redis at worst")
    assert near <= LOCAL_ENTRY_BYTES
    assert far <= REMOTE_ENTRY_BYTES
