"""What every scorer around another one has in common."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from osrerank.scoring.passages import chunks_of
from osrerank.types import Advice, Scorer


class Wrapper:
    """Has all but its scores from another scorer.

    Args:
        scorer: the other one.
    """

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    @property
    def model(self) -> str:
        return self._scorer.model

    @property
    def identity(self) -> str:
        return self._scorer.identity

    @property
    def advice(self) -> Advice:
        return self._scorer.advice

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return self._scorer.probabilities(logits)

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        return chunks_of(self._scorer, query, texts)

    def close(self) -> None:
        self._scorer.close()
