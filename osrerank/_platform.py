"""What differs between operating systems: forks, and locks on files.

A forked child inherits neither threads nor usable locks; `renew_after_fork` makes shared objects usable in it.
"""

import errno
import os
import weakref
from typing import Protocol

from filelock import lock_descriptor

from osrerank.errors import OsrerankError


class Renewable(Protocol):
    """An object that threads of this process share."""

    def renew(self) -> None:
        """Start over in a forked child, which has one thread and nobody waiting."""


_shared: "weakref.WeakSet[Renewable]" = weakref.WeakSet()


def renew_after_fork(one: Renewable) -> None:
    """Renew an object in every child that is forked while it exists."""
    _shared.add(one)


def _renew_all() -> None:
    for one in list(_shared):
        one.renew()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_renew_all)


def try_lock(file: int) -> bool:
    """Try to take the exclusive lock on an open file; the system frees it when the file is closed or its holder dies.

    It is ``flock`` on Unix and ``LockFileEx`` on Windows.

    Args:
        file: the file's descriptor.

    Returns:
        Whether this process has the lock now.

    Raises:
        OsrerankError: this Python has no file locks.
        OSError: the file's file system has none.
    """
    try:
        return lock_descriptor(file, blocking=False)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            reason = "this Python cannot lock files, so nothing keeps two processes from writing one: use another build"
            raise OsrerankError(reason) from error
        raise
