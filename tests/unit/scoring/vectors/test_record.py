"""Records of documents' vectors: their bytes, and what survives of a vector in them."""

import numpy as np
import pytest

from osrerank.scoring.vectors.record import PROFILES, Bits, Record, cosines

KEY, SECRET = b"key of a text", b"secret"
HIDDEN = 384
BITS = list(PROFILES.values())


def vector(seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal(HIDDEN, dtype=np.float32)
    return drawn / np.linalg.norm(drawn)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_the_bytes_give_the_record_back(bits: Bits, cut: bool) -> None:
    record = Record.of(vector(), bits, cut=cut)
    read = Record.read(record.write(KEY, SECRET), KEY, SECRET)
    assert read is not None
    np.testing.assert_array_equal(read.vector, record.vector)
    assert (read.scale, read.bits, read.cut) == (record.scale, bits, cut)


def test_a_vector_of_8_bits_takes_little_more_than_a_byte_a_number() -> None:
    assert len(Record.of(vector(), 8, cut=False).write(KEY)) <= 420


@pytest.mark.parametrize(("bits", "error"), [(32, 0.0), (8, 0.001)])
def test_a_rounded_vector_is_near(bits: Bits, error: float) -> None:
    record = Record.of(vector(), bits, cut=False)
    assert np.abs(record.vector * np.float32(record.scale) - vector()).max() <= error


def test_cosines_by_hand() -> None:
    """The query (.6, .8) with (1, 0), (0, 1) and (.6, .8): .6, .8 and 1; rounding changes no norm."""
    query = np.array([[0.6, 0.8]], dtype=np.float32)
    vectors = [np.array(one, dtype=np.float32) for one in ((1, 0), (0, 1), (0.6, 0.8))]
    for bits in BITS:
        found = cosines(query, [Record.of(one, bits, cut=False) for one in vectors])
        np.testing.assert_allclose(found, [0.6, 0.8, 1.0], atol=1e-5)
    assert cosines(query, []).shape == (0,)


def test_every_other_content_is_no_record() -> None:
    content = Record.of(vector(), 8, cut=False).write(KEY, SECRET)
    assert Record.read(content, KEY, SECRET) is not None
    assert Record.read(content, b"another key", SECRET) is None
    assert Record.read(content, KEY) is None
    assert Record.read(content, KEY, b"another secret") is None
    assert Record.read(content + b"\0", KEY, SECRET) is None
    for length in (0, 5, 16, len(content) - 1):
        assert Record.read(content[:length], KEY, SECRET) is None
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1
        assert Record.read(bytes(flipped), KEY, SECRET) is None


def test_a_record_of_another_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("osrerank.scoring.vectors.record.MAGIC", b"ORS0")
        older = Record.of(vector(), 8, cut=False).write(KEY)
    assert Record.read(older, KEY) is None
