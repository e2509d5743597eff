"""Which pairs are compared: draws, and options that are refused."""

from hypothesis import given
from hypothesis import strategies as st

from osrerank.options.pairs import Pairs

IDS = ("a", "b", "c")


def test_everyone_is_compared_with_everyone_else():
    assert Pairs().rivals(IDS) == [[1, 2], [0, 2], [0, 1]]
    assert Pairs().rivals(("a",)) == [[]]
    assert Pairs().rivals(()) == []
    for size in (2, 99):  # a draw of all others or more
        assert Pairs("sample", sample_size=size).rivals(IDS) == Pairs().rivals(IDS)


def test_a_draw_is_without_replacement_and_of_others():
    ids = [f"d{place}" for place in range(12)]
    for place, drawn in enumerate(Pairs("sample", sample_size=5).rivals(ids)):
        assert len(set(drawn)) == len(drawn) == 5
        assert place not in drawn
    draws = [Pairs("sample", sample_size=5, seed=seed).rivals(ids) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


@given(st.permutations(range(8)), st.integers(1, 6))
def test_a_draw_does_not_depend_on_the_order(order, size):
    ids = [f"d{place}" for place in range(8)]
    pairs = Pairs("sample", sample_size=size, seed=3)
    straight = {ids[i]: {ids[j] for j in js} for i, js in enumerate(pairs.rivals(ids))}
    turned_ids = [ids[place] for place in order]
    turned = {turned_ids[i]: {turned_ids[j] for j in js} for i, js in enumerate(pairs.rivals(turned_ids))}
    assert turned == straight


def test_options_are_read_from_a_name_or_a_dict():
    assert Pairs.of(None) == Pairs.of(True) == Pairs()
    assert Pairs.of("binary") == Pairs("binary")
    assert Pairs.of({"aggregation": "sample", "sample_size": 3, "seed": 9}) == Pairs("sample", 3, 9)
