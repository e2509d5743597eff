"""What is asked of the advice, and what was tried for it."""

from collections.abc import Mapping
from dataclasses import dataclass

from osrerank.decision.advice.choose import DEPTHS, Scores
from osrerank.decision.advice.costs import Cost
from osrerank.decision.advice.sample import Found
from osrerank.decision.advice.verdict import ALPHA


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of the advice.

    Attributes:
        measure: by ir-measures' names.
        p95_ms: limit of a search's 95th percentile; None for none.
        sample: queries at most.
        budget_s: seconds for searching and timing.
        searches_per_s: for which cores are given.
        depths: to try.
        alpha: p-values below it decide.
        seed: of the sample.
    """

    measure: str = "nDCG@10"
    p95_ms: float | None = None
    sample: int = 200
    budget_s: float = 300.0
    searches_per_s: float = 10.0
    depths: tuple[int, ...] = DEPTHS
    alpha: float = ALPHA
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Tried:
    """A model with a passages setting, perhaps with pairs or by sentences: its sample, and what searches cost.

    Attributes:
        model: its name.
        passages: as a settings file has the option.
        found: the sample.
        costs: of each depth; 0 is the first pass.
        first_p50_ms, first_p95_ms: of the sample's searches, at the greatest depth, most with new documents.
        encoded: documents whose states these computed.
        duo_depth: candidates that are compared in pairs; 0 for none.
        by_sentences: whether documents are scored by their best sentences.
    """

    model: str
    passages: str
    found: tuple[Found, ...]
    costs: Mapping[int, Cost]
    first_p50_ms: float
    first_p95_ms: float
    encoded: int
    duo_depth: int = 0
    by_sentences: bool = False

    def __str__(self) -> str:
        by = "sentences" if self.by_sentences else f"passages {self.passages}"
        pairs = f", pairs of the first {self.duo_depth}" if self.duo_depth else ""
        return f"{self.model}, {by}{pairs}"

    @property
    def scores(self) -> Scores:
        """What tells it from the others: that which scores depend on."""
        return self.model, self.passages, self.duo_depth, self.by_sentences
