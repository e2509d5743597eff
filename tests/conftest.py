"""Fixtures that every tier may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import servers

# Machines are noisy, and a fresh checkout first builds Hypothesis' tables of characters: time is no ground to fail on.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def no_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the settings file and the document vectors of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path_factory.mktemp("vectors")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        yield


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a server is started for, wherever it stands."""
    for item in items:
        if {"opensearch_url", "redis_url"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.server)
