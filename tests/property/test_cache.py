"""A cache changes the time of a search and nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank import Client, connect
from osrerank.scoring.cache.scorer import score_keys

MODELS = Path(__file__).parents[1] / "data"
TINY = str(MODELS / "tiny-bert-one-label")
WORDS = ["salt", "water", "pressure", "wing", "heat", "fever"]
texts = st.text(max_size=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    client = connect(f"embedded:{folder}")
    lines: list[dict[str, object]] = []
    for number in range(60):
        text = " ".join(WORDS[(number * step) % len(WORDS)] for step in range(1, 2 + number % 9))
        lines += [{"index": {"_id": str(number)}}, {"title": f"note {number % 7}", "text": text}]
    client.bulk(index="notes", body=lines, refresh=True)
    client.close()
    return folder


@pytest.fixture(scope="module")
def caching(folder: Path, redis_url: str) -> Iterator[Client]:
    client = connect(f"embedded:{folder}", model=TINY, backend="onnx", redis_url=redis_url)
    yield client
    client.close()


def hits(client: Client, query: str, options: dict[str, object]) -> tuple[str, int]:
    """Return a search's hits as JSON, and how many scores were cached."""
    response = client.search(query, index="notes", size=40, rerank=options)
    return json.dumps(response["hits"]), response["rerank"]["stages"][0]["cached"]


@given(texts, texts, texts, texts, texts, texts)
def test_keys_are_the_same_exactly_where_everything_is(identity, query, document, other, other_query, other_document):
    key = score_keys(identity, query, [document], [(0,)])
    same = (identity, query, document) == (other, other_query, other_document)
    assert (key == score_keys(other, other_query, [other_document], [(0,)])) is same


@given(texts, texts, st.data())
def test_texts_that_meet_at_their_borders_have_keys_of_their_own(first, second, data):
    joined = first + second
    cut = data.draw(st.integers(0, len(joined)))
    key = score_keys("i", first, [second], [(0,)])
    assert (key == score_keys("i", joined[:cut], [joined[cut:]], [(0,)])) is (cut == len(first))
    pair = score_keys("i", "q", [first, second], [(0, 1)])
    assert (pair == score_keys("i", "q", [second, first], [(0, 1)])) is (first == second)


@pytest.mark.parametrize(
    "changed",
    [
        {"fields": ["text"]},
        {"fields": ["text", "title"]},
        {"separator": " | "},
        {"passages": {"words": 3, "stride": 3}},
    ],
    ids=str,
)
def test_what_changes_the_text_asks_for_new_scores(caching: Client, changed: dict[str, object]) -> None:
    usual = {"depth": 20, "fields": ["title", "text"]}
    hits(caching, "salt water", usual)
    assert hits(caching, "salt water", usual)[1] == 20
    assert hits(caching, "salt water", {**usual, **changed})[1] < 20


def test_another_model_or_precision_asks_for_new_scores(folder: Path, redis_url: str, caching: Client) -> None:
    options = {"depth": 20, "blend": "replace"}
    hits(caching, "fever heat", options)
    other = connect(
        f"embedded:{folder}", model=str(MODELS / "tiny-bert-two-labels"), backend="onnx", redis_url=redis_url
    )
    assert hits(other, "fever heat", options)[1] == 0
    assert hits(other, "fever heat", options)[1] == 20
    other.close()
