import os
import time
import warnings

import pytest

from osrerank.scoring.cache.in_flight import InFlight
from osrerank.types import Deadline


def test_waiting_ends_with_the_deadline():
    in_flight = InFlight()
    in_flight.claim([b"a"])
    _own, others = in_flight.claim([b"a"])
    started = time.monotonic()
    assert others[b"a"].wait(Deadline.after_ms(30)) is None
    assert time.monotonic() - started < 5


@pytest.mark.long
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
