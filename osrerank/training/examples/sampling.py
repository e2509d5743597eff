"""Make a pass over the data: choose which documents of an example are trained on, and in which order.

The seed and the pass's number determine the pass, so that a training can resume where it stopped.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import TypeVar

from osrerank.training.examples.lists import Example
from osrerank.training.recipes import Recipe

Item = TypeVar("Item")
Pass = Callable[[], Iterable[Example]]
"""A function that reads a source once, from the beginning."""


def drawn(example: Example, recipe: Recipe, rng: random.Random) -> Iterator[Example]:
    """Yield the parts of an example to train on, as the recipe's ``draw`` says.

    ``balanced`` and ``list`` yield a part for each relevant document, with others sampled without replacement from the
    first ``depth``; an example without a relevant document or without others yields nothing. ``top`` and ``all`` yield
    one part.
    """
    if recipe.draw == "all":
        yield example
    elif recipe.draw == "top":
        yield example.select(range(min(recipe.depth, len(example.documents))))
    else:
        other_indices = example.indices(relevant=False)[: recipe.depth]
        negative_count = min(len(other_indices), 1 if recipe.draw == "balanced" else recipe.negatives)
        for relevant in example.indices(relevant=True) if negative_count else ():
            yield example.select((relevant, *rng.sample(other_indices, negative_count)))


def shuffled(items: Iterable[Item], buffer: int, rng: random.Random) -> Iterator[Item]:
    """Yield the items in random order, shuffled by way of a buffer of ``buffer`` items."""
    waiting: list[Item] = []
    for item in items:
        if len(waiting) < buffer:
            waiting.append(item)
            continue
        index = rng.randrange(buffer)
        leaving, waiting[index] = waiting[index], item
        yield leaving
    rng.shuffle(waiting)
    yield from waiting


def mixed(sources: Sequence[Pass], counts: Sequence[int], rng: random.Random) -> Iterator[Example]:
    """Yield all examples of several sources, each in its own order, spread evenly over the pass.

    Args:
        sources: the sources, which are read side by side.
        counts: the number of examples in each source.
        rng: chooses the source of the next example, in proportion to what each has left.
    """
    remaining = list(counts)
    readers = [iter(source()) for source in sources]
    while any(remaining):
        chosen = rng.choices(range(len(remaining)), weights=remaining)[0]
        remaining[chosen] -= 1
        yield next(readers[chosen])


def one_pass(sources: Sequence[Pass], counts: Sequence[int], recipe: Recipe, number: int) -> Iterator[Example]:
    """Yield the examples of a pass, in order.

    Args:
        sources: the example sources.
        counts: the number of examples in each source.
        recipe: the recipe; its seed, shuffle buffer and sampling are used.
        number: the number of the pass, from 0.
    """
    rng = random.Random(f"{recipe.seed}/{number}")  # noqa: S311 - a repeatable draw, no secret
    for example in shuffled(mixed(sources, counts, rng), recipe.shuffle, rng):
        yield from drawn(example, recipe, rng)


def passes(sources: Sequence[Pass], counts: Sequence[int], recipe: Recipe) -> Iterator[Example]:
    """Yield pass after pass without end."""
    for number in count():
        yield from one_pass(sources, counts, recipe, number)
