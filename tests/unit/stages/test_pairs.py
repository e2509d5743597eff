"""Pair aggregations: the formulas by hand."""

from hypothesis import given
from hypothesis import strategies as st

from osrerank.options.pairs import PAIR_AGGREGATIONS
from osrerank.stages.pairs import aggregate


# p_ij of three documents, row i, column j; p_ij + p_ji is not 1, as with a model
@given(st.lists(st.floats(0, 1), max_size=30), st.sampled_from(PAIR_AGGREGATIONS), st.randoms())
def test_the_order_of_the_probabilities_changes_nothing(probabilities, aggregation, random):
    shuffled = random.sample(probabilities, len(probabilities))
    assert aggregate(shuffled, aggregation) == aggregate(probabilities, aggregation)
