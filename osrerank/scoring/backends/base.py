"""The interface of backends, which compute a model's neural network: ONNX Runtime or torch."""

from collections.abc import Sequence
from typing import Protocol

from osrerank.errors import InferenceError
from osrerank.scoring.inputs import Tokens
from osrerank.types.vectors import Rows


def closed_error(model: str) -> InferenceError:
    """Return the error for a call of a model that was closed."""
    return InferenceError(f"the scorer of {model} is closed; connect or load the model again", model=model)


class Backend(Protocol):
    """A loaded network, which computes logits or vectors."""

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
        """The maximum number of tokens in a batch. If it is 1, each batch is a single sequence of any length."""

    @property
    def is_packed(self) -> bool:
        """Whether batches are computed without padding. If not, all sequences are padded to the longest length."""

    @property
    def threads(self) -> int:
        """The number of threads from which callers should call `run` at the same time."""

    @property
    def is_parallel(self) -> bool:
        """Whether the `threads` compute in parallel on CPU cores. If so, a large batch should be split among them."""

    def run(self, sequences: Sequence[Tokens]) -> Rows:
        """Compute a batch of n sequences.

        Returns:
            A cross-encoder's logits ``(n, labels)``; a bi-encoder's vectors ``(n, dimensions)``; or for a
            late-interaction model, a list of n arrays ``(tokens, dimensions)``.

        Raises:
            InferenceError: the forward pass failed.
        """

    def close(self) -> None:
        """Release the network."""
