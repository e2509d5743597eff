"""Compute the records of texts in this process."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from osrerank.errors import InferenceError
from osrerank.scoring.batcher import Batcher
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.scoring.onnx_scorer import EncoderBackend
from osrerank.scoring.vectors.record import Bits, Record
from osrerank.types import Deadline

ENCODED_AT_ONCE = 16
"""Documents that are tokenised at a time, while the previous ones are being encoded."""


class Made(NamedTuple):
    """The records computed from some texts.

    Attributes:
        records: index of the text -> its record; texts that a deadline cut off have none.
        failures: index of the text -> why it could not be encoded.
    """

    records: dict[int, Record]
    failures: dict[int, str]


class Maker(Protocol):
    """Computes records of texts; safe to use from many threads."""

    def make(self, texts: Sequence[str], deadline: Deadline) -> Made:
        """Return the records of as many texts as the deadline allows.

        Raises:
            OsrerankError: none can be made at all.
        """


class LocalMaker:
    """Encodes texts with the model in this process.

    Args:
        batcher: runs an `Encoder`.
        builder: makes token sequences from texts.
        bits: bits of each stored number.
    """

    def __init__(self, batcher: Batcher, builder: InputBuilder, bits: Bits) -> None:
        self._batcher, self._builder, self._bits = batcher, builder, bits
        self._no_query = builder.query("")

    def make(self, texts: Sequence[str], deadline: Deadline) -> Made:
        cut: list[bool] = []
        with self._batcher.call(deadline) as call:
            for start in range(0, len(texts), ENCODED_AT_ONCE):
                if deadline.passed:
                    break
                pieces = self._builder.documents(texts[start : start + ENCODED_AT_ONCE], self._no_query)
                cut += [one.cut for one in pieces]
                call.add([self._builder.alone(one) for one in pieces])
            outcome = call.result()
        records = {at: Record.of(vector, self._bits, cut=cut[at]) for at, vector in outcome.outputs.items()}
        return Made(records, dict(outcome.failures))


class Encoder:
    """A backend for a batcher, whose output for each sequence is its vector."""

    packed = True
    parallel = True
    budget_tokens = 1

    def __init__(self, backend: EncoderBackend, card: ModelCard) -> None:
        self._backend = backend
        self._model = card.name
        self.name, self.precision = backend.name, backend.precision
        self.threads, self.files = backend.threads, backend.files

    def run(self, sequences: Sequence[Tokens]) -> npt.NDArray[np.float32]:
        try:
            return np.concatenate([self._backend.encoded(tokens.ids) for tokens in sequences])
        except Exception as error:
            raise InferenceError(f"{self._model} failed in ONNX Runtime: {error}", model=self._model) from error

    def close(self) -> None:
        self._backend.close()
