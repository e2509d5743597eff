"""Fit the affine map from raw scores to logits, so that their sigmoid is a probability (Platt 1999)."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from osrerank.errors import EvaluationError
from osrerank.formats.candidates import candidate_lists
from osrerank.scoring.card import Calibration
from osrerank.scoring.local import LocalScorer
from osrerank.types import Qrels

STEPS = 50
RIDGE = 1e-9
"""Keeps Newton's step finite if a development set is separable."""


def fit_calibration(raw: npt.NDArray[np.float32], is_relevant: npt.NDArray[np.bool_]) -> Calibration:
    """Return the scale and offset of greatest likelihood: logistic regression on one variable by Newton's method.

    The targets are Platt's, (n+ + 1) / (n+ + 2) and 1 / (n- + 2): a small or separable set gives no infinite scale.

    Args:
        raw: raw scores ``(n,)``.
        is_relevant: judgments ``(n,)``.

    Raises:
        EvaluationError: one of the two classes is empty, or relevant pairs do not score higher.
    """
    positives, negatives = int(is_relevant.sum()), int((~is_relevant).sum())
    if not positives or not negatives:
        raise EvaluationError(f"calibration needs relevant and other pairs; there are {positives} and {negatives}")
    targets = np.where(is_relevant, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    center, spread = float(raw.mean()), float(raw.std()) or 1.0
    inputs = np.stack([(raw.astype(np.float64) - center) / spread, np.ones(len(raw))], axis=1)
    weights = np.zeros(2, dtype=np.float64)
    for _ in range(STEPS):
        weights += _newton_step(inputs, targets, weights)
    scale = float(weights[0]) / spread
    if not scale > 0:
        raise EvaluationError(
            "relevant pairs do not score higher than the others on the development set: check the judgments"
        )
    return Calibration(scale, float(weights[1]) - scale * center)


def _newton_step(
    inputs: npt.NDArray[np.float64], targets: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    probabilities = 1 / (1 + np.exp(-np.clip(inputs @ weights, -30, 30)))
    curvature = (inputs * (probabilities * (1 - probabilities))[:, None]).T @ inputs + RIDGE * np.eye(2)
    return np.linalg.solve(curvature, inputs.T @ (targets - probabilities)).astype(np.float64)


def read_labelled(candidates: Path, qrels: Qrels) -> Iterator[tuple[str, list[str], list[bool]]]:
    """Yield, for each query of a candidate file, its text, the documents' texts and whether each is relevant.

    Documents without a judgment are not relevant.

    Raises:
        FormatError: as `candidate_lists`.
    """
    for one in candidate_lists(candidates):
        judged = qrels.judgments.get(one.query.query_id, {})
        texts = [f"{document.get('title') or ''} {document['text']}".strip() for document in one.documents]
        yield one.query.text, texts, [judged.get(document["id"], 0) > 0 for document in one.documents]


def fit_scorer(scorer: LocalScorer, labelled: Iterable[tuple[str, list[str], list[bool]]]) -> Calibration:
    """Fit the map from raw scores to logits on judged candidates.

    Raises:
        EvaluationError: as `fit_calibration`.
    """
    before = scorer.card.calibration
    logits: list[float] = []
    is_relevant: list[bool] = []
    for query, texts, relevant in labelled:
        scores = scorer.score(query, texts, [(index,) for index in range(len(texts))])
        scored = np.isfinite(scores.values)
        logits += scores.values[scored].tolist()
        is_relevant += np.array(relevant, dtype=bool)[scored].tolist()
    raw = (np.array(logits) - before.offset) / before.scale
    return fit_calibration(raw.astype(np.float32), np.array(is_relevant, dtype=bool))
