"""Choose which pairs of candidates to compare, and aggregate their probabilities as duoBERT does.

p_ij is the probability that candidate i is more relevant than candidate j. The method is that of Nogueira, Yang, Cho,
Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 3.3.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from osrerank.options.pairs import PairAggregation, Pairs


@dataclass(frozen=True, slots=True)
class PairPlan:
    """The pairs of n candidates. The pairs of the top candidates come first, in case the deadline ends the comparison.

    Attributes:
        doc_ids: the candidates' ids.
        rivals: for each candidate, the indices of the candidates that it is compared with.
        tuples: the pairs ``(i, j)``. If every candidate is compared with every other one, all pairs of the top two come
            first, then the pairs that the third candidate adds: (0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1).
            Otherwise, all pairs of candidate 0 come first, then all pairs of candidate 1, and so on.
        is_complete: whether every candidate is compared with every other one.
    """

    doc_ids: tuple[str, ...]
    rivals: list[list[int]]
    tuples: list[tuple[int, int]]
    is_complete: bool

    @classmethod
    def of(cls, doc_ids: Sequence[str], pairs: Pairs) -> "PairPlan":
        """Return the plan for at least two candidates.

        Args:
            doc_ids: the candidates' ids, in the order of the ranking.
            pairs: the options, which choose the rivals of each candidate.
        """
        rivals = pairs.choose_rivals(doc_ids)
        is_complete = len(rivals[0]) == len(rivals) - 1  # all candidates have equally many rivals
        if is_complete:
            tuples = list(_all_pairs(len(rivals)))
        else:
            tuples = [(index, rival) for index, sampled_rivals in enumerate(rivals) for rival in sampled_rivals]
        return cls(tuple(doc_ids), rivals, tuples, is_complete)

    @property
    def size(self) -> int:
        """The number of candidates."""
        return len(self.rivals)

    def count_compared(self, n_pairs: int) -> int:
        """Return how many top candidates are completely compared after the first ``n_pairs`` pairs of the plan.

        They are compared with all their rivals or, in a complete plan, with each other.
        """
        if self.is_complete:
            return (1 + math.isqrt(1 + 4 * n_pairs)) // 2  # the largest r such that r(r - 1) <= n_pairs
        return n_pairs // len(self.rivals[0])

    def count_rivals(self, n_compared: int) -> int:
        """Return the number of top candidates that can be rivals of the first ``n_compared`` candidates."""
        return n_compared if self.is_complete else self.size


def _all_pairs(size: int) -> Iterator[tuple[int, int]]:
    """Yield all pairs of the first two candidates, then the pairs that the third one adds, and so on."""
    for added in range(size):
        for earlier in range(added):
            yield earlier, added
            yield added, earlier


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
