"""Make duoBERT's training inputs: each pair of a relevant document and another one, in both orders.

Nogueira, Yang, Cho, Lin: Multi-stage document ranking with BERT (arXiv 1910.14424, section 3.2, eq. 2), where the two
documents of a pair never have equal labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.training.examples.batches import Made
from osrerank.training.examples.lists import Example


@dataclass(frozen=True, slots=True)
class DuoAssembly:
    """Turns an example into ``(q, d+, d-)`` with target 1 and ``(q, d-, d+)`` with target 0, for each such pair.

    Attributes:
        builder: makes the sequences.
        unlike: whether only pairs with different labels are used; false if training learns from a teacher's scores
            alone.
    """

    builder: InputBuilder
    unlike: bool = True

    def count(self, example: Example) -> int:
        documents = len(example.documents)
        return 2 * len(example.relevant) * len(example.not_relevant) if self.unlike else documents * (documents - 1)

    def sequences(self, example: Example) -> list[Made]:
        pairs, sequences = ordered_pairs(self.builder, example.query, example.documents)
        grades = [grade > 0 for grade in example.relevance]
        scores = example.scores or (0.0,) * len(grades)
        return [
            Made(tokens, int(grades[first]), scores[first] - scores[second])
            for (first, second), tokens in zip(pairs, sequences, strict=True)
            if not self.unlike or grades[first] != grades[second]
        ]


def ordered_pairs(
    builder: InputBuilder, query: str, documents: Sequence[str]
) -> tuple[list[tuple[int, int]], list[Tokens]]:
    """Return the index pairs of the documents in both orders, and their sequences; each text is tokenised once.

    Args:
        builder: makes the sequences.
        query: the query's text.
        documents: the documents' texts.
    """
    pieces = builder.query(query)
    texts = builder.documents(documents, pieces)
    pairs = list(permutations(range(len(documents)), 2))
    return pairs, [builder.duo(pieces, texts[first], texts[second]) for first, second in pairs]
