"""duoBERT's inputs for training: each pair of a relevant document and another, in both orders.

Nogueira, Yang, Cho, Lin: Multi-stage document ranking with BERT (arXiv 1910.14424, section 3.2, eq. 2): pairs of equal
labels never occur.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.training.examples import Example


@dataclass(frozen=True, slots=True)
class DuoAssembly:
    """``(q, d+, d-)`` with the target 1 and ``(q, d-, d+)`` with 0, for each relevant document and each other."""

    builder: InputBuilder

    def count(self, example: Example) -> int:
        return 2 * len(example.relevant) * len(example.others)

    def sequences(self, example: Example) -> list[tuple[Tokens, int]]:
        pairs, made = ordered_pairs(self.builder, example.query, example.documents)
        grades = [grade > 0 for grade in example.relevance]
        return [
            (tokens, int(grades[first]))
            for (first, second), tokens in zip(pairs, made, strict=True)
            if grades[first] != grades[second]
        ]


def ordered_pairs(
    builder: InputBuilder, query: str, documents: Sequence[str]
) -> tuple[list[tuple[int, int]], list[Tokens]]:
    """Return all ordered pairs of documents, and their sequences; each text is tokenised once."""
    pieces = builder.query(query)
    texts = builder.documents(documents, pieces)
    pairs = list(permutations(range(len(documents)), 2))
    return pairs, [builder.duo(pieces, texts[first], texts[second]) for first, second in pairs]
