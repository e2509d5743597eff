"""Clients that know document vectors score them themselves, and let workers make the others."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from osrerank import connect
from osrerank.errors import WorkerError
from osrerank.indexing import bi_encoder_of, build_vectors
from osrerank.options.passages import Passages
from osrerank.scoring.registry import load, load_local
from osrerank.scoring.remote.bi_encoder import BiEncoderOnWorkers
from osrerank.scoring.vectors.scorer import BiEncoderScorer
from osrerank.settings import Settings
from osrerank.stages.passages import PassageStage
from osrerank.types import Candidate
from tests import servers
from tests.workers import WorkerGroup, worker_group

pytestmark = [pytest.mark.integration, pytest.mark.long]

QUERY = "what lowers blood pressure"
DOCUMENTS = [f"note {n}: " + "low salt and water lower the blood pressure " * (1 + n % 7) for n in range(60)]
TUPLES = [(n,) for n in range(len(DOCUMENTS))]
LONG = [" ".join(f"{word}{n}" for n, word in enumerate(f"{at} low salt and water ".split() * 30)) for at in range(4)]
OPTIONS = Passages(words=20, stride=20, limit=6, least_words=30)


@pytest.fixture(scope="module")
def model(bi_encoder: Callable[..., Path]) -> str:
    return str(bi_encoder(pooling="cls", document_prefix="say : "))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.redis(tmp_path_factory.mktemp("broker")) as url:
        yield url


@pytest.fixture(scope="module")
def group(broker: str, model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerGroup]:
    environment = {"OSRERANK_VECTORS": "off"}
    with worker_group(broker, tmp_path_factory.mktemp("group"), 2, model=model, environment=environment) as group:
        yield group


@pytest.fixture
def settings(broker: str, model: str, tmp_path: Path) -> Settings:
    return Settings.load(model=model, broker_url=broker, backend="workers", vectors_folder=tmp_path / "vectors")


def opened(settings: Settings, **changes: object) -> BiEncoderOnWorkers:
    scorer = load(Settings.load(**{**settings.model_dump(), **changes}), None)
    assert isinstance(scorer, BiEncoderOnWorkers)
    return scorer


def local(settings: Settings) -> BiEncoderScorer:
    scorer = load_local(settings.model_copy(update={"vectors": "off", "backend": "onnx"}), None)
    assert isinstance(scorer, BiEncoderScorer)
    return scorer


def test_what_workers_made_is_known_from_then_on(group: WorkerGroup, settings: Settings) -> None:
    group.wait_for(2)
    expected = local(settings).score(QUERY, DOCUMENTS, TUPLES).values
    scorer = opened(settings)
    assert scorer.keeps_vectors
    cold = scorer.score(QUERY, DOCUMENTS, TUPLES)
    scorer.records.flush()
    assert (cold.encoded, cold.known, cold.inferences, cold.reached) == (60, 0, 60, 60)
    scorer.close()
    unreachable = f"redis://127.0.0.1:{servers.free_port()}/0"
    scorer = opened(settings, broker_url=unreachable)
    warm = scorer.score(QUERY, DOCUMENTS, TUPLES)
    assert (warm.encoded, warm.known, warm.inferences) == (0, 60, 60)
    for found in (cold, warm):
        np.testing.assert_array_equal(found.values, expected)
    scorer.close()


def test_a_text_longer_than_a_model_reads_is_known_too(group: WorkerGroup, settings: Settings) -> None:
    group.wait_for(2)
    scorer, texts = opened(settings), ["salt " * 100_000, DOCUMENTS[0]]
    alone = scorer.score(QUERY, texts[:1], [(0,)])
    assert (alone.encoded, alone.truncated, alone.failures) == (1, 1, {})
    scorer.records.flush()
    warm = scorer.score(QUERY, texts, [(0,), (1,)])
    assert (warm.encoded, warm.known, warm.reached) == (1, 1, 2)
    np.testing.assert_array_equal(warm.values, local(settings).score(QUERY, texts, [(0,), (1,)]).values)
    assert scorer.keeps_vectors
    scorer.close()


def test_without_workers_what_is_known_is_scored(group: WorkerGroup, settings: Settings) -> None:
    group.wait_for(2)
    scorer = opened(settings)
    scorer.remember(DOCUMENTS[:20])
    scorer.close()
    scorer = opened(settings, broker_url=f"redis://127.0.0.1:{servers.free_port()}/0")
    scores = scorer.score(QUERY, DOCUMENTS, TUPLES)
    assert np.isfinite(scores.values[:20]).all()
    assert sorted(scores.failures) == list(range(20, 60))
    assert "broker" in scores.failures[20]
    with pytest.raises(WorkerError):
        scorer.score(QUERY, DOCUMENTS[30:], TUPLES[:30])
    scorer.close()


def test_long_documents_come_back_whole(group: WorkerGroup, settings: Settings) -> None:
    group.wait_for(2)
    scorer, here = opened(settings), local(settings)
    texts = [PassageStage(scorer, OPTIONS).text_of(Candidate(f"d{n}", text, 0, n + 1)) for n, text in enumerate(LONG)]
    expected = here.score_passages(QUERY, texts)
    cold = scorer.score_passages(QUERY, texts)
    scorer.records.flush()
    warm = scorer.score_passages(QUERY, texts)
    assert (cold.encoded, warm.encoded, warm.known) == (24, 0, 24)
    for found in (cold, warm):
        for some, other in zip(found.logits, expected.logits, strict=True):
            np.testing.assert_array_equal(some, other)
    assert scorer.store is not None
    assert scorer.store.size().records == len(LONG)
    scorer.close()


def test_workers_with_another_model_score_everything(
    group: WorkerGroup, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    group.wait_for(2)
    scorer = opened(settings, vectors_profile="exact")  # the workers round vectors
    assert not scorer.keeps_vectors
    scores = scorer.score(QUERY, DOCUMENTS, TUPLES)
    np.testing.assert_array_equal(scores.values, local(settings).score(QUERY, DOCUMENTS, TUPLES).values)
    assert scorer.identity == local(settings).identity
    assert [record.message for record in caplog.records if "another" in record.message] != []
    scorer.close()


def test_records_with_another_key_are_not_taken(group: WorkerGroup, settings: Settings) -> None:
    group.wait_for(2)
    keyed = Settings.load(**{**settings.model_dump(), "vectors_key": "another"})
    scorer = opened(keyed)
    for _ in range(2):
        scores = scorer.score(QUERY, DOCUMENTS, TUPLES)
        np.testing.assert_array_equal(scores.values, local(settings).score(QUERY, DOCUMENTS, TUPLES).values)
    assert not scorer.keeps_vectors
    scorer.close()


def test_a_whole_index_is_built_by_workers(
    group: WorkerGroup, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.wait_for(2)
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    url = settings.broker()
    with connect(f"embedded:{tmp_path / 'engine'}", model=settings.model, backend="workers", redis_url=url) as client:
        lines = [line for n, text in enumerate(DOCUMENTS) for line in ({"index": {"_id": str(n)}}, {"text": text})]
        client.bulk(index="notes", body=lines, refresh=True)
        done = build_vectors(client, "notes")
        assert (done.documents, done.texts, done.encoded) == (60, 60, 60)
        assert build_vectors(client, "notes").encoded == 0
        response = client.search(QUERY, index="notes", rerank={"cache": False, "depth": 40})
        stage = response["rerank"]["stages"][0]
        assert (stage["known"], stage["encoded"], stage["inferences"]) == (40, 0, 40)
        assert isinstance(bi_encoder_of(client), BiEncoderOnWorkers)


def test_vectors_that_are_off_leave_all_to_workers(group: WorkerGroup, settings: Settings) -> None:
    group.wait_for(2)
    scorer = load(settings.model_copy(update={"vectors": "off"}), None)
    assert not isinstance(scorer, BiEncoderScorer)
    np.testing.assert_array_equal(
        scorer.score(QUERY, DOCUMENTS, TUPLES).values, local(settings).score(QUERY, DOCUMENTS, TUPLES).values
    )
    scorer.close()
