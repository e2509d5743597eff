"""A bi-encoder of plain arithmetic."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from osrerank.types import NEVER, Advice, Deadline, Vectors
from osrerank.types.vectors import Side


class Letters:
    """Counts a text's letters, in a time in proportion to what it reads.

    Args:
        s_per_character: seconds for each character.
        s_per_text: seconds for each text, too.
        sleep: lets this time pass; a `ManualClock`'s takes none.
    """

    model, identity, key, dimensions = "letters", "letters-1", "letters-1", 26
    advice = Advice(kind="bi-encoder")

    def __init__(
        self, s_per_character: float = 0.0, s_per_text: float = 0.0, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._s_per_character, self._s_per_text, self._sleep = s_per_character, s_per_text, sleep

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        self._sleep(self._s_per_character * sum(map(len, texts)) + self._s_per_text * len(texts))
        rows = np.array([[1 + text.count(chr(97 + index)) for index in range(26)] for text in texts], np.float32)
        return Vectors(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    def similarity(self, query: Any, vectors: Any) -> Any:
        return vectors @ query

    def probabilities(self, logits: Any) -> Any:
        return 1 / (1 + np.exp(-logits.astype(np.float64)))

    def close(self) -> None:
        pass
