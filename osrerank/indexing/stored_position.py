"""Load and store the position of an index's builds: which documents have vectors, and which builder reads which now.

The position is stored with the vectors: in a side index (the hidden index with the vectors of another one), or in this
machine's file. Several builders can change it at the same time. See `osrerank.vectors.build_progress`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from osrerank.errors import FormatError
from osrerank.indexing.side_index import IndexStore
from osrerank.vectors.build_progress import BuildProgress
from osrerank.vectors.file import BUILD_PREFIX, FileStore

logger = logging.getLogger(__name__)


class StoredPosition(ABC):
    """The position of an index's builds, in the store of its vectors.

    Attributes:
        position: the position as it was last loaded or stored.
    """

    position: BuildProgress

    @abstractmethod
    def load(self) -> BuildProgress:
        """Load and return the position. It is empty if no valid position is stored."""

    @abstractmethod
    def update(self, change: Callable[[BuildProgress], tuple[BuildProgress, Any]]) -> Any:
        """Change the stored position, and return the value that ``change`` returned with it.

        Args:
            change: a function that takes the current position, and returns the new position and any value. It is called
                again if another builder stored a position first.
        """

    def change(self, change: Callable[[BuildProgress], BuildProgress]) -> None:
        """Change the stored position by a function that returns only the new position."""
        self.update(lambda position: (change(position), None))


class SidePosition(StoredPosition):
    """The position in a side index, which builders on all machines share."""

    def __init__(self, side: IndexStore, key: bytes) -> None:
        self._side, self._key = side, key
        self._version: Any = None
        self.position = BuildProgress()

    def load(self) -> BuildProgress:
        content, self._version = self._side.read_position(self._key)
        self.position = _parse_position(content, self._side.index)
        return self.position

    def update(self, change: Callable[[BuildProgress], tuple[BuildProgress, Any]]) -> Any:
        while True:
            new_position, value = change(self.position)
            if new_position == self.position:
                return value
            version = self._side.write_position(self._key, new_position.to_bytes(), self._version)
            if version is not None:
                self.position, self._version = new_position, version
                return value
            self.load()


class FilePosition(StoredPosition):
    """The position in this machine's file. Two processes that build might both encode a text, but neither skips one."""

    def __init__(self, store: FileStore, key: bytes) -> None:
        self._store, self._key = store, BUILD_PREFIX + key
        self.position = BuildProgress()

    def load(self) -> BuildProgress:
        position = _parse_position(self._store.read([self._key]).get(self._key, b""), "the vector file")
        self.position = position if position.is_valid(self._store.files()) else BuildProgress()
        return self.position

    def update(self, change: Callable[[BuildProgress], tuple[BuildProgress, Any]]) -> Any:
        files = self._store.files()  # listed first, so that the next load rejects this position if a file gets deleted
        new_position, value = change(self.load())
        if new_position != self.position:
            self.position = replace(new_position, files=files)
            self._store.write({self._key: self.position.to_bytes()})
        return value


def _parse_position(content: bytes, source: str) -> BuildProgress:
    """Return the stored position; an empty one if the content is empty or invalid."""
    if not content:
        return BuildProgress()
    try:
        return BuildProgress.from_bytes(content)
    except FormatError as error:
        logger.warning("[vectors-again] the build reads every document, as %s has no valid position: %s", source, error)
        return BuildProgress()
