"""From the probabilities of pairs to one score a document: duoBERT's pair aggregations.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 3.3. Of candidate i,
J_i are the other candidates that duoBERT was given; p_ij is the probability that i is more relevant than j.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from osrerank.options.pairs import PairAggregation, Pairs


@dataclass(frozen=True, slots=True)
class PairPlan:
    """The pairs of n candidates, in an order in which each beginning is a comparison of fewer candidates.

    Attributes:
        doc_ids: of the candidates.
        rivals: for each place, the places that it is compared with.
        tuples: the pairs ``(i, j)``: all pairs of the first two candidates, then those that the third one adds, and so
            on; of a sample, all pairs of the first candidate, then all of the second.
        is_whole: whether everyone is compared with everyone.
    """

    doc_ids: tuple[str, ...]
    rivals: list[list[int]]
    tuples: list[tuple[int, int]]
    is_whole: bool

    @classmethod
    def of(cls, doc_ids: Sequence[str], pairs: Pairs) -> "PairPlan":
        """Return the plan for at least two candidates."""
        rivals = pairs.rivals(doc_ids)
        is_whole = len(rivals[0]) == len(rivals) - 1
        sampled = [(place, other) for place, others in enumerate(rivals) for other in others]
        return cls(tuple(doc_ids), rivals, list(_whole(len(rivals))) if is_whole else sampled, is_whole)

    @property
    def size(self) -> int:
        """The number of candidates."""
        return len(self.rivals)

    def done(self, reached: int) -> int:
        """Return how many leading candidates are completely compared after this many pairs."""
        if self.is_whole:
            return (1 + math.isqrt(1 + 4 * reached)) // 2  # the greatest r with r(r - 1) pairs
        return reached // len(self.rivals[0])

    def reach(self, done: int) -> int:
        """Return the place from which on rivals of the ``done`` leading candidates do not count."""
        return done if self.is_whole else self.size


def _whole(size: int) -> Iterator[tuple[int, int]]:
    for newest in range(size):
        for older in range(newest):
            yield older, newest
            yield newest, older


def aggregate(probabilities: Sequence[float], aggregation: PairAggregation) -> float:
    """Return a candidate's score s_i from its p_ij; 0 of none.

    Sums are exact before they are rounded once, so that the order of the candidates cannot change them.
    """
    if aggregation == "binary":
        return float(sum(probability > 0.5 for probability in probabilities))
    if aggregation == "min":
        return min(probabilities, default=0.0)
    if aggregation == "max":
        return max(probabilities, default=0.0)
    return math.fsum(probabilities)
