"""A model's backend for tests, in place of a network."""

from collections.abc import Callable, Sequence

import numpy as np

from osrerank.scoring.inputs import Tokens
from osrerank.testing import ManualClock


class FunctionBackend:
    """Computes the outputs of a batch with a function, on padded batches of few tokens; ``clock`` is moved by tests."""

    precision, files, is_packed, is_parallel = "fp32", (), False, False

    def __init__(
        self, function: Callable[[Sequence[Tokens]], np.ndarray], budget_tokens: int = 64, threads: int = 1
    ) -> None:
        self.run, self.budget_tokens, self.threads = function, budget_tokens, threads
        self.clock = ManualClock()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
