"""The example application over a part of the demo's sample, on three engines: what it promises its users."""

import importlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from osrerank import connect
from osrerank.cli.demo import INDEX, Sample, index_sample
from osrerank.indexing.build import build_vectors
from osrerank.vectors.index import side_index
from tests.servers import ROOT
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

TITLES = ("Oxygen", "Steam engine", "Force", "Geology")
QUERY = "how does steam drive an engine, what force does it use, and what oxygen"


@pytest.fixture(scope="module")
def sample() -> Sample:
    loaded = Sample.load()
    return replace(loaded, documents=tuple(document for document in loaded.documents if document["title"] in TITLES))


@pytest.fixture(scope="module")
def url(engine_url: str, sample: Sample) -> Iterator[str]:
    """An engine that has the sample and its vectors."""
    with connect(engine_url, model="osrerank/minilm-l6") as client:
        index_sample(client, sample)
        build_vectors(client, INDEX)
        yield engine_url
        client.indices.delete(index=[INDEX, side_index(INDEX)], ignore_unavailable=True)


def started(url: str, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Return a client of the application, which starts as its `with` block does."""
    monkeypatch.setenv("OSRERANK_URL", url)
    monkeypatch.setenv("OSRERANK_MODEL", "osrerank/minilm-l6")
    monkeypatch.syspath_prepend(ROOT / "docs" / "examples")
    return TestClient(importlib.import_module("search_application").app)


@pytest.fixture
def browser(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    with started(url, monkeypatch) as browser:
        wait_until(lambda: ask(browser)["reranked"] is True, 60)  # a cluster that has just started is slow
        yield browser


def ask(browser: TestClient, **parameters: Any) -> dict[str, Any]:
    answer = browser.get("/search", params={"q": QUERY, **parameters})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def test_hits_are_reranked_and_highlighted(browser: TestClient, url: str) -> None:
    answer = ask(browser)
    assert (answer["reranked"], answer["reason"], len(answer["hits"])) == (True, None, 10)
    with connect(url) as client:
        plain = client.search(QUERY, index=INDEX, size=10)["hits"]["hits"]
    assert [hit["id"] for hit in answer["hits"]] != [hit["_id"] for hit in plain]
    assert any("<em>engine</em>" in hit["text"] for hit in answer["hits"])
    assert all(hit["text"] for hit in answer["hits"])


def test_topics_are_counted_and_narrow_the_hits(browser: TestClient, sample: Sample) -> None:
    topics = ask(browser)["topics"]
    assert set(topics) <= set(TITLES) == {document["title"] for document in sample.documents}
    assert len(topics) > 2
    for topic, count in topics.items():
        answer = ask(browser, topic=topic)
        assert {hit["title"] for hit in answer["hits"]} == {topic}
        assert (answer["total"]["value"], answer["topics"]) == (count, {topic: count})
    two_topics = list(topics)[:2]
    assert ask(browser, topic=two_topics)["total"]["value"] == sum(topics[topic] for topic in two_topics)


def test_pages_of_the_example_application_join(browser: TestClient) -> None:
    total = ask(browser)["total"]["value"]
    pages = [ask(browser, page=number)["hits"] for number in range(1, total // 10 + 2)]
    counts = Counter(hit["id"] for page in pages for hit in page)
    assert total > 100, "the last page lies below the depth"
    assert (len(counts), set(counts.values())) == (total, {1})


def test_the_example_application_shows_that_a_search_was_not_reranked(browser: TestClient) -> None:
    answer = ask(browser, q="кислород oxygen кислород вода огонь")
    assert answer["reranked"] is False
    assert "Cyrillic" in answer["reason"]
    assert answer["hits"]


def test_the_example_application_works_with_reranking_switched_off(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "osrerank.toml").write_text('[rerank]\npipeline = "none"\n')
    monkeypatch.chdir(tmp_path)
    with started(url, monkeypatch) as browser:
        answer = ask(browser)
        assert (answer["reranked"], answer["reason"], len(answer["hits"])) == (False, "the pipeline is none", 10)


def test_the_example_application_refuses_wrong_requests_and_reports_health(browser: TestClient) -> None:
    assert browser.get("/search").status_code == 422
    assert browser.get("/search", params={"q": "x", "page": 0}).status_code == 422
    assert browser.get("/health").json() == {"status": "ok"}
