"""The option ``pairs``: which pairs of candidates a duo model compares, and how the results become scores.

`osrerank.stages.pairs` implements it. The aggregations are those of Nogueira, Yang, Cho, Lin: Multi-Stage Document
Ranking with BERT, 2019, arXiv:1910.14424, section 3.3.
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
    of candidates other than i.

    Attributes:
        aggregation: the score of candidate i. ``"sum"`` is the sum of p_ij over J_i; ``"binary"`` counts the p_ij above
            0.5; ``"min"`` and ``"max"`` are the minimum and the maximum p_ij. ``"sample"`` compares candidate i only
            with ``sample_size`` random members of J_i, and sums their p_ij.
        sample_size: the number of members of J_i that ``"sample"`` draws. If J_i is not larger, ``"sample"`` equals
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

        True and None give the defaults. Raises `ConfigError` if the value is invalid.
        """
        return parse_options(cls, value, "pairs", text_key="aggregation") or cls()

    def choose_rivals(self, doc_ids: Sequence[str]) -> list[list[int]]:
        """Return for each candidate the indices of the candidates that it is compared with, in ascending order.

        The result is ``[[1, 2], [0, 2], [0, 1]]`` for three candidates without a sample.
        """
        indices = range(len(doc_ids))
        if self.aggregation != "sample" or self.sample_size >= len(doc_ids) - 1:
            return [[rival for rival in indices if rival != index] for index in indices]
        # sorted by id, so that the sample does not depend on the candidates' order
        sorted_indices = sorted(indices, key=lambda index: doc_ids[index])
        samples = []
        for index in indices:
            rivals = [rival for rival in sorted_indices if rival != index]
            generator = random.Random(f"{self.seed}:{doc_ids[index]}")  # noqa: S311 - a repeatable sample, not a secret
            samples.append(sorted(generator.sample(rivals, self.sample_size)))
        return samples
