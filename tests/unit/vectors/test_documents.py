"""Scores by stored vectors: those of whole pairs, cold and warm the same."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank.errors import InferenceError
from osrerank.scoring.backends.onnx import EncoderBackend
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.card import Pooling
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.model_files import read_card
from osrerank.testing import ArithmeticEncoder, ManualClock
from osrerank.types import Deadline
from osrerank.vectors.configured import VectorStorage
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.record import PROFILES
from osrerank.vectors.store import MemoryStore, VectorStore
from tests.bi_encoders import carded
from tests.waiting import wait_until

QUERY = "what causes low blood pressure"
WORDS = ["blood", "pressure", "is", "low", "when", "the", "heart", "slow", "water", "wing", "flow", "heat", "of"]
RNG = random.Random(3)
DOCUMENTS = ["", *(" ".join(RNG.choices(WORDS, k=RNG.randrange(1, 60))) for _ in range(40)), "low " * 900]
MONO = [(place,) for place in range(len(DOCUMENTS))]
POOLINGS = ("cls", "mean")


@pytest.fixture(scope="module")
def models(bi_encoder: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function from pooling and precision to a model's directory."""

    def made(pooling: Pooling = "cls", precision: str = "fp32") -> Path:
        return bi_encoder(pooling=pooling, precision=precision, query_prefix="ask : ", document_prefix="say : ")

    return made


def opened(
    directory: Path, store: VectorStore | None = None, profile: str = "exact", secret: bytes = b"", backend: Any = None
) -> EncoderScorer:
    """Return the model of a directory, or a backend in its place, with its source of vectors."""
    card = read_card(directory)
    backend = backend or EncoderBackend.load(directory, card, threads=2)
    encoder = BiEncoder(directory, card, InputBuilder.load(directory, card), backend)
    return EncoderScorer(DocumentVectors(encoder, VectorStorage(store, PROFILES[profile], secret)))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_cold_and_warm_scores_are_the_same(
    models: Callable[..., Path], pooling: str, profile: str, precision: str
) -> None:
    store, found = MemoryStore(10_000_000), []
    for _ in range(2):
        scorer = opened(models(pooling, precision), store, profile)
        found.append(scorer.score(QUERY, DOCUMENTS, MONO))
        scorer.close()  # what is being written is there then
    cold, warm = found
    np.testing.assert_array_equal(cold.values, warm.values)
    assert (warm.truncated, warm.reached) == (cold.truncated, cold.reached)
    assert (cold.encoded, cold.known, warm.encoded, warm.known) == (len(DOCUMENTS), 0, 0, len(DOCUMENTS))
    assert warm.truncated == 1


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_score_does_not_depend_on_its_neighbours(models: Callable[..., Path], pooling: str) -> None:
    scorer = opened(models(pooling), MemoryStore(10_000_000), "standard")
    together = scorer.score(QUERY, DOCUMENTS, MONO).values
    for count in (1, 2, 16, 31, 33, 41):
        places = RNG.sample(range(len(DOCUMENTS)), count)
        values = scorer.score(QUERY, [DOCUMENTS[at] for at in places], [(at,) for at in range(count)]).values
        np.testing.assert_array_equal(values, together[places])


def test_a_changed_text_and_another_profile_have_other_records(models: Callable[..., Path]) -> None:
    rounded, exact, again = (opened(models(), profile=name).vectors for name in ("standard", "exact", "standard"))
    assert rounded.keys_of(["low"]) == again.keys_of(["low"])
    assert len({*rounded.keys_of(["low", "low ", "Low"]), *exact.keys_of(["low"])}) == 4


def test_equal_texts_have_one_record(tmp_path: Path) -> None:
    store, backend = MemoryStore(10_000_000), ArithmeticEncoder()
    scorer = opened(carded(tmp_path / "tiny"), store, "standard", backend=backend)
    values = scorer.score(QUERY, ["low", "heart", "low"], [(0,), (1,), (2,)]).values
    scorer.close()
    assert values[0] == values[2]
    assert store.size().records == len(backend.encoded_ids) == 2


