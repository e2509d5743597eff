"""Mine hard negatives: the model orders each example's documents, so that it is trained on its own mistakes next."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from osrerank.training.development import NetworkScorer
from osrerank.training.documents import with_hardest
from osrerank.training.examples.lists import Example, as_json, read_examples
from osrerank.training.recipes import Recipe
from osrerank.training.weights.models import Trainee

MINED_FILE = "mined.jsonl"
KEPT = 2
"""How many of the hardest others are kept, as a multiple of the number sampled at a time."""


@dataclass(frozen=True, slots=True)
class Mined:
    """Examples whose documents that are not relevant are in the model's order.

    Attributes:
        path: the file of the examples.
        count: how many examples the file has.
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
    scoring: NetworkScorer,
    recipe: Recipe,
    is_over: Callable[[], bool],
) -> Mined | None:
    """Order each example's first ``depth`` others by the model's scores, and keep the hardest 2 x ``negatives``.

    Args:
        folder: the folder of the file of mined examples; an incomplete file is continued.
        examples: the examples, in the order in which they were read.
        trainee: the model that scores.
        scoring: scores with the model's network.
        recipe: the recipe; its ``depth`` and ``negatives`` are used.
        is_over: returns whether to stop; the next call resumes.

    Returns:
        The mined examples; None if mining was stopped.
    """
    path = folder / MINED_FILE
    begun = folder / f"{MINED_FILE}.part"
    if not path.exists():
        done = _whole_lines(begun)
        with begun.open("a", encoding="utf-8") as file:
            for example in islice(examples, done, None):
                if is_over():
                    return None
                file.write(f"{json.dumps(as_json(_hardest(example, trainee, scoring, recipe)), ensure_ascii=False)}\n")
        begun.replace(path)
    with path.open("rb") as lines:
        return Mined(path, sum(1 for _ in lines))


def _hardest(example: Example, trainee: Trainee, scoring: NetworkScorer, recipe: Recipe) -> Example:
    other_indices = example.indices(relevant=False)[: recipe.depth]
    scores = next(scoring.documents(trainee, [example.select(other_indices)]))
    return with_hardest(example, other_indices, scores, KEPT * recipe.negatives)


def _whole_lines(path: Path) -> int:
    """Return how many complete lines a file has, and cut off an incomplete one."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.truncate(path, end)
    return content.count(b"\n")
