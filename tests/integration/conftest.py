"""Three engines behind one fixture: OpenSearch, Elasticsearch and the embedded engine run the same test bodies."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from opensearchpy import OpenSearch

from osrerank import connect
from tests.engine_facts import needs
from tests.servers import redis

ENGINES = ("opensearch", "elasticsearch", "embedded")
REPEATED = {
    "test_changing_texts",
    "test_follow",
    "test_joining_pages",
    "test_loaders_index",
    "test_search_application",
    "test_side_index",
}
"""Files whose tests take half a minute or more on Elasticsearch: `make test-all` runs them there."""
Engines = tuple[OpenSearch, OpenSearch]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only `make test-all` runs on Elasticsearch."""
    for item in items:
        drawn = getattr(item, "callspec", None)
        if drawn is not None and drawn.params.get("engine_url") == "elasticsearch" and item.path.stem in REPEATED:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", params=ENGINES)
def engine_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of each engine in turn, for `osrerank.connect`."""
    if request.param != "embedded":
        return str(request.getfixturevalue(f"{request.param}_url"))
    return f"embedded:{tmp_path_factory.mktemp('embedded')}"


@pytest.fixture(autouse=True)
def _facts(request: pytest.FixtureRequest) -> None:
    """Skip a test whose marker ``needs`` names what this OpenSearch does not have."""
    facts = [fact for mark in request.node.iter_markers("needs") for fact in mark.args]
    if facts:
        with OpenSearch(request.getfixturevalue("opensearch_url")) as client:
            needs(client, *facts)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis that only this file's tests use."""
    with redis(tmp_path_factory.mktemp("broker")) as url:
        yield url


@pytest.fixture
def engine(engine_url: str) -> Iterator[OpenSearch]:
    """A client of each engine in turn."""
    client = connect(engine_url)
    yield client
    client.close()


@pytest.fixture(scope="module")
def engines(opensearch_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """A client of each engine, for what both are to answer alike."""
    with connect(opensearch_url, timeout=60) as real, connect(f"embedded:{tmp_path_factory.mktemp('engine')}") as ours:
        yield real, ours


@pytest.fixture
def index_name(engine: OpenSearch) -> Iterator[str]:
    """A fresh name, its index removed at the end."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    engine.indices.delete(index=name, ignore_unavailable=True)


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the texts that bi-encoders encode."""
    from osrerank.scoring.backends.onnx import EncoderBackend

    counted: list[int] = []
    encoded = EncoderBackend.encode

    def counting(self: EncoderBackend, tokens: Any) -> Any:
        counted.append(len(tokens.ids))
        return encoded(self, tokens)

    monkeypatch.setattr(EncoderBackend, "encode", counting)
    return counted
