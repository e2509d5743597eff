"""MaxSim, and token vectors merged into fewer."""

import time

import numpy as np
import pytest

from osrerank.vectors.token_vectors import maxsim, pooled
from tests.late_interaction import in_order


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def drawn(count: int, dimensions: int = 96, seed: int = 0) -> np.ndarray:
    return unit(np.random.default_rng(seed).standard_normal((count, dimensions)).astype(np.float32))


@pytest.mark.parametrize("factor", [1.5, 2, 3, 4, 100])
def test_they_are_scipys_clusters(factor: float) -> None:
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    for seed in range(5):
        rows = drawn(60 + seed, seed=seed)
        rest = rows[1:]
        distances = (1 - rest @ rest.T)[np.triu_indices(len(rest), k=1)]
        wanted = max(int(len(rest) // factor), 1)
        labels = hierarchy.fcluster(hierarchy.linkage(distances, "ward"), wanted, "maxclust")
        means = [rest[labels == label].mean(axis=0) for label in sorted(set(labels))]
        theirs = np.concatenate([rows[:1], unit(np.array(means))])
        np.testing.assert_allclose(in_order(pooled(rows, factor)), in_order(theirs), atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_tokens_are_left(count: int) -> None:
    assert len(pooled(drawn(count), 4)) == min(count, 2)
    np.testing.assert_array_equal(pooled(drawn(count), 1), drawn(count))


def test_a_text_of_the_longest_kind_is_merged_in_time() -> None:
    began = time.perf_counter()
    assert len(pooled(drawn(512, 128), 2)) == 1 + 511 // 2
    assert time.perf_counter() - began < 2


def test_maxsim_by_hand() -> None:
    """The first query token's best product is .8, the second's 1."""
    query = np.array([(1, 0), (0, 1)], dtype=np.float32)
    document = np.array([(0.8, 0.6), (0, 1), (-1, 0)], dtype=np.float32)
    assert maxsim(query, [document]).tolist() == pytest.approx([0.9])
    assert maxsim(query, []).tolist() == []


@pytest.mark.parametrize("dimensions", [96, 384])
def test_a_score_does_not_depend_on_the_other_documents(dimensions: int) -> None:
    query, documents = drawn(32, dimensions), [drawn(1 + 7 * at, dimensions, seed=at) for at in range(40)]
    alone = [maxsim(query, [one])[0] for one in documents]
    assert maxsim(query, documents).tolist() == alone
