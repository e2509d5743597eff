"""What one search brings of documents' states, and what it takes with it."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from osrerank.types import NEVER, Advice, Deadline, RequestStates, Scorer, Scores


class BroughtStates:
    """The records that a search found in its side indices; it collects those that were not there.

    Args:
        records: by key.
    """

    name = "index"

    def __init__(self, records: Mapping[bytes, bytes]) -> None:
        self._records = dict(records)
        self.new: dict[bytes, bytes] = {}

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return {key: self._records[key] for key in keys if key in self._records}

    def write(self, records: Mapping[bytes, bytes]) -> int:
        self._records |= records
        self.new |= records
        return len(records)


class WithStates:
    """A scorer of one search, which gives each call the states that the search brought.

    Args:
        scorer: takes ``states``; the caller closes it.
        states: of the search.
    """

    def __init__(self, scorer: Scorer, states: RequestStates) -> None:
        self._scorer = scorer
        self._states = states

    @property
    def model(self) -> str:
        return self._scorer.model

    @property
    def identity(self) -> str:
        return self._scorer.identity

    @property
    def advice(self) -> Advice:
        return self._scorer.advice

    def score(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        *,
        deadline: Deadline = NEVER,
        states: RequestStates | None = None,
    ) -> Scores:
        return self._scorer.score(query, documents, tuples, deadline=deadline, states=states or self._states)

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return self._scorer.probabilities(logits)

    def close(self) -> None:
        pass
