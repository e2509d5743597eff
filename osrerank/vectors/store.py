"""The protocol of stores for document vectors, and the handling of their failures."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol

from prometheus_client import Counter

from osrerank._pause import Pause
from osrerank.errors import OsrerankError

PAUSE_S = 10.0
"""The pause after a failure, in seconds."""
VECTORS_OFF = "vectors are off: set OSRERANK_VECTORS=file, index or redis"

ERRORS = Counter(
    "osrerank_vectors_errors", "Failed calls of a store; a failed read or write only costs time.", ["store"]
)

logger = logging.getLogger(__name__)


class Size(NamedTuple):
    """How much a store holds, and how much it may hold.

    Attributes:
        records: the number of records.
        stored: the size of the records with the store's overhead, in bytes.
        most: the largest size that the store allows, in bytes; 0 for no bound.
    """

    records: int
    stored: int
    most: int


class VectorStore(Protocol):
    """A key-value store for the records of document vectors.

    `read` and `write` do not raise errors: an absent, full or slow store only costs time. `size`, `prune` and `drop`
    raise `OsrerankError` if they fail.

    A store does not check what it reads: `osrerank.vectors.record.VectorRecord.read` does.
    """

    @property
    def name(self) -> str:
        """The store's name in metrics and reports."""

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the records that the store has of these keys, by key."""

    def write(self, records: Mapping[bytes, bytes]) -> int:
        """Store records; return how many were stored."""

    def size(self) -> Size:
        """Return how much the store holds."""

    def prune(self, keys_to_keep: Iterable[Sequence[bytes]]) -> int:
        """Delete all records except those of some keys, which come in batches; return how many records are left."""

    def drop(self) -> int:
        """Delete all records; return how many were deleted."""

    def close(self) -> None:
        """Release open files and connections."""


class Guard:
    """Counts and logs the failures of a store, and pauses its use after a failure.

    Args:
        store: the store's name in metrics.
        location: the store's folder, index or server in log lines.
        pause_s: the length of a pause, in seconds.

    Attributes:
        read: the pause of reading.
        write: the pause of writing; reading does not pause with it, because a full store can still be read.
    """

    def __init__(self, store: str, location: str, pause_s: float = PAUSE_S) -> None:
        self._store, self._location, self._rest_s = store, location, pause_s
        self.read, self.write = (Pause(pause_s, partial(self._report, action)) for action in ("read", "write"))

    @contextmanager
    def raising(self, *errors: type[Exception]) -> Iterator[None]:
        """Raise a store's own errors as `OsrerankError`, for calls that users make (`size`, `prune`, `drop`)."""
        try:
            yield
        except errors as error:
            ERRORS.labels(self._store).inc()
            raise OsrerankError(f"the document vectors in {self._location} cannot be used: {error}") from error

    def _report(self, action: str, error: Exception, is_first: bool) -> None:  # noqa: FBT001 - `Pause` passes it by position
        ERRORS.labels(self._store).inc()
        if is_first:
            reason = f"{action}s of document vectors pause for {self._rest_s:g} s: {type(error).__name__}: {error}"
            logger.warning("[vectors-away] %s: %s", self._location, reason)
