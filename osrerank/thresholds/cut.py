"""Cut a reranked list at a least probability, or so that it reaches a precision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from osrerank.options.cutoff import Cutoff
from osrerank.thresholds.calibration import IndexCalibration
from osrerank.types import Candidate, StageReport


@dataclass(frozen=True, slots=True)
class Cut:
    """What a threshold removed: an entry of ``response["rerank"]["cuts"]``.

    Attributes:
        by: the option that sets the threshold, ``min_probability`` or ``precision``.
        value: the option's value.
        hits: the number of reranked hits that it removed.
        least: the least probability with which a hit stays; None if the threshold sets none.
        reason: why the threshold was not applied; empty if it was.
    """

    by: str
    value: float
    hits: int = 0
    least: float | None = None
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        rest = {"by": self.by, "value": self.value, "hits": self.hits, "least_probability": self.least}
        return {**rest, "applied": not self.reason, "reason": self.reason or None}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of a search, and the index's calibration.

    Attributes:
        min_probability: the least calibrated probability with which a hit stays; None to keep all hits.
        cutoff: the precision that the list must keep; None for no cutoff.
        calibration: the index's calibration; None if it has no valid one.
        refusal: the reason why the index has no valid calibration; empty if it has one.
    """

    min_probability: float | None = None
    cutoff: Cutoff | None = None
    calibration: IndexCalibration | None = None
    refusal: str = ""

    def cut(
        self, candidates: Sequence[Candidate], reports: Sequence[StageReport] = ()
    ) -> tuple[list[Candidate], list[Cut]]:
        """Return the candidates that stay, in their order, and what each threshold removed.

        Args:
            candidates: the reranked candidates, in their new order.
            reports: the stages' reports.
        """
        remaining, cuts = list(candidates), []
        if self.min_probability is not None:
            remaining, cut = self._at_least(
                remaining, reports, "min_probability", self.min_probability, self.min_probability
            )
            cuts.append(cut)
        if self.cutoff is not None:
            remaining, cut = self._precise(remaining, reports, self.cutoff.precision)
            cuts.append(cut)
        return remaining, cuts

    def probability(self, candidate: Candidate) -> float | None:
        """Return a candidate's calibrated probability; None without a calibration."""
        return None if self.calibration is None else self.calibration.probability(candidate)

    def _precise(
        self, candidates: list[Candidate], reports: Sequence[StageReport], precision: float
    ) -> tuple[list[Candidate], Cut]:
        if self.calibration is None:
            return candidates, Cut("precision", precision, reason=self.refusal)
        least = self.calibration.threshold_for(precision)
        if least is None:
            most = self.calibration.highest_precision
            reason = f"no threshold reaches this precision on the index's judgments; the highest is {most:.3f}"
            return candidates, Cut("precision", precision, reason=reason)
        return self._at_least(candidates, reports, "precision", precision, least)

    def _at_least(
        self, candidates: list[Candidate], reports: Sequence[StageReport], by: str, value: float, least: float
    ) -> tuple[list[Candidate], Cut]:
        if self.calibration is None:
            return candidates, Cut(by, value, reason=self.refusal)
        probabilities = [self.calibration.probability(candidate) for candidate in candidates]
        if candidates and all(probability is None for probability in probabilities):
            reason = f"the stage {self.calibration.stage}, for which the index is calibrated, scored no hit"
            return candidates, Cut(by, value, reason=reason)
        remaining, count = _at_or_above(candidates, probabilities, least, self.calibration.stage, reports)
        return remaining, Cut(by, value, count, least)


def filter_by_probability(
    candidates: Sequence[Candidate], least: float, reports: Sequence[StageReport] = ()
) -> tuple[list[Candidate], int]:
    """Return the candidates with at least this probability, by the last stage that gives one, and how many have less.

    Args:
        candidates: the reranked candidates, in their new order.
        least: the least probability with which a candidate stays.
        reports: the stages' reports.
    """
    scored_entries = [[entry for entry in candidate.trace if "probability" in entry.parts] for candidate in candidates]
    last = max((entry.level for entries in scored_entries for entry in entries), default=0)
    entries = [next((entry for entry in entries if entry.level == last), None) for entries in scored_entries]
    probabilities = [None if entry is None else entry.parts["probability"] for entry in entries]
    stage = next((entry.stage for entry in entries if entry is not None), "")
    return _at_or_above(candidates, probabilities, least, stage, reports)


def _at_or_above(
    candidates: Sequence[Candidate],
    probabilities: Sequence[float | None],
    least: float,
    stage: str,
    reports: Sequence[StageReport],
) -> tuple[list[Candidate], int]:
    """Return the candidates that stay, and how many of the reranked ones do not.

    A candidate stays if its probability is high enough, or if the stage had no time to score it. Candidates below the
    depth do not stay, and are not counted, because their number depends on the page.

    Args:
        candidates: the reranked candidates, in their new order.
        probabilities: each candidate's probability; None if the stage did not score it.
        least: the least probability with which a candidate stays.
        stage: the stage that gives the probabilities.
        reports: the stages' reports.
    """
    depth = max((report.candidates for report in reports), default=len(candidates))
    timed = max((report.candidates for report in reports if report.name == stage), default=0)
    remaining = [
        candidate
        for candidate, probability in zip(candidates, probabilities, strict=True)
        if (probability >= least if probability is not None else candidate.rank <= timed and not candidate.failure)
    ]
    reranked = sum(candidate.rank <= depth for candidate in candidates)
    return remaining, reranked - sum(candidate.rank <= depth for candidate in remaining)


def last_probability(candidate: Candidate) -> float | None:
    """Return the probability of relevance from the last stage that gives one; None if none does."""
    probabilities = [entry.parts["probability"] for entry in candidate.trace if "probability" in entry.parts]
    return probabilities[-1] if probabilities else None