def test_after_the_deadline_nothing_is_attempted_and_a_closed_source_says_so(models: Callable[..., Path]) -> None:
    scorer = opened(models(), profile="standard")
    scores = scorer.score(QUERY, DOCUMENTS, MONO, deadline=Deadline.after_ms(-1))
    assert (scores.reached, scores.inferences) == (0, 0)
    assert np.isnan(scores.values).all()
    scorer.close()
    with pytest.raises(InferenceError, match="closed"):
        scorer.score(QUERY, ["low"], [(0,)])
    scorer.vectors.renew()  # as a forked child does
    scorer.vectors._threads.close()


def test_what_has_vectors_is_scored_where_time_is_short(tmp_path: Path) -> None:
    directory, store, clock = carded(tmp_path / "tiny"), MemoryStore(10_000_000), ManualClock()
    scorer = opened(directory, store, "standard", backend=ArithmeticEncoder())
    scorer.vectors.remember(DOCUMENTS)
    expected = scorer.score("water", DOCUMENTS, MONO).values
    scorer.close()
    texts = [f"unknown {number} {text}" if number == 3 else text for number, text in enumerate(DOCUMENTS)]
    scorer = opened(directory, store, "standard", backend=ArithmeticEncoder(lambda _ids: clock.sleep(1)))
    scores = scorer.score("water", texts, MONO, deadline=Deadline.after_ms(300, clock))
    assert scores.reached in (3, len(DOCUMENTS))
    np.testing.assert_array_equal(np.delete(scores.values, 3), np.delete(expected, 3))
    scorer.close()


def test_what_a_deadline_cut_off_is_encoded_afterwards(tmp_path: Path) -> None:
    store, clock = MemoryStore(10_000_000), ManualClock()
    slow = ArithmeticEncoder(lambda _ids: clock.sleep(1), threads=1)
    scorer = opened(carded(tmp_path / "tiny"), store, "standard", backend=slow)
    scores = scorer.score(QUERY, DOCUMENTS, MONO, deadline=Deadline.after_ms(8_000, clock))
    assert 0 < scores.reached < len(DOCUMENTS)
    scorer.vectors._late.close()  # waits for what is encoded after the answer
    scorer.vectors.records.flush()
    assert store.size().records == len(set(DOCUMENTS))
    assert scorer.score(QUERY, DOCUMENTS, MONO).reached == len(DOCUMENTS)
    scorer.close()


def test_closing_does_not_wait_until_all_that_a_deadline_cut_off_is_encoded(tmp_path: Path) -> None:
    clock, is_late, go_on = ManualClock(0), threading.Event(), threading.Event()

    def encode(_ids: np.ndarray) -> None:
        if clock() >= 3:
            is_late.set()
            assert go_on.wait(10)
        clock.sleep(1)

    slow = ArithmeticEncoder(encode, threads=1)
    scorer = opened(carded(tmp_path / "tiny"), MemoryStore(10_000_000), "standard", backend=slow)
    scorer.score(QUERY, DOCUMENTS, MONO, deadline=Deadline.after_ms(3_000, clock))
    assert is_late.wait(10)
    closing = threading.Thread(target=scorer.close)
    closing.start()
    wait_until(scorer.vectors._closed.is_set)
    go_on.set()
    closing.join(10)
    assert len(slow.encoded_ids) < 6 < len(DOCUMENTS)


def test_a_text_that_fails_does_not_fail_its_neighbours(tmp_path: Path) -> None:
    def refuse(ids: np.ndarray) -> None:
        if len(ids) > 300:
            raise RuntimeError("out of memory")

    scorer = opened(carded(tmp_path / "tiny"), profile="standard", backend=ArithmeticEncoder(refuse))
    scores = scorer.score(QUERY, DOCUMENTS, MONO)
    assert list(scores.failures) == [len(DOCUMENTS) - 1]
    assert "out of memory" in scores.failures[len(DOCUMENTS) - 1]
    assert np.isfinite(scores.values[:-1]).all()
