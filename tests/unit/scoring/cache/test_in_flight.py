import os
import threading
import time
import warnings

from osrerank.scoring.cache.in_flight import InFlight
from osrerank.types import NEVER, Deadline


def test_the_first_thread_that_needs_a_key_computes_it():
    in_flight = InFlight()
    assert in_flight.claim([b"a", b"b"])[0] == [b"a", b"b"]
    own, others = in_flight.claim([b"b", b"c"])
    assert (own, list(others)) == ([b"c"], [b"b"])
    in_flight.complete([b"a", b"b"], {b"b": 2.0})
    assert others[b"b"].wait(NEVER) == 2.0
    assert in_flight.claim([b"b"])[0] == [b"b"]


def test_a_computation_that_failed_has_no_score():
    in_flight = InFlight()
    in_flight.claim([b"a"])
    _own, others = in_flight.claim([b"a"])
    in_flight.complete([b"a"], {})
    assert others[b"a"].wait(NEVER) is None


def test_waiting_ends_with_the_deadline():
    in_flight = InFlight()
    in_flight.claim([b"a"])
    _own, others = in_flight.claim([b"a"])
    started = time.monotonic()
    assert others[b"a"].wait(Deadline.after_ms(30)) is None
    assert time.monotonic() - started < 5


def test_a_waiting_thread_gets_the_score():
    in_flight = InFlight()
    in_flight.claim([b"a"])
    _own, others = in_flight.claim([b"a"])
    found = []
    waiting = threading.Thread(target=lambda: found.append(others[b"a"].wait(NEVER)))
    waiting.start()
    in_flight.complete([b"a"], {b"a": 1.0})
    waiting.join(5)
    assert found == [1.0]


def test_a_forked_child_waits_for_nobody_of_its_parent():
    in_flight = InFlight()
    in_flight.claim([b"a"])
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that another test may have left
        child = os.fork()
    if child == 0:
        os.write(write, b"own" if in_flight.claim([b"a"])[0] == [b"a"] else b"other")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 9) == b"own"
    os.close(read)
    os.close(write)
    assert in_flight.claim([b"a"])[0] == []
