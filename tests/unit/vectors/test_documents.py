"""Scores by stored vectors: cold and warm the same, whatever computes them, and in whatever time."""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank import connect
from osrerank.errors import InferenceError
from osrerank.indexing.build import build_vectors
from osrerank.scoring.backends.onnx import EncoderBackend
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.card import ModelCard, Pooling
from osrerank.scoring.card_file import read_card
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.registry import load_model, load_scorer
from osrerank.testing import ArithmeticEncoder, ManualClock
from osrerank.types import Deadline
from osrerank.vectors.documents import LATE_BATCH_SIZE, DocumentVectors
from osrerank.vectors.record import PROFILES, ROUNDED_BITS
from osrerank.vectors.storage import VectorStorage
from osrerank.vectors.store import VectorStore
from tests.articles import fill
from tests.bi_encoders import carded, plain
from tests.letters import Letters
from tests.memory_store import MemoryStore
from tests.waiting import held, wait_until

QUERY = "what causes low blood pressure"
WORDS = ["blood", "pressure", "is", "low", "when", "the", "heart", "slow", "water", "wing", "flow", "heat", "of"]
RNG = random.Random(3)
DOCUMENTS = ["", *(" ".join(RNG.choices(WORDS, k=RNG.randrange(1, 60))) for _ in range(40)), "low " * 900]
MONO = [(place,) for place in range(len(DOCUMENTS))]
POOLINGS = ("cls", "mean")


