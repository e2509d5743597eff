"""Calibration at export: probabilities and weights that are fitted to judged candidates."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import EvaluationError
from osrerank.export.calibration import (
    JudgedQuery,
    calibrate_on_queries,
    choose_weight,
    fit_calibration,
    score_judged_queries,
    simulate_vectors_mono,
)
from osrerank.scoring.card import Calibration, ModelCard
from osrerank.scoring.registry import load_scorer
from osrerank.types import Qrels

MODEL = str(Path(__file__).parents[2] / "data" / "tiny-bert-bi-encoder")


def test_calibration_of_four_pairs_by_hand() -> None:
    """Platt's targets are 3/4 and 1/4 for two of each; on raw scores of 1 and 0 that is logit = ln 3 * (2 raw - 1)."""
    fitted = fit_calibration(np.array([1, 1, 0, 0], dtype=np.float32), np.array([True, True, False, False]))
    assert fitted.scale == pytest.approx(2 * np.log(3), rel=1e-6)
    assert fitted.offset == pytest.approx(-np.log(3), rel=1e-6)


@pytest.mark.parametrize(
    ("raw", "is_relevant", "reason"),
    [
        ([1, 2], [True, True], "2 candidates are relevant and 0 are not"),
        ([], [], "0 candidates are relevant and 0 are not"),
        ([1, 2], [True, False], "check the judgments"),
        ([1, 1], [True, False], "check the judgments"),
    ],
)
def test_sets_without_relevant_and_irrelevant_pairs_calibrate_nothing(
    raw: list[float], is_relevant: list[bool], reason: str
) -> None:
    with pytest.raises(EvaluationError, match=reason):
        fit_calibration(np.array(raw, dtype=np.float32), np.array(is_relevant, dtype=bool))


def test_judged_pairs_are_read_from_candidates_and_judgments(tmp_path: Path) -> None:
    scorer = load_scorer(MODEL, backend="onnx", threads=1)
    line = {
        "query_id": "1",
        "query": "low",
        "candidates": [{"doc_id": "a", "text": "heat", "title": "The", "score": 4}, {"doc_id": "b", "text": "water"}],
    }
    file = tmp_path / "candidates.jsonl"
    file.write_text(json.dumps(line) + "\n")
    (found,) = score_judged_queries(scorer, scorer.encoder.card.calibration, file, Qrels({"1": {"b": 2, "a": 0}}))
    assert (found.doc_ids, found.is_relevant.tolist(), found.first_pass_scores.tolist()) == (
        ["a", "b"],
        [False, True],
        [1, 0],
    )
    logits = scorer.score("low", ["The heat", "water"], [(0,), (1,)]).values
    calibration = scorer.encoder.card.calibration
    np.testing.assert_allclose(found.raw_scores, (logits - calibration.offset) / calibration.scale, rtol=1e-6)


def judged(raw: list[float], relevant: int) -> JudgedQuery:
    """Three candidates whose first-pass scores are 1, 1/2 and 0."""
    return JudgedQuery(np.array(raw), np.array([1.0, 0.5, 0.0]), ["a", "b", "c"], {"abc"[relevant]: 1})


def test_a_weight_is_chosen_where_the_first_pass_knows_better_and_of_enough_queries() -> None:
    """Raw scores put the relevant first document third by .9: only a weight of 1 or more brings it back to the top."""
    plain, unsure = judged([0.0, 0.5, 0.9], 0), judged([0.0, 0.1, 5.0], 2)
    chosen = choose_weight([plain, plain, unsure] * 2, Calibration(1.0, 0.0))
    assert (chosen.weight, chosen.ndcg, chosen.cross_validated_ndcg) == (1.0, 1.0, 1.0)
    assert chosen.first_pass_ndcg == pytest.approx((1 + 1 + 0.5) / 3)  # a third place counts 1 / log2(4)
    with pytest.raises(EvaluationError, match="needs 5 queries with candidates and a relevant document"):
        choose_weight([judged([1.0, 0.0, 0.0], 0)] * 4, Calibration())


def test_a_cross_encoders_weight_is_chosen_on_the_best_hits_by_vectors() -> None:
    """The vectors with BM25 (weight 3) have b a c; the cross-encoder reads two and puts a first, and b is relevant."""
    mono = JudgedQuery(np.array([1.5, 0.0, 9.0]), np.zeros(3), ["a", "b", "c"], {"b": 1})
    vectors = JudgedQuery(np.array([1.0, 3.0, math.nan]), np.array([0.5, 1.0, 0.0]), ["a", "b", "c"], {"b": 1})
    card = ModelCard("e", "cosine", "bi-encoder", calibration=Calibration(2.0, -1.0), first_pass_weight=3.0)
    both = simulate_vectors_mono([mono] * 5, [vectors] * 5, card, 2)
    assert both[0].doc_ids == ["b", "a", "c"]
    assert both[0].first_pass_scores.tolist() == [5.0, 1.0, 0.0]
    assert both[0].ndcg(Calibration(), 0.0) < both[0].ndcg(Calibration(), 1.0) == 1.0
    assert choose_weight(both, Calibration()).weight == 0.5


def test_unscored_documents_do_not_calibrate_and_rank_last() -> None:
    one = judged([math.nan, 1.0, 0.0], 1)
    assert one.ndcg(Calibration(), 12.0) == 1.0
    assert calibrate_on_queries([one]) == fit_calibration(np.array([1, 0], dtype=np.float32), np.array([True, False]))
