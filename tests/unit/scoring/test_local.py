"""Scores of the tiny models: order, failures, deadlines, threads."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank.errors import InferenceError, WorkerError
from osrerank.scoring import registry
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.card import POINTWISE, Calibration, ModelCard
from osrerank.scoring.cross_encoder import CrossEncoder
from osrerank.scoring.inputs import InputBuilder, Tokens, pad
from osrerank.scoring.loaded import FIND_WORKERS_INTERVAL_S, LoadedModel
from osrerank.scoring.local import GROUP_SIZES
from osrerank.scoring.registry import load_scorer
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer, ManualClock
from osrerank.types import NEVER, Deadline
from tests.backends import FunctionBackend
from tests.bi_encoders import TINY
from tests.servers import ROOT
from tests.unit.scoring.test_local_duo import Counting

DIRECTORY = Path(__file__).parents[2] / "data" / "tiny-bert-one-label"


def faulty(fault: str, pause_s: float = 0.0) -> CrossEncoder:
    """A scorer by length that has a fault where the word `wing` is."""
    card = ModelCard("tiny", "logit1")
    builder = InputBuilder.load(DIRECTORY, card)
    bad = int(builder.tokenise_query("wing").ids[0])

    def run(sequences: Sequence[Tokens]) -> np.ndarray:
        backend.clock.sleep(pause_s)
        batch = pad(sequences)
        logits = batch.attention_mask.sum(axis=1, keepdims=True).astype(np.float32)
        is_bad = (batch.input_ids == bad).any(axis=1)
        if fault == "raise" and is_bad.any():
            raise InferenceError("the bad one is here")
        if fault == "all nan" and is_bad.any():  # as dynamic quantisation does: one scale for the whole batch
            logits[:] = np.nan
        logits[is_bad] = np.nan
        return logits

    backend = FunctionBackend(run, threads=2)
    return CrossEncoder(DIRECTORY, card, builder, backend, backend.clock)


@pytest.fixture(scope="module")
def scorer() -> CrossEncoder:
    return load_scorer(str(DIRECTORY), backend="onnx", threads=1)


def test_an_idle_gpu_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry, "NVIDIA_DRIVER_FILE", tmp_path / "nvidiactl")
    load_scorer(str(DIRECTORY), threads=1)
    assert not caplog.records
    (tmp_path / "nvidiactl").touch()
    load_scorer(str(DIRECTORY), backend="onnx", threads=1)
    assert not caplog.records
    load_scorer(str(DIRECTORY), threads=1)
    assert (
        "tiny-bert-one-label runs on the CPU, but this machine has a GPU: use the GPU with --backend torch"
        in caplog.text
    )


@pytest.mark.parametrize("fault", ["nan", "all nan", "raise"])
def test_one_bad_document_does_not_fail_its_neighbours(fault: str) -> None:
    documents = ["low " * (1 + index % 7) for index in range(30)]
    documents[11] = "wing"
    scores = faulty(fault).score("low", documents, [(index,) for index in range(30)])
    assert set(scores.failures) == {11}
    assert np.flatnonzero(np.isnan(scores.values)).tolist() == [11]
    good = [index for index in range(30) if index != 11]
    assert scores.values[good].tolist() == [4 + 1 + index % 7 for index in good]
    assert (scores.reached, scores.inferences) == (30, 30)


def test_a_deadline_leaves_a_scored_prefix() -> None:
    documents = ["low " * (1 + index % 60) for index in range(200)]
    scorer = faulty("nan", pause_s=1)
    deadline = Deadline.after_ms(50_000, scorer.backend.clock)
    scores = scorer.score("low", documents, [(i,) for i in range(200)], deadline=deadline)
    assert 0 < scores.reached < 200
    assert np.isfinite(scores.values[: scores.reached]).all()
    assert np.isnan(scores.values[scores.reached :]).all()
    assert scores.inferences == scores.reached
    late = scorer.score("low", ["wing"], [(0,)], deadline=Deadline.after_ms(-1))
    assert (late.reached, late.inferences, len(late.values)) == (0, 0, 1)


@pytest.mark.parametrize(
    ("kind", "directory", "card"),
    [
        (CrossEncoder, DIRECTORY, ModelCard("tiny", "logit1")),
        (BiEncoder, TINY, ModelCard("tiny", "cosine", kind="bi-encoder", pooling="cls")),
    ],
)
def test_nothing_is_tokenised_after_the_deadline(kind: Any, directory: Path, card: ModelCard) -> None:
    texts, backend = [f"low {n}" for n in range(40)], FunctionBackend(lambda batch: np.ones((len(batch), 1)))
    deadline, builder = Deadline.after_ms(20_000, backend.clock), Counting.load(directory, card)
    builder.clock = backend.clock
    model = kind(directory, card, builder, backend)
    if kind is BiEncoder:
        model.encode(texts, "document", deadline=deadline)
    else:
        model.score("low", texts, [(index,) for index in range(40)], deadline=deadline)
    assert builder.seen == texts[:32]  # 16 at a time, each in a second


def test_a_deadline_far_away_changes_no_score(scorer: CrossEncoder) -> None:
    documents = ["wing " * (index % 23) for index in range(2 * GROUP_SIZES["cross-encoder"] + 3)]
    tuples = [(index,) for index in range(len(documents))]
    by_blocks = scorer.score("low", documents, tuples, deadline=Deadline.after_ms(60_000))
    assert by_blocks.reached == len(documents)
    np.testing.assert_array_equal(by_blocks.values, scorer.score("low", documents, tuples).values)


def test_tuples_choose_and_order_the_documents(scorer: CrossEncoder) -> None:
    documents = ["wing", "low blood pressure", "heat"]
    straight = scorer.score("low", documents, [(0,), (1,), (2,)]).values
    turned = scorer.score("low", documents, [(2,), (0,), (2,)]).values
    np.testing.assert_array_equal(turned, straight[[2, 0, 2]])
    nothing = scorer.score("low", [], [])
    assert (len(nothing.values), nothing.reached, nothing.inferences) == (0, 0, 0)
    assert scorer.score("low", ["wing " * 600, "wing"], [(0,), (1,), (0,)]).truncated == 1  # counted once
    card = ModelCard("tiny", "logit1", calibration=Calibration(0.5, -2.0))
    calibrated = CrossEncoder(DIRECTORY, card, InputBuilder.load(DIRECTORY, card), scorer._backend)
    assert calibrated.score("low", ["wing"], [(0,)]).values[0] == pytest.approx(0.5 * straight[0] - 2)


@pytest.mark.long
def test_a_forked_child_has_its_own_scoring_threads() -> None:
    """As under a server that loads the model and then forks: in a process of its own, this one has threads."""
    script = f"""
