"""The base class of models that run in this process: tokenisation, batches and a backend."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from osrerank._platform import fork_safe_lock
from osrerank.scoring.backends.base import Backend, closed_error
from osrerank.scoring.batcher import Batcher
from osrerank.scoring.card import ModelCard, logistic
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.model_files import CARD_FILE, CONFIG_FILE, hash_files, tokenizer_file

GROUP_SIZES = {"bi-encoder": 16, "late-interaction": 16, "cross-encoder": 16, "duo": 128}
"""How many sequences a model tokenises as a group, by its kind. The backend then computes one group while the next is
tokenised. For a GPU, whose batches are larger, a group has as many sequences as fit into a batch."""
MAX_GROUP_SIZE = 256
"""The maximum number of sequences in a group."""
GROUP_CHARACTERS = 1 << 17
"""The maximum number of characters in a group. A longer text is tokenised alone."""
TYPICAL_TOKENS = 128
"""The assumed number of tokens in a sequence, to estimate how many sequences fit into a batch."""


class LocalModel:
    """A model in this process. Several threads can call it, and their sequences can share batches.

    A sequence is one input of the model: the tokens of a text, or of a query with one or two documents.

    Args:
        directory: the model's directory.
        card: the model's card.
        builder: converts texts to sequences.
        backend: computes batches of sequences.
        clock: returns the time in seconds.

    Attributes:
        model: the model's name.
        advice: what the card recommends for searches, such as the weight of the first pass.
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
        self._close_lock = fork_safe_lock()

    @property
    def backend(self) -> Backend:
        """The backend. Raises `InferenceError` if the model is closed."""
        if self._backend is None:
            raise closed_error(self.model)
        return self._backend

    @property
    def _group_size(self) -> int:
        """The maximum number of sequences in a group."""
        n_in_batch = self.backend.budget_tokens // TYPICAL_TOKENS
        return max(GROUP_SIZES[self.card.kind], min(MAX_GROUP_SIZE, n_in_batch))

    def tokenisation_groups(self, lengths: Sequence[int]) -> Iterator[slice]:
        """Yield the indices of each group of sequences to tokenise together, such as ``slice(0, 16)``.

        Args:
            lengths: the length of each sequence's texts, in characters.
        """
        start = 0
        while start < len(lengths):
            running_totals = accumulate(lengths[start : start + self._group_size])
            n_fitting = sum(total <= GROUP_CHARACTERS for total in running_totals)
            end = start + max(1, n_fitting)
            yield slice(start, end)
            start = end

    @property
    def merges_calls(self) -> bool:
        """Whether the sequences of concurrent calls share batches, because the backend computes several in a batch."""
        return self.backend.budget_tokens > 1

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the probabilities ``(n,)`` of calibrated logits."""
        return logistic(logits)

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Split each text into chunks that fit into a sequence with the query: (start, end) pairs, in characters."""
        return self._builder.find_chunks(texts, self._builder.tokenise_query(query))

    def close(self) -> None:
        with self._close_lock:
            backend, self._backend = self._backend, None
        if backend is not None:
            self._batcher.close()
            backend.close()

    @property
    def _length_policy(self) -> str:
        """The part of a model's identity that says how texts are truncated.

        ``64/512/paper``: at most 64 tokens of the query, 512 tokens in all, and the length rule ``paper``.
        """
        return f"{self.card.max_query_tokens}/{self.card.max_tokens}/{self._builder.length_rule}"

    def _digest(self, weights: Sequence[str]) -> str:
        """Return a digest of the tokenizer, the card, the config and the given files of weights."""
        files = [name for name in (CARD_FILE, CONFIG_FILE) if (self._directory / name).exists()]
        tokenizer = os.path.relpath(tokenizer_file(self._directory), self._directory)
        return hash_files(self._directory, [tokenizer, *files, *weights])
