"""Let one process write at a time: a lock on a file in the folder, which the system frees when its holder dies."""

import os
from pathlib import Path

from osrerank._platform import renew_after_fork, try_lock
from osrerank.embedded.errors import Fault
from osrerank.embedded.storage.store import storage_fault

FILE = "writer.lock"


class WriterLock:
    """The write lock of a folder; its file holds the owner's process id, for another writer's error message."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._handle: int | None = None
        renew_after_fork(self)

    @property
    def is_held(self) -> bool:
        """Whether this process may write."""
        return self._handle is not None

    def acquire(self) -> None:
        """Take the lock, unless this process has it.

        Raises:
            Fault: 503 if another process has the lock; the reason has its id. 403 if the folder cannot be written.
        """
        if self._handle is not None:
            return
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise storage_fault(self._path.parent, f"unable to open {FILE}: {error.strerror}") from error
        if not _locked(handle):
            holder = _holder(handle)
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
        """Take the lock if nobody has it; return whether this process has it now."""
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


def _holder(handle: int) -> str:
    """Return the process id in a file that another process has locked; on Windows others cannot read it."""
    try:
        return os.read(handle, 20).decode().strip() or "unknown"
    except OSError:
        return "unknown"


def _locked(handle: int) -> bool:
    try:
        return try_lock(handle)
    except OSError:  # a file system without locks
        return False
