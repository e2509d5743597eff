"""Records of documents' vectors: their bytes, what survives of a vector in them; token vectors merged, and MaxSim."""

import time

import numpy as np
import pytest

from osrerank.vectors.record import PROFILES, ROUNDED_BITS, Bits, VectorRecord, record_size, stack_vectors
from osrerank.vectors.records import Records
from osrerank.vectors.storage import VectorStorage
from osrerank.vectors.token_vectors import maxsim, pool_tokens
from tests.late_interaction import in_order
from tests.memory_store import MemoryStore

KEY, SECRET = b"key of a text", b"secret"
HIDDEN = 384
BITS = list(PROFILES.values())


def vector(seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal(HIDDEN, dtype=np.float32)
    return drawn / np.linalg.norm(drawn)


def tokens(count: int, hidden: int = 96) -> np.ndarray:
    drawn = np.random.default_rng(count).standard_normal((count, hidden), dtype=np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_a_vector_record_round_trips_through_bytes(bits: Bits, cut: bool) -> None:
    record = VectorRecord.from_vector(vector(), bits, is_truncated=cut)
    decoded = VectorRecord.from_bytes(record.to_bytes(KEY, SECRET), KEY, SECRET)
    assert decoded is not None
    np.testing.assert_array_equal(decoded.vector, record.vector)
    assert (decoded.scale, decoded.bits, decoded.is_truncated) == (record.scale, bits, cut)


@pytest.mark.parametrize(("bits", "error"), [(32, 0.0), (8, 0.001)])
def test_a_rounded_vector_is_near_the_original(bits: Bits, error: float) -> None:
    record = VectorRecord.from_vector(vector(), bits, is_truncated=False)
    assert np.abs(record.vector * np.float32(record.scale) - vector()).max() <= error
    assert len(record.to_bytes(KEY)) <= HIDDEN * bits // 8 + 36
    np.testing.assert_allclose(np.linalg.norm(stack_vectors([record]), axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("bits", BITS)
def test_rounding_a_rounded_vector_changes_no_number(bits: Bits) -> None:
    """So what a worker rounded is stored as if it had been rounded here."""
    for numbers in (*map(vector, range(50)), *map(tokens, range(1, 30))):
        once = VectorRecord.from_vector(numbers, bits, is_truncated=False)
        again = VectorRecord.from_vector(stack_vectors([once])[0], bits, is_truncated=False)
        np.testing.assert_array_equal(again.vector, once.vector)
        np.testing.assert_allclose(again.scale, once.scale, rtol=0 if numbers.ndim == 2 else 0.01)


@pytest.mark.parametrize("bits", BITS)
def test_a_record_keeps_vector_norms_other_than_1(bits: Bits) -> None:
    """As a dot product needs them: (3, 0), (0, 5) and (.6, .8) have the norms 3, 5 and 1."""
    vectors = np.array([(3, 0), (0, 5), (0.6, 0.8)], dtype=np.float32)
    decoded = [
        VectorRecord.from_bytes(VectorRecord.from_vector(vector, bits, is_truncated=False).to_bytes(KEY), KEY)
        for vector in vectors
    ]
    assert [record.is_unit for record in decoded if record] == [False, False, True]
    np.testing.assert_allclose(stack_vectors([record for record in decoded if record]), vectors, rtol=0.005)


def test_malformed_bytes_are_not_read_as_a_vector_record(monkeypatch: pytest.MonkeyPatch) -> None:
    content = VectorRecord.from_vector(vector(), 8, is_truncated=False).to_bytes(KEY, SECRET)
    assert VectorRecord.from_bytes(content, KEY, SECRET) is not None
    assert VectorRecord.from_bytes(content, b"another key", SECRET) is None
    assert VectorRecord.from_bytes(content, KEY) is None
    assert VectorRecord.from_bytes(content, KEY, b"another secret") is None
    assert VectorRecord.from_bytes(content + b"\0", KEY, SECRET) is None
    for length in (0, 5, 16, len(content) - 1):
        assert VectorRecord.from_bytes(content[:length], KEY, SECRET) is None
    monkeypatch.setattr("osrerank.vectors.record.MAGIC", b"ORS0")
    older = VectorRecord.from_vector(vector(), 8, is_truncated=False).to_bytes(KEY, SECRET)
    monkeypatch.undo()
    assert VectorRecord.from_bytes(older, KEY, SECRET) is None  # of another version


@pytest.mark.parametrize("count", [1, 45])
@pytest.mark.parametrize(("bits", "error"), [(32, 0.0), (8, 0.002)])
def test_a_record_may_have_a_vector_for_each_token(bits: Bits, error: float, count: int) -> None:
    record = VectorRecord.from_vector(tokens(count), bits, is_truncated=True)
    content = record.to_bytes(KEY, SECRET)
    decoded = VectorRecord.from_bytes(content, KEY, SECRET)
    assert decoded is not None
    assert len(content) == record_size(bits, 96, count)
    assert (decoded.vector.shape, decoded.is_truncated) == ((count, 96), True)
    assert record_size(ROUNDED_BITS, 96, 45) < 4500  # of a passage of 90 tokens
    assert np.abs(stack_vectors([decoded])[0] - tokens(count)).max() <= error
    np.testing.assert_array_equal(stack_vectors([decoded])[0], stack_vectors([record])[0])


@pytest.mark.parametrize("has_token_vectors", [False, True])
def test_a_record_with_an_unexpected_number_of_vectors_is_a_miss(has_token_vectors: bool) -> None:
    """Without a secret anybody can write one; it must not fail a search."""
    store = MemoryStore()
    records = Records("model", 96, VectorStorage(store, ROUNDED_BITS), has_token_vectors=has_token_vectors)
    token_key, text_key = (KEY, KEY[::-1]) if has_token_vectors else (KEY[::-1], KEY)
    stored = {
        token_key: VectorRecord.from_vector(tokens(3), ROUNDED_BITS, is_truncated=False),
        text_key: VectorRecord.from_vector(tokens(3)[0], ROUNDED_BITS, is_truncated=False),
    }
    store.write({key: record.to_bytes(key) for key, record in stored.items()})
    assert list(records.read_stored([KEY, KEY[::-1]])) == [KEY]


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def drawn(count: int, dimensions: int = 96, seed: int = 0) -> np.ndarray:
    return unit(np.random.default_rng(seed).standard_normal((count, dimensions)).astype(np.float32))


@pytest.mark.parametrize("factor", [1.5, 2, 3, 4, 100])
def test_merged_token_vectors_are_scipys_ward_clusters(factor: float) -> None:
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    for seed in range(5):
        rows = drawn(60 + seed, seed=seed)
        mergeable = rows[1:]
        distances = (1 - mergeable @ mergeable.T)[np.triu_indices(len(mergeable), k=1)]
        cluster_count = max(int(len(mergeable) // factor), 1)
        labels = hierarchy.fcluster(hierarchy.linkage(distances, "ward"), cluster_count, "maxclust")
        means = [mergeable[labels == label].mean(axis=0) for label in sorted(set(labels))]
        theirs = np.concatenate([rows[:1], unit(np.array(means))])
        np.testing.assert_allclose(in_order(pool_tokens(rows, factor)), in_order(theirs), atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_text_of_few_tokens_is_not_merged(count: int) -> None:
    assert len(pool_tokens(drawn(count), 4)) == min(count, 2)
    np.testing.assert_array_equal(pool_tokens(drawn(count), 1), drawn(count))


def test_token_vectors_of_the_longest_text_are_merged_in_time() -> None:
    began = time.perf_counter()
    assert len(pool_tokens(drawn(512, 128), 2)) == 1 + 511 // 2
    assert time.perf_counter() - began < 2


def test_maxsim_by_hand() -> None:
    """The first query token's best product is .8, the second's 1."""
    query = np.array([(1, 0), (0, 1)], dtype=np.float32)
    document = np.array([(0.8, 0.6), (0, 1), (-1, 0)], dtype=np.float32)
    assert maxsim(query, [document]).tolist() == pytest.approx([0.9])
    assert maxsim(query, []).tolist() == []


@pytest.mark.parametrize("dimensions", [96, 384])
def test_a_maxsim_score_does_not_depend_on_other_documents(dimensions: int) -> None:
    query, documents = drawn(32, dimensions), [drawn(1 + 7 * number, dimensions, seed=number) for number in range(40)]
    alone = [maxsim(query, [document])[0] for document in documents]
    assert maxsim(query, documents).tolist() == alone
