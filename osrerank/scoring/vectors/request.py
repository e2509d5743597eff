"""Document vectors of one search: those fetched from side indices, and new ones to be written there."""

from collections.abc import Mapping, Sequence

from osrerank.scoring.wrapper import Wrapper
from osrerank.types import (
    NEVER,
    Deadline,
    HasVectors,
    LongText,
    PassageScores,
    RequestVectors,
    Scorer,
    Scores,
    ScoresPassages,
)


class FetchedVectors:
    """The records that a search found in its side indices; it collects new ones.

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


class WithVectors(Wrapper):
    """A scorer for one search, which passes the fetched vectors to each call.

    Args:
        scorer: accepts ``vectors``, maybe behind a cache; the caller closes it.
        own: the same model without a cache.
        vectors: fetched for the search; None if there are none.
        keeps_vectors: whether vectors outlive the search.
    """

    def __init__(self, scorer: Scorer, own: HasVectors, vectors: RequestVectors | None, *, keeps_vectors: bool) -> None:
        super().__init__(scorer)
        self._own = own
        self._vectors = vectors
        self.keeps_vectors = keeps_vectors

    def keys_of(self, texts: Sequence[str | LongText]) -> list[bytes]:
        return self._own.keys_of(texts)

    def known(self, keys: Sequence[bytes], vectors: RequestVectors | None = None) -> set[bytes]:
        return self._own.known(keys, vectors or self._vectors)

    def score(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        *,
        deadline: Deadline = NEVER,
        vectors: RequestVectors | None = None,
    ) -> Scores:
        return self._scorer.score(query, documents, tuples, deadline=deadline, vectors=vectors or self._vectors)

    def score_passages(
        self,
        query: str,
        texts: Sequence[str | LongText],
        *,
        deadline: Deadline = NEVER,
        vectors: RequestVectors | None = None,
    ) -> PassageScores:
        scorer = self._scorer if isinstance(self._scorer, ScoresPassages) else self._own
        return scorer.score_passages(query, texts, deadline=deadline, vectors=vectors or self._vectors)

    def close(self) -> None:
        pass
