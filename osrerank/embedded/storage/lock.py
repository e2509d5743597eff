"""Lock a folder, so that one process writes at a time. The operating system frees the lock when its owner dies."""

import os
from pathlib import Path

from osrerank._platform import renew_after_fork, try_lock
from osrerank.embedded.errors import Fault
from osrerank.embedded.storage.store import storage_fault

FILE_NAME = "writer.lock"


class WriterLock:
    """The write lock of a folder. Its file contains the owner's process id, for the error messages of others."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._handle: int | None = None
        renew_after_fork(self)

    @property
    def is_held(self) -> bool:
        """Whether this process has the lock."""
        return self._handle is not None

    def acquire(self) -> None:
        """Acquire the lock, unless this process has it.

        Raises:
            Fault: 503 if another process has the lock; the reason has its id. 403 if the folder cannot be written.
        """
        if self._handle is not None:
            return
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise storage_fault(self._path.parent, f"unable to open {FILE_NAME}: {error.strerror}") from error
        if not _try_lock(handle):
            owner = _read_owner(handle)
            os.close(handle)
            reason = (
                f"the embedded folder {self._path.parent} is being written by another process (pid {owner}):"
                " close its client, or use an OpenSearch server for several writers"
            )
            raise Fault(503, "lock_obtain_failed_exception", reason)
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._handle = handle

    def try_acquire(self) -> bool:
        """Acquire the lock if no other process has it; return whether this process has it now."""
        try:
            self.acquire()
        except Fault:
            return False
        return True

    def renew(self) -> None:
        """Release a forked child's copy of the lock, which would outlive the parent's."""
        self.release()

    def release(self) -> None:
        """Release the lock, so that another process can write."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _read_owner(handle: int) -> str:
    """Return the process id in the file of a lock; "unknown" on Windows, where other processes cannot read it."""
    try:
        return os.read(handle, 20).decode().strip() or "unknown"
    except OSError:
        return "unknown"


def _try_lock(handle: int) -> bool:
    try:
        return try_lock(handle)
    except OSError:  # a file system without locks
        return False
