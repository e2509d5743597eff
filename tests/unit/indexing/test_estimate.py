"""How many of an index's documents have vectors, and how long the rest takes, whatever their lengths."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from osrerank import Client, Rerank, connect
from osrerank.aio import connect_async
from osrerank.errors import ConfigError
from osrerank.indexing.build import build_vectors
from osrerank.indexing.estimate import estimate, format_duration
from osrerank.search.coverage import SAMPLE_SIZE
from osrerank.testing import FunctionScorer, ManualClock
from tests import articles
from tests.letters import Letters


def fill(client: Client, texts: Sequence[str]) -> None:
    articles.fill(client, "notes", [{"text": text} for text in texts])


SHORT, LONG = "low pressure", "a low pressure after bed rest " * 60


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))


def test_documents_are_counted_with_and_without_vectors_and_text(tmp_path: Path) -> None:
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=Letters()) as client:
        fill(client, ["one", "two", "two", "", "three"])
        assert str(client.coverage("notes")) == "4 of 5 documents lack vectors"
        client.searcher.service.load_vectors(Rerank()).build(["two"])  # type: ignore[union-attr]
        coverage = client.coverage("notes")
        assert (coverage.documents, coverage.lacks, coverage.share) == (5, 2, 0.6)  # equal texts count one each
        build_vectors(client, "notes")
        assert str(client.coverage("notes")) == "none of 5 documents lacks vectors"
        assert str(estimate(client, "notes")) == "notes: none of 5 documents lacks vectors"


def test_without_stored_vectors_nothing_is_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSRERANK_VECTORS", "off")
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=Letters()) as client:
        fill(client, ["one"])
        with pytest.raises(ConfigError, match="set OSRERANK_VECTORS to file"):
            estimate(client, "notes")
        assert client.is_warm("notes") is False


@pytest.mark.long
def test_a_sample_covers_the_whole_index_and_is_reported_as_a_sample(tmp_path: Path) -> None:
    """A build that was interrupted leaves the first documents with vectors, and the last ones without."""
    texts = [f"note {number}" for number in range(3 * SAMPLE_SIZE)]
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=Letters()) as client:
        fill(client, texts)
        client.searcher.service.load_vectors(Rerank()).build(texts[: 2 * SAMPLE_SIZE])  # type: ignore[union-attr]
        coverage = client.coverage("notes")
    assert (coverage.is_sample, coverage.examined) == (True, SAMPLE_SIZE)
    assert coverage.share == pytest.approx(2 / 3, abs=0.05)
    assert str(coverage).startswith("about ")
    assert str(coverage).endswith(f"of 3,000 documents lack vectors, by a sample of {SAMPLE_SIZE:,}")


def test_an_index_is_ready_with_its_model_and_vectors(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'engine'}"
    with connect(url, scorer=Letters()) as client:
        fill(client, ["one", "two", "three", "four"])
        client.searcher.service.load_vectors(Rerank()).build(["one", "two", "three"])  # type: ignore[union-attr]
        client.searcher.service.load_vectors(Rerank()).records.flush()  # type: ignore[union-attr]
        assert [client.is_warm("notes", at_least=share) for share in (0.75, 0.8)] == [True, False]
        assert client.is_warm("notes") is False
    with connect(url) as client:  # whose model is not loaded
        assert client.is_warm("notes", at_least=0) is False
    with connect(url, scorer=FunctionScorer()) as client:  # which has no vectors
        assert client.is_warm("notes") is True
        with pytest.raises(ConfigError, match="only bi-encoders and late interaction do"):
            client.coverage("notes")

    async def asked() -> tuple[bool, int]:
        client = connect_async(url, scorer=Letters())
        warm_and_lacking = await client.is_warm("notes", at_least=0.7), (await client.coverage("notes")).lacks
        await client.close()
        return warm_and_lacking

    assert asyncio.run(asked()) == (True, 1)


@pytest.mark.parametrize(
    "texts",
    [[SHORT] * 300, [LONG] * 40, [SHORT] * 150 + [LONG] * 30],
    ids=["short", "long", "mixed"],
)
def test_the_estimated_time_of_a_build_is_within_a_third(texts: list[str], tmp_path: Path) -> None:
    texts = [f"{text} {number}" for number, text in enumerate(texts)]
    clock = ManualClock()
    scorer = Letters(1e-5, 2e-3, clock.sleep)
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=scorer, clock=clock, rerank={"passages": None}) as client:
        fill(client, texts)
        estimated = estimate(client, "notes")
        began = clock()
        build_vectors(client, "notes")
        assert estimated.build_s == pytest.approx(clock() - began, rel=1 / 3)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.1, "1 second"), (40, "40 seconds"), (540, "9 minutes"), (18_000, "5 hours"), (1_468_800, "17 days")],
)
def test_durations_are_written_in_words(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said