@pytest.fixture(scope="module")
def models(bi_encoder: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function from pooling and precision to a model's directory."""

    def export(pooling: Pooling = "cls", precision: str = "fp32") -> Path:
        return bi_encoder(pooling=pooling, precision=precision, query_prefix="ask : ", document_prefix="say : ")

    return export


def encoder_of(directory: Path, card: ModelCard, backend: Any = None) -> BiEncoder:
    return BiEncoder(directory, card, InputBuilder.load(directory, card), backend or ArithmeticEncoder())


def opened(
    directory: Path, store: VectorStore | None = None, profile: str = "exact", backend: Any = None
) -> EncoderScorer:
    """Return the model of a directory, or a backend in its place, with its source of vectors."""
    card = read_card(directory)
    encoder = encoder_of(directory, card, backend or EncoderBackend.load(directory, card, threads=2))
    return EncoderScorer(DocumentVectors(encoder, VectorStorage(store, PROFILES[profile])))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_scores_with_and_without_stored_vectors_are_equal(
    models: Callable[..., Path], pooling: str, profile: str, precision: str
) -> None:
    store, scores = MemoryStore(), []
    for _ in range(2):
        scorer = opened(models(pooling, precision), store, profile)
        scores.append(scorer.score(QUERY, DOCUMENTS, MONO))
        scorer.close()  # what is being written is there then
    cold, warm = scores
    np.testing.assert_array_equal(cold.values, warm.values)
    assert (warm.truncated, warm.reached) == (cold.truncated, cold.reached)
    assert (cold.encoded, cold.known, warm.encoded, warm.known) == (len(DOCUMENTS), 0, 0, len(DOCUMENTS))
    assert warm.truncated == 1


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_documents_score_does_not_depend_on_its_batch(models: Callable[..., Path], pooling: str) -> None:
    scorer = opened(models(pooling), MemoryStore(), "standard")
    together = scorer.score(QUERY, DOCUMENTS, MONO).values
    for count in (1, 2, 16, 31, 33, 41):
        places = RNG.sample(range(len(DOCUMENTS)), count)
        values = scorer.score(QUERY, [DOCUMENTS[at] for at in places], [(index,) for index in range(count)]).values
        np.testing.assert_array_equal(values, together[places])


def test_a_changed_text_and_another_encoder_have_other_records(models: Callable[..., Path]) -> None:
    rounded, exact, again = (opened(models(), profile=name).vectors for name in ("standard", "exact", "standard"))
    assert rounded.records.compute_keys(["low"]) == again.records.compute_keys(["low"])
    assert len({*rounded.records.compute_keys(["low", "low ", "Low"]), *exact.records.compute_keys(["low"])}) == 4


def test_a_record_key_covers_tokenizer_pooling_length_and_prefix(tmp_path: Path) -> None:
    directory, other = (carded(tmp_path / name) for name in ("tiny", "other"))
    tokenizer = (other / "tokenizer.json").read_text("utf-8")
    (other / "tokenizer.json").write_text(tokenizer.replace('"lowercase":true', '"lowercase":false'), "utf-8")
    card = read_card(directory)
    changes = ({"pooling": "mean"}, {"max_tokens": 256}, {"document_prefix": "say : "})
    keys = [encoder_of(directory, replace(card, **change)).key for change in ({}, *changes)]
    assert len({*keys, encoder_of(other, card).key}) == 5
    assert encoder_of(directory, replace(card, query_prefix="ask : ")).key == keys[0]


def test_equal_texts_share_a_vector_record(tmp_path: Path) -> None:
    store, backend = MemoryStore(), ArithmeticEncoder()
    scorer = opened(carded(tmp_path / "tiny"), store, "standard", backend=backend)
    values = scorer.score(QUERY, ["low", "heart", "low"], [(0,), (1,), (2,)]).values
    scorer.close()
    assert values[0] == values[2]
    assert store.size().records == len(backend.encoded_ids) == 2


def test_after_the_deadline_no_document_is_encoded(models: Callable[..., Path]) -> None:
    scorer = opened(models(), profile="standard")
    scores = scorer.score(QUERY, DOCUMENTS, MONO, deadline=Deadline.after_ms(-1))
    assert (scores.reached, scores.inferences) == (0, 0)
    assert np.isnan(scores.values).all()
    scorer.close()
    with pytest.raises(InferenceError, match="closed"):
        scorer.score(QUERY, ["low"], [(0,)])
    scorer.vectors.renew()  # as a forked child does
    scorer.vectors._threads.close()


def test_documents_with_vectors_are_scored_first_under_a_deadline(tmp_path: Path) -> None:
    directory, store, clock = carded(tmp_path / "tiny"), MemoryStore(), ManualClock()
    scorer = opened(directory, store, "standard", backend=ArithmeticEncoder())
    scorer.vectors.build(DOCUMENTS)
    expected = scorer.score("water", DOCUMENTS, MONO).values
    scorer.close()
    texts = [f"unknown {number} {text}" if number == 3 else text for number, text in enumerate(DOCUMENTS)]
    scorer = opened(directory, store, "standard", backend=ArithmeticEncoder(lambda _ids: clock.sleep(1)))
    scores = scorer.score("water", texts, MONO, deadline=Deadline.after_ms(300, clock))
    assert scores.reached in (3, len(DOCUMENTS))
    np.testing.assert_array_equal(np.delete(scores.values, 3), np.delete(expected, 3))
    scorer.close()


def test_documents_cut_off_by_a_deadline_are_encoded_after_the_answer(tmp_path: Path) -> None:
    store, clock = MemoryStore(), ManualClock()
    slow = ArithmeticEncoder(lambda _ids: clock.sleep(1), threads=1)
    scorer = opened(carded(tmp_path / "tiny"), store, "standard", backend=slow)
    scores = scorer.score(QUERY, DOCUMENTS, MONO, deadline=Deadline.after_ms(8_000, clock))
    assert 0 < scores.reached < len(DOCUMENTS)
    scorer.vectors._late_tasks.close()  # waits for what is encoded after the answer
    scorer.vectors.records.flush()
    assert store.size().records == len(set(DOCUMENTS))
    assert scorer.score(QUERY, DOCUMENTS, MONO).reached == len(DOCUMENTS)
    scorer.close()


def test_documents_left_by_deadlines_are_encoded_newest_first_within_bounds() -> None:
    clock, batches = ManualClock(), list[float]()

    def encode(characters: float) -> None:
        batches.append(characters)
        clock.sleep(1)

    vectors = DocumentVectors(Letters(s_per_character=1, sleep=encode), VectorStorage(MemoryStore()))
    hold = held(vectors._late_tasks)
    for width in (3, 4, 5, 6, 7):
        vectors.find([f"{number:0{width}}" for number in range(600)], Deadline.after_ms(1_000, clock))
    hold.set()
    vectors._late_tasks.close()
    assert batches[5:] == [LATE_BATCH_SIZE * width for width in (7, 6, 5, 4) for _ in range(256 // LATE_BATCH_SIZE)]


def test_closing_does_not_wait_for_documents_left_by_deadlines(tmp_path: Path) -> None:
    clock, is_late, go_on = ManualClock(0), threading.Event(), threading.Event()

    def encode(_ids: np.ndarray) -> None:
        if clock() >= 3:
            is_late.set()
            assert go_on.wait(10)
        clock.sleep(1)

    slow = ArithmeticEncoder(encode, threads=1)
    scorer = opened(carded(tmp_path / "tiny"), MemoryStore(), "standard", backend=slow)
    scorer.score(QUERY, DOCUMENTS, MONO, deadline=Deadline.after_ms(3_000, clock))
    assert is_late.wait(10)
    closing = threading.Thread(target=scorer.close)
    closing.start()
    wait_until(scorer.vectors._closed.is_set)
    go_on.set()
    closing.join(10)
    assert len(slow.encoded_ids) < 6 < len(DOCUMENTS)


def test_a_text_that_cannot_be_encoded_fails_alone(tmp_path: Path) -> None:
    def refuse(ids: np.ndarray) -> None:
        if len(ids) > 300:
            raise RuntimeError("out of memory")

    scorer = opened(carded(tmp_path / "tiny"), profile="standard", backend=ArithmeticEncoder(refuse))
    scores = scorer.score(QUERY, DOCUMENTS, MONO)
    assert list(scores.failures) == [len(DOCUMENTS) - 1]
    assert "out of memory" in scores.failures[len(DOCUMENTS) - 1]
    assert np.isfinite(scores.values[:-1]).all()


UNIQUE = list(dict.fromkeys(DOCUMENTS))
WAYS = (("onnx", "auto"), ("torch", "fp32"), ("torch", "bf16"))


@pytest.fixture(scope="module", params=["cls", "mean"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    from osrerank.export.export_model import ExportOptions, export_model

    folder = tmp_path_factory.mktemp("model")
    options = ExportOptions(pooling=request.param, precision="fp32", keep_weights=True)
    export_model(plain(folder / "plain"), folder / "made", options)
    return folder / "made"


@pytest.fixture
def scorers(directory: Path) -> Iterator[list[EncoderScorer]]:
    """The model with each backend and dtype, and one store for all."""
    store = MemoryStore()
    encoders = [load_model(str(directory), backend=name, dtype=dtype) for name, dtype in WAYS]
    scorers = [EncoderScorer(DocumentVectors(encoder, VectorStorage(store, ROUNDED_BITS))) for encoder in encoders]
    yield scorers
    for scorer in scorers:
        scorer.close()


def test_record_keys_and_model_identities_are_stable(scorers: list[EncoderScorer]) -> None:
    assert len({scorer.identity for scorer in scorers}) == 1
    assert len({tuple(scorer.vectors.records.compute_keys(DOCUMENTS)) for scorer in scorers}) == 1
    assert len({scorer.encoder.backend.precision for scorer in scorers}) == 2


def test_each_backend_reads_vectors_written_by_another(scorers: list[EncoderScorer]) -> None:
    share = -(-len(UNIQUE) // len(scorers))
    for turn, scorer in enumerate(scorers):
        scorer.vectors.build(UNIQUE[turn * share : (turn + 1) * share])
    by_backend = [scorer.score(QUERY, DOCUMENTS, MONO) for scorer in scorers]
    for scores in by_backend:
        assert (scores.encoded, scores.known, scores.reached) == (0, len(DOCUMENTS), len(DOCUMENTS))
        np.testing.assert_allclose(
            scores.values / 20, by_backend[0].values / 20, atol=0.1
        )  # 20: the calibration's scale


@pytest.mark.gpu
def test_vectors_computed_on_a_gpu_equal_those_of_the_cpu(directory: Path, scorers: list[EncoderScorer]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    alone = load_scorer(str(directory), backend="onnx")
    expected = alone.score(QUERY, DOCUMENTS, MONO)
    alone.close()
    scorers[2].vectors.build(UNIQUE)
    scores = scorers[0].score(QUERY, DOCUMENTS, MONO)
    assert scores.encoded == 0
    np.testing.assert_allclose(scores.values / 20, expected.values / 20, atol=0.1)


def test_weights_and_the_graph_exported_from_them_have_equal_record_keys(directory: Path, tmp_path: Path) -> None:
    from osrerank.export.export_model import ExportOptions, export_model

    export_model(directory, tmp_path / "int8", ExportOptions(precision="int8"))
    assert len({encoder_of(folder, read_card(folder)).key for folder in (directory, tmp_path / "int8")}) == 1


def test_vectors_built_in_torch_are_searched_with_the_exported_graph(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    url = f"embedded:{tmp_path / 'engine'}"
    with connect(url, model=str(directory), backend="torch") as building:
        fill(building, "notes", [{"text": text} for text in DOCUMENTS[1:]])
        done = build_vectors(building, "notes")
        assert done.texts > done.documents == done.encoded  # the long one's passages are equal
        assert build_vectors(building, "notes").encoded == 0
    with connect(url, model=str(directory)) as client:
        (stage, *_) = client.search(QUERY, index="notes", rerank={"depth": 20})["rerank"]["stages"]
    assert (stage["name"], stage["kind"]) == ("vectors", "bi-encoder")
    assert (stage["encoded"], stage["known"]) == (0, stage["inferences"])
    assert stage["known"] > 10


class UndefinedOnce(ArithmeticEncoder):
    """A backend whose first vectors are not numbers, as of a GPU that overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def run(self, sequences):
        self.runs += 1
        return super().run(sequences) * (np.nan if self.runs == 1 else 1)


def test_a_query_vector_that_is_not_finite_is_an_error_and_not_cached(tmp_path: Path) -> None:
    directory = carded(tmp_path / "model")
    encoder = encoder_of(directory, read_card(directory), UndefinedOnce())
    with pytest.raises(InferenceError, match=r"not finite \(NaN or infinity\)"):
        encoder.encode([QUERY], "query")
    assert np.isfinite(encoder.encode([QUERY], "query").rows).all()
