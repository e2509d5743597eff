"""The protocol of stores for document vectors and the handling of their failures."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol

from prometheus_client import Counter

from osrerank._pause import Pause
from osrerank.errors import OsrerankError

REST_S = 10.0
"""Pause after a failure, in seconds."""
VECTORS_OFF = "vectors are off: set OSRERANK_VECTORS=file, index or redis"

ERRORS = Counter(
    "osrerank_vectors_errors", "Failed calls of a store; a failed read or write only costs time.", ["store"]
)


logger = logging.getLogger(__name__)


class Size(NamedTuple):
    """How much a store holds, and how much it may hold.

    Attributes:
        records: number of records.
        stored: bytes that the records take, with what the store adds.
        most: bytes that the records may take; 0 for no bound.
    """

    records: int
    stored: int
    most: int


class VectorStore(Protocol):
    """A key-value store for the records of document vectors.

    `read` and `write` never raise: an absent, full or slow store only costs time. `size`, `prune` and `drop` raise
    `OsrerankError` if they fail.

    The caller checks that bytes are a record of their key (`osrerank.vectors.record.VectorRecord.read`).
    """

    @property
    def name(self) -> str:
        """The store's name in metrics and reports."""

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return those of the records that the store has, by key."""

    def write(self, records: Mapping[bytes, bytes]) -> int:
        """Store records; return how many were stored."""

    def size(self) -> Size:
        """Return how much the store holds."""

    def prune(self, kept: Iterable[Sequence[bytes]]) -> int:
        """Delete all records except those of these keys, which come in batches; return how many are left."""

    def drop(self) -> int:
        """Delete all records; return how many there were."""

    def close(self) -> None:
        """Release open files and connections."""


class Guard:
    """Counts and logs the failures of a store, and pauses after each.

    Args:
        store: name of the store, for metrics.
        where: where the store is, for log lines.
        rest_s: length of the pause, in seconds.

    Attributes:
        read: the pause of reading.
        write: the pause of writing; it is separate, so that a full store is still read.
    """

    def __init__(self, store: str, where: str, rest_s: float = REST_S) -> None:
        self._store, self._where, self._rest_s = store, where, rest_s
        self.read, self.write = (Pause(rest_s, partial(self._report, way)) for way in ("read", "write"))

    @contextmanager
    def asked(self, *errors: type[Exception]) -> Iterator[None]:
        """Raise a store's own errors as `OsrerankError`, for calls that users make (`size`, `prune`, `drop`)."""
        try:
            yield
        except errors as error:
            ERRORS.labels(self._store).inc()
            raise OsrerankError(f"the document vectors in {self._where} cannot be used: {error}") from error

    def _report(self, way: str, error: Exception, is_first: bool) -> None:  # noqa: FBT001 - `Pause` passes it by position
        ERRORS.labels(self._store).inc()
        if is_first:
            reason = f"{type(error).__name__}: {error}"
            logger.warning(
                "[vectors-away] %s: %ss of document vectors pause for %g s: %s", self._where, way, self._rest_s, reason
            )
