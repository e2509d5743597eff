"""A late-interaction model wherever a bi-encoder is: searches, builds, stores, workers, a cross-encoder after it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from osrerank import Client
from osrerank.indexing.build import build_vectors
from osrerank.indexing.prune import prune_everything
from osrerank.scoring.registry import as_scorer, load
from osrerank.scoring.remote.encoder import RemoteEncoder
from osrerank.settings import Settings
from tests.articles import fill, filled
from tests.late_interaction import exported
from tests.rankings import ids
from tests.workers import worker_group

pytestmark = pytest.mark.integration

INDEX, QUERY = "late", "what lowers blood pressure"
TOPICS = ("salt and blood pressure", "the lift of wings", "heat in boundary layers", "search engines", "old pages")
TEXTS = [f"note {number} on {TOPICS[number % len(TOPICS)]}: what is known" for number in range(20)]
DOCUMENTS = {f"d{place}": {"text": text} for place, text in enumerate(TEXTS)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(exported("expanded", tmp_path_factory.mktemp("model"), precision="int8", pool_factor=2))


@pytest.fixture
def client(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    with filled(f"embedded:{tmp_path / 'engine'}", INDEX, DOCUMENTS, model=model) as made:
        yield made


def test_vectors_are_built_once_and_read_by_searches(client: Client) -> None:
    assert build_vectors(client, INDEX).encoded == len(TEXTS)
    assert client.coverage(INDEX).share == 1.0
    assert build_vectors(client, INDEX).encoded == 0
    stage = client.search(QUERY, index=INDEX, size=20, rerank=True)["rerank"]["stages"][0]
    assert (stage["kind"], stage["encoded"], stage["known"]) == ("late-interaction", 0, stage["candidates"])
    assert prune_everything(client) == len(TEXTS)


def test_the_second_search_has_the_firsts_order_and_scores(client: Client) -> None:
    first = client.search(QUERY, index=INDEX, size=20, rerank=True)
    vectors = client.searcher.service.scoring_model.vectors()
    assert vectors is not None
    vectors.records.flush()
    second = client.search(QUERY, index=INDEX, size=20, rerank=True)
    assert second["rerank"]["stages"][0]["encoded"] == 0
    assert [(hit["_id"], hit["_score"]) for hit in first["hits"]["hits"]] == [
        (hit["_id"], hit["_score"]) for hit in second["hits"]["hits"]
    ]


def test_late_interaction_gives_a_long_document_its_best_passages_score(client: Client) -> None:
    long = "the lift of wings is known well " * 60 + TEXTS[0]
    fill(client, INDEX, {"long": {"text": long}})
    options = {"passages": {"words": 8, "stride": 8, "limit": 100}, "blend": "replace"}
    response = client.search(QUERY, index=INDEX, size=21, rerank=options)
    logits = {hit["_id"]: hit["_rerank"]["vectors"]["logit"] for hit in response["hits"]["hits"]}
    assert response["rerank"]["stages"][0]["inferences"] > len(logits)
    assert ids(response) == sorted(logits, key=lambda doc_id: -logits[doc_id])


@pytest.mark.long
def test_workers_encode_documents_for_late_interaction(broker: str, model: str, tmp_path: Path) -> None:
    settings = Settings.load(model=model, broker_url=broker, backend="workers", vectors_folder=tmp_path / "vectors")
    here = Settings.load(model=model, vectors="off", vectors_profile="standard")
    tuples = [(index,) for index in range(len(TEXTS))]
    with worker_group(broker, tmp_path / "group", 1, model=model, environment={"OSRERANK_VECTORS": "off"}) as group:
        group.wait_for(1)
        encoder = load(settings)
        assert isinstance(encoder, RemoteEncoder)
        scorer, own_scorer = as_scorer(encoder, settings), as_scorer(load(here), here)
        cold = scorer.score(QUERY, TEXTS, tuples)
        assert (cold.encoded, cold.failures) == (len(TEXTS), {})
        np.testing.assert_array_equal(cold.values, own_scorer.score(QUERY, TEXTS, tuples).values)
        scorer.close()
        own_scorer.close()
