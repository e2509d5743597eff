"""Hide differences between operating systems: forks, file locks, and the number of cores that a process may use.

A forked child inherits neither threads nor usable locks; `renew_after_fork` makes shared objects usable in it.
"""

import errno
import math
import os
import weakref
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol

from filelock import lock_descriptor

from osrerank.errors import OsrerankError


class Renewable(Protocol):
    """An object that threads share, and that must start over in a forked child."""

    def renew(self) -> None:
        """Start over in a forked child, which has a single thread and no waiting callers."""


_shared: "weakref.WeakSet[Renewable]" = weakref.WeakSet()


def renew_after_fork(shared: Renewable) -> None:
    """Renew an object in every child process that is forked while the object exists."""
    _shared.add(shared)


def _renew_all() -> None:
    for shared in list(_shared):
        shared.renew()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_renew_all)


def try_lock(file: int) -> bool:
    """Try to take the exclusive lock on an open file; it is released when the file is closed or the process dies.

    It is ``flock`` on Unix and ``LockFileEx`` on Windows.

    Args:
        file: the file's descriptor.

    Returns:
        Whether this process has the lock now.

    Raises:
        OsrerankError: this Python has no file locks.
        OSError: the file system has no locks.
    """
    try:
        return lock_descriptor(file, blocking=False)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            reason = "this Python cannot lock files, so two processes could write the same one: use another build"
            raise OsrerankError(reason) from error
        raise


def usable_cores(system: Path = Path("/")) -> int:
    """Return how many cores this process may use, at least one.

    These are the physical cores of its CPU affinity, because hyper-threads share the units that compute matrix
    products. A CPU quota of its control groups, as containers have, limits the number, rounded up.

    Args:
        system: root of the file system; Linux describes processors and quotas in ``sys`` and ``proc``.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    described = system / "sys/devices/system/cpu"
    cores = {_read(described / f"cpu{cpu}/topology/thread_siblings_list") or f"{cpu}" for cpu in allowed}
    return max(1, min(len(cores), *(math.ceil(quota) for quota in _quotas(system))))


def _quotas(system: Path) -> Iterator[float]:
    """Yield the CPUs that each control group of this process may use, and the number of all CPUs."""
    yield os.cpu_count() or 1
    for line in _read(system / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounted = system / "sys/fs/cgroup" / controllers
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            folder = mounted / str(group).lstrip("/")
            if controllers:  # version 1
                limits = [_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
            else:
                limits = _read(folder / "cpu.max").split()
            if len(limits) == 2 and all(limit.isdigit() and int(limit) for limit in limits):
                yield int(limits[0]) / int(limits[1])


def _read(file: Path) -> str:
    """Return a small file's text, "" where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
