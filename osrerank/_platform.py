"""What differs between operating systems: forks, and locks on files.

Locks and threads do not come over a fork; `renew_after_fork` makes what a child inherits usable again.
"""

import os
import weakref
from typing import Protocol

from osrerank.errors import OsrerankError

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    HAS_FILE_LOCKS = False
else:
    HAS_FILE_LOCKS = True


class Renewable(Protocol):
    """What threads of this process share."""

    def renew(self) -> None:
        """Begin anew in a forked child, where no other thread is and nobody waits."""


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
    """Take the exclusive lock on an open file, or say that somebody has it; the kernel frees it when its holder dies.

    Args:
        file: the file's descriptor.

    Raises:
        OsrerankError: this system has no such locks.
        OSError: the file's file system has none.
    """
    if not HAS_FILE_LOCKS:
        reason = "this system has no flock, which keeps two processes from writing one file: use Linux, macOS or WSL"
        raise OsrerankError(reason)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
