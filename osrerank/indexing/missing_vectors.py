"""Collect the documents that lacked a vector in searches, so that a build encodes them before all others."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping

from osrerank.indexing.side_index import IndexStore
from osrerank.vectors.index import MissingVectorCounts

READ_PAUSE_S = 5.0
"""The pause between two reads of reports, in seconds."""


class Backlog:
    """The documents that lacked a vector, as searches reported. Safe to use from many threads.

    Args:
        sides: index -> its side index (the hidden index with its vectors, which also has the reports); documents of
            other indices are left out.
    """

    def __init__(self, sides: Mapping[str, IndexStore]) -> None:
        self._sides = sides
        self._counts: MissingVectorCounts = Counter()
        self._next_read_s = 0.0
        self._lock = threading.Lock()

    def take(self, max_documents: int) -> dict[str, list[str]]:
        """Remove and return, by index, the ids of the documents that were reported most often."""
        with self._lock:
            now_s = time.monotonic()
            if now_s >= self._next_read_s:
                for side in {side.index: side for side in self._sides.values()}.values():
                    self._counts.update(side.take_reports())
                self._next_read_s = now_s + READ_PAUSE_S
            ids: defaultdict[str, list[str]] = defaultdict(list)
            for (index, doc_id), _ in self._counts.most_common(max_documents):
                del self._counts[index, doc_id]
                if index in self._sides:
                    ids[index].append(doc_id)
        return ids
