"""Workers of two models on one Redis, for the indices of one client: a queue a model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from osrerank import Client, connect
from tests import servers
from tests.workers import WorkerGroup, worker_group

pytestmark = [pytest.mark.integration, pytest.mark.long]

DATA = Path(__file__).parents[1] / "data"
ONE, TWO = str(DATA / "tiny-bert-one-label"), str(DATA / "tiny-bert-two-labels")
TEXTS = [f"note {number} about blood {'pressure ' * (number % 5)}" for number in range(40)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.redis(tmp_path_factory.mktemp("broker")) as url:
        yield url


@pytest.fixture(scope="module")
def groups(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WorkerGroup, WorkerGroup]]:
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    with worker_group(broker, folders[0], 1, model=ONE) as one, worker_group(broker, folders[1], 1, model=TWO) as two:
        yield one, two


@pytest.fixture
def client(broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    file = tmp_path / "settings.toml"
    file.write_text(f'[index."two*"]\nmodel = "{TWO}"\n', "utf-8")
    monkeypatch.setenv("OSRERANK_SETTINGS_FILE", str(file))
    monkeypatch.setenv("OSRERANK_MODEL", ONE)
    with connect(f"embedded:{tmp_path / 'data'}", backend="workers", redis_url=broker) as client:
        for index in ("one", "two"):
            for number, text in enumerate(TEXTS):
                client.index(index=index, id=str(number), body={"text": text})
            client.indices.refresh(index=index)
        yield client


def searched(client: Client, index: str) -> tuple[dict, list]:
    response = client.search("blood pressure", index=index, size=40, rerank={"cache": False, "blend": "replace"})
    hits = response["hits"]["hits"]
    return response["rerank"], [(hit["_id"], hit["_rerank"]["mono"]["logit"]) for hit in hits if "_rerank" in hit]


def scored_here(tmp_path: Path, model: str, index: str) -> list:
    """Return the ids and scores that the model gives in this process."""
    with connect(f"embedded:{tmp_path / 'data'}", model=model, backend="onnx") as client:
        return searched(client, index)[1]


def test_each_index_is_scored_by_its_models_workers(groups, client: Client, tmp_path: Path) -> None:
    found = {}
    for _ in range(3):
        for index in ("one", "two"):
            marks, found[index] = searched(client, index)
            assert marks["applied"] is True, marks["reason"]
            assert marks["stages"][0]["inferences"] == len(TEXTS)
    client.close()  # the engine is one process' own
    for index, model in (("one", ONE), ("two", TWO)):
        expected = scored_here(tmp_path, model, index)
        assert [doc_id for doc_id, _ in found[index]] == [doc_id for doc_id, _ in expected]
        assert [logit for _, logit in found[index]] == pytest.approx([logit for _, logit in expected], abs=1e-5)
    assert [score for _, score in found["one"]] != [score for _, score in found["two"]]


def test_without_workers_of_one_model_the_other_goes_on(groups, client: Client) -> None:
    groups[1].stop()
    marks, _ = searched(client, "two")
    assert marks["applied"] is False
    assert f"there is no worker of {TWO}" in marks["reason"]
    assert searched(client, "one")[0]["applied"] is True
