"""Score in this process: one model, any backend."""

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from osrerank.errors import InferenceError
from osrerank.scoring.batching import blocks, plan_batches
from osrerank.scoring.inputs import Batch, InputBuilder, Pieces
from osrerank.scoring.model import CARD_FILE, CONFIG_FILE, TOKENIZER_FILE, ModelCard, digest
from osrerank.scoring.pace import Pace
from osrerank.types import NEVER, Deadline, Scores

CHUNK = 16
"""With a deadline, so many documents are tokenised at a time; without one all are."""


class Backend(Protocol):
    """A loaded network: padded sequences in, the head's outputs out. Safe to call from several threads."""

    @property
    def precision(self) -> str:
        """What the weights are computed in: ``int8``, ``fp32``."""

    @property
    def files(self) -> Sequence[str]:
        """The weight files, relative to the model's directory."""

    @property
    def budget_tokens(self) -> int:
        """How many padded tokens a batch may have."""

    def run(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the head's outputs ``(n, labels)``.

        Raises:
            InferenceError: the forward pass failed.
        """

    def close(self) -> None:
        """Release the network."""


@dataclass(frozen=True, slots=True)
class _Block:
    """What came of a run of tuples, by index of the tuple."""

    values: Mapping[int, float]
    failures: Mapping[int, str]


class LocalScorer:
    """A mono model in this process; safe to call from several threads.

    ``Scores.values`` are logits in float32, ``scale * raw + offset`` with the card's calibration (1 and 0 unless it has
    one), where raw is the logit of a one-logit head, z1 - z0 of two logits (the log-odds, in the order of log-
    softmax[1]), logit 1 of a next-sentence head, or t * cosine. ``Scores.inferences`` counts pairs.

    Args:
        directory: the model's, for its digest.
        card: what the outputs mean.
        builder: makes sequences from texts.
        backend: computes them.
    """

    def __init__(self, directory: Path, card: ModelCard, builder: InputBuilder, backend: Backend) -> None:
        self.card = card
        self._directory = directory
        self._builder = builder
        self._backend: Backend | None = backend
        self._closing = threading.Lock()
        self._pace = Pace()

    @property
    def model(self) -> str:
        return self.card.name

    @property
    def first_pass_weight(self) -> float:
        return self.card.first_pass_weight

    @functools.cached_property
    def identity(self) -> str:
        """What determines a pair's score beside its texts: model digest, precision and input policy."""
        files = [name for name in (TOKENIZER_FILE, CARD_FILE, CONFIG_FILE) if (self._directory / name).exists()]
        backend = self._open_backend()
        policy = f"{self.card.layout}/{self.card.max_query_tokens}/{self.card.max_tokens}/{self._builder.length_rule}"
        return f"{digest(self._directory, [*files, *backend.files])}/{backend.precision}/{policy}"

    def score(
        self, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]], *, deadline: Deadline = NEVER
    ) -> Scores:
        backend = self._open_backend()
        indices = _only_elements(tuples)
        pieces = self._builder.query(query)
        values = np.full(len(tuples), np.nan, dtype=np.float32)
        failures: dict[int, str] = {}
        cut: set[int] = set()
        reached = 0
        for block, texts in self._blocks(backend, pieces, [documents[index] for index in indices], deadline):
            if deadline.passed:
                break
            done = self._score_block(backend, pieces, texts, deadline)
            length = _leading(done, len(block))
            for offset in range(length):
                values[block[offset]] = done.values.get(offset, np.nan)
            failures |= {block[offset]: reason for offset, reason in done.failures.items() if offset < length}
            cut |= {indices[block[offset]] for offset in range(length) if texts[offset].cut}
            reached += length
            if length < len(block):
                break
        return Scores(values, failures, reached, inferences=reached, truncated=len(cut), query_truncated=pieces.cut)

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the logistic function of logits ``(n,)``, in float64: the values are calibrated already."""
        exponent = -np.clip(logits.astype(np.float64), -700, 700)
        probabilities: npt.NDArray[np.float64] = 1 / (1 + np.exp(exponent))
        return probabilities

    def close(self) -> None:
        with self._closing:
            backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def _open_backend(self) -> Backend:
        if self._backend is None:
            raise InferenceError(f"the scorer of {self.model} is closed; load the model again", model=self.model)
        return self._backend

    def _blocks(
        self, backend: Backend, query: Pieces, documents: Sequence[str], deadline: Deadline
    ) -> Iterator[tuple[range, list[Pieces]]]:
        """Yield runs of tuples with their documents' pieces: all at once, or a few batches under a deadline."""
        if deadline.at_s is None:
            yield range(len(documents)), self._builder.documents(documents, query)
            return
        for start in range(0, len(documents), CHUNK):
            texts = self._builder.documents(documents[start : start + CHUNK], query)
            lengths = [self._builder.length(query, text) for text in texts]
            for block in blocks(lengths, self._pace.budget_tokens(backend.budget_tokens, deadline)):
                yield range(start + block.start, start + block.stop), texts[block.start : block.stop]

    def _score_block(self, backend: Backend, query: Pieces, texts: Sequence[Pieces], deadline: Deadline) -> _Block:
        """Score tuples in batches of like length until the deadline."""
        values: dict[int, float] = {}
        failures: dict[int, str] = {}
        pending = list(plan_batches([self._builder.length(query, text) for text in texts], backend.budget_tokens))
        pending.reverse()
        while pending:
            rows = pending.pop()
            tokens = len(rows) * max(self._builder.length(query, texts[row]) for row in rows)
            if not self._pace.allows(tokens, deadline):
                break
            try:
                with self._pace.timed(tokens):
                    values |= zip(rows, self._run(backend, query, [texts[row] for row in rows]), strict=True)
            except InferenceError as error:
                if len(rows) == 1:
                    failures[rows[0]] = str(error)
                else:  # one bad document must not fail its neighbours, nor a batch that was too large for the memory
                    pending += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
        return _Block(values, failures)

    def _run(self, backend: Backend, query: Pieces, texts: Sequence[Pieces]) -> list[float]:
        """Return calibrated logits.

        Raises:
            InferenceError: the forward pass failed, or gave something that is not a number.
        """
        outputs = backend.run(self._builder.batch(query, texts)).astype(np.float32)
        raw = outputs[:, 1] - outputs[:, 0] if self.card.head == "logits2" else outputs[:, -1]
        values = self.card.calibration.scale * raw + self.card.calibration.offset
        if not np.isfinite(values).all():
            raise InferenceError(f"{self.model} gave a score that is not a finite number", model=self.model)
        return [float(value) for value in values]


def _only_elements(tuples: Sequence[tuple[int, ...]]) -> list[int]:
    if any(len(indices) != 1 for indices in tuples):
        raise ValueError("a mono model scores tuples of one document; for pairs of documents a duo model is needed")
    return [indices[0] for indices in tuples]


def _leading(block: _Block, size: int) -> int:
    """Return how many tuples from the first on were attempted."""
    return next((at for at in range(size) if at not in block.values and at not in block.failures), size)
