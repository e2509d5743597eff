"""Collect the documents that lacked a vector in searches, so that a build encodes them before all others."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping

from osrerank.indexing.side_index import IndexStore
from osrerank.vectors.index import MissingVectorCounts

READ_INTERVAL_S = 5.0
"""The searches' reports are read again after this many seconds at the earliest."""


class Backlog:
    """The documents without a vector, as searches reported them. Safe to use from many threads.

    Searches store their reports in side indices (the hidden indices with the vectors of other indices).

    Args:
        side_indices: the side index of each index. Documents of other indices are left out.
    """

    def __init__(self, side_indices: Mapping[str, IndexStore]) -> None:
        self._side_indices = side_indices
        self._counts: MissingVectorCounts = Counter()
        self._next_read_s = 0.0
        self._lock = threading.Lock()

    def take(self, max_documents: int) -> dict[str, list[str]]:
        """Remove the documents that were reported most often. Return their ids by index."""
        with self._lock:
            now_s = time.monotonic()
            if now_s >= self._next_read_s:
                for store in {store.index: store for store in self._side_indices.values()}.values():
                    self._counts.update(store.take_reports())
                self._next_read_s = now_s + READ_INTERVAL_S
            ids: defaultdict[str, list[str]] = defaultdict(list)
            for (index, doc_id), _ in self._counts.most_common(max_documents):
                del self._counts[index, doc_id]
                if index in self._side_indices:
                    ids[index].append(doc_id)
        return ids
