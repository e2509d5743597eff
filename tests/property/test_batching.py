"""Batches by tokens: each sequence in one batch, each batch within its budget."""

from hypothesis import given
from hypothesis import strategies as st

from osrerank.scoring.batcher import batch_size

LENGTHS = st.lists(st.integers(1, 512), max_size=60)


def cost(lengths: list[int], *, packed: bool) -> int:
    return sum(lengths) if packed else max(lengths) * len(lengths)


@given(LENGTHS, st.integers(1, 4096), st.booleans())
def test_a_batch_is_the_longest_beginning_within_the_budget(lengths: list[int], budget: int, packed: bool) -> None:
    size = batch_size(lengths, budget, packed=packed)
    assert (size == 0) == (not lengths)
    if size > 1:
        assert cost(lengths[:size], packed=packed) <= budget
    if size < len(lengths):
        assert cost(lengths[: size + 1], packed=packed) > budget
