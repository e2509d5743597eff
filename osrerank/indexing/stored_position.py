"""Store the position of an index's builds beside their vectors, shared by several builders."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from osrerank.errors import FormatError
from osrerank.indexing.side_index import IndexStore
from osrerank.vectors.file import POSITION, FileStore
from osrerank.vectors.position import Position

logger = logging.getLogger(__name__)


class StoredPosition(ABC):
    """The position of an index's builds, in the store of its vectors.

    Attributes:
        position: the position as last read or written.
    """

    position: Position

    @abstractmethod
    def load(self) -> Position:
        """Read and return the position. It is empty if no valid position is stored."""

    @abstractmethod
    def update(self, change: Callable[[Position], tuple[Position, Any]]) -> Any:
        """Change the position; return the second value that ``change`` returned.

        Args:
            change: a function that takes the current position, and returns the new one and a value. It is called again
                if another builder wrote first.
        """

    def change(self, change: Callable[[Position], Position]) -> None:
        """Change the position as `update` does, without a value to return."""
        self.update(lambda position: (change(position), None))


class SidePosition(StoredPosition):
    """The position in a side index, where builders on all machines share it.

    Args:
        side: the side index.
        key: the position's key.
    """

    def __init__(self, side: IndexStore, key: bytes) -> None:
        self._side, self._key = side, key
        self._version: Any = None
        self.position = Position()

    def load(self) -> Position:
        content, self._version = self._side.read_position(self._key)
        self.position = _read(content, self._side.index)
        return self.position

    def update(self, change: Callable[[Position], tuple[Position, Any]]) -> Any:
        while True:
            new, result = change(self.position)
            if new == self.position:
                return result
            version = self._side.write_position(self._key, new.write(), self._version)
            if version is not None:
                self.position, self._version = new, version
                return result
            self.load()


class FilePosition(StoredPosition):
    """The position in this machine's file. Builders in two processes may encode a text twice, but lose none.

    Args:
        store: the file.
        key: the position's key.
    """

    def __init__(self, store: FileStore, key: bytes) -> None:
        self._store, self._key = store, POSITION + key
        self.position = Position()

    def load(self) -> Position:
        position = _read(self._store.read([self._key]).get(self._key, b""), "the file")
        self.position = position if position.is_valid(self._store.files()) else Position()
        return self.position

    def update(self, change: Callable[[Position], tuple[Position, Any]]) -> Any:
        files = self._store.files()  # listed first, so that the next load rejects this position if a file gets deleted
        new, result = change(self.load())
        if new != self.position:
            self.position = replace(new, files=files)
            self._store.write({self._key: self.position.write()})
        return result


def _read(content: bytes, source: str) -> Position:
    if not content:
        return Position()
    try:
        return Position.read(content)
    except FormatError as error:
        logger.warning("[vectors-again] %s: the build reads every document again: %s", source, error)
        return Position()
