"""One writer at a time: an advisory lock on a file in the folder, freed by the kernel when its holder dies."""

import fcntl
import os
import weakref
from pathlib import Path

from osrerank.embedded.errors import Fault
from osrerank.embedded.storage.store import storage_fault

FILE = "writer.lock"
_locks: "weakref.WeakSet[WriterLock]" = weakref.WeakSet()


class WriterLock:
    """The right to write to a folder; it holds the process id of its holder for the message of the second one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._handle: int | None = None
        _locks.add(self)

    @property
    def held(self) -> bool:
        """Whether this process may write."""
        return self._handle is not None

    def acquire(self) -> None:
        """Take the lock, if this process does not have it.

        Raises:
            Fault: 503 when another process writes, naming it; 403 when the folder cannot be written.
        """
        if self._handle is not None:
            return
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise storage_fault(self._path.parent, f"unable to open {FILE}: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 20).decode().strip() or "unknown"
            os.close(handle)
            reason = (
                f"the embedded folder {self._path.parent} is being written by another process (pid {holder}):"
                " close its client, or use an OpenSearch server for several writers"
            )
            raise Fault(503, "lock_obtain_failed_exception", reason) from None
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._handle = handle

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it, and say whether this process has it now."""
        try:
            self.acquire()
        except Fault:
            return False
        return True

    def forget(self) -> None:
        """Close a forked child's copy of the lock's file, which would keep the lock after its parent's death."""
        self.release()

    def release(self) -> None:
        """Let another process write."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _forget_all() -> None:
    for lock in list(_locks):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)
