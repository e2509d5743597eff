"""Hide differences between operating systems: forks, file locks, and the number of usable cores.

A forked child inherits neither threads nor usable locks. `renew_after_fork` makes shared objects usable in the child.
"""

import errno
import gc
import math
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol

from filelock import lock_descriptor

from osrerank.errors import OsrerankError

FORK_TIMEOUT_S = 10.0
"""How long a fork waits for the threads inside a `ForkGate`, in seconds. Calls in it, such as commits, are faster."""


class Renewable(Protocol):
    """An object that threads share, and that must be reset in a forked child."""

    def renew(self) -> None:
        """Reset the object in a forked child, which has a single thread and no waiting callers."""


_renewables: "weakref.WeakSet[Renewable]" = weakref.WeakSet()
_locks: "weakref.WeakSet[threading.Lock]" = weakref.WeakSet()


def renew_after_fork(renewable: Renewable) -> None:
    """Call the object's ``renew`` in every child process that is forked while the object exists."""
    _renewables.add(renewable)


def fork_safe_lock() -> threading.Lock:
    """Return a lock that a forked child finds unlocked, even if a thread of the parent held it."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def freeze_objects() -> None:
    """Exclude all current objects from Python's garbage collection. Call this when a process has warmed up.

    Otherwise a full collection scans all modules, models and indices, and delays a search by 40 to 55 ms.
    """
    gc.collect()
    gc.freeze()


def _renew_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001 - as Python's own modules do
    for renewable in list(_renewables):
        renewable.renew()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_renew_all)


class ForkGate:
    """A context manager for native code whose locks and files would be unusable in a forked child.

    Any number of threads can be inside the ``with`` block, and a thread inside can enter it again. Before a fork, the
    forking thread waits until all other threads have left, but at most `FORK_TIMEOUT_S` seconds. Until the fork is
    done, threads that want to enter wait.

    Attributes:
        was_empty: whether no thread was inside at the last fork. If one was, the child must not close files that the
            native code opened, because closing could wait for that thread, which does not exist in the child.
    """

    def __init__(self) -> None:
        self.was_empty = True
        self.renew()
        renew_after_fork(self)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork)

    def renew(self) -> None:
        """Reset the gate in a forked child, where no other thread is inside."""
        self._lock = threading.RLock()  # reentrant, because a signal handler can fork
        self._changed = threading.Condition(self._lock)
        self._entries: dict[int, int] = {}  # thread id -> how many of its blocks are open, such as {140245: 2}
        self._n_forks = 0

    def __enter__(self) -> None:
        thread = threading.get_ident()
        with self._lock:
            if self._n_forks and thread not in self._entries:
                self._changed.wait_for(lambda: not self._n_forks)
            self._entries[thread] = self._entries.get(thread, 0) + 1

    def __exit__(self, *_error: object) -> None:
        thread = threading.get_ident()
        with self._lock:
            n_entries = self._entries.pop(thread, 1) - 1  # a child that was forked inside the block has no entry
            if n_entries:
                self._entries[thread] = n_entries
            elif self._n_forks:
                self._changed.notify_all()

    def _before_fork(self) -> None:
        with self._changed:
            self._n_forks += 1
            own_thread_ids = {threading.get_ident()}
            self._changed.wait_for(lambda: not self._entries.keys() - own_thread_ids, FORK_TIMEOUT_S)
            self.was_empty = not self._entries

    def _after_fork(self) -> None:
        with self._changed:
            self._n_forks -= 1
            self._changed.notify_all()


def try_lock(descriptor: int) -> bool:
    """Try to acquire the exclusive lock on an open file, and return whether this process holds it now.

    The lock, ``flock`` on Unix and ``LockFileEx`` on Windows, is released when the file is closed or the process dies.

    Args:
        descriptor: the descriptor of the file.

    Raises:
        OsrerankError: this build of Python has no file locks.
        OSError: the file system has no locks.
    """
    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            reason = (
                "this Python cannot lock files, so two processes could write the same file: use another build of Python"
            )
            raise OsrerankError(reason) from error
        raise


def usable_cores(system: Path = Path("/")) -> int:
    """Return the number of cores that this process can use, at least one.

    Only physical cores in its CPU affinity count, because hyper-threads share the units that compute matrix products.
    The CPU quota of a container limits the number, rounded up.

    Args:
        system: the root of the file system. Linux describes processors and quotas in ``sys`` and ``proc``.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cpus = os.sched_getaffinity(0)
    topology = system / "sys/devices/system/cpu"
    # Both hyper-threads of a core have the same list, such as "0,8", so the set has one element for each core.
    cores = {_read_text(topology / f"cpu{cpu}/topology/thread_siblings_list") or f"{cpu}" for cpu in cpus}
    quota = min(map(math.ceil, _cpu_quotas(system)))
    return max(1, min(len(cores), quota))


def _cpu_quotas(system: Path) -> Iterator[float]:
    """Yield each limit on this process's CPUs, such as 8 for the machine's CPUs and 1.5 for a control group's quota."""
    yield os.cpu_count() or 1
    # A line is "0::/docker/ID", or "4:cpu,cpuacct:/docker/ID" for control groups of version 1.
    for line in _read_text(system / "proc/self/cgroup").splitlines():
        _, _, entry = line.partition(":")
        controllers, _, path = entry.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        group_root = system / "sys/fs/cgroup" / controllers
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            folder = group_root / str(group).lstrip("/")
            if controllers:  # version 1
                quota_and_period = [_read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
            else:
                quota_and_period = _read_text(folder / "cpu.max").split()
            # without a quota, the first is "max", or -1 in version 1
            if len(quota_and_period) == 2 and all(value.isdecimal() and int(value) for value in quota_and_period):
                quota, period = map(int, quota_and_period)
                yield quota / period


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
