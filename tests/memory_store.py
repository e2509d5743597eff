"""A store of document vectors in this process, without bounds."""

from collections.abc import Iterable, Mapping, Sequence

from osrerank.vectors.store import Size


class MemoryStore:
    """Keeps every record that was written."""

    name = "memory"

    def __init__(self) -> None:
        self._records: dict[bytes, bytes] = {}

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return {key: self._records[key] for key in keys if key in self._records}

    def write(self, records: Mapping[bytes, bytes]) -> int:
        self._records.update(records)
        return len(records)

    def size(self) -> Size:
        return Size(len(self._records), sum(map(len, self._records.values())), 0)

    def prune(self, kept: Iterable[Sequence[bytes]]) -> int:
        all_keys = {key for keys in kept for key in keys}
        self._records = {key: record for key, record in self._records.items() if key in all_keys}
        return len(self._records)

    def drop(self) -> int:
        count = len(self._records)
        self._records.clear()
        return count

    def close(self) -> None:
        pass
