"""Sampling of a query's training examples, and their order in a pass."""

import random
from dataclasses import replace
from itertools import islice

import pytest

from osrerank.training.examples.example import Example
from osrerank.training.examples.sampling import interleave, read_pass, repeat_passes, sample_documents, shuffle
from osrerank.training.recipes import Recipe

EXAMPLE = Example("q", ("a", "b", "c", "d", "e"), (0, 1, 0, 2, 0))


def draws(**changes: object) -> list[Example]:
    return list(sample_documents(EXAMPLE, Recipe(**changes), random.Random(1)))


def test_balanced_sampling_pairs_each_relevant_document_with_another() -> None:
    examples = draws(draw="balanced", loss="pointwise")
    assert [(example.documents[0], example.relevance) for example in examples] == [("b", (1, 0)), ("d", (2, 0))]
    assert all(example.documents[1] in "ace" for example in examples)
    assert {draw.documents[1] for draw in draws(draw="balanced", depth=1)} == {"a"}


def test_list_sampling_draws_without_repetition_and_top_takes_the_first() -> None:
    examples = draws(draw="list", negatives=7)
    assert [sorted(example.documents) for example in examples] == [["a", "b", "c", "e"], ["a", "c", "d", "e"]]
    (example,) = draws(draw="top", depth=3)
    assert (example.documents, example.relevance) == (("a", "b", "c"), (0, 1, 0))
    assert draws(draw="all") == [EXAMPLE]


@pytest.mark.parametrize("draw", ["balanced", "list", "top", "all"])
def test_sampled_documents_keep_their_scores(draw: str) -> None:
    scored = replace(EXAMPLE, scores=(0.0, 1.0, 2.0, 3.0, 4.0))
    recipe = Recipe(draw=draw, loss="pointwise", depth=3, negatives=2)
    for example in sample_documents(scored, recipe, random.Random(1)):
        assert example.scores == tuple(float("abcde".index(text)) for text in example.documents)


@pytest.mark.parametrize("relevance", [(0, 0), (1, 1)])
def test_a_query_with_one_class_gives_no_pair(relevance: tuple[int, ...]) -> None:
    assert not list(sample_documents(Example("q", ("a", "b"), relevance), Recipe(), random.Random(1)))


@pytest.mark.parametrize("buffer", [1, 3, 10, 100])
def test_shuffling_loses_no_example(buffer: int) -> None:
    shuffled = list(shuffle(range(20), buffer, random.Random(1)))
    assert sorted(shuffled) == list(range(20))
    if buffer > 1:
        assert shuffled != list(range(20))


def test_examples_of_each_source_are_spread_over_the_pass() -> None:
    few = [Example(f"few {number}", (), ()) for number in range(10)]
    many = [Example(f"many {number}", (), ()) for number in range(90)]
    queries = [example.query for example in interleave([lambda: few, lambda: many], [10, 90], random.Random(1))]
    assert [name for name in queries if name.startswith("few")] == [example.query for example in few]
    assert len(queries) == 100
    assert 2 <= sum(name.startswith("few") for name in queries[:50]) <= 8


def test_the_order_of_a_pass_depends_on_seed_and_number_only() -> None:
    examples = [Example(str(number), ("a", "b"), (1, 0)) for number in range(50)]

    def order(seed: int, number: int) -> list[str]:
        return [example.query for example in read_pass([lambda: examples], [50], Recipe(seed=seed), number)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    two = [example.query for example in islice(repeat_passes([lambda: examples], [50], Recipe()), 100)]
    assert two == order(1, 0) + order(1, 1)
