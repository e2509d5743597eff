"""Count the examples of the training data and the sequences (model inputs) that they become.

The counts determine the number of steps, and the time that measuring on a development set may take.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from osrerank.errors import EvaluationError
from osrerank.scoring.card import Kind
from osrerank.training.development import estimate_cost
from osrerank.training.examples.batches import SequenceBuilder
from osrerank.training.examples.sampling import sample_documents
from osrerank.training.examples.sources import ExampleSource
from osrerank.training.recipes import Recipe


@dataclass(frozen=True, slots=True)
class DataCounts:
    """The size of the training data.

    Attributes:
        examples: the number of examples in each source.
        sequences: the number of sequences in one pass over all sources.
        cost: the estimated number of characters in these sequences (`osrerank.training.development.estimate_cost`).
    """

    examples: tuple[int, ...]
    sequences: int
    cost: float


def count_data(sources: Sequence[ExampleSource], recipe: Recipe, builder: SequenceBuilder, kind: Kind) -> DataCounts:
    """Read and count all data once, so that malformed lines raise an error before the training begins.

    Raises:
        FormatError: a line is malformed.
        EvaluationError: the data has nothing to learn from.
    """
    example_counts: list[int] = []
    total_sequences = 0
    total_cost = 0.0
    max_tokens = builder.input_builder.max_tokens
    rng = random.Random(recipe.seed)  # noqa: S311 - draws documents, no secret
    for source in sources:
        n_examples = 0
        for example in source.read():
            n_examples += 1
            if recipe.soft and example.documents and not example.scores:
                raise EvaluationError(
                    f"{example.location}: soft=true learns from scores, but the example has none; set soft=false"
                )
            for sample in sample_documents(example, recipe, rng):
                n_sequences = builder.count(sample)
                total_sequences += n_sequences
                total_cost += estimate_cost(sample.query, sample.documents, n_sequences, kind, max_tokens)
        example_counts.append(n_examples)
    if not total_sequences:
        names = "; ".join(source.name for source in sources)
        needs_negatives = recipe.draw in {"balanced", "list"}
        required = "relevant documents and negatives" if needs_negatives else "documents"
        raise EvaluationError(f"there is nothing to learn from in {names}: no example has {required}")
    return DataCounts(tuple(example_counts), total_sequences, total_cost)
