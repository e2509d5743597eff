"""Lock a folder so that only one process writes to it. The operating system frees the lock if that process dies."""

import os
from pathlib import Path

from osrerank._platform import renew_after_fork, try_lock
from osrerank.embedded.errors import ApiError
from osrerank.embedded.storage.store import storage_error

FILE_NAME = "writer.lock"


class FolderLock:
    """The write lock of a folder. Its file contains the owner's process id, which other processes name in errors."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._handle: int | None = None
        renew_after_fork(self)

    @property
    def is_held(self) -> bool:
        """Whether this process has the lock."""
        return self._handle is not None

    def acquire(self) -> None:
        """Acquire the lock if this process does not have it yet.

        Raises:
            ApiError: 503 if another process has the lock; 403 if the folder cannot be written.
        """
        if self._handle is not None:
            return
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise storage_error(self._path.parent, f"unable to open {FILE_NAME}: {error.strerror}") from error
        if not _try_lock(handle):
            owner = _read_owner(handle)
            os.close(handle)
            reason = (
                f"the embedded folder {self._path.parent} is being written by another process (pid {owner}):"
                " close its client, or use an OpenSearch server for several writers"
            )
            raise ApiError(503, "lock_obtain_failed_exception", reason)
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._handle = handle

    def try_acquire(self) -> bool:
        """Acquire the lock if possible, and return whether this process has it now."""
        try:
            self.acquire()
        except ApiError:
            return False
        return True

    def renew(self) -> None:
        """Release a forked child's copy of the lock. It would keep the folder locked after the parent's release."""
        self.release()

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _read_owner(handle: int) -> str:
    """Return the owner's process id. Returns "unknown" on Windows, where other processes cannot read a locked file."""
    try:
        return os.read(handle, 20).decode().strip() or "unknown"
    except OSError:
        return "unknown"


def _try_lock(handle: int) -> bool:
    try:
        return try_lock(handle)
    except OSError:  # a file system without locks
        return False
