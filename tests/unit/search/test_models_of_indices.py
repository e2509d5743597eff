"""A model for each index, named in the settings file."""

import json
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from osrerank import Client, connect
from osrerank.errors import ConfigError
from osrerank.indexing.build import build_vectors
from osrerank.indexing.prune import prune_everything, prune_indices
from osrerank.indexing.side_index import find_side_indices
from osrerank.testing import FunctionScorer
from tests.articles import fill
from tests.rankings import unmarked
from tests.waiting import wait_until

DATA = Path(__file__).parents[2] / "data"
FILE = """
[rerank]
depth = 50

[index."shop-*"]
model = "{models}/shops"

[index."shop-de*"]
model = "{models}/german"

[index."shop-de*".rerank]
depth = 20

[index.papers]
model = "{models}/papers"
"""
INDICES = ("shop-fr", "shop-de", "papers", "notes")
MODELS = {"shops": "tiny-bert-two-labels", "german": "tiny-bert-bi-encoder", "papers": "tiny-bert-one-label"}


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    for name, tiny in MODELS.items():
        shutil.copytree(DATA / tiny, tmp_path / name)
        card = tmp_path / name / "osrerank.json"
        card.write_text(json.dumps({**json.loads(card.read_text("utf-8")), "name": name}), "utf-8")
    file = tmp_path / "settings.toml"
    file.write_text(FILE.format(models=tmp_path), "utf-8")
    monkeypatch.setenv("OSRERANK_SETTINGS_FILE", str(file))
    return tmp_path


@pytest.fixture
def open_client(models):
    opened = ExitStack()

    def open_with(**options) -> Client:
        client = opened.enter_context(connect(f"embedded:{models / 'data'}", **options))
        for index in INDICES:
            fill(client, index, [{"text": f"a note {number} about {'blood ' * number}"} for number in range(3)])
        return client

    with opened:
        yield open_with


def marks(client, index, **options):
    return client.search("a note about blood", index=index, rerank=options or True)["rerank"]


def model_of(client, index):
    marked = marks(client, index)
    assert marked["applied"] is True, marked["reason"]
    return Path(marked["stages"][0]["model"]).name


def loaded(client):
    return {Path(name).name for name in client.searcher.models.loaded}


def test_each_index_is_reranked_by_its_model(open_client):
    client = open_client()
    assert [model_of(client, index) for index in INDICES] == ["shops", "german", "papers", "e5-small"]
    assert [marks(client, index)["stages"][0]["name"] for index in INDICES] == ["mono", "vectors", "mono", "vectors"]
    assert model_of(client, ["shop-fr"]) == model_of(client, "shop-*,-shop-de*") == "shops"
    assert client.options_of("shop-de").depth == 20


def test_an_indexs_cross_encoder_reads_the_best_of_the_clients_vectors(open_client):
    client = open_client()
    assert marks(client, "notes")["applied"] is True
    both_marks = marks(client, "papers", pipeline="vectors-mono", mono_depth=2)
    assert [Path(stage["model"] or "").name for stage in both_marks["stages"]] == ["e5-small", "", "papers"]
    with client.searcher.service_for("papers") as service:
        assert service.vector_model is client.searcher.service.scoring_model  # it is loaded once
    with pytest.raises(ConfigError, match="german is a bi-encoder"):
        marks(client, "shop-de", pipeline="vectors-mono")


@pytest.mark.parametrize("index", ["shop-fr,shop-de", ["papers", "notes"], "shop-*", "*", None])
def test_indices_with_different_models_are_not_reranked(open_client, index):
    client = open_client()
    plain = client.search("a note about blood", index=index)
    response = client.search("a note about blood", index=index, rerank={"on_failure": "raise", "min_probability": 0.5})
    assert unmarked(response) == plain["hits"]
    assert (response["rerank"]["applied"], response["rerank"]["reason_code"]) == (False, "models")
    assert response["rerank"]["reason"].startswith("the indices of this search might use different models")
    assert "search them one by one" in response["rerank"]["reason"]


def test_a_multi_search_has_the_model_of_each_line(open_client):
    client = open_client()
    body = [line for name in (*INDICES, "*") for line in ({"index": name}, {"query": {"match": {"text": "blood"}}})]
    responses = client.msearch(body=body, rerank=True)
    model_names = [
        [Path(stage["model"]).name for stage in response["rerank"]["stages"][:1]] for response in responses["responses"]
    ]
    assert model_names == [["shops"], ["german"], ["papers"], ["e5-small"], []]


