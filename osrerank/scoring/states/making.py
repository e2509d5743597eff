"""Records of texts that have none, computed in this process."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from osrerank.errors import InferenceError
from osrerank.scoring.batcher import Batcher
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.scoring.onnx_scorer import JoinedBackend
from osrerank.scoring.states.record import Profile, Record, TextStates
from osrerank.types import Deadline

ENCODED_AT_ONCE = 16
"""Documents tokenised at a time, while those before them are being encoded."""
HELD = 128
"""Documents whose unmerged states are in memory at a time."""


class Made(NamedTuple):
    """What was made of some texts.

    Attributes:
        records: by the text's place; those of texts that a deadline cut off are absent.
        failures: place -> why there is none.
    """

    records: dict[int, Record]
    failures: dict[int, str]


class Maker(Protocol):
    """Makes records of texts; safe to use from many threads."""

    def make(self, texts: Sequence[str], deadline: Deadline) -> Made:
        """Return the records of texts, as far as time allows.

        Raises:
            OsrerankError: none can be made at all.
        """


class LocalMaker:
    """Encodes texts with the model in this process.

    Args:
        batcher: runs `Encoder`.
        builder: makes sequences from texts.
        card: the model's.
        hidden: its width.
        profile: how much of a document is kept.
    """

    def __init__(self, batcher: Batcher, builder: InputBuilder, card: ModelCard, hidden: int, profile: Profile) -> None:
        self._batcher, self._builder = batcher, builder
        self._shape = card.joining.layers, hidden
        self._profile = profile
        self._no_query = builder.query("")

    def make(self, texts: Sequence[str], deadline: Deadline) -> Made:
        """Return the records of texts, as far as time allows.

        What the encoder gives of a text is many times as large as its record, so that some are encoded at a time.
        """
        made = Made({}, {})
        for start in range(0, len(texts), HELD):
            if deadline.passed:
                break
            some = self._some(texts[start : start + HELD], deadline)
            made.records.update({start + at: record for at, record in some.records.items()})
            made.failures.update({start + at: reason for at, reason in some.failures.items()})
        return made

    def _some(self, texts: Sequence[str], deadline: Deadline) -> Made:
        cut: list[bool] = []
        with self._batcher.call(deadline) as call:
            for start in range(0, len(texts), ENCODED_AT_ONCE):
                if deadline.passed:
                    break
                pieces = self._builder.documents(texts[start : start + ENCODED_AT_ONCE], self._no_query)
                cut += [one.cut for one in pieces]
                call.add([self._builder.alone(one) for one in pieces])
            outcome = call.result()
        states = {at: _states(row, *self._shape, cut=cut[at]) for at, row in outcome.outputs.items()}
        return Made({at: Record.of(one, self._profile) for at, one in states.items()}, dict(outcome.failures))


class Encoder:
    """Texts in, a row of numbers each: the vector, then the states of each joined layer. For a batcher."""

    packed = True
    parallel = True
    budget_tokens = 1

    def __init__(self, backend: JoinedBackend, card: ModelCard) -> None:
        self._backend = backend
        self._model = card.name
        self.name, self.precision = backend.name, backend.precision
        self.threads, self.files = backend.threads, backend.files

    def run(self, sequences: Sequence[Tokens]) -> npt.NDArray[np.float32]:
        try:
            (encoded,) = [self._backend.encoded(tokens.ids) for tokens in sequences]
        except Exception as error:
            raise InferenceError(f"{self._model} failed in ONNX Runtime: {error}", model=self._model) from error
        return np.concatenate([part.reshape(1, -1) for part in encoded.values()], axis=1)

    def close(self) -> None:
        self._backend.close()


def _states(row: npt.NDArray[np.float32], layers: int, hidden: int, *, cut: bool) -> TextStates:
    """Return what an encoder's row of numbers says of a text."""
    states = row[hidden:].reshape(layers, -1, hidden) if layers else np.zeros((0, 0, hidden), dtype=np.float32)
    return TextStates(states, np.ones(states.shape[1], dtype=np.uint16), row[:hidden], cut)
