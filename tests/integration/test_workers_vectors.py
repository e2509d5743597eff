"""Clients whose documents are encoded by workers; vectors that are known need none."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank import Client, connect
from osrerank.errors import TaskFailed, WorkerError
from osrerank.indexing.build import Builder, build_vectors
from osrerank.indexing.documents import document_vectors
from osrerank.indexing.side_index import find_side_indices
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.registry import as_scorer, load, load_local
from osrerank.scoring.remote.encoder import RemoteEncoder
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.settings import Settings
from osrerank.vectors.build_progress import BuildProgress
from osrerank.vectors.index import side_index
from tests import servers
from tests.articles import fill
from tests.workers import WorkerGroup, worker_group

pytestmark = [pytest.mark.integration, pytest.mark.long]

QUERY = "what lowers blood pressure"
DOCUMENTS = [f"note {n}: " + "low salt and water lower the blood pressure " * (1 + n % 7) for n in range(60)]
TUPLES = [(n,) for n in range(len(DOCUMENTS))]


@pytest.fixture(scope="module")
def model(bi_encoder: Callable[..., Path]) -> str:
    return str(bi_encoder(pooling="cls", document_prefix="say : "))


@pytest.fixture(scope="module")
def group(broker: str, model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerGroup]:
    environment = {"OSRERANK_VECTORS": "off"}
    with worker_group(broker, tmp_path_factory.mktemp("group"), 2, model=model, environment=environment) as group:
        yield group


@pytest.fixture
def settings(broker: str, model: str, tmp_path: Path) -> Settings:
    return Settings.load(model=model, broker_url=broker, backend="workers", vectors_folder=tmp_path / "vectors")


def opened(settings: Settings, **changes: object) -> EncoderScorer:
    changed = Settings.load(**{**settings.model_dump(), **changes})
    encoder = load(changed)
    assert isinstance(encoder, RemoteEncoder)
    return as_scorer(encoder, changed)


def local(settings: Settings, vectors: str = "off") -> EncoderScorer:
    changed = settings.model_copy(update={"vectors": vectors, "backend": "onnx"})
    return as_scorer(load_local(changed), changed)


def expected(settings: Settings) -> np.ndarray:
    return local(settings).score(QUERY, DOCUMENTS, TUPLES).values


def nowhere() -> str:
    return f"redis://127.0.0.1:{servers.free_port()}/0"


def filled(client: Client) -> None:
    fill(client, "notes", [{"text": text} for text in DOCUMENTS])


def test_vectors_encoded_by_workers_are_kept(group: WorkerGroup, settings: Settings) -> None:
    group.wait_for(2)
    scorer = opened(settings)
    cold = scorer.score(QUERY, DOCUMENTS, TUPLES)
    scorer.close()
    scorer = opened(settings, broker_url=nowhere())
    warm = scorer.score(QUERY, DOCUMENTS, TUPLES)
    scorer.close()
    assert (cold.encoded, cold.known, cold.inferences, cold.reached) == (60, 0, 60, 60)
    assert (warm.encoded, warm.known, warm.inferences) == (0, 60, 60)
    for stage_report in (cold, warm):
        np.testing.assert_array_equal(stage_report.values, expected(settings))


def test_without_workers_documents_with_vectors_are_scored(group: WorkerGroup, settings: Settings) -> None:
    group.wait_for(2)
    scorer = opened(settings)
    scorer.vectors.build(DOCUMENTS[:20])
    scorer.close()
    scorer = opened(settings, broker_url=nowhere())
    scores = scorer.score(QUERY, DOCUMENTS, TUPLES)
    np.testing.assert_array_equal(scores.values[:20], expected(settings)[:20])
    assert sorted(scores.failures) == list(range(20, 60))
    assert "broker" in scores.failures[20]
    with pytest.raises(WorkerError):
        scorer.score(QUERY, DOCUMENTS[30:], TUPLES[:30])
    scorer.close()


def test_workers_with_another_model_encode_nothing(
    broker: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    copied = shutil.copytree(model, tmp_path / "model")
    with worker_group(broker, tmp_path / "group", 1, model=str(copied), environment={"OSRERANK_VECTORS": "off"}):
        card = json.loads((copied / "osrerank.json").read_text("utf-8"))
        (copied / "osrerank.json").write_text(json.dumps({**card, "document_prefix": "another : "}), "utf-8")
        here = local(Settings.load(model=str(copied)), "file")
        url = f"embedded:{tmp_path / 'engine'}"
        with connect(url, model=str(copied), backend="workers", redis_url=broker) as client:
            filled(client)

            def search() -> dict[str, Any]:
                return dict(client.search(QUERY, index="notes", rerank=True, size=60)["rerank"])

            nothing = search()
            here.vectors.build(DOCUMENTS[:20])
            response = search()
        here.close()
    assert nothing["applied"] is False
    assert "workers run another" in nothing["reason"]
    assert (response["applied"], response["stages"][0]["known"], response["stages"][0]["failed"]) == ("partial", 20, 40)


def test_workers_that_give_vectors_of_another_precision_are_named(group: WorkerGroup, settings: Settings) -> None:
    group.wait_for(2)
    scorer = opened(settings, vectors_profile="exact")  # the workers round vectors
    with pytest.raises(TaskFailed, match="OSRERANK_VECTORS_PROFILE"):
        scorer.score(QUERY, DOCUMENTS, TUPLES)
    scorer.close()


def test_a_whole_index_is_built_by_workers(
    group: WorkerGroup, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.wait_for(2)
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    url = settings.broker()
    with connect(f"embedded:{tmp_path / 'engine'}", model=settings.model, backend="workers", redis_url=url) as client:
        filled(client)
        done = build_vectors(client, "notes")
        assert (done.documents, done.texts, done.encoded) == (60, 60, 60)
        assert build_vectors(client, "notes").encoded == 0
        stage = client.search(QUERY, index="notes", rerank={"depth": 40})["rerank"]["stages"][0]
        assert (stage["known"], stage["encoded"], stage["inferences"], stage["cached"]) == (40, 0, 40, 0)
        assert isinstance(document_vectors(client).encoder, RemoteEncoder)


def test_several_batches_are_under_way_and_a_killed_worker_loses_nothing(
    broker: str, model: str, opensearch_url: str, no_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(no_folder))
    texts = [f"{number}: {DOCUMENTS[number % 60]}" for number in range(1200)]
    environment = {"OSRERANK_VECTORS": "off"}
    with (
        worker_group(broker, tmp_path, 2, model=model, environment=environment) as group,
        connect(opensearch_url, model=model, backend="workers", redis_url=broker) as client,
    ):
        client.indices.delete(index=["many", side_index("many")], ignore_unavailable=True)
        client.indices.create(index="many", body={"settings": {"number_of_shards": 4, "number_of_replicas": 0}})
        fill(client, "many", [{"text": text} for text in texts])
        positions = [BuildProgress()]

        def killing(done: int, _count: int) -> None:
            content, _ = side.read_build_state(key)
            positions.append(BuildProgress.from_bytes(content))
            if done and len(group.processes) == 2:
                group.kill(group.processes[0])

        builder = Builder(client, "many", None, killing)
        heads = builder.read_heads()
        (side,), key = find_side_indices(client, ["many"]), builder.progress_key("many", heads["many"])
        built = builder.build_by_sequence_number(heads)
        assert len(group.processes) == 1
        assert (built.documents, built.texts) == (1200, 1200)
        assert built.encoded == 1200  # a chunk that is sent again counts once
        assert max(len(position.leases) for position in positions) > 1
        side.refresh()
        vectors = document_vectors(client, "many")
        assert len(vectors.records.read_from(side, vectors.records.compute_keys(texts))) == 1200
        assert client.coverage("many").built == 1200
        client.indices.delete(index=["many", side.index])


def test_a_client_without_the_model_lets_workers_score(group: WorkerGroup, settings: Settings) -> None:
    group.wait_for(2)
    workers = RemoteScorer(settings.broker(), settings.model, queue_chunks=settings.queue_chunks)
    np.testing.assert_array_equal(workers.score(QUERY, DOCUMENTS, TUPLES).values, expected(settings))
    workers.close()
