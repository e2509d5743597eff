"""Divide the tuples that a search scores (single documents or pairs) into chunks for workers, and join the scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from osrerank.types import Counts, Scores
from osrerank.types.scores import count_leading_attempts

MAX_CHUNK_TUPLES = 100
"""Maximum number of tuples in a chunk."""
MAX_CHUNK_CHARACTERS = 1 << 20
"""Maximum number of characters of a chunk's texts. It keeps the message below the workers' size limit."""
CHARACTERS_PER_WORKER = 4_000
"""Minimum number of characters per worker if a search is divided: sending fewer costs more time than it saves."""
WINDOW_CHARACTERS = 4_000
"""Maximum number of characters of a text that count as cost. This is an estimate of how many a model reads."""


@dataclass(slots=True)
class Chunk:
    """A part of a search's tuples, which one worker scores.

    Attributes:
        indices: indices of the chunk's tuples among the search's tuples.
        documents: a document's index in the search -> its index in the chunk, such as ``{7: 0, 9: 1}``.
        cost: estimated number of characters that the model reads.
        characters: total length of the texts, in characters.
        max_tuples: maximum number of tuples in the chunk.
    """

    indices: list[int] = field(default_factory=list)
    documents: dict[int, int] = field(default_factory=dict)
    cost: int = 0
    characters: int = 0
    max_tuples: int = MAX_CHUNK_TUPLES

    def local_tuples(self, tuples: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Select the chunk's tuples from all tuples of the search, with the chunk's indices of documents.

        The tuple (7, 9) becomes (0, 1) if ``documents`` is ``{7: 0, 9: 1}``.
        """
        return [tuple(self.documents[document_index] for document_index in tuples[index]) for index in self.indices]

    def has_room(self, characters: int) -> bool:
        """Return whether a tuple of this length fits into the chunk. An empty chunk has room for any tuple."""
        if not self.indices:
            return True
        return len(self.indices) < self.max_tuples and self.characters + characters <= MAX_CHUNK_CHARACTERS

    def add(self, index: int, document_indices: tuple[int, ...], lengths: Sequence[int]) -> None:
        """Add a tuple.

        Args:
            index: the tuple's index among the search's tuples.
            document_indices: the tuple.
            lengths: the length of each document of the search, in characters.
        """
        self.indices.append(index)
        for document_index in document_indices:
            self.documents.setdefault(document_index, len(self.documents))
        self.cost += _cost(document_indices, lengths)
        self.characters += sum(lengths[document_index] for document_index in document_indices)


def divide_tuples(
    documents: Sequence[str], tuples: Sequence[tuple[int, ...]], n_workers: int, *, max_tuples: int = MAX_CHUNK_TUPLES
) -> list[Chunk]:
    """Divide tuples into chunks of about equal cost, in rounds. A round has one chunk for each worker.

    Each tuple goes to the cheapest chunk of the current round. When that chunk is full, the next round begins. The
    search's first tuples are therefore in the first chunks, which workers score before those of later rounds.

    Args:
        documents: the texts of the search.
        tuples: indices into ``documents``.
        n_workers: the number of workers, at least one.
        max_tuples: maximum number of tuples in a chunk.
    """
    lengths = [len(document) for document in documents]
    total_cost = sum(_cost(document_indices, lengths) for document_indices in tuples)
    chunks_per_round = max(1, min(n_workers, total_cost // CHARACTERS_PER_WORKER))
    chunks: list[Chunk] = []
    current_round: list[Chunk] = []
    for index, document_indices in enumerate(tuples):
        chunk = min(current_round, key=lambda candidate: candidate.cost, default=None)
        n_characters = sum(lengths[document_index] for document_index in document_indices)
        if chunk is None or not chunk.has_room(n_characters):
            current_round = [Chunk(max_tuples=max_tuples) for _ in range(chunks_per_round)]
            chunks += current_round
            chunk = current_round[0]
        chunk.add(index, document_indices, lengths)
    return [chunk for chunk in chunks if chunk.indices]


def join_replies(
    n_tuples: int, chunks: Sequence[Chunk], replies: Sequence[Scores | str | None], identity: str
) -> Scores:
    """Join the scores of chunks into one `Scores` for all tuples of a search.

    Args:
        n_tuples: the number of tuples of the search.
        chunks: the result of `divide_tuples`.
        replies: for each chunk, its scores, an error as a `str`, or None if no reply came in time.
        identity: identity of the workers' model.
    """
    values = np.full(n_tuples, np.nan, dtype=np.float32)
    failures: dict[int, str] = {}
    cuts = np.zeros(n_tuples, dtype=np.uint8)
    for chunk, reply in zip(chunks, replies, strict=True):
        if isinstance(reply, str):
            failures |= dict.fromkeys(chunk.indices, reply)
        elif reply is not None:
            values[chunk.indices] = reply.values
            failures |= {chunk.indices[index]: reason for index, reason in reply.failures.items()}
            if reply.cuts is not None:
                cuts[chunk.indices] = reply.cuts
    scored_replies = [reply for reply in replies if isinstance(reply, Scores)]
    return Scores(
        values,
        failures,
        reached=count_leading_attempts(values, failures),
        identity=identity,
        odds=Scores.merge_log_odds(replies, [chunk.indices for chunk in chunks], n_tuples),
        cuts=cuts,
        **Counts.total(scored_replies),
    )


def _cost(document_indices: tuple[int, ...], lengths: Sequence[int]) -> int:
    """Return the estimated number of characters that a model reads, plus 1 per text, so that no tuple costs 0."""
    return sum(min(lengths[index], WINDOW_CHARACTERS) + 1 for index in document_indices)
