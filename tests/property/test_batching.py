from hypothesis import given
from hypothesis import strategies as st

from osrerank.scoring.batching import blocks, plan_batches

LENGTHS = st.lists(st.integers(min_value=1, max_value=512), max_size=200)


@given(LENGTHS, st.integers(min_value=1, max_value=4096))
def test_each_sequence_is_in_one_batch_within_the_budget(lengths: list[int], budget_tokens: int) -> None:
    batches = plan_batches(lengths, budget_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or longest * len(batch) <= budget_tokens


@given(LENGTHS, st.integers(min_value=1, max_value=4096))
def test_batches_run_from_long_to_short(lengths: list[int], budget_tokens: int) -> None:
    in_order = [lengths[index] for batch in plan_batches(lengths, budget_tokens) for index in batch]
    assert in_order == sorted(lengths, reverse=True)


@given(LENGTHS, st.integers(min_value=1, max_value=4096))
def test_blocks_run_through_all_in_order(lengths: list[int], most_tokens: int) -> None:
    cut = blocks(lengths, most_tokens)
    assert [index for block in cut for index in block] == list(range(len(lengths)))
    assert all(len(block) == 1 or sum(lengths[index] for index in block) <= most_tokens for block in cut)
