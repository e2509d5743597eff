"""Remove reranked hits below a minimum probability, which is an option, or follows from a minimum precision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from osrerank.options.cutoff import Cutoff
from osrerank.thresholds.calibration import IndexCalibration
from osrerank.types import Candidate, StageReport


@dataclass(frozen=True, slots=True)
class CutReport:
    """What an option removed: an entry of ``response["rerank"]["cuts"]``.

    Attributes:
        option: ``min_probability``, or ``precision``, which is the field of ``cutoff``.
        value: the option's value.
        n_removed: the number of reranked hits that were removed.
        threshold: the minimum probability of a remaining hit, named ``least_probability`` in JSON. None if the option
            was not applied.
        reason: why the option was not applied. Empty if it was.
    """

    option: str
    value: float
    n_removed: int = 0
    threshold: float | None = None
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the entry as JSON values: ``{"by": "precision", "value": 0.7, "hits": 93, ...}``."""
        return {
            "by": self.option,
            "value": self.value,
            "hits": self.n_removed,
            "least_probability": self.threshold,
            "applied": not self.reason,
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The options that remove reranked hits by calibrated probability, and the index's calibration.

    Attributes:
        min_probability: the minimum calibrated probability of a remaining hit. None keeps all hits.
        cutoff: the precision that the remaining hits must have. None keeps all hits.
        calibration: the index's calibration. None if there is no valid calibration.
        missing_reason: why there is no valid calibration. Empty if there is one.
    """

    min_probability: float | None = None
    cutoff: Cutoff | None = None
    calibration: IndexCalibration | None = None
    missing_reason: str = ""

    def remove_hits(
        self, candidates: Sequence[Candidate], reports: Sequence[StageReport] = ()
    ) -> tuple[list[Candidate], list[CutReport]]:
        """Return the remaining candidates in their original order, and what each option removed.

        Args:
            candidates: the candidates in ranked order.
            reports: the reports of the stages that ranked them.
        """
        remaining = list(candidates)
        cuts = []
        if self.min_probability is not None:
            minimum = self.min_probability
            remaining, cut = self._remove_by_calibrated_probability(
                remaining, reports, minimum, option="min_probability", value=minimum
            )
            cuts.append(cut)
        if self.cutoff is not None:
            remaining, cut = self._remove_by_precision(remaining, reports, self.cutoff.precision)
            cuts.append(cut)
        return remaining, cuts

    def probability(self, candidate: Candidate) -> float | None:
        """Return a candidate's calibrated probability.

        Returns None if there is no calibration, or if the calibrated stage did not score the candidate.
        """
        return None if self.calibration is None else self.calibration.probability(candidate)

    def _remove_by_precision(
        self, candidates: list[Candidate], reports: Sequence[StageReport], precision: float
    ) -> tuple[list[Candidate], CutReport]:
        if self.calibration is None:
            return candidates, CutReport("precision", precision, reason=self.missing_reason)
        threshold = self.calibration.threshold_for(precision)
        if threshold is None:
            highest = self.calibration.highest_precision
            reason = f"no threshold reaches this precision on the index's judgments; the highest is {highest:.3f}"
            return candidates, CutReport("precision", precision, reason=reason)
        return self._remove_by_calibrated_probability(
            candidates, reports, threshold, option="precision", value=precision
        )

    def _remove_by_calibrated_probability(
        self,
        candidates: list[Candidate],
        reports: Sequence[StageReport],
        threshold: float,
        *,
        option: str,
        value: float,
    ) -> tuple[list[Candidate], CutReport]:
        """Remove the candidates below a calibrated probability. ``option`` and ``value`` are for the report only."""
        if self.calibration is None:
            return candidates, CutReport(option, value, reason=self.missing_reason)
        probabilities = [self.calibration.probability(candidate) for candidate in candidates]
        if candidates and all(probability is None for probability in probabilities):
            reason = f'the stage "{self.calibration.stage}", for which the index is calibrated, scored no hit'
            return candidates, CutReport(option, value, reason=reason)
        remaining, n_removed = _remove_below(candidates, probabilities, threshold, self.calibration.stage, reports)
        return remaining, CutReport(option, value, n_removed, threshold)


def filter_by_probability(
    candidates: Sequence[Candidate], threshold: float, reports: Sequence[StageReport] = ()
) -> tuple[list[Candidate], int]:
    """Remove the candidates below a model's own probability, that of the last stage that computed any.

    Returns the remaining candidates, and the number of reranked candidates that were removed.
    """
    # of each candidate, the scores of the stages that computed probabilities
    score_lists = [[score for score in candidate.trace if "probability" in score.parts] for candidate in candidates]
    # a higher level is that of a later stage, which did not necessarily score all candidates
    last_level = max((score.level for scores in score_lists for score in scores), default=0)
    last_scores = [next((score for score in scores if score.level == last_level), None) for scores in score_lists]
    probabilities = [None if score is None else score.parts["probability"] for score in last_scores]
    stage = next((score.stage for score in last_scores if score is not None), "")
    return _remove_below(candidates, probabilities, threshold, stage, reports)


def _remove_below(
    candidates: Sequence[Candidate],
    probabilities: Sequence[float | None],
    threshold: float,
    stage: str,
    reports: Sequence[StageReport],
) -> tuple[list[Candidate], int]:
    """Remove the candidates below a probability. Return the remaining ones, and the number of removed ones.

    Candidates that the stage had no time to score remain. Candidates beyond the reranking depth are removed but not
    counted, because their number depends on the page.

    Args:
        candidates: the candidates in ranked order.
        probabilities: the probability of each candidate. None if the stage did not score it.
        threshold: the minimum probability of a remaining candidate.
        stage: the name of the stage that computed the probabilities.
        reports: the reports of the stages that ranked the candidates.
    """
    # a report's ``candidates`` is the number of candidates that the stage received
    depth = max((report.candidates for report in reports), default=len(candidates))
    stage_depth = max((report.candidates for report in reports if report.name == stage), default=0)
    remaining = []
    for candidate, probability in zip(candidates, probabilities, strict=True):
        if probability is None:
            # no probability, but also no failure: the deadline passed before the stage scored the candidate
            remains = candidate.rank <= stage_depth and not candidate.failure
        else:
            remains = probability >= threshold
        if remains:
            remaining.append(candidate)
    n_reranked = sum(candidate.rank <= depth for candidate in candidates)
    n_reranked_remaining = sum(candidate.rank <= depth for candidate in remaining)
    return remaining, n_reranked - n_reranked_remaining


def last_probability(candidate: Candidate) -> float | None:
    """Return the probability that the last stage with probabilities computed, or None if no stage did."""
    probabilities = [entry.parts["probability"] for entry in candidate.trace if "probability" in entry.parts]
    return probabilities[-1] if probabilities else None