def test_models_are_loaded_on_first_use_and_the_longest_unused_is_released(open_client, caplog):
    client = open_client()
    assert loaded(client) == set()
    assert [model_of(client, index) for index in ("shop-de", "papers", "shop-fr")] == ["german", "papers", "shops"]
    assert loaded(client) == {"german", "papers", "shops"}
    assert model_of(client, "notes") == "e5-small"  # one's own counts, and is not released
    with caplog.at_level(logging.WARNING):
        assert model_of(client, "shop-de") == "german"
    assert loaded(client) == {"german", "shops"}
    released = [line for line in caplog.messages if line.startswith("[model-released] ")]
    assert "at most 3 models stay" in released[0]
    assert model_of(client, "papers") == "papers"  # again
    assert loaded(client) == {"german", "papers"}


def test_a_model_in_use_is_not_released(open_client):
    client = open_client()
    assert model_of(client, "notes") == "e5-small"
    with client.searcher.service_for("shop-de") as service:
        assert service.model.model.endswith("german")
        assert model_of(client, "papers") == "papers"
        assert model_of(client, "shop-fr") == "shops"
        assert loaded(client) == {"german", "shops"}
    assert model_of(client, "papers") == "papers"
    assert loaded(client) == {"papers", "shops"}


def test_a_model_of_the_callers_own_holds_for_every_index(open_client, models, caplog):
    with caplog.at_level(logging.INFO):
        named_model = open_client(model=str(models / "papers"))
        python_scorer = open_client(scorer=FunctionScorer())
    assert {model_of(named_model, index) for index in INDICES} == {"papers"}
    assert {model_of(python_scorer, index) for index in INDICES} == {"function"}
    assert marks(named_model, "*")["applied"] is marks(python_scorer, "*")["applied"] is True
    warnings = [line for line in caplog.messages if line.endswith("the models in the settings file are ignored")]
    assert [line.split(" is used")[0] for line in warnings] == [
        f"the model {models / 'papers'}",
        "the client's own scorer",
    ]


def test_the_environments_model_is_for_the_other_indices(open_client, models, monkeypatch):
    monkeypatch.setenv("OSRERANK_MODEL", str(models / "papers"))
    client = open_client()
    assert [model_of(client, index) for index in INDICES] == ["shops", "german", "papers", "papers"]
    assert marks(client, "papers,notes")["applied"] is True  # they have the same


def test_a_missing_model_of_an_index_is_named(open_client, models):
    shutil.rmtree(models / "german")
    client = open_client()
    assert marks(client, "shop-de")["applied"] is False
    assert "german" in marks(client, "shop-de")["reason"]
    assert model_of(client, "shop-fr") == "shops"


def test_vectors_are_built_and_pruned_by_each_indexs_model(open_client):
    client = open_client()
    assert build_vectors(client, "shop-de").encoded == 3
    assert build_vectors(client, "notes").encoded == 3
    assert prune_everything(client) == 6
    assert [client.coverage(index).share for index in ("shop-de", "notes")] == [1.0, 1.0]
    assert marks(client, "shop-de")["stages"][0]["known"] == 3
    with pytest.raises(ConfigError, match="only bi-encoders"):
        build_vectors(client, "papers")
    with pytest.raises(ConfigError, match="might use different models"):
        build_vectors(client, "shop-*")


def test_warming_up_an_index_loads_its_model(open_client):
    client = open_client()
    client.warm_up("shop-de")
    assert loaded(client) == {"german"}
    assert client.searcher.service.scoring_model.is_encoder is None


def test_searches_at_the_same_time_survive_releases(open_client):
    client = open_client()
    assert model_of(client, "notes") == "e5-small"
    expected_models = [INDICES[number % 3] for number in range(48)]
    with ThreadPoolExecutor(6) as pool:
        models_used = list(pool.map(lambda index: model_of(client, index), expected_models))
    assert models_used == ["shops", "german", "papers"] * 16
    wait_until(lambda: model_of(client, "papers") and len(loaded(client)) == 2 and "papers" in loaded(client), 10)


def test_side_vectors_of_an_alias_are_pruned_by_the_aliass_model(open_client, monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS", "index")
    client = open_client()
    client.indices.put_alias(index="notes", name="shop-de-all")
    assert build_vectors(client, "shop-de-all", to="index").encoded == 3
    assert marks(client, "shop-de-all")["stages"][0]["known"] == 3
    prune_indices(client, ["shop-de-all"])
    (side,) = find_side_indices(client, ["notes"])
    assert side.size().records == 3
