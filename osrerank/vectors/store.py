"""`VectorStore`, the interface of stores for document vectors, and `Guard`, which pauses a store after failures."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol

from prometheus_client import Counter

from osrerank._pause import Pause
from osrerank.errors import OsrerankError

PAUSE_S = 10.0
"""The pause of a store's reads after a failed read, and of its writes after a failed write, in seconds."""
VECTORS_OFF = "vectors are off: set OSRERANK_VECTORS to file, index or redis"
"""The message of errors that occur because the setting ``vectors`` is ``off``."""

ERRORS = Counter(
    "osrerank_vectors_errors", "Failed calls of a store; a failed read or write only costs time.", ["store"]
)

logger = logging.getLogger(__name__)


class Size(NamedTuple):
    """The size of a store.

    Attributes:
        records: the number of records.
        stored_bytes: the size of the records, with the store's overhead.
        max_bytes: the maximum size, or 0 if it is unlimited.
    """

    records: int
    stored_bytes: int
    max_bytes: int


class VectorStore(Protocol):
    """A key-value store for the stored form of document vectors (`osrerank.vectors.records`).

    `read` and `write` never raise. If the store is unavailable, full or slow, vectors are computed again. `size`,
    `prune` and `drop` raise `OsrerankError`. Stores do not validate the records that they read.
    """

    @property
    def name(self) -> str:
        """The store's name in metrics and reports."""

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the stored records with these keys, by key. Keys without a record are left out."""

    def write(self, records: Mapping[bytes, bytes]) -> int:
        """Store records, and return how many were stored."""

    def size(self) -> Size:
        """Return the size of the store."""

    def prune(self, keys_to_keep: Iterable[Sequence[bytes]]) -> int:
        """Delete all records except those with these keys, which come in batches. Return how many records remain."""

    def drop(self) -> int:
        """Delete all records, and return how many were deleted."""

    def close(self) -> None:
        """Release open files and connections."""


class Guard:
    """Counts and logs a store's failures, and pauses its reads or writes after each of them.

    Args:
        store: the store's name in metrics.
        location: the store's folder, index or server, for messages.
        errors: the exceptions that the store's library raises.

    Attributes:
        read_pause: the pause of reads.
        write_pause: the pause of writes. The pauses are separate, because a full store can still be read.
    """

    def __init__(self, store: str, location: str, *errors: type[Exception]) -> None:
        self._store, self._location, self._errors = store, location, errors
        self.read_pause = Pause(PAUSE_S, partial(self._report, "read"))
        self.write_pause = Pause(PAUSE_S, partial(self._report, "write"))

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise the library's errors as `OsrerankError`. Used for `size`, `prune` and `drop`."""
        try:
            yield
        except self._errors as error:
            ERRORS.labels(self._store).inc()
            raise OsrerankError(f"the document vectors in {self._location} cannot be used: {error}") from error

    def _report(self, action: str, error: Exception, began_pause: bool) -> None:  # noqa: FBT001 - `Pause` calls it
        """Count an error of an action, "read" or "write". Log the error if it began a pause."""
        ERRORS.labels(self._store).inc()
        if began_pause:
            reason = f"{action}s of document vectors pause for {PAUSE_S:g} s: {type(error).__name__}: {error}"
            logger.warning("[vectors-away] %s: %s", self._location, reason)
