import os
import threading
import time
import warnings

from osrerank.scoring.cache.in_flight import Flights
from osrerank.types import NEVER, Deadline


def test_a_key_is_computed_by_the_first_who_needs_it():
    flights = Flights()
    assert flights.board([b"a", b"b"])[0] == [b"a", b"b"]
    own, others = flights.board([b"b", b"c"])
    assert (own, list(others)) == ([b"c"], [b"b"])
    flights.land([b"a", b"b"], {b"b": 2.0})
    assert others[b"b"].wait(NEVER) == 2.0
    assert flights.board([b"b"])[0] == [b"b"]


def test_a_flight_that_failed_lands_without_a_score():
    flights = Flights()
    flights.board([b"a"])
    _own, others = flights.board([b"a"])
    flights.land([b"a"], {})
    assert others[b"a"].wait(NEVER) is None


def test_waiting_ends_with_the_deadline():
    flights = Flights()
    flights.board([b"a"])
    _own, others = flights.board([b"a"])
    started = time.monotonic()
    assert others[b"a"].wait(Deadline.after_ms(30)) is None
    assert time.monotonic() - started < 5


def test_who_waits_is_woken():
    flights = Flights()
    flights.board([b"a"])
    _own, others = flights.board([b"a"])
    found = []
    waiting = threading.Thread(target=lambda: found.append(others[b"a"].wait(NEVER)))
    waiting.start()
    flights.land([b"a"], {b"a": 1.0})
    waiting.join(5)
    assert found == [1.0]


def test_a_forked_child_waits_for_nobody_of_its_parent():
    flights = Flights()
    flights.board([b"a"])
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that another test may have left
        child = os.fork()
    if child == 0:
        os.write(write, b"own" if flights.board([b"a"])[0] == [b"a"] else b"other")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 9) == b"own"
    os.close(read)
    os.close(write)
    assert flights.board([b"a"])[0] == []
