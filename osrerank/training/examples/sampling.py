"""A pass over the data: which documents of an example are trained on, and in which order.

The seed and the number determine a pass, so that a training can resume where it stopped.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import TypeVar

from osrerank.training.examples.lists import Example
from osrerank.training.recipes import Recipe

Item = TypeVar("Item")
Pass = Callable[[], Iterable[Example]]
"""Reads a source once, from the beginning."""


def drawn(example: Example, recipe: Recipe, rng: random.Random) -> Iterator[Example]:
    """Yield the parts of an example to train on: one for each relevant document, or one in all.

    ``balanced`` and ``list`` sample the first ``depth`` others without replacement; an example without a relevant
    document or without others gives nothing.
    """
    if recipe.draw == "all":
        yield example
    elif recipe.draw == "top":
        yield example.part(range(min(recipe.depth, len(example.documents))))
    else:
        others = example.indices(relevant=False)[: recipe.depth]
        wanted = min(len(others), 1 if recipe.draw == "balanced" else recipe.negatives)
        for relevant in example.indices(relevant=True) if wanted else ():
            yield example.part((relevant, *rng.sample(others, wanted)))


def shuffled(items: Iterable[Item], buffer: int, rng: random.Random) -> Iterator[Item]:
    """Yield the items shuffled in a buffer of this many."""
    held: list[Item] = []
    for item in items:
        if len(held) < buffer:
            held.append(item)
            continue
        index = rng.randrange(buffer)
        leaving, held[index] = held[index], item
        yield leaving
    rng.shuffle(held)
    yield from held


def mixed(sources: Sequence[Pass], counts: Sequence[int], rng: random.Random) -> Iterator[Example]:
    """Yield all examples of several sources, each in its own order, spread evenly over the pass.

    Args:
        sources: read at the same time.
        counts: examples of each.
        rng: chooses the next source, in proportion to what each has left.
    """
    left = list(counts)
    readers = [iter(source()) for source in sources]
    while any(left):
        chosen = rng.choices(range(len(left)), weights=left)[0]
        left[chosen] -= 1
        yield next(readers[chosen])


def one_pass(sources: Sequence[Pass], counts: Sequence[int], recipe: Recipe, number: int) -> Iterator[Example]:
    """Yield the examples of a pass, in order.

    Args:
        sources: the example sources.
        counts: examples of each source.
        recipe: what to sample, and the seed.
        number: the number of the pass, from 0.
    """
    rng = random.Random(f"{recipe.seed}/{number}")  # noqa: S311 - a repeatable draw, no secret
    for example in shuffled(mixed(sources, counts, rng), recipe.shuffle, rng):
        yield from drawn(example, recipe, rng)


def passes(sources: Sequence[Pass], counts: Sequence[int], recipe: Recipe) -> Iterator[Example]:
    """Yield pass after pass without end."""
    for number in count():
        yield from one_pass(sources, counts, recipe, number)