import signal
from osrerank.scoring.registry import load_scorer
from tests.waiting import in_a_child
scorer = load_scorer({str(DIRECTORY)!r}, backend="onnx", threads=1)
score = lambda: scorer.score("q", ["a", "b"], [(0,), (1,)]).values.tolist()
before = score()
raise SystemExit(not in_a_child(lambda: signal.alarm(20) == 0 and score() == before))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 0


def test_a_closed_scorer_refuses_to_score() -> None:
    closed = load_scorer(str(DIRECTORY), backend="onnx", threads=1)
    closed.close()
    closed.close()
    with pytest.raises(InferenceError, match="closed"):
        closed.score("low", ["wing"], [(0,)])


def test_probabilities_never_decrease_and_stay_finite(scorer: CrossEncoder) -> None:
    logits = np.array([-1e30, -50, -1, 0, 1, 12, 17, 1e30], dtype=np.float32)
    probabilities = scorer.probabilities(logits)
    assert probabilities.dtype == np.float64
    assert probabilities[3] == 0.5
    assert (np.diff(probabilities) >= 0).all()
    assert probabilities[5] < probabilities[6] < 1


@dataclass(frozen=True, slots=True)
class OnWorkers(FunctionScorer):
    """A scorer that notes how long its workers may be looked for, and finds none."""

    asked_s: list[float] = field(default_factory=list)

    def find_workers(self, deadline: Deadline = NEVER) -> int:
        self.asked_s.append(deadline.remaining_s())
        raise WorkerError("there is none")


def test_a_scorer_waits_for_workers_for_half_of_the_remaining_time() -> None:
    scorer, clock = OnWorkers(), ManualClock()
    model = LoadedModel("m", POINTWISE, Settings.load(), scorer, clock=clock)
    for _ in range(3):
        model.find_workers(Deadline.after_ms(10_000, clock))
    assert scorer.asked_s == [5.0]
    clock.sleep(FIND_WORKERS_INTERVAL_S)
    model.find_workers(NEVER)
    assert scorer.asked_s[1:] == [float("inf")]


def test_looking_for_workers_without_a_loadable_model_raises_nothing() -> None:
    LoadedModel("m", POINTWISE, Settings.load(), FunctionScorer()).find_workers(NEVER)
    LoadedModel("/no/such/folder", POINTWISE, Settings.load()).find_workers(NEVER)
