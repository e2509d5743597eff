"""One writer at a time: an advisory lock on a file in the folder, freed by the kernel when its holder dies."""

import os
from pathlib import Path

from osrerank._platform import renew_after_fork, try_lock
from osrerank.embedded.errors import Fault
from osrerank.embedded.storage.store import storage_fault

FILE = "writer.lock"


class WriterLock:
    """The right to write to a folder; it holds the process id of its holder for the message of the second one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._handle: int | None = None
        renew_after_fork(self)

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
        if not _locked(handle):
            holder = os.read(handle, 20).decode().strip() or "unknown"
            os.close(handle)
            reason = (
                f"the embedded folder {self._path.parent} is being written by another process (pid {holder}):"
                " close its client, or use an OpenSearch server for several writers"
            )
            raise Fault(503, "lock_obtain_failed_exception", reason)
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

    def renew(self) -> None:
        """Close a forked child's copy of the lock's file, which would keep the lock after its parent's death."""
        self.release()

    def release(self) -> None:
        """Let another process write."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _locked(handle: int) -> bool:
    try:
        return try_lock(handle)
    except OSError:  # a file system without locks
        return False
