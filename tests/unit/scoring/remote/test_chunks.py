"""A search's pairs among workers: each once, in shares of like cost, first ones first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.scoring.remote import chunks
from osrerank.scoring.remote.chunks import divide, gather
from osrerank.types import Scores


@pytest.mark.long
@given(
    st.lists(st.integers(0, 20_000), min_size=1, max_size=300),
    st.integers(1, 9),
    st.integers(1, 2),
    st.randoms(use_true_random=False),
)
def test_every_tuple_is_in_one_chunk_that_has_its_documents(lengths, workers, width, rng):
    documents = ["x" * length for length in lengths]
    tuples = [tuple(rng.randrange(len(documents)) for _ in range(width)) for _ in range(rng.randrange(400))]
    found = divide(documents, tuples, workers)
    assert sorted(index for chunk in found for index in chunk.indices) == list(range(len(tuples)))
    for chunk in found:
        assert len(chunk.indices) <= chunks.MOST_PAIRS
        assert chunk.characters <= chunks.MOST_CHARACTERS or len(chunk.indices) == 1
        own = list(chunk.documents)
        members = [tuple(own[i] for i in indices) for indices in chunk.tuples(tuples)]
        assert members == [tuples[index] for index in chunk.indices]


def test_shares_are_of_like_cost_and_the_first_tuples_in_the_first_round():
    documents = ["x" * (100 + 37 * (n % 50)) for n in range(96)]
    shares = divide(documents, [(n,) for n in range(96)], 4)
    costs = [chunk.cost for chunk in shares]
    assert len(shares) == 4
    assert max(costs) - min(costs) < 2_000
    assert len(divide(["short"] * 20, [(n,) for n in range(20)], 8)) == 1  # what is small is not divided
    rounds = divide(["x" * 300] * 1_000, [(n,) for n in range(1_000)], 2)
    assert len(rounds) == 10
    assert {index for chunk in rounds[:2] for index in chunk.indices} == set(range(200))


def test_answers_are_put_together():
    found = divide(["x" * 3_000] * 6, [(n,) for n in range(6)], 3)
    assert [chunk.indices for chunk in found] == [[0, 3], [1, 4], [2, 5]]
    first = Scores(np.array([1.0, np.nan], dtype=np.float32), {1: "odd"}, inferences=2, truncated=1)
    scores = gather(6, found, [first, "lost", None], "id")
    np.testing.assert_array_equal(scores.values, np.array([1, *[np.nan] * 5], dtype=np.float32))
    assert scores.failures == {1: "lost", 3: "odd", 4: "lost"}
    assert (scores.reached, scores.attempted, scores.inferences, scores.identity) == (2, [0, 1, 3, 4], 2, "id")
