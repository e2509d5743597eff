"""Load and store the progress of an index's vector builds, which several builders can change at the same time.

The progress says which documents have vectors, and which documents each builder is working on. It is stored with the
vectors: in a side index, a hidden index that stores another index's vectors, or in this machine's vector file.
`osrerank.vectors.build_progress` describes its content.
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


class StoredProgress(ABC):
    """An index's build progress in the store of its vectors.

    Attributes:
        latest: the progress as it was last loaded or stored.
    """

    latest: BuildProgress

    @abstractmethod
    def load(self) -> BuildProgress:
        """Load and return the progress. Return empty progress if nothing is stored, or if the content is invalid."""

    @abstractmethod
    def update(self, transform: Callable[[BuildProgress], tuple[BuildProgress, Any]]) -> Any:
        """Change the stored progress.

        Args:
            transform: a function that takes the current progress, and returns the new progress and any value, such as a
                new lease. It is called again if another builder stores its progress first.

        Returns:
            The value that ``transform`` returned last.
        """

    def change(self, transform: Callable[[BuildProgress], BuildProgress]) -> None:
        """Change the stored progress, as `update` does. ``transform`` returns only the new progress."""
        self.update(lambda progress: (transform(progress), None))


class SideIndexProgress(StoredProgress):
    """The progress in a side index, which builders on all machines share."""

    def __init__(self, side_index: IndexStore, key: bytes) -> None:
        self._side_index, self._key = side_index, key
        self._version: Any = None
        self.latest = BuildProgress()

    def load(self) -> BuildProgress:
        content, self._version = self._side_index.read_build_state(self._key)
        self.latest = _parse_progress(content, self._side_index.index)
        return self.latest

    def update(self, transform: Callable[[BuildProgress], tuple[BuildProgress, Any]]) -> Any:
        while True:
            progress, value = transform(self.latest)
            if progress == self.latest:
                return value
            version = self._side_index.write_build_state(self._key, progress.to_bytes(), self._version)
            if version is not None:
                self.latest, self._version = progress, version
                return value
            self.load()  # another builder stored its progress first


class FileProgress(StoredProgress):
    """The progress in this machine's vector file.

    Builds that run at the same time might encode a text twice, but miss none.
    """

    def __init__(self, store: FileStore, key: bytes) -> None:
        self._store, self._key = store, BUILD_PREFIX + key
        self.latest = BuildProgress()

    def load(self) -> BuildProgress:
        progress = _parse_progress(self._store.read([self._key]).get(self._key, b""), "the vector file")
        self.latest = progress if progress.has_all_files(self._store.files()) else BuildProgress()
        return self.latest

    def update(self, transform: Callable[[BuildProgress], tuple[BuildProgress, Any]]) -> Any:
        files = self._store.files()  # first, so that `load` finds the progress invalid if one is deleted from now on
        progress, value = transform(self.load())
        if progress != self.latest:
            self.latest = replace(progress, files=files)
            self._store.write({self._key: self.latest.to_bytes()})
        return value


def _parse_progress(content: bytes, source: str) -> BuildProgress:
    if not content:
        return BuildProgress()
    try:
        return BuildProgress.from_bytes(content)
    except FormatError as error:
        logger.warning(
            "[vectors-again] the build progress in %s is invalid, so all documents are read: %s", source, error
        )
        return BuildProgress()
