"""Pairs through the scorer in this process: kinds, tokenising once, failures, deadlines, windows."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from osrerank import DuoStage
from osrerank.errors import InferenceError, ModelLoadError
from osrerank.scoring import cross_encoder
from osrerank.scoring.card import ModelCard
from osrerank.scoring.duo import Duo
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.registry import load_scorer
from osrerank.testing import ManualClock
from osrerank.types import Deadline
from tests.backends import FunctionBackend
from tests.rankings import ranking_of

DATA = Path(__file__).parents[2] / "data"
DUO, MONO = DATA / "tiny-bert-duo", DATA / "tiny-bert-one-label"
CARD = ModelCard("tiny", "logits2", kind="duo", segment_rows=3)


def differing(bad: int = -1, pause_s: float = 0.0) -> FunctionBackend:
    """A backend that prefers the longer of two documents, and fails on one token."""

    def run(sequences):
        function_backend.clock.sleep(pause_s)
        if any((tokens.ids == bad).any() for tokens in sequences):
            raise InferenceError("the bad one is here")
        lengths = [[(tokens.segments == kind).sum() for kind in (2, 1)] for tokens in sequences]
        return np.array(lengths, dtype=np.float32)

    function_backend = FunctionBackend(run, 256)
    return function_backend


class Counting(InputBuilder):
    """Remembers which texts were tokenised, each in a second of its clock."""

    seen: list[str]
    clock = ManualClock()

    def tokenise_documents(self, texts, query):
        self.seen = [*getattr(self, "seen", []), *texts]
        self.clock.sleep(len(texts))
        return super().tokenise_documents(texts, query)


def scorer_of(backend) -> Duo:
    return Duo(DUO, CARD, Counting.load(DUO, CARD), backend, backend.clock)


def test_each_compared_document_is_tokenised_once():
    scorer = scorer_of(differing())
    texts = ["low " * (1 + n) for n in range(50)] + ["never read"]
    pairs = list(permutations(range(50), 2))
    scores = scorer.score("low", texts, pairs)
    assert sorted(scorer._builder.seen, key=len) == texts[:50]
    assert scores.inferences == 2450
    assert scores.values.tolist() == [float(first - second) for first, second in pairs]


def test_a_duo_model_refuses_single_texts_and_a_mono_model_pairs():
    mono, duo = load_scorer(str(MONO), threads=1), load_scorer(str(DUO), threads=1)
    with pytest.raises(ValueError, match="a duo model scores pairs"):
        duo.score("low", ["a", "b"], [(0,)])
    with pytest.raises(ValueError, match="pairs of documents need a duo model"):
        mono.score("low", ["a", "b"], [(0, 1)])
    with pytest.raises(ModelLoadError, match="is a cross-encoder model; choose a duo model"):
        load_scorer(str(MONO), kinds=("duo",))
    with pytest.raises(ModelLoadError, match="is a duo model; choose a bi-encoder or cross-encoder model"):
        load_scorer(str(DUO), kinds=("bi-encoder", "cross-encoder"))


def test_a_bad_document_is_left_out_of_the_ranking_and_its_neighbours_are_ranked():
    wing = int(scorer_of(differing())._builder.tokenise_query("wing").ids[0])
    stage = DuoStage(scorer_of(differing(bad=wing)))
    ranking = stage.rerank(ranking_of(["low", "low low", "wing", "a", "low " * 9], "low"))
    assert [candidate.doc_id for candidate in ranking.candidates] == ["d4", "d1", "d0", "d3", "d2"]
    assert ranking.candidates[-1].failure == "the bad one is here"
    report = ranking.reports[0]
    assert (report.applied, report.failed, report.inferences) == ("partial", 1, 20)


def test_a_deadline_leaves_a_prefix_of_pairs_and_of_candidates():
    texts = ["low " * (1 + n) for n in range(30)]
    backend = differing(pause_s=1)
    scorer = scorer_of(backend)
    pairs = list(permutations(range(30), 2))
    scores = scorer.score("low", texts, pairs, deadline=Deadline.after_ms(50_000, backend.clock))
    assert 0 < scores.reached < len(pairs)
    assert np.isfinite(scores.values[: scores.reached]).all()
    assert np.isnan(scores.values[scores.reached :]).all()
    deadline = Deadline.after_ms(75_000, backend.clock)
    ranking = DuoStage(scorer, depth=30).rerank(ranking_of(texts, "low"), deadline=deadline)
    compared = [candidate.doc_id for candidate in ranking.candidates if len(candidate.trace) == 2]
    assert 2 <= len(compared) < 30
    assert compared == [f"d{n}" for n in reversed(range(len(compared)))]
    assert [c.doc_id for c in ranking.candidates[len(compared) :]] == [f"d{n}" for n in range(len(compared), 30)]


def test_many_pairs_are_scored_in_groups(monkeypatch):
    pairs = list(permutations(range(12), 2))
    texts = ["low " * (1 + n) for n in range(12)]
    scores = scorer_of(differing()).score("low", texts, pairs)
    monkeypatch.setattr(cross_encoder, "MAX_SEQUENCES", 50)
    grouped = scorer_of(differing()).score("low", texts, pairs)
    assert grouped.values.tolist() == scores.values.tolist()
    assert grouped.inferences == grouped.reached == 132
    wing = int(scorer_of(differing())._builder.tokenise_query("wing").ids[0])
    failing = scorer_of(differing(bad=wing)).score("low", [*texts[:11], "wing"], pairs)
    assert {pairs[failed_index] for failed_index in failing.failures} == {pair for pair in pairs if 11 in pair}
