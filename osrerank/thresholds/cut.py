"""Remove reranked hits below a minimum probability, or below the threshold that reaches a precision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from osrerank.options.cutoff import Cutoff
from osrerank.thresholds.calibration import IndexCalibration
from osrerank.types import Candidate, StageReport


@dataclass(frozen=True, slots=True)
class Cut:
    """The effect of a cutoff, an entry of ``response["rerank"]["cuts"]``.

    Attributes:
        option: the option that sets the cutoff, ``min_probability`` or ``precision``.
        value: the option's value.
        hits: the number of reranked hits that were removed.
        threshold: the minimum probability of a remaining hit, or None if the cutoff was not applied.
        reason: why the cutoff was not applied, or "" if it was.
    """

    option: str
    value: float
    hits: int = 0
    threshold: float | None = None
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "by": self.option,
            "value": self.value,
            "hits": self.hits,
            "least_probability": self.threshold,
            "applied": not self.reason,
            "reason": self.reason or None,
        }


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The cutoffs of a search, and the index's calibration.

    Attributes:
        min_probability: the minimum calibrated probability of a remaining hit. None keeps all hits.
        cutoff: the precision that the list must reach. None keeps all hits.
        calibration: the index's calibration, or None if there is no valid calibration.
        refusal: why there is no valid calibration, or "" if there is one.
    """

    min_probability: float | None = None
    cutoff: Cutoff | None = None
    calibration: IndexCalibration | None = None
    refusal: str = ""

    def cut(
        self, candidates: Sequence[Candidate], reports: Sequence[StageReport] = ()
    ) -> tuple[list[Candidate], list[Cut]]:
        """Return the remaining candidates in their original order, and the effect of each cutoff."""
        remaining, cuts = list(candidates), []
        if self.min_probability is not None:
            remaining, cut = self._cut_at(
                remaining, reports, "min_probability", self.min_probability, self.min_probability
            )
            cuts.append(cut)
        if self.cutoff is not None:
            remaining, cut = self._cut_by_precision(remaining, reports, self.cutoff.precision)
            cuts.append(cut)
        return remaining, cuts

    def probability(self, candidate: Candidate) -> float | None:
        """Return a candidate's calibrated probability, or None without a calibration or a score of its stage."""
        return None if self.calibration is None else self.calibration.probability(candidate)

    def _cut_by_precision(
        self, candidates: list[Candidate], reports: Sequence[StageReport], precision: float
    ) -> tuple[list[Candidate], Cut]:
        if self.calibration is None:
            return candidates, Cut("precision", precision, reason=self.refusal)
        threshold = self.calibration.threshold_for(precision)
        if threshold is None:
            highest = self.calibration.highest_precision
            reason = f"no threshold reaches this precision on the index's judgments; the highest is {highest:.3f}"
            return candidates, Cut("precision", precision, reason=reason)
        return self._cut_at(candidates, reports, "precision", precision, threshold)

    def _cut_at(
        self, candidates: list[Candidate], reports: Sequence[StageReport], option: str, value: float, threshold: float
    ) -> tuple[list[Candidate], Cut]:
        if self.calibration is None:
            return candidates, Cut(option, value, reason=self.refusal)
        probabilities = [self.calibration.probability(candidate) for candidate in candidates]
        if candidates and all(probability is None for probability in probabilities):
            reason = f"the stage {self.calibration.stage}, for which the index is calibrated, scored no hit"
            return candidates, Cut(option, value, reason=reason)
        remaining, count = _remove_below(candidates, probabilities, threshold, self.calibration.stage, reports)
        return remaining, Cut(option, value, count, threshold)


def filter_by_probability(
    candidates: Sequence[Candidate], threshold: float, reports: Sequence[StageReport] = ()
) -> tuple[list[Candidate], int]:
    """Remove the candidates below a probability of the last stage that returns probabilities.

    Return the remaining candidates and the number of removed ones.
    """
    entries = [[entry for entry in candidate.trace if "probability" in entry.parts] for candidate in candidates]
    last_level = max((entry.level for trace in entries for entry in trace), default=0)
    last_entries = [next((entry for entry in trace if entry.level == last_level), None) for trace in entries]
    probabilities = [None if entry is None else entry.parts["probability"] for entry in last_entries]
    stage = next((entry.stage for entry in last_entries if entry is not None), "")
    return _remove_below(candidates, probabilities, threshold, stage, reports)


def _remove_below(
    candidates: Sequence[Candidate],
    probabilities: Sequence[float | None],
    threshold: float,
    stage: str,
    reports: Sequence[StageReport],
) -> tuple[list[Candidate], int]:
    """Remove the candidates below a probability, and return the remaining ones and the number of removed ones.

    Candidates that the stage had no time to score remain. Candidates below the depth are removed but not counted,
    because their number depends on the page. ``stage`` computed the probabilities. A probability is None if the stage
    did not score the candidate.
    """
    depth = max((report.candidates for report in reports), default=len(candidates))
    stage_depth = max((report.candidates for report in reports if report.name == stage), default=0)
    remaining = []
    for candidate, probability in zip(candidates, probabilities, strict=True):
        if probability is None:
            remains = candidate.rank <= stage_depth and not candidate.failure  # not reached before the deadline
        else:
            remains = probability >= threshold
        if remains:
            remaining.append(candidate)
    n_reranked = sum(candidate.rank <= depth for candidate in candidates)
    return remaining, n_reranked - sum(candidate.rank <= depth for candidate in remaining)


def last_probability(candidate: Candidate) -> float | None:
    """Return the probability from the last stage that returns one, or None if no stage does."""
    probabilities = [entry.parts["probability"] for entry in candidate.trace if "probability" in entry.parts]
    return probabilities[-1] if probabilities else None
