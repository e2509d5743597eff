"""Reading a synthesised file with a loader, as the command does."""

from collections.abc import Callable
from pathlib import Path

import pytest

from osrerank.formats.sources import list_files, open_sources
from osrerank_loaders.collections.base import Loader, Record, read_records

Read = Callable[..., list[Record]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write the bytes to a file (or take paths as they are) and read them with a loader."""

    def reading(loader: Loader, content: bytes | Path, name: str = "file", *, contents: bool = False) -> list[Record]:
        path = content if isinstance(content, Path) else tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        sources = open_sources(list_files([str(path)], loader.files), loader.files)
        return list(read_records(loader, sources, contents=contents))

    return reading
