"""Cut a reranked list: at a least probability, or to reach a precision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from osrerank.options.cutoff import Cutoff
from osrerank.thresholds.calibration import IndexCalibration
from osrerank.types import Candidate


@dataclass(frozen=True, slots=True)
class Cut:
    """What one threshold removed: an entry of ``response["rerank"]["cuts"]``.

    Attributes:
        by: the option: ``min_probability`` or ``precision``.
        value: the option's value.
        hits: how many it removed.
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

    def cut(self, candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[Cut]]:
        """Return the candidates that stay, in their order, and what each threshold removed."""
        kept, cuts = list(candidates), []
        if self.min_probability is not None:
            kept, cut = self._at_least(kept, "min_probability", self.min_probability, self.min_probability)
            cuts.append(cut)
        if self.cutoff is not None:
            kept, cut = self._precise(kept, self.cutoff.precision)
            cuts.append(cut)
        return kept, cuts

    def probability(self, candidate: Candidate) -> float | None:
        """Return a candidate's calibrated probability; None without a calibration."""
        return None if self.calibration is None else self.calibration.probability(candidate)

    def _precise(self, candidates: list[Candidate], precision: float) -> tuple[list[Candidate], Cut]:
        if self.calibration is None:
            return candidates, Cut("precision", precision, reason=self.refusal)
        least = self.calibration.least_probability(precision)
        if least is None:
            most = self.calibration.highest_precision
            reason = f"no threshold reaches this precision on the index's judgments; the highest is {most:.3f}"
            return candidates, Cut("precision", precision, reason=reason)
        return self._at_least(candidates, "precision", precision, least)

    def _at_least(
        self, candidates: list[Candidate], by: str, value: float, least: float
    ) -> tuple[list[Candidate], Cut]:
        if self.calibration is None:
            return candidates, Cut(by, value, reason=self.refusal)
        probabilities = [self.calibration.probability(candidate) for candidate in candidates]
        if candidates and all(probability is None for probability in probabilities):
            reason = f"the stage {self.calibration.stage}, for which the index is calibrated, scored no hit"
            return candidates, Cut(by, value, reason=reason)
        kept = [
            candidate
            for candidate, probability in zip(candidates, probabilities, strict=True)
            if probability is not None and probability >= least
        ]
        return kept, Cut(by, value, len(candidates) - len(kept), least)


def at_least(candidates: Sequence[Candidate], least: float) -> list[Candidate]:
    """Return the candidates with at least this probability, by the last stage that gives probabilities."""
    pairs = zip(candidates, _last(candidates), strict=True)
    return [candidate for candidate, value in pairs if value is not None and value >= least]


def _last(candidates: Sequence[Candidate]) -> list[float | None]:
    """Return each candidate's probability by the last stage that gives any; None if that did not score it."""
    found = [
        {entry.level: entry.parts["probability"] for entry in candidate.trace if "probability" in entry.parts}
        for candidate in candidates
    ]
    last = max((level for by_level in found for level in by_level), default=0)
    return [by_level.get(last) for by_level in found]


def probability_of(candidate: Candidate) -> float | None:
    """Return the probability of relevance by the last stage that gives one; None if none does."""
    found = [entry.parts["probability"] for entry in candidate.trace if "probability" in entry.parts]
    return found[-1] if found else None
