"""Collect the documents that lacked a vector in searches, so that a build encodes them before all others."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping

from osrerank.indexing.side_index import IndexStore
from osrerank.vectors.index import MissingVectorCounts

READ_INTERVAL_S = 5.0
"""The minimum time between two reads of the searches' reports, in seconds."""


class Backlog:
    """The documents that searches found without a vector. Safe to use from many threads.

    Searches report these documents in side indices, the hidden indices that store the vectors of other indices.

    Args:
        side_indices: the side index of each index. Documents of indices that are not among the keys are left out.
    """

    def __init__(self, side_indices: Mapping[str, IndexStore]) -> None:
        self._side_indices = side_indices
        self._counts: MissingVectorCounts = Counter()
        self._next_read_at_s = 0.0
        self._lock = threading.Lock()

    def take(self, max_documents: int) -> dict[str, list[str]]:
        """Remove and return the ids of the most often reported documents, such as ``{"news": ["7", "12"]}``."""
        with self._lock:
            now_s = time.monotonic()
            if now_s >= self._next_read_at_s:
                # indices can share a side index
                distinct_stores = {store.index: store for store in self._side_indices.values()}
                for store in distinct_stores.values():
                    self._counts.update(store.take_reports())
                self._next_read_at_s = now_s + READ_INTERVAL_S
            ids: defaultdict[str, list[str]] = defaultdict(list)
            for (index, doc_id), _ in self._counts.most_common(max_documents):
                del self._counts[index, doc_id]
                if index in self._side_indices:
                    ids[index].append(doc_id)
        return ids
