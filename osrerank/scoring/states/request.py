"""What one search brings of documents' states, and what it takes with it."""

from collections.abc import Mapping, Sequence

from osrerank.scoring.wrapper import Wrapper
from osrerank.types import (
    NEVER,
    Deadline,
    HasStates,
    LongText,
    PassageScores,
    RequestStates,
    Scorer,
    Scores,
    ScoresPassages,
)


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


class WithStates(Wrapper):
    """A scorer of one search, which gives each call the states that the search brought.

    Args:
        scorer: takes ``states``, maybe from behind a cache; the caller closes it.
        own: the same model, not behind a cache.
        states: of the search; None where it brought none.
        keeps_states: whether states outlive the search.
    """

    def __init__(self, scorer: Scorer, own: HasStates, states: RequestStates | None, *, keeps_states: bool) -> None:
        super().__init__(scorer)
        self._own = own
        self._states = states
        self.keeps_states = keeps_states

    def keys_of(self, texts: Sequence[str | LongText]) -> list[bytes]:
        return self._own.keys_of(texts)

    def known(self, keys: Sequence[bytes], states: RequestStates | None = None) -> set[bytes]:
        return self._own.known(keys, states or self._states)

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

    def score_passages(
        self,
        query: str,
        texts: Sequence[str | LongText],
        *,
        deadline: Deadline = NEVER,
        states: RequestStates | None = None,
    ) -> PassageScores:
        scorer = self._scorer if isinstance(self._scorer, ScoresPassages) else self._own
        return scorer.score_passages(query, texts, deadline=deadline, states=states or self._states)

    def close(self) -> None:
        pass
