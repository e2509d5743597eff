"""Processes that are forked while other threads read and write vectors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")]

FORKS = """
import multiprocessing, os, signal, sys, threading
from pathlib import Path
from osrerank.vectors.file import FileStore

def key(number):
    return number.to_bytes(16, "big")

def using():
    signal.alarm(60)
    found = store.read([key(number) for number in range(100)])
    os._exit(not (len(found) == 100 and store.write({key(7): bytes(2000)}) == 1))

def ending():
    signal.alarm(60)  # and the interpreter ends as usual
    sys.exit()

def reading():
    while not stop.wait(0.001):
        failed.append(len(store.read([key(number) for number in range(100)])) < 100)

def writing(first):
    while not stop.wait(0.001):
        failed.append(store.write({key(number): bytes(2000) for number in range(first, first + 20)}) < 20)

folder, forks = Path(sys.argv[1]), int(sys.argv[2])
store = FileStore(folder, max_bytes=40_000_000, ttl_s=3600)
store.write({key(number): bytes(2000) for number in range(100)})
stop, failed = threading.Event(), []
threads = [threading.Thread(target=reading) for _ in range(2)]
threads += [threading.Thread(target=writing, args=(first,)) for first in (0, 50)]
for thread in threads:
    thread.start()
try:
    for number in range(forks):
        if number % 3:
            if (child := os.fork()) == 0:
                (using if number % 3 == 1 else ending)()
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, number
        else:  # as applications fork that know nothing of vectors
            child = multiprocessing.get_context("fork").Process(target=int)
            child.start()
            child.join(60)
            assert child.exitcode == 0, number
finally:
    stop.set()
    for thread in threads:
        thread.join()
assert failed and not any(failed), failed
"""


@pytest.mark.parametrize("forks", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_every_forked_child_ends_and_reads_its_parents_vectors(forks: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS, str(tmp_path), str(forks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


STUCK = """
import os, signal, sys, threading
from pathlib import Path
from osrerank import _platform
from osrerank.vectors.file import LMDB_GATE, FileStore

_platform.FORK_TIMEOUT_S = 0.1
store = FileStore(Path(sys.argv[1]), max_bytes=4_000_000, ttl_s=3600)
store.write({bytes(16): b"a record"})
inside, leave = threading.Event(), threading.Event()

def writing():
    with LMDB_GATE, store._generations[0].environment.begin(write=True) as transaction:
        transaction.put(bytes(17), b"another")
        inside.set()
        leave.wait()

thread = threading.Thread(target=writing)
thread.start()
inside.wait()
if (child := os.fork()) == 0:
    signal.alarm(60)
    assert store.read([bytes(16)]) == {}
    sys.exit()
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
leave.set()
thread.join()
sys.exit(code or len(store.read([bytes(16), bytes(17)])) != 2)
"""


def test_a_child_forked_during_a_hanging_write_ends_without_vectors(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STUCK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("[vectors-away]") == 1
