"""Cut a reranked list: at a least probability, or to reach a precision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from osrerank.options.cutoff import Cutoff
from osrerank.thresholds.calibration import IndexCalibration
from osrerank.types import Candidate, StageReport


@dataclass(frozen=True, slots=True)
class Cut:
    """What one threshold removed: an entry of ``response["rerank"]["cuts"]``.

    Attributes:
        by: the option: ``min_probability`` or ``precision``.
        value: the option's value.
        hits: how many of the reranked hits it removed.
        least: the least probability with which a hit stays; None if the threshold sets none.
        reason: why it was not applied; empty if it was.
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
        min_probability: least calibrated probability of a hit that stays; None for all.
        cutoff: how the end of the list is found; None for no cutoff.
        calibration: the index's calibration; None if it has no valid one.
        refusal: why it has no valid one; else empty.
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
            candidates: in their new order.
            reports: what the stages did.
        """
        kept, cuts = list(candidates), []
        if self.min_probability is not None:
            kept, cut = self._at_least(kept, reports, "min_probability", self.min_probability, self.min_probability)
            cuts.append(cut)
        if self.cutoff is not None:
            kept, cut = self._precise(kept, reports, self.cutoff.precision)
            cuts.append(cut)
        return kept, cuts

    def probability(self, candidate: Candidate) -> float | None:
        """Return a candidate's calibrated probability; None without a calibration."""
        return None if self.calibration is None else self.calibration.probability(candidate)

    def _precise(
        self, candidates: list[Candidate], reports: Sequence[StageReport], precision: float
    ) -> tuple[list[Candidate], Cut]:
        if self.calibration is None:
            return candidates, Cut("precision", precision, reason=self.refusal)
        least = self.calibration.least_probability(precision)
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
        kept, count = _kept(candidates, probabilities, least, self.calibration.stage, reports)
        return kept, Cut(by, value, count, least)


def at_least(
    candidates: Sequence[Candidate], least: float, reports: Sequence[StageReport] = ()
) -> tuple[list[Candidate], int]:
    """Return the candidates with at least this probability, by the last stage that gives any, and how many have less.

    Args:
        candidates: in their new order.
        least: the probability.
        reports: what the stages did.
    """
    given = [[entry for entry in candidate.trace if "probability" in entry.parts] for candidate in candidates]
    last = max((entry.level for entries in given for entry in entries), default=0)
    entries = [next((entry for entry in entries if entry.level == last), None) for entries in given]
    probabilities = [None if entry is None else entry.parts["probability"] for entry in entries]
    stage = next((entry.stage for entry in entries if entry is not None), "")
    return _kept(candidates, probabilities, least, stage, reports)


def _kept(
    candidates: Sequence[Candidate],
    probabilities: Sequence[float | None],
    least: float,
    stage: str,
    reports: Sequence[StageReport],
) -> tuple[list[Candidate], int]:
    """Return the candidates that stay, and how many of the reranked ones do not.

    One stays whose probability is high enough, or that the stage had no time to score. Candidates below the depth do
    not stay, and are not counted: how many there are depends on the page.

    Args:
        candidates: in their new order.
        probabilities: that of each; None if the stage did not score it.
        least: the least probability.
        stage: the stage that gives the probabilities.
        reports: what the stages did.
    """
    depth = max((report.candidates for report in reports), default=len(candidates))
    timed = max((report.candidates for report in reports if report.name == stage), default=0)
    kept = [
        candidate
        for candidate, probability in zip(candidates, probabilities, strict=True)
        if (probability >= least if probability is not None else candidate.rank <= timed and not candidate.failure)
    ]
    return kept, sum(one.rank <= depth for one in candidates) - sum(one.rank <= depth for one in kept)


def probability_of(candidate: Candidate) -> float | None:
    """Return the probability of relevance by the last stage that gives one; None if none does."""
    found = [entry.parts["probability"] for entry in candidate.trace if "probability" in entry.parts]
    return found[-1] if found else None
