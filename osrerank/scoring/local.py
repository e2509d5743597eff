"""The base class of models in this process, with the model's files, its backend, and the batches that calls share."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from osrerank._platform import fork_safe_lock
from osrerank.errors import InferenceError
from osrerank.scoring.backends.base import Backend
from osrerank.scoring.batcher import Batcher
from osrerank.scoring.card import ModelCard, logistic
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.model_files import CARD_FILE, CONFIG_FILE, digest, tokenizer_file

CHUNK = {"bi-encoder": 16, "late-interaction": 16, "cross-encoder": 16, "duo": 128}
"""Kind of model -> how many sequences are tokenised at a time, while the previous ones are computed."""
CHUNK_CHARACTERS = 1 << 17
"""The maximum number of characters tokenised at a time. A longer text is tokenised by itself."""
LARGE_CHUNK = 256
"""The maximum number of sequences tokenised at a time for a GPU. It is high to keep the GPU busy."""
USUAL_TOKENS = 128
"""Length of a usual sequence, which converts a backend's budget from tokens to sequences."""


class LocalModel:
    """A model in this process; safe to call from several threads, whose sequences share batches.

    Args:
        directory: the model's directory.
        card: the model's card, which says what the outputs mean.
        builder: makes sequences from texts.
        backend: computes the sequences.
        clock: returns seconds.
    """

    def __init__(
        self,
        directory: Path,
        card: ModelCard,
        builder: InputBuilder,
        backend: Backend,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.card = card
        self.model, self.advice = card.name, card.advice
        self._directory = directory
        self._builder = builder
        self._backend: Backend | None = backend
        self._batcher = Batcher(backend, card.name, clock)
        self._closing = fork_safe_lock()

    @property
    def backend(self) -> Backend:
        """The backend that computes the sequences.

        Raises:
            InferenceError: the model is closed.
        """
        if self._backend is None:
            raise InferenceError(f"the scorer of {self.model} is closed; load the model again", model=self.model)
        return self._backend

    @property
    def chunk_size(self) -> int:
        """How many sequences are tokenised at a time, while the previous ones are computed."""
        return max(CHUNK[self.card.kind], min(LARGE_CHUNK, self.backend.budget_tokens // USUAL_TOKENS))

    def tokenisation_chunks(self, lengths: Sequence[int]) -> Iterator[slice]:
        """Divide sequences into chunks that are tokenised at a time: yield a slice for each chunk.

        Args:
            lengths: the length of each sequence, in characters.
        """
        start = 0
        while start < len(lengths):
            sizes = accumulate(lengths[start : start + self.chunk_size])
            end = start + max(1, sum(size <= CHUNK_CHARACTERS for size in sizes))
            yield slice(start, end)
            start = end

    @property
    def merges_calls(self) -> bool:
        """Whether sequences of several calls share batches, so that concurrent calls fill the batches better."""
        return self.backend.budget_tokens > 1

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the probabilities ``(n,)`` of calibrated logits, by the logistic function."""
        return logistic(logits)

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        return self._builder.chunks(texts, self._builder.query(query))

    def close(self) -> None:
        with self._closing:
            backend, self._backend = self._backend, None
        if backend is not None:
            self._batcher.close()
            backend.close()

    @property
    def _policy(self) -> str:
        return f"{self.card.max_query_tokens}/{self.card.max_tokens}/{self._builder.length_rule}"

    def _digest(self, weights: Sequence[str]) -> str:
        """Return the digest of the model's card, config, tokenizer and weight files."""
        files = [name for name in (CARD_FILE, CONFIG_FILE) if (self._directory / name).exists()]
        tokenizer = os.path.relpath(tokenizer_file(self._directory), self._directory)
        return digest(self._directory, [tokenizer, *files, *weights])
