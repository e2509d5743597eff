import threading
import time

from osrerank.scoring.flights import Flights
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
