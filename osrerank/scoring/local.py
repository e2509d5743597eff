"""The base class of models in this process: it holds the model's files, its backend, and the batches calls share."""

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
"""Kind of model -> how many sequences are tokenised at a time, while the previous ones are being computed."""
CHUNK_CHARACTERS = 1 << 17
"""The most characters that are tokenised at a time; a single longer text is tokenised alone."""
LARGE_CHUNK = 256
"""How many sequences are tokenised at a time for a backend with large batches; with few sequences, a GPU is idle."""
ORDINARY_TOKENS = 128
"""Tokens of an ordinary sequence, by which a backend's budget is converted to sequences."""


class LocalModel:
    """A model in this process; safe to call from several threads, whose sequences share batches.

    Args:
        directory: the model's directory, for its digest.
        card: says what the outputs mean.
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
    def at_once(self) -> int:
        """How many sequences are tokenised at a time, while the previous ones are being computed."""
        return max(CHUNK[self.card.kind], min(LARGE_CHUNK, self.backend.budget_tokens // ORDINARY_TOKENS))

    def chunks_at_once(self, lengths: Sequence[int]) -> Iterator[slice]:
        """Divide sequences into those tokenised at a time: yield their slices.

        Args:
            lengths: characters of each sequence.
        """
        start = 0
        while start < len(lengths):
            sizes = accumulate(lengths[start : start + self.at_once])
            end = start + max(1, sum(size <= CHUNK_CHARACTERS for size in sizes))
            yield slice(start, end)
            start = end

    @property
    def merges_calls(self) -> bool:
        """Whether sequences of several calls share batches; more concurrent calls then fill them better."""
        return self.backend.budget_tokens > 1

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the probabilities ``(n,)`` of logits, by the logistic function; the logits are calibrated already."""
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
