"""Choose which pairs of candidates to compare, and aggregate their probabilities as duoBERT does.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 3.3. p_ij is the
probability that candidate i is more relevant than candidate j.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from osrerank.options.pairs import PairAggregation, Pairs


@dataclass(frozen=True, slots=True)
class PairPlan:
    """The pairs of n candidates, ordered so that the first pairs completely compare the first candidates.

    Attributes:
        doc_ids: the candidates' ids.
        rivals: the indices of the candidates that each candidate is compared with.
        tuples: the pairs ``(i, j)``. If all candidates are compared with each other, the pairs of the first two come
            first, then those that the third one adds, and so on. Otherwise, all pairs of the first candidate come
            first, then all of the second, and so on.
        is_complete: whether every candidate is compared with every other one.
    """

    doc_ids: tuple[str, ...]
    rivals: list[list[int]]
    tuples: list[tuple[int, int]]
    is_complete: bool

    @classmethod
    def of(cls, doc_ids: Sequence[str], pairs: Pairs) -> "PairPlan":
        """Return the plan for at least two candidates."""
        rivals = pairs.rivals(doc_ids)
        is_complete = len(rivals[0]) == len(rivals) - 1
        sampled = [(index, rival) for index, rivals_of_index in enumerate(rivals) for rival in rivals_of_index]
        return cls(tuple(doc_ids), rivals, list(_all_pairs(len(rivals))) if is_complete else sampled, is_complete)

    @property
    def size(self) -> int:
        """The number of candidates."""
        return len(self.rivals)

    def count_compared(self, reached: int) -> int:
        """Return the number of leading candidates that are completely compared after ``reached`` pairs."""
        if self.is_complete:
            return (1 + math.isqrt(1 + 4 * reached)) // 2  # the largest r such that r(r - 1) pairs were compared
        return reached // len(self.rivals[0])

    def count_rivals(self, compared: int) -> int:
        """Return the number of leading candidates that count as rivals of the first ``compared`` candidates."""
        return compared if self.is_complete else self.size


def _all_pairs(size: int) -> Iterator[tuple[int, int]]:
    for newest in range(size):
        for older in range(newest):
            yield older, newest
            yield newest, older


def aggregate(probabilities: Sequence[float], aggregation: PairAggregation) -> float:
    """Return a candidate's score s_i from its probabilities p_ij. Without probabilities, it is 0.

    Sums are exact and rounded once, so that they do not depend on the order of the candidates.
    """
    if aggregation == "binary":
        return float(sum(probability > 0.5 for probability in probabilities))
    if aggregation == "min":
        return min(probabilities, default=0.0)
    if aggregation == "max":
        return max(probabilities, default=0.0)
    return math.fsum(probabilities)
