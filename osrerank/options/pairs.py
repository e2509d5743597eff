"""The option ``pairs``: which pairs of candidates are compared, and how a candidate's comparisons become its score.

`osrerank.stages.pairs` implements it.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 3.3.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from osrerank.options.parse import is_count, read_options, unusable

PairAggregation = Literal["sum", "binary", "min", "max", "sample"]
PAIR_AGGREGATIONS: tuple[PairAggregation, ...] = ("sum", "binary", "min", "max", "sample")


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which pairs of candidates are compared, and how a candidate's probabilities p_ij are aggregated.

    J_i is the set of candidates that candidate i is compared with.

    Attributes:
        aggregation: the score of candidate i: ``"sum"``, the sum of p_ij over J_i; ``"binary"``, the number of p_ij
            above .5; ``"min"`` or ``"max"``, the least or the greatest p_ij; ``"sample"``, the sum over ``sample_size``
            members of J_i, drawn without replacement; the other pairs are not computed.
        sample_size: the number of members that ``"sample"`` draws (m); with the size of J_i or more, it is ``"sum"``.
        seed: the seed of the sample; the same candidates always get the same sample, in whatever order they come.
    """

    aggregation: PairAggregation = "sum"
    sample_size: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.aggregation not in PAIR_AGGREGATIONS:
            expected = " or ".join(f'"{name}"' for name in PAIR_AGGREGATIONS)
            raise unusable("pairs.aggregation", self.aggregation, expected)
        if not is_count(self.sample_size):
            raise unusable("pairs.sample_size", self.sample_size, "a count from 1 on")
        if type(self.seed) is not int:
            raise unusable("pairs.seed", self.seed, "a whole number")

    @classmethod
    def of(cls, value: Any) -> "Pairs":
        """Read the ``pairs`` option of a search: a name of an aggregation, a dict of options, True, or None.

        Raises:
            ConfigError: the value is none of these, or a key or value in it cannot be used.
        """
        return read_options(cls, value, "pairs", first="aggregation") or cls()

    def rivals(self, doc_ids: Sequence[str]) -> list[list[int]]:
        """Return, for each candidate, the indices of the candidates that it is compared with, in ascending order."""
        indices = range(len(doc_ids))
        if self.aggregation != "sample" or self.sample_size >= len(doc_ids) - 1:
            return [[rival for rival in indices if rival != index] for index in indices]
        by_id = sorted(indices, key=lambda index: doc_ids[index])  # the draw must not depend on the order
        return [self._draw(doc_ids[index], [rival for rival in by_id if rival != index]) for index in indices]

    def _draw(self, doc_id: str, rivals: list[int]) -> list[int]:
        generator = random.Random(f"{self.seed}:{doc_id}")  # noqa: S311 - a repeatable draw, no secret
        return sorted(generator.sample(rivals, self.sample_size))
