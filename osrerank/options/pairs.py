"""The option ``pairs``: which pairs of candidates a duo model compares, and how the results are aggregated.

`osrerank.stages.pairs` implements it.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 3.3.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from osrerank.options.parse import invalid_option, is_count, parse_options

PairAggregation = Literal["sum", "binary", "min", "max", "sample"]
PAIR_AGGREGATIONS: tuple[PairAggregation, ...] = get_args(PairAggregation)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which pairs of candidates a duo model compares, and how a candidate's pairwise probabilities become its score.

    In the descriptions, p_ij is the probability that candidate i is more relevant than candidate j, and J_i is the set
    of candidates that candidate i is compared with.

    Attributes:
        aggregation: the score of candidate i. ``"sum"`` is the sum of p_ij over J_i; ``"binary"`` counts the p_ij above
            0.5; ``"min"`` and ``"max"`` are the minimum and the maximum p_ij. ``"sample"`` is the sum over
            ``sample_size`` random members of J_i, drawn without replacement. Only these pairs are compared.
        sample_size: the number of members that ``"sample"`` draws. If J_i does not have more, the result is that of
            ``"sum"``.
        seed: the seed of the random sample. The sample does not depend on the order of the candidates.
    """

    aggregation: PairAggregation = "sum"
    sample_size: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.aggregation not in PAIR_AGGREGATIONS:
            expected = " or ".join(f'"{name}"' for name in PAIR_AGGREGATIONS)
            raise invalid_option("pairs.aggregation", self.aggregation, expected)
        if not is_count(self.sample_size):
            raise invalid_option("pairs.sample_size", self.sample_size, "a whole number of at least 1")
        if type(self.seed) is not int:
            raise invalid_option("pairs.seed", self.seed, "a whole number")

    @classmethod
    def of(cls, value: Any) -> "Pairs":
        """Parse the ``pairs`` option: the name of an aggregation, a dict of options, True, or None.

        Raises `ConfigError` if it is invalid.
        """
        return parse_options(cls, value, "pairs", text_key="aggregation") or cls()

    def rivals(self, doc_ids: Sequence[str]) -> list[list[int]]:
        """Return the indices of the candidates that each candidate is compared with, in ascending order."""
        indices = range(len(doc_ids))
        if self.aggregation != "sample" or self.sample_size >= len(doc_ids) - 1:
            return [[rival for rival in indices if rival != index] for index in indices]
        # sorted by id, so that the sample does not depend on the candidates' order
        sorted_indices = sorted(indices, key=lambda index: doc_ids[index])
        return [self._draw(doc_ids[index], [rival for rival in sorted_indices if rival != index]) for index in indices]

    def _draw(self, doc_id: str, rivals: list[int]) -> list[int]:
        generator = random.Random(f"{self.seed}:{doc_id}")  # noqa: S311 - a repeatable sample, not a secret
        return sorted(generator.sample(rivals, self.sample_size))
