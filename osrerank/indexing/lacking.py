"""Take the documents that searches found without vectors, so that a build encodes them first."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping

from osrerank.indexing.side_index import IndexStore
from osrerank.vectors.index import LackingCounts

LOOK_S = 5.0
"""The pause between two reads of reports, in seconds."""


class Backlog:
    """The documents that searches reported to have no vectors; safe to use from many threads.

    Args:
        sides: index -> its side index; documents of other indices are left out.
    """

    def __init__(self, sides: Mapping[str, IndexStore]) -> None:
        self._sides = sides
        self._counts: LackingCounts = Counter()
        self._look_at_s = 0.0
        self._lock = threading.Lock()

    def take(self, most: int) -> dict[str, list[str]]:
        """Return the ids of the documents that searches lacked most often, by index, and take them off.

        Args:
            most: the most documents to return.
        """
        with self._lock:
            if (now_s := time.monotonic()) >= self._look_at_s:
                for side in {side.index: side for side in self._sides.values()}.values():
                    self._counts.update(side.take_reports())
                self._look_at_s = now_s + LOOK_S
            ids: defaultdict[str, list[str]] = defaultdict(list)
            for (index, doc_id), _ in self._counts.most_common(most):
                del self._counts[index, doc_id]
                if index in self._sides:
                    ids[index].append(doc_id)
        return ids
