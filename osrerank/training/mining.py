"""Mine hard negatives: write a file with the negatives that the model scores highest, for the rest of its training."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from osrerank.formats.common_layout import format_json_line
from osrerank.training.development import NetworkScorer
from osrerank.training.documents import select_hardest
from osrerank.training.examples.example import Example, as_json, read_examples
from osrerank.training.recipes import Recipe
from osrerank.training.weights.models import Trainee

MINED_FILE = "mined.jsonl"
KEPT_PER_NEGATIVE = 2
"""An example keeps this many times the recipe's ``negatives``, so that training steps can sample different ones."""


@dataclass(frozen=True, slots=True)
class MinedExamples:
    """A file of examples whose negatives are the hardest for the model, hardest first.

    Attributes:
        path: the file.
        count: the number of examples.
    """

    path: Path
    count: int

    def read(self) -> Iterator[Example]:
        """Read the examples from the beginning."""
        return read_examples(self.path)


def mine(
    folder: Path,
    examples: Iterator[Example],
    trainee: Trainee,
    scorer: NetworkScorer,
    recipe: Recipe,
    is_time_over: Callable[[], bool],
) -> MinedExamples | None:
    """Write each example with its relevant documents and its hardest negatives: 14 if the recipe's ``negatives`` is 7.

    Args:
        folder: the folder of the file. If an earlier call did not finish the file, this call continues it.
        examples: the examples, in the same order at each call.
        trainee: the model.
        scorer: scores with the model's network.
        recipe: the recipe. Each example's first ``depth`` negatives are scored.
        is_time_over: returns whether to stop after the current example.

    Returns:
        The mined examples, or None if time ran out. The next call then continues.
    """
    path = folder / MINED_FILE
    unfinished = folder / f"{MINED_FILE}.part"
    if not path.exists():
        n_mined = _count_whole_lines(unfinished)
        with unfinished.open("a", encoding="utf-8") as file:
            for example in islice(examples, n_mined, None):
                if is_time_over():
                    return None
                mined = _mine_example(example, trainee, scorer, recipe)
                file.write(f"{format_json_line(as_json(mined))}\n")
        unfinished.replace(path)
    with path.open("rb") as lines:
        return MinedExamples(path, sum(1 for _ in lines))


def _mine_example(example: Example, trainee: Trainee, scorer: NetworkScorer, recipe: Recipe) -> Example:
    negative_indices = example.indices(relevant=False)[: recipe.depth]
    scores = next(scorer.score_documents(trainee, [example.select(negative_indices)]))
    return select_hardest(example, negative_indices, scores, KEPT_PER_NEGATIVE * recipe.negatives)


def _count_whole_lines(path: Path) -> int:
    """Return the number of complete lines in a file, and truncate the file after the last one."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.truncate(path, end)
    return content.count(b"\n")
