"""Pair aggregations: the formulas by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
