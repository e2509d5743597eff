"""Score in this process: one model, any backend."""

import functools
import math
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from osrerank.errors import InferenceError
from osrerank.scoring.backend import Backend
from osrerank.scoring.batcher import Batcher, Row
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.model import CARD_FILE, CONFIG_FILE, TOKENIZER_FILE, ModelCard, digest
from osrerank.types import NEVER, Deadline, Scores

CHUNK = 16
"""So many documents are tokenised at a time, while those before them are being computed."""


class LocalScorer:
    """A mono model in this process; safe to call from several threads, whose sequences share batches.

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
        self._batcher = Batcher(backend, card.name)
        self._closing = threading.Lock()

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

    @property
    def merges_calls(self) -> bool:
        """Whether sequences of several calls are computed together: the more calls at once, the fuller the batches."""
        return self._open_backend().budget_tokens > 1

    def score(
        self, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]], *, deadline: Deadline = NEVER
    ) -> Scores:
        indices = _only_elements(tuples)
        pieces = self._builder.query(query)
        is_cut: list[bool] = []
        with self._batcher.call(deadline) as call:
            for start in range(0, len(indices), CHUNK):
                if deadline.passed:
                    break
                texts = self._builder.documents([documents[at] for at in indices[start : start + CHUNK]], pieces)
                is_cut += [text.cut for text in texts]
                call.add([self._builder.mono(pieces, text) for text in texts])
            outcome = call.result()
        reached = outcome.reached(len(indices))
        values = np.full(len(indices), np.nan, dtype=np.float32)
        failures = {place: reason for place, reason in outcome.failures.items() if place < reached}
        for place, row in outcome.outputs.items():
            logit = self._logit(row)
            if place < reached and math.isfinite(logit):
                values[place] = logit
            elif place < reached:
                failures[place] = f"the score {logit} of {self.model} is not a finite number"
        cut = {index for index, is_one in zip(indices[:reached], is_cut, strict=False) if is_one}
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
            self._batcher.close()
            backend.close()

    def _open_backend(self) -> Backend:
        if self._backend is None:
            raise InferenceError(f"the scorer of {self.model} is closed; load the model again", model=self.model)
        return self._backend

    def _logit(self, row: Row) -> float:
        """Return the calibrated logit of a head's outputs ``(labels,)``."""
        raw = row[1] - row[0] if self.card.head == "logits2" else row[-1]
        return float(self.card.calibration.scale * raw + self.card.calibration.offset)


def _only_elements(tuples: Sequence[tuple[int, ...]]) -> list[int]:
    if any(len(indices) != 1 for indices in tuples):
        raise ValueError("a mono model scores tuples of one document; for pairs of documents a duo model is needed")
    return [indices[0] for indices in tuples]
