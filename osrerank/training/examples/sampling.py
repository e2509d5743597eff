"""Choose the documents of each example to train on, and shuffle and interleave the examples of each pass (epoch).

The order and the choice depend only on the seed and the number of the pass, so that a training can resume.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import TypeVar

from osrerank.training.examples.example import Example
from osrerank.training.recipes import Recipe

Item = TypeVar("Item")
ReadSource = Callable[[], Iterable[Example]]
"""A function that reads a source's examples from the beginning."""


def sample_documents(example: Example, recipe: Recipe, rng: random.Random) -> Iterator[Example]:
    """Choose the documents of an example to train on, and yield them as one or several smaller examples.

    The recipe's ``draw`` decides what is yielded:

    - ``all``: the example as it is.
    - ``top``: one example, with the first ``depth`` documents.
    - ``balanced``: an example for each relevant document, with one of the first ``depth`` negatives, drawn at random.
    - ``list``: the same with up to ``negatives`` of the first ``depth`` negatives, drawn without replacement.

    ``balanced`` and ``list`` skip an example without relevant documents or without negatives.
    """
    if recipe.draw == "all":
        yield example
    elif recipe.draw == "top":
        yield example.select(range(min(recipe.depth, len(example.documents))))
    else:
        negatives = example.indices(relevant=False)[: recipe.depth]
        if not negatives:
            return
        max_negatives = 1 if recipe.draw == "balanced" else recipe.negatives
        sample_size = min(len(negatives), max_negatives)
        for relevant_index in example.indices(relevant=True):
            yield example.select((relevant_index, *rng.sample(negatives, sample_size)))


def shuffle(items: Iterable[Item], buffer_size: int, rng: random.Random) -> Iterator[Item]:
    """Yield the items in random order, with at most ``buffer_size`` of them in memory."""
    buffer: list[Item] = []
    for item in items:
        if len(buffer) < buffer_size:
            buffer.append(item)
            continue
        index = rng.randrange(buffer_size)
        yield buffer[index]
        buffer[index] = item
    rng.shuffle(buffer)
    yield from buffer


def interleave(sources: Sequence[ReadSource], counts: Sequence[int], rng: random.Random) -> Iterator[Example]:
    """Merge the examples of several sources so that each source is spread evenly and keeps its order.

    ``counts`` has the number of examples of each source. The next example comes from a random source, whose probability
    is proportional to the number of its remaining examples.
    """
    remaining = list(counts)
    iterators = [iter(source()) for source in sources]
    while any(remaining):
        source_index = rng.choices(range(len(remaining)), weights=remaining)[0]
        remaining[source_index] -= 1
        yield next(iterators[source_index])


def read_pass(sources: Sequence[ReadSource], counts: Sequence[int], recipe: Recipe, index: int) -> Iterator[Example]:
    """Yield the examples of the pass with this index, in training order. `interleave` describes ``counts``."""
    rng = random.Random(f"{recipe.seed}/{index}")  # noqa: S311 - a repeatable draw, no secret
    for example in shuffle(interleave(sources, counts, rng), recipe.shuffle, rng):
        yield from sample_documents(example, recipe, rng)


def repeat_passes(sources: Sequence[ReadSource], counts: Sequence[int], recipe: Recipe) -> Iterator[Example]:
    """Yield the examples of one pass after another, without end."""
    for pass_index in count():
        yield from read_pass(sources, counts, recipe, pass_index)
