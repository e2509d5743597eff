"""Compute the records of texts in this process."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from osrerank.errors import InferenceError
from osrerank.scoring.batcher import Batcher
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.vectors.record import Bits, Record
from osrerank.types import Deadline

NOT_FINITE = "its vector is not finite; in 16 bits another --dtype may help"


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
            OsrerankError: no record can be computed.
        """


class LocalMaker:
    """Encodes texts with the model in this process.

    Args:
        batcher: runs a bi-encoder's backend.
        builder: makes token sequences from texts.
        bits: bits of each stored number.
        at_once: texts that are tokenised at a time, while the previous ones are being encoded.
    """

    def __init__(self, batcher: Batcher, builder: InputBuilder, bits: Bits, at_once: int) -> None:
        self._batcher, self._builder, self._bits, self._at_once = batcher, builder, bits, at_once
        self._no_query = builder.query("")

    def make(self, texts: Sequence[str], deadline: Deadline) -> Made:
        cut: list[bool] = []
        with self._batcher.call(deadline) as call:
            for start in range(0, len(texts), self._at_once):
                if deadline.passed:
                    break
                pieces = self._builder.documents(texts[start : start + self._at_once], self._no_query)
                cut += [one.cut for one in pieces]
                call.add([self._builder.alone(one) for one in pieces])
            outcome = call.result()
        finite = {at: bool(np.isfinite(vector).all()) for at, vector in outcome.outputs.items()}
        records = {
            at: Record.of(outcome.outputs[at], self._bits, cut=cut[at]) for at, is_one in finite.items() if is_one
        }
        infinite = {at: NOT_FINITE for at, is_one in finite.items() if not is_one}
        if infinite and not records:
            raise InferenceError(f"no text could be encoded: {NOT_FINITE}")
        return Made(records, {**outcome.failures, **infinite})
