"""Locks, cores, quotas and forks of the operating system."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from osrerank import _platform
from tests.waiting import in_a_child

WITHOUT_POSIX = """
import os, signal, sys, tempfile
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in ("fork", "getuid", "geteuid", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "mkfifo"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM"):
    delattr(signal, name)
from osrerank import Reranker, _platform, connect
from osrerank.errors import OsrerankError
with tempfile.TemporaryFile() as file:
    try:
        _platform.try_lock(file.fileno())
    except OsrerankError as error:
        print(error)
_platform.lock_descriptor = lambda file, blocking: True  # msvcrt's, on Windows
folder = tempfile.mkdtemp()
with connect(f"embedded:{folder}") as client:
    lines = [{"index": {"_index": "notes", "_id": "1"}}, {"text": "low salt can cause low blood pressure"}]
    client.bulk(body=lines, refresh=True)
    response = client.search("what causes low blood pressure", index="notes", rerank=True)
    print(response["rerank"]["applied"], [hit["_id"] for hit in response["hits"]["hits"]])
print(Reranker().rank("low blood pressure", ["wings", "low blood pressure"], top_k=1)[0].doc_id)
import osrerank.cli.search, osrerank.cli.run, osrerank.cli.demo, osrerank.cli.doctor, osrerank.doctor
import osrerank_loaders.cli
"""


def test_a_lock_has_one_holder_until_its_file_is_closed(tmp_path):
    path = tmp_path / "lock"
    with path.open("w") as first:
        assert _platform.try_lock(first.fileno())
        with path.open("w") as second:
            assert not _platform.try_lock(second.fileno())
    with path.open("w") as third:
        assert _platform.try_lock(third.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        _platform.try_lock(10_000)


@pytest.mark.long
def test_searches_work_without_posix_modules():
    done = subprocess.run([sys.executable, "-c", WITHOUT_POSIX], capture_output=True, text=True, check=False)
    said, *found = done.stdout.splitlines() or [done.stderr]
    assert said.startswith("this Python cannot lock files"), said
    assert found == ["True ['1']", "1"], done.stderr


def pretend(monkeypatch: pytest.MonkeyPatch, system: Path, siblings: dict[int, str], **files: str) -> int:
    """Return the cores of a process that may use such CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(siblings))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    contents = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": siblings_list
        for cpu, siblings_list in siblings.items()
    }
    contents |= {name.replace("__", "/").replace("_DOT_", "."): content for name, content in files.items()}
    for name, content in contents.items():
        (system / name).parent.mkdir(parents=True, exist_ok=True)
        (system / name).write_text(f"{content}\n")
    return _platform.usable_cores(system)


FOUR_OF_TWO = {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}
PERIOD = "cpu,cpuacct__cpu_DOT_cfs_period_us"
SIXTEEN = {cpu: str(cpu) for cpu in range(16)}


def test_hyper_threads_are_not_counted_as_cores(monkeypatch, tmp_path):
    assert pretend(monkeypatch, tmp_path, FOUR_OF_TWO) == 2
    assert pretend(monkeypatch, tmp_path, {4: "0,4"}) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1, 2})
    assert _platform.usable_cores(tmp_path / "nothing") == 3


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/", {"cpu_DOT_max": "200000 100000"}, 2),
        ("0::/", {"cpu_DOT_max": "150000 100000"}, 2),
        ("0::/", {"cpu_DOT_max": "10000 100000"}, 1),
        ("0::/", {"cpu_DOT_max": "max 100000"}, 16),
        ("0::/pod/box", {"pod__cpu_DOT_max": "300000 100000", "pod__box__cpu_DOT_max": "max 100000"}, 3),
        ("4:cpu,cpuacct:/box", {"cpu,cpuacct__cpu_DOT_cfs_quota_us": "400000", PERIOD: "100000"}, 4),
        ("4:cpu,cpuacct:/", {"cpu,cpuacct__cpu_DOT_cfs_quota_us": "-1", PERIOD: "100000"}, 16),
        ("nonsense", {}, 16),
    ],
)
def test_a_cgroup_quota_bounds_the_number_of_cores(monkeypatch, tmp_path, groups, files, cores):
    placed = {f"sys__fs__cgroup__{name}": content for name, content in files.items()}
    assert pretend(monkeypatch, tmp_path, SIXTEEN, proc__self__cgroup=groups, **placed) == cores


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_waits_until_other_threads_left_the_fork_gate() -> None:
    gate, inside, left = _platform.ForkGate(), threading.Event(), threading.Event()

    def work() -> None:
        with gate, gate:
            inside.set()
            time.sleep(0.2)
            left.set()

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()

    def is_free() -> bool:
        with gate:
            return left.is_set() and gate.was_empty

    assert in_a_child(is_free)
    thread.join()
    assert is_free()


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_does_not_wait_for_a_lock_that_its_parents_thread_holds() -> None:
    lock, held, free = _platform.fork_safe_lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            free.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert in_a_child(lambda: lock.acquire(timeout=10))
    assert not lock.acquire(blocking=False)
    free.set()
    thread.join()
