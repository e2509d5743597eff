"""Pair aggregations: the formulas by hand, the draw, the options."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.errors import ConfigError
from osrerank.options.pairs import PAIR_AGGREGATIONS, Pairs
from osrerank.stages.pairs import aggregate

# p_ij of three documents, row i, column j; p_ij + p_ji is not 1, as with a model
MATRIX = [[None, 0.9, 0.2], [0.6, None, 0.7], [0.5, 0.3, None]]
IDS = ("a", "b", "c")


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("sum", [1.1, 1.3, 0.8]),  # .9 + .2, .6 + .7, .5 + .3
        ("binary", [1.0, 2.0, 0.0]),  # .5 is not above .5
        ("min", [0.2, 0.6, 0.3]),
        ("max", [0.9, 0.7, 0.5]),
        ("sample", [1.1, 1.3, 0.8]),  # of all others
    ],
)
def test_by_hand(aggregation, expected):
    rivals = Pairs(aggregation, sample_size=2).rivals(IDS)
    found = [aggregate([MATRIX[place][other] for other in others], aggregation) for place, others in enumerate(rivals)]
    assert found == pytest.approx(expected)


def test_of_nothing_is_zero():
    assert [aggregate([], name) for name in PAIR_AGGREGATIONS] == [0.0] * 5


@given(st.lists(st.floats(0, 1), max_size=30), st.sampled_from(PAIR_AGGREGATIONS), st.randoms())
def test_the_order_of_the_probabilities_changes_nothing(probabilities, aggregation, random):
    shuffled = random.sample(probabilities, len(probabilities))
    assert aggregate(shuffled, aggregation) == aggregate(probabilities, aggregation)


def test_everyone_is_compared_with_everyone_else():
    assert Pairs().rivals(IDS) == [[1, 2], [0, 2], [0, 1]]
    assert Pairs().rivals(("a",)) == [[]]
    assert Pairs().rivals(()) == []


def test_a_draw_is_without_replacement_and_of_others():
    ids = [f"d{place}" for place in range(12)]
    for place, drawn in enumerate(Pairs("sample", sample_size=5).rivals(ids)):
        assert len(set(drawn)) == len(drawn) == 5
        assert place not in drawn


def test_a_draw_of_all_others_or_more_is_everyone():
    assert (
        Pairs("sample", sample_size=2).rivals(IDS) == Pairs("sample", sample_size=99).rivals(IDS) == Pairs().rivals(IDS)
    )


@given(st.permutations(range(8)), st.integers(1, 6))
def test_a_draw_does_not_depend_on_the_order(order, size):
    ids = [f"d{place}" for place in range(8)]
    pairs = Pairs("sample", sample_size=size, seed=3)
    straight = {ids[i]: {ids[j] for j in js} for i, js in enumerate(pairs.rivals(ids))}
    turned_ids = [ids[place] for place in order]
    turned = {turned_ids[i]: {turned_ids[j] for j in js} for i, js in enumerate(pairs.rivals(turned_ids))}
    assert turned == straight


def test_another_seed_is_another_draw():
    ids = [f"d{place}" for place in range(20)]
    draws = [Pairs("sample", sample_size=5, seed=seed).rivals(ids) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("mean", "pairs.aggregation"),
        ({"aggregation": "sample", "sample_size": 0}, "pairs.sample_size"),
        ({"seed": 1.5}, "pairs.seed"),
        ({"m": 3}, "pairs.m"),
        (7, "pairs"),
    ],
)
def test_malformed_options_are_named(value, named):
    with pytest.raises(ConfigError) as caught:
        Pairs.of(value)
    assert caught.value.setting == f"rerank.{named}"


def test_options_are_read_from_a_name_or_a_dict():
    assert Pairs.of(None) == Pairs.of(True) == Pairs()
    assert Pairs.of("binary") == Pairs("binary")
    assert Pairs.of({"aggregation": "sample", "sample_size": 3, "seed": 9}) == Pairs("sample", 3, 9)
