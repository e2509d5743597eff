"""Thresholds on both engines: a calibration made there, and lists that both clients cut alike by it."""

import asyncio
import zlib
from pathlib import Path
from typing import Any

import pytest

from osrerank import Client, connect
from osrerank.aio import connect_async
from osrerank.decision.calibrate import calibrate
from osrerank.testing import FunctionScorer
from osrerank.thresholds.calibration import write_calibration
from osrerank.types import Qrels, Query
from tests.articles import fill

pytestmark = pytest.mark.integration

TOPICS = 40
NOTES = [{"title": "", "text": f"pressure topic{place % TOPICS} {'low ' * place}"} for place in range(2 * TOPICS)]
QUERIES = [Query(f"q{topic}", f"pressure topic{topic}") for topic in range(TOPICS)]
QRELS = Qrels({f"q{topic}": {str(topic): 1, str(topic + TOPICS): 1} for topic in range(TOPICS)})
ASKED: list[Any] = [
    {"min_probability": 0.5},
    {"cutoff": "cliff"},
    {"cutoff": {"precision": 0.8}},
    {"cutoff": {"precision": 0.999}},
    {"min_probability": 0.2, "cutoff": {"precision": 0.8}},
]


def logit(query: str, text: str) -> float:
    """Prefer notes of the query's topic, with noise."""
    noise = zlib.crc32(f"{query} {text}".encode()) % 1000 / 1000
    return 3.0 * (query.rsplit(maxsplit=1)[-1] in text.split()) + 4.5 * noise


SCORER = FunctionScorer(logit)


@pytest.fixture
def client(engine_url: str, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    with connect(engine_url, scorer=SCORER, rerank={"depth": 20}) as made:
        fill(made, index_name, NOTES)
        fitted = calibrate(made, index_name, QUERIES, QRELS)
        write_calibration(made.searcher.calibrations.file, index_name, fitted.calibration)
        yield made


def test_both_clients_cut_alike(client: Client, engine_url: str, index_name: str) -> None:
    whole, *found = [client.search(QUERIES[7].text, index=index_name, size=20, rerank=one) for one in (True, *ASKED)]
    ids = [[hit["_id"] for hit in one["hits"]["hits"]] for one in (whole, *found)]
    cuts = [one["rerank"]["cuts"] for one in found]
    assert all(one == ids[0][: len(one)] for one in ids[1:])  # a cut list is the beginning of the whole one
    assert all(0 < len(one) < len(ids[0]) for one in ids[1:4])
    assert [[cut["by"] for cut in one] for one in cuts] == [
        ["min_probability"], ["cliff"], ["precision"], ["precision"], ["min_probability", "precision"],
    ]  # fmt: skip
    assert [all(cut["applied"] for cut in one) for one in cuts] == [True, True, True, False, True]
    assert [sum(cut["hits"] for cut in one) for one in cuts[:4]] == [len(ids[0]) - len(one) for one in ids[1:5]]

    async def search() -> Any:
        options: Any = {"scorer": SCORER, "rerank": {"depth": 20}}
        async with connect_async(engine_url, **options) as other:
            searches = [other.search(QUERIES[7].text, index=index_name, size=20, rerank=one) for one in ASKED]
            lines = [{"index": index_name}, {"query": {"match": {"text": QUERIES[7].text}}, "size": 20}]
            many = await other.msearch(body=lines, rerank=ASKED[0])
            return await asyncio.gather(*searches), many["responses"][0]

    if engine_url.startswith("embedded:"):
        client.close()
    answers, one_of_many = asyncio.run(search())
    assert [[hit["_id"] for hit in one["hits"]["hits"]] for one in answers] == ids[1:]
    assert [one["rerank"]["cuts"] for one in answers] == cuts
    assert one_of_many["rerank"]["cuts"][0]["applied"] is True


def test_another_mapping_is_refused(client: Client, engine_url: str, index_name: str) -> None:
    client.indices.delete(index=index_name)
    english = {"type": "text", "analyzer": "english"}
    client.indices.create(index=index_name, body={"mappings": {"properties": {"title": english, "text": english}}})
    fill(client, index_name, NOTES)
    if engine_url.startswith("embedded:"):
        client.close()
    with connect(engine_url, scorer=SCORER, rerank={"depth": 20}) as other:
        found = other.search(QUERIES[7].text, index=index_name, size=20, rerank={"min_probability": 0.5})
    (cut,) = found["rerank"]["cuts"]
    assert (cut["applied"], cut["hits"], len(found["hits"]["hits"])) == (False, 0, 20)
    assert "another mapping" in cut["reason"]
