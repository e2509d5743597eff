"""Score in this process: one model, any backend."""

import functools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from osrerank.errors import InferenceError
from osrerank.scoring.backend import Backend
from osrerank.scoring.batcher import Batcher, Outcome, Row
from osrerank.scoring.card import ModelCard, logistic
from osrerank.scoring.inputs import InputBuilder, Pieces, Tokens
from osrerank.scoring.model_files import CARD_FILE, CONFIG_FILE, digest, tokenizer_file
from osrerank.types import NEVER, Advice, Deadline, RequestVectors, Scores

CHUNK = {"mono": 16, "duo": 128}
"""Sequences tokenised at a time, while those before them are being computed."""
LARGE_CHUNK = 256
"""The same for a backend with large batches: a GPU that starts with few sequences is idle."""
ORDINARY_TOKENS = 128
WINDOW, WINDOW_TOKENS = 4096, 512
"""Most sequences held at once: 32 MiB at so many tokens each, and fewer of longer ones."""


class LocalScorer:
    """A mono or duo model in this process; safe to call from several threads, whose sequences share batches.

    ``Scores.values`` are logits in float32, ``scale * raw + offset`` with the card's calibration (1 and 0 unless it has
    one), where raw is the logit of a one-logit head, z1 - z0 of two logits (the log-odds, in the order of log-
    softmax[1]), logit 1 of a next-sentence head, or a cosine. A duo model's are those of p_ij. ``Scores.log_odds`` are
    the same, but of a next-sentence head z1 - z0. ``Scores.inferences`` counts tuples.

    Args:
        directory: the model's, for its digest.
        card: what the outputs mean.
        builder: makes sequences from texts.
        backend: computes them.
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
        self._directory = directory
        self._builder = builder
        self._backend: Backend | None = backend
        self._batcher = Batcher(backend, card.name, clock)
        self._closing = threading.Lock()

    @property
    def model(self) -> str:
        return self.card.name

    @property
    def advice(self) -> Advice:
        return self.card.advice

    @property
    def backend(self) -> Backend:
        """What computes the sequences.

        Raises:
            InferenceError: the scorer is closed.
        """
        if self._backend is None:
            raise InferenceError(f"the scorer of {self.model} is closed; load the model again", model=self.model)
        return self._backend

    @functools.cached_property
    def identity(self) -> str:
        """All that a pair's score depends on except its texts: model digest, precision and input policy."""
        files = [name for name in (CARD_FILE, CONFIG_FILE) if (self._directory / name).exists()]
        tokenizer = os.path.relpath(tokenizer_file(self._directory), self._directory)
        backend = self.backend
        policy = f"{self.card.layout}/{self.card.max_query_tokens}/{self.card.max_tokens}/{self._builder.length_rule}"
        policy += "/log-odds" * self._has_odds  # part of what is cached
        return f"{digest(self._directory, [tokenizer, *files, *backend.files])}/{backend.precision}/{policy}"

    @property
    def merges_calls(self) -> bool:
        """Whether sequences of several calls share batches; more concurrent calls then fill them better."""
        return self.backend.budget_tokens > 1

    def score(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        *,
        deadline: Deadline = NEVER,
        vectors: RequestVectors | None = None,  # noqa: ARG002 - has none
    ) -> Scores:
        self._check(tuples)
        texts = _Texts(self._builder, query, documents)
        held = max(1, WINDOW * WINDOW_TOKENS // max(WINDOW_TOKENS, self.card.max_tokens))
        values = np.full(len(tuples), np.nan, dtype=np.float32)
        odds = values.copy() if self._has_odds else None
        failures: dict[int, str] = {}
        reached = 0
        while reached < len(tuples):
            window = tuples[reached : reached + held]
            outcome = self._compute(texts, window, deadline)
            done = outcome.reached(len(window))
            for at in range(done):
                logit = self._logit(outcome.outputs[at]) if at in outcome.outputs else math.nan
                if math.isfinite(logit):
                    values[reached + at] = logit
                    if odds is not None:
                        odds[reached + at] = self._calibrated(_log_odds(outcome.outputs[at]))
                else:
                    reason = f"the score {logit} of {self.model} is not a finite number"
                    failures[reached + at] = outcome.failures.get(at, reason)
            reached += done
            if done < len(window):
                break
        truncated = texts.truncated(tuples[:reached])
        cut = texts.query.cut
        return Scores(
            values, failures, reached, odds=odds, inferences=reached, truncated=truncated, query_truncated=cut
        )

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the logistic function of logits ``(n,)``, in float64: the values are calibrated already."""
        return logistic(logits)

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        return self._builder.chunks(texts, self._builder.query(query))

    def close(self) -> None:
        with self._closing:
            backend, self._backend = self._backend, None
        if backend is not None:
            self._batcher.close()
            backend.close()

    def _check(self, tuples: Sequence[tuple[int, ...]]) -> None:
        if self.card.kind == "mono" and any(len(indices) != 1 for indices in tuples):
            raise ValueError("a mono model scores single documents; pairs of documents need a duo model")
        if self.card.kind == "duo" and any(len(indices) != 2 for indices in tuples):
            raise ValueError("a duo model scores pairs of documents; single documents need a mono model")

    def _compute(self, texts: "_Texts", tuples: Sequence[tuple[int, ...]], deadline: Deadline) -> Outcome:
        fitting = self.backend.budget_tokens // ORDINARY_TOKENS
        chunk = max(CHUNK[self.card.kind], min(LARGE_CHUNK, fitting))
        with self._batcher.call(deadline) as call:
            for start in range(0, len(tuples), chunk):
                if deadline.passed:
                    break
                call.add(texts.sequences(tuples[start : start + chunk]))
            return call.result()

    def _logit(self, row: Row) -> float:
        """Return the calibrated logit of a head's outputs ``(labels,)``."""
        return self._calibrated(_log_odds(row) if self.card.head == "logits2" else row[-1])

    @property
    def _has_odds(self) -> bool:
        return self.card.head == "next-sentence"

    def _calibrated(self, raw: float) -> float:
        return float(self.card.calibration.scale * raw + self.card.calibration.offset)


def _log_odds(row: Row) -> float:
    """Return z1 - z0 of two logits."""
    return float(row[1] - row[0])


class _Texts:
    """A query and documents as pieces; a document is tokenised once, when a tuple first needs it."""

    def __init__(self, builder: InputBuilder, query: str, documents: Sequence[str]) -> None:
        self.query = builder.query(query)
        self._builder = builder
        self._documents = documents
        self._pieces: dict[int, Pieces] = {}

    def sequences(self, tuples: Sequence[tuple[int, ...]]) -> list[Tokens]:
        """Return the tuples' sequences."""
        new = [at for at in dict.fromkeys(chain.from_iterable(tuples)) if at not in self._pieces]
        found = self._builder.documents([self._documents[at] for at in new], self.query)
        self._pieces |= zip(new, found, strict=True)
        return [self._sequence(*(self._pieces[at] for at in indices)) for indices in tuples]

    def truncated(self, tuples: Iterable[tuple[int, ...]]) -> int:
        """Return how many documents of the tuples were cut."""
        return sum(self._pieces[at].cut for at in set(chain.from_iterable(tuples)))

    def _sequence(self, document: Pieces, other: Pieces | None = None) -> Tokens:
        if other is None:
            return self._builder.mono(self.query, document)
        return self._builder.duo(self.query, document, other)
