"""Clients of engines in fresh folders."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opensearchpy import OpenSearch

from osrerank import connect


@pytest.fixture
def open_engine(tmp_path: Path) -> Iterator[Callable[..., OpenSearch]]:
    """Give clients of a folder; they are closed at the end."""
    clients = []

    def opened(folder: str = "engine") -> OpenSearch:
        clients.append(connect(f"embedded:{tmp_path / folder}"))
        return clients[-1]

    yield opened
    for client in clients:
        client.close()


@pytest.fixture
def engine(open_engine: Callable[..., OpenSearch]) -> OpenSearch:
    return open_engine()
