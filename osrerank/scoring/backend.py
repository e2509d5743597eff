"""What a scorer asks of a loaded network."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from osrerank.scoring.inputs import Tokens


class Backend(Protocol):
    """A loaded network: token sequences in, the head's outputs out. Safe to call from ``lanes`` threads at once."""

    @property
    def precision(self) -> str:
        """What the weights are computed in: ``int8``, ``fp32``, ``bf16``, ``fp16``."""

    @property
    def files(self) -> Sequence[str]:
        """The weight files, relative to the model's directory."""

    @property
    def budget_tokens(self) -> int:
        """How many tokens a batch may have; 1 for one sequence at a time."""

    @property
    def packed(self) -> bool:
        """Whether a batch costs the sum of its lengths; otherwise its longest times their number."""

    @property
    def lanes(self) -> int:
        """How many batches are worth computing at once."""

    @property
    def parallel(self) -> bool:
        """Whether lanes compute side by side: then no batch should take what leaves another lane idle."""

    def run(self, sequences: Sequence[Tokens]) -> npt.NDArray[np.float32]:
        """Return the head's outputs ``(n, labels)``.

        Raises:
            InferenceError: the forward pass failed.
        """

    def close(self) -> None:
        """Release the network."""
