"""Divide a search's pairs among workers, and put their answers together again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from osrerank.types import Counts, Scores

MOST_PAIRS = 100
MOST_CHARACTERS = 1 << 20
"""Of the texts of a chunk, so that its message stays below what workers take."""
LEAST_CHARACTERS = 4_000
"""What is worth a worker of its own; less costs more to send than to compute."""
READ_CHARACTERS = 4_000
"""About what a model reads of a text; more of it makes a pair no dearer."""


@dataclass(slots=True)
class Chunk:
    """A part of a search's tuples.

    Attributes:
        places: which tuples of the search they are.
        documents: which documents they need, without repetition.
        cost: characters that a model reads.
        characters: of all texts, whole.
        most: tuples that it takes.
    """

    places: list[int] = field(default_factory=list)
    documents: dict[int, int] = field(default_factory=dict)
    cost: int = 0
    characters: int = 0
    most: int = MOST_PAIRS

    def tuples(self, tuples: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the chunk's tuples with indices into its own documents."""
        return [tuple(self.documents[index] for index in tuples[place]) for place in self.places]

    def has_room(self, characters: int) -> bool:
        """Whether a tuple with texts of that length still fits; one alone always does."""
        if not self.places:
            return True
        return len(self.places) < self.most and self.characters + characters <= MOST_CHARACTERS

    def add(self, place: int, indices: tuple[int, ...], lengths: Sequence[int]) -> None:
        """Take a tuple in."""
        self.places.append(place)
        for index in indices:
            self.documents.setdefault(index, len(self.documents))
        self.cost += _cost(indices, lengths)
        self.characters += sum(lengths[index] for index in indices)


def divide(
    documents: Sequence[str], tuples: Sequence[tuple[int, ...]], workers: int, *, most: int = MOST_PAIRS
) -> list[Chunk]:
    """Deal tuples to chunks of about equal cost, one for each worker and round.

    Tuples of a round are dealt in turn, so that when time runs out the first ones of the search were scored, not the
    first ones of every worker's share.

    Args:
        documents: the texts.
        tuples: indices into them.
        workers: how many there are, at least one.
        most: tuples of a chunk.
    """
    lengths = [len(document) for document in documents]
    total = sum(_cost(indices, lengths) for indices in tuples)
    width = max(1, min(workers, total // LEAST_CHARACTERS))
    chunks: list[Chunk] = []
    current: list[Chunk] = []
    for place, indices in enumerate(tuples):
        chunk = min(current, key=lambda chunk: chunk.cost, default=None)
        if chunk is None or not chunk.has_room(sum(lengths[index] for index in indices)):
            current = [Chunk(most=most) for _ in range(width)]
            chunks += current
            chunk = current[0]
        chunk.add(place, indices, lengths)
    return [chunk for chunk in chunks if chunk.places]


def gather(size: int, chunks: Sequence[Chunk], answers: Sequence[Scores | str | None], identity: str) -> Scores:
    """Return the scores of all tuples.

    Args:
        size: how many tuples there are.
        chunks: their parts.
        answers: for each chunk its scores, or why it has none, or None when it did not answer in time.
        identity: of the model.
    """
    values = np.full(size, np.nan, dtype=np.float32)
    failures: dict[int, str] = {}
    for chunk, answer in zip(chunks, answers, strict=True):
        if isinstance(answer, str):
            failures |= dict.fromkeys(chunk.places, answer)
        elif answer is not None:
            values[chunk.places] = answer.values
            failures |= {chunk.places[index]: reason for index, reason in answer.failures.items()}
    found = [answer for answer in answers if isinstance(answer, Scores)]
    odds = Scores.joined_odds(answers, [chunk.places for chunk in chunks], size)
    cuts = np.zeros(size, dtype=np.uint8)
    for chunk, answer in zip(chunks, answers, strict=True):
        if isinstance(answer, Scores) and answer.cuts is not None:
            cuts[chunk.places] = answer.cuts
    reached = _leading(values, failures)
    return Scores(values, failures, reached, identity, odds, cuts, **Counts.total(found))


def _cost(indices: tuple[int, ...], lengths: Sequence[int]) -> int:
    return sum(min(lengths[index], READ_CHARACTERS) + 1 for index in indices)


def _leading(values: np.ndarray, failures: Mapping[int, str]) -> int:
    """Return how many tuples from the first on were attempted."""
    return next((at for at in np.flatnonzero(np.isnan(values)).tolist() if at not in failures), len(values))
