"""Find the ids that a collection has more than once, by reading it again when the index has too few."""

from array import array
from collections.abc import Callable, Iterator

import numpy as np

from osrerank.errors import FormatError
from osrerank_loaders.collections.base import Record


def name_duplicates(records: Callable[[], Iterator[Record]], *, shown: int) -> tuple[str, ...]:
    """Return the first ids that occur twice, each with the places of both, such as ``'D7' (records 3 and 90)``.

    Reads the collection twice, and needs 8 bytes for each record.
    """
    hashes = np.frombuffer(array("q", (hash(doc_id) for _place, doc_id in _ids(records()))), dtype=np.int64)
    distinct, counts = np.unique(hashes, return_counts=True)
    suspects = set(distinct[counts > 1].tolist())
    first_places: dict[str, int] = {}
    named: list[str] = []
    for place, doc_id in _ids(records()):
        if hash(doc_id) not in suspects:
            continue
        if doc_id in first_places:
            named.append(f"{doc_id!r} (records {first_places[doc_id]} and {place})")
        first_places.setdefault(doc_id, place)
        if len(named) == shown:
            break
    return tuple(named)


def _ids(records: Iterator[Record]) -> Iterator[tuple[int, str]]:
    """Yield each document's place in the collection, from 1, and its id."""
    for place, record in enumerate(records, 1):
        if not isinstance(record, FormatError):
            yield place, record.doc_id
