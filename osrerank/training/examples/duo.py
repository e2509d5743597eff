"""Build duoBERT's training sequences: each pair of a relevant document and a negative, in both orders.

Nogueira, Yang, Cho, Lin: Multi-stage document ranking with BERT (arXiv 1910.14424, section 3.2, eq. 2), where the two
documents of a pair never have equal labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.training.examples.batches import LabelledSequence
from osrerank.training.examples.example import Example


@dataclass(frozen=True, slots=True)
class DuoSequenceBuilder:
    """Builds ``(q, d+, d-)`` with target 1 and ``(q, d-, d+)`` with target 0 for each relevant document and negative.

    Attributes:
        input_builder: tokenises texts and joins them into sequences.
        skips_equal_labels: whether to leave out pairs of two relevant documents or of two negatives. A training can
            learn from such pairs only if it uses a teacher's scores and no labels.
    """

    input_builder: InputBuilder
    skips_equal_labels: bool = True

    def count(self, example: Example) -> int:
        """Return the number of sequences that `build_sequences` makes of an example."""
        if self.skips_equal_labels:
            return 2 * len(example.relevant_documents) * len(example.negatives)
        return len(example.documents) * (len(example.documents) - 1)

    def build_sequences(self, example: Example) -> list[LabelledSequence]:
        pairs, sequences = build_ordered_pairs(self.input_builder, example.query, example.documents)
        is_relevant = [grade > 0 for grade in example.relevance]
        scores = example.scores or (0.0,) * len(is_relevant)
        return [
            LabelledSequence(tokens, target=int(is_relevant[first]), score=scores[first] - scores[second])
            for (first, second), tokens in zip(pairs, sequences, strict=True)
            if not self.skips_equal_labels or is_relevant[first] != is_relevant[second]
        ]


def build_ordered_pairs(
    builder: InputBuilder, query: str, documents: Sequence[str]
) -> tuple[list[tuple[int, int]], list[Tokens]]:
    """Return the pairs of documents in both orders, such as ``[(0, 1), (1, 0)]``, and the sequence of each pair.

    The query and each document are tokenised only once.
    """
    query_tokens = builder.tokenise_query(query)
    document_tokens = builder.tokenise_documents(documents, query_tokens)
    pairs = list(permutations(range(len(documents)), 2))
    return pairs, [
        builder.build_duo(query_tokens, document_tokens[first], document_tokens[second]) for first, second in pairs
    ]
