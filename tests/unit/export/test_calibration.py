import json
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import EvaluationError, FormatError
from osrerank.export.calibration import fit_calibration, fit_scorer, read_labelled
from osrerank.scoring.registry import load_scorer
from osrerank.types import Qrels

MODEL = str(Path(__file__).parents[2] / "data" / "tiny-bert-cross-bias")


def test_it_finds_the_map_that_made_the_labels() -> None:
    random = np.random.default_rng(7)
    raw = random.normal(14, 2, size=200_000).astype(np.float32)
    is_relevant = random.random(len(raw)) < 1 / (1 + np.exp(-(1.5 * raw - 22)))
    fitted = fit_calibration(raw, is_relevant)
    assert fitted.scale == pytest.approx(1.5, rel=0.02)
    assert fitted.offset == pytest.approx(-22, rel=0.02)


def test_four_pairs_by_hand() -> None:
    """Platt's targets are 3/4 and 1/4 for two of each; on raw scores of 1 and 0 that is logit = ln 3 * (2 raw - 1)."""
    fitted = fit_calibration(np.array([1, 1, 0, 0], dtype=np.float32), np.array([True, True, False, False]))
    assert fitted.scale == pytest.approx(2 * np.log(3), rel=1e-6)
    assert fitted.offset == pytest.approx(-np.log(3), rel=1e-6)


@pytest.mark.parametrize(
    ("raw", "is_relevant", "reason"),
    [
        ([1, 2], [True, True], "there are 2 and 0"),
        ([], [], "there are 0 and 0"),
        ([1, 2], [True, False], "check the judgments"),
        ([1, 1], [True, False], "check the judgments"),
    ],
)
def test_sets_that_calibrate_nothing(raw: list[float], is_relevant: list[bool], reason: str) -> None:
    with pytest.raises(EvaluationError, match=reason):
        fit_calibration(np.array(raw, dtype=np.float32), np.array(is_relevant, dtype=bool))


def test_labels_come_from_the_judgments(tmp_path: Path) -> None:
    line = {
        "query_id": "1",
        "query": "low",
        "candidates": [{"doc_id": "a", "text": "x", "title": "T"}, {"doc_id": "b", "text": "y"}],
    }
    file = tmp_path / "candidates.jsonl"
    file.write_text(json.dumps(line) + "\n")
    assert list(read_labelled(file, Qrels({"1": {"b": 2, "a": 0}}))) == [("low", ["T x", "y"], [False, True])]


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"query_id": "1"}', '{"query_id": "1", "query": "q", "candidates": [{}]}']
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "candidates.jsonl"
    file.write_text(f"{line}\n")
    with pytest.raises(FormatError, match=r"candidates\.jsonl, line 1"):
        list(read_labelled(file, Qrels({})))


def test_a_scorer_is_calibrated_on_its_raw_scores() -> None:
    scorer = load_scorer(MODEL, backend="onnx", threads=1)
    texts = ["low", "blood pressure", "wing", "heat"]
    values = scorer.score("low", texts, [(index,) for index in range(4)]).values
    is_relevant = values > np.median(values)
    assert fit_scorer(scorer, [("low", texts, is_relevant.tolist())]) == fit_calibration(values, is_relevant)
