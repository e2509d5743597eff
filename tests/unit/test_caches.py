"""Caches that threads share."""

import os
import threading

import pytest
from cachetools import TTLCache

from osrerank._caches import SharedCache


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_child_forked_while_a_thread_changes_a_cache_starts_with_an_empty_cache():
    shared = SharedCache(lambda: TTLCache[str, int](10, 60))
    inside, done = threading.Event(), threading.Event()

    def change():
        with shared as cache:
            cache["a"] = 1
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=change)
    thread.start()
    inside.wait(10)
    child = os.fork()
    if not child:
        with shared as cache:
            os._exit(len(cache))
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with shared as cache:
        assert cache["a"] == 1
