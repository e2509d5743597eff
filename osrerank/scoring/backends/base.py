"""The interface between a model and the backend that computes its network."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from osrerank.scoring.inputs import Tokens
from osrerank.types.vectors import Rows


class Compute(NamedTuple):
    """The user's choices for a backend.

    Attributes:
        threads: number of CPU threads; 0 means the cores that this process may use.
        dtype: number type ``fp32``, ``bf16`` or ``fp16``, or ``auto`` for the backend's own choice.
    """

    threads: int = 0
    dtype: str = "auto"


class Backend(Protocol):
    """A loaded network, which computes logits or vectors; ``threads`` threads may call it at once."""

    @property
    def name(self) -> str:
        """The backend's name, as in ``--backend``."""

    @property
    def precision(self) -> str:
        """The number type of the computation: ``int8``, ``fp32``, ``bf16`` or ``fp16``."""

    @property
    def files(self) -> Sequence[str]:
        """The weight files, relative to the model's directory."""

    @property
    def budget_tokens(self) -> int:
        """The maximum number of tokens in a batch; 1 if the backend computes one sequence at a time."""

    @property
    def packed(self) -> bool:
        """Whether a batch costs the sum of its lengths; otherwise, it is padded to its longest sequence."""

    @property
    def threads(self) -> int:
        """The number of threads that should compute batches at the same time."""

    @property
    def parallel(self) -> bool:
        """Whether these threads compute in parallel; then a large batch must not leave another thread idle."""

    def run(self, sequences: Sequence[Tokens]) -> Rows:
        """Compute a batch, and return the head's outputs ``(n, labels)`` or a bi-encoder's vectors ``(n, dimensions)``.

        For a late-interaction model, return a list of n arrays ``(tokens, dimensions)``.

        Raises:
            InferenceError: the forward pass failed.
        """

    def close(self) -> None:
        """Release the network."""
