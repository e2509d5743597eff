"""Build progress: claims of sequence numbers, and what is left when builders die or shards change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.errors import FormatError
from osrerank.vectors.build_progress import LEASE_SIZE, BuildProgress, Head, ShardProgress

HEADS = {"0": Head("one", 9_999, 9_999), "1": Head("two", 99, 99)}
EMPTY = BuildProgress().with_shards(HEADS)


def test_builders_claim_disjoint_ranges():
    first, mine = EMPTY.claim("a", HEADS, now_s=0, expires_at_s=60)
    _, other = first.claim("b", HEADS, now_s=1, expires_at_s=61)
    assert (mine.shard, other.shard) == ("0", "1")
    assert (mine.first, mine.last) == (0, LEASE_SIZE - 1)
    assert (other.first, other.last) == (0, 99)


def test_an_expired_lease_is_continued_where_its_builder_stopped():
    progress, lease = EMPTY.claim("a", HEADS, now_s=0, expires_at_s=60)
    progress, lease = progress.advance(lease, 100, term=1, expires_at_s=60)
    progress, claimed = progress.claim("b", HEADS, now_s=61, expires_at_s=121)
    assert (claimed.first, claimed.last, claimed.owner) == (100, LEASE_SIZE - 1, "b")
    assert progress.advance(lease, 200, term=1, expires_at_s=200) == (progress, None)  # the first one lost it


def test_no_range_can_be_claimed_while_other_builders_hold_the_rest():
    heads = {"1": HEADS["1"]}
    progress, _ = BuildProgress().with_shards(heads).claim("a", heads, now_s=0, expires_at_s=60)
    assert progress.claim("b", heads, now_s=1, expires_at_s=61) == (progress, None)
    assert progress.count_unbuilt(heads) == 100


@pytest.mark.parametrize("head", [Head("anew", 99, 99), Head("two", 49, 49)], ids=["made anew", "went back"])
def test_a_shard_with_another_history_is_read_from_its_beginning(head):
    before = BuildProgress({"1": ShardProgress("two", 100, 3)})
    assert before.with_shards({"1": HEADS["1"]}) == before
    assert before.with_shards({"1": head}).count_unbuilt({"1": head}) == head.global_checkpoint + 1


def test_ranges_built_since_an_earlier_state_are_open_again():
    before, lease = EMPTY.claim("a", HEADS, now_s=0, expires_at_s=60)
    after, _ = before.advance(lease, LEASE_SIZE, term=1, expires_at_s=60)
    after, _ = after.claim("a", HEADS, now_s=0, expires_at_s=60)
    assert after.reopen_built_since(before).count_unbuilt(HEADS) == before.count_unbuilt(HEADS)


def test_foreign_bytes_are_not_read_as_a_build_progress():
    with pytest.raises(FormatError, match="cannot be parsed"):
        BuildProgress.from_bytes(b'{"shards": 1}')


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5_000), st.booleans()), max_size=60))
def test_every_sequence_number_is_either_built_or_open(steps):
    progress, held, built, now_s = EMPTY, {}, {"0": set(), "1": set()}, 0.0
    for owner, count, is_killed in steps:
        now_s += 10
        if held.get(owner) is None:
            progress, held[owner] = progress.claim(owner, HEADS, now_s, now_s + 60)
        elif is_killed:
            held[owner] = None
        else:
            lease = held[owner]
            first = min(lease.first + count, lease.last + 1)
            progress, held[owner] = progress.advance(lease, first, 1, now_s + 60)
            built[lease.shard] |= {*range(lease.first, first)}
        progress = BuildProgress.from_bytes(progress.to_bytes())
    for shard, head in HEADS.items():
        is_open = {
            number
            for first, last in progress.list_unbuilt_ranges(shard, head.global_checkpoint)
            for number in range(first, last + 1)
        }
        assert is_open | built[shard] >= {*range(head.global_checkpoint + 1)}
