"""Records of documents' vectors: their bytes, and what survives of a vector in them."""

import numpy as np
import pytest

from osrerank.vectors.configured import VectorStorage
from osrerank.vectors.record import PROFILES, ROUNDED, Bits, VectorRecord, record_bytes, rows_of
from osrerank.vectors.records import Records
from osrerank.vectors.store import MemoryStore

KEY, SECRET = b"key of a text", b"secret"
HIDDEN = 384
BITS = list(PROFILES.values())


def vector(seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal(HIDDEN, dtype=np.float32)
    return drawn / np.linalg.norm(drawn)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_the_bytes_give_the_record_back(bits: Bits, cut: bool) -> None:
    record = VectorRecord.of(vector(), bits, cut=cut)
    read = VectorRecord.read(record.write(KEY, SECRET), KEY, SECRET)
    assert read is not None
    np.testing.assert_array_equal(read.vector, record.vector)
    assert (read.scale, read.bits, read.cut) == (record.scale, bits, cut)


def test_a_vector_of_8_bits_takes_little_more_than_a_byte_a_number() -> None:
    assert len(VectorRecord.of(vector(), 8, cut=False).write(KEY)) <= 420


@pytest.mark.parametrize(("bits", "error"), [(32, 0.0), (8, 0.001)])
def test_a_rounded_vector_is_near(bits: Bits, error: float) -> None:
    record = VectorRecord.of(vector(), bits, cut=False)
    assert np.abs(record.vector * np.float32(record.scale) - vector()).max() <= error


def test_rows_by_hand() -> None:
    """(1, 0), (0, 1) and (.6, .8) come back with norm 1: rounding changes none."""
    vectors = np.array([(1, 0), (0, 1), (0.6, 0.8)], dtype=np.float32)
    for bits in BITS:
        rows = rows_of([VectorRecord.of(one, bits, cut=False) for one in vectors])
        np.testing.assert_allclose(rows, vectors, atol=0.005)
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("bits", BITS)
def test_norms_other_than_1_are_kept(bits: Bits) -> None:
    """As a dot product needs them: (3, 0), (0, 5) and (.6, .8) have the norms 3, 5 and 1."""
    vectors = np.array([(3, 0), (0, 5), (0.6, 0.8)], dtype=np.float32)
    read = [VectorRecord.read(VectorRecord.of(one, bits, cut=False).write(KEY), KEY) for one in vectors]
    assert [record.is_unit for record in read if record] == [False, False, True]
    np.testing.assert_allclose(rows_of([record for record in read if record]), vectors, rtol=0.005)


@pytest.mark.parametrize("bits", BITS)
def test_rounding_again_changes_no_number(bits: Bits) -> None:
    """So what a worker rounded is stored as if it had been rounded here."""
    for seed in range(50):
        once = VectorRecord.of(vector(seed), bits, cut=False)
        again = VectorRecord.of(rows_of([once])[0], bits, cut=False)
        np.testing.assert_array_equal(again.vector, once.vector)


def test_every_other_content_is_no_record() -> None:
    content = VectorRecord.of(vector(), 8, cut=False).write(KEY, SECRET)
    assert VectorRecord.read(content, KEY, SECRET) is not None
    assert VectorRecord.read(content, b"another key", SECRET) is None
    assert VectorRecord.read(content, KEY) is None
    assert VectorRecord.read(content, KEY, b"another secret") is None
    assert VectorRecord.read(content + b"\0", KEY, SECRET) is None
    for length in (0, 5, 16, len(content) - 1):
        assert VectorRecord.read(content[:length], KEY, SECRET) is None
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1
        assert VectorRecord.read(bytes(flipped), KEY, SECRET) is None


def test_a_record_of_another_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("osrerank.vectors.record.MAGIC", b"ORS0")
        older = VectorRecord.of(vector(), 8, cut=False).write(KEY)
    assert VectorRecord.read(older, KEY) is None


def tokens(count: int, hidden: int = 96) -> np.ndarray:
    drawn = np.random.default_rng(count).standard_normal((count, hidden), dtype=np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.mark.parametrize("count", [1, 45])
@pytest.mark.parametrize(("bits", "error"), [(32, 0.0), (8, 0.002)])
def test_a_record_may_have_a_vector_for_each_token(bits: Bits, error: float, count: int) -> None:
    record = VectorRecord.of(tokens(count), bits, cut=True)
    content = record.write(KEY, SECRET)
    read = VectorRecord.read(content, KEY, SECRET)
    assert read is not None
    assert len(content) == record_bytes(bits, 96, count)
    assert (read.vector.shape, read.cut) == ((count, 96), True)
    assert np.abs(rows_of([read])[0] - tokens(count)).max() <= error
    np.testing.assert_array_equal(rows_of([read])[0], rows_of([record])[0])


def test_a_passage_of_90_tokens_takes_about_4_kilobytes_with_half_of_its_vectors() -> None:
    assert 4000 < record_bytes(ROUNDED, 96, 1 + 89 // 2) < 4500


def test_rounding_tokens_again_changes_no_number() -> None:
    for count in range(1, 30):
        once = VectorRecord.of(tokens(count), ROUNDED, cut=False)
        again = VectorRecord.of(rows_of([once])[0], ROUNDED, cut=False)
        np.testing.assert_array_equal(again.vector, once.vector)
        np.testing.assert_array_equal(again.scale, once.scale)


@pytest.mark.parametrize("by_tokens", [False, True])
def test_a_record_of_the_other_form_is_a_miss(by_tokens: bool) -> None:
    """Without a secret anybody can write one; it must not fail a search."""
    store = MemoryStore(1 << 20)
    records = Records("model", 96, VectorStorage(store, ROUNDED), by_tokens=by_tokens)
    own, other = (KEY, KEY[::-1]) if by_tokens else (KEY[::-1], KEY)
    made = {
        own: VectorRecord.of(tokens(3), ROUNDED, cut=False),
        other: VectorRecord.of(tokens(3)[0], ROUNDED, cut=False),
    }
    store.write({key: record.write(key) for key, record in made.items()})
    assert list(records.known([KEY, KEY[::-1]])) == [KEY]
