"""Fixtures that every tier may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import servers


@pytest.fixture(scope="session")
def opensearch_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real OpenSearch."""
    with servers.opensearch(tmp_path_factory.mktemp("opensearch")) as url:
        yield url


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis."""
    with servers.redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real collections beside the checkout."""
    if not servers.SHARED.is_dir():
        pytest.skip("the real collections are not here: no folder ../shared")
    return servers.SHARED / "data"
