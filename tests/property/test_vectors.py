"""Records of document vectors: no wrong score and no failed search from damaged or forged bytes."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.registry import load_model
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.record import HEADER, MAGIC, PERSON, PROFILES, ROUNDED_BITS, VectorRecord
from osrerank.vectors.storage import VectorStorage
from tests.memory_store import MemoryStore

pytest.importorskip("torch")
pytest.importorskip("onnx")


KEY, SECRET = bytes(range(16)), b"a secret"
QUERY = "blood pressure is low"
DOCUMENTS = [
    "blood pressure is low when the heart is slow",
    "the wing is low",
    "water",
    "heat flow when the wing is slow",
]
ALL = [(place,) for place in range(len(DOCUMENTS))]
SLOW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def digest(body: bytes, key: bytes, secret: bytes = b"") -> bytes:
    """What a record ends with; whoever knows the format can write it."""
    start = len(key).to_bytes(1, "little") + key
    return hashlib.blake2b(start + body, digest_size=16, key=secret, person=PERSON).digest()


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Some text's record, in bytes."""
    size = draw(st.one_of(st.integers(1, 96), st.tuples(st.integers(1, 9), st.integers(1, 96))))
    vector = np.random.default_rng(draw(st.integers(0, 99))).normal(size=size).astype(np.float32)
    return VectorRecord.from_vector(
        vector, draw(st.sampled_from(list(PROFILES.values()))), is_truncated=False
    ).to_bytes(KEY, SECRET)


@given(contents(), st.sets(st.integers(0, 8 * 3000), min_size=1, max_size=5))
def test_a_vector_record_with_flipped_bits_is_a_miss(made: bytes, flips: set[int]) -> None:
    content = bytearray(made)
    for bit in {flip % (8 * len(content)) for flip in flips}:
        content[bit // 8] ^= 1 << bit % 8
    assert VectorRecord.from_bytes(bytes(content), KEY, SECRET) is None


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_as_a_miss_or_as_a_whole_vector_record(body: bytes, headed: bool) -> None:
    body = MAGIC + body if headed else body
    assert VectorRecord.from_bytes(body, KEY) is None
    assert VectorRecord.from_bytes(body + digest(body, KEY), KEY, SECRET) is None
    forged = VectorRecord.from_bytes(body + digest(body, KEY), KEY)
    if forged is not None:
        assert forged.to_bytes(KEY)[:4] == body[:4]
        assert np.isfinite(forged.vector).all()
        assert np.isfinite(forged.scale)


class Forger(MemoryStore):
    """A store whose first record is somebody else's: header, sizes and numbers of his own, and the right digest."""

    def __init__(self, header: tuple[int, ...], fill: int, secret: bytes) -> None:
        super().__init__()
        self._header, self._fill, self._secret = header, fill, secret

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return {**super().read(keys), **self._forged(keys[:1])}

    def _forged(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        body = HEADER.pack(MAGIC, *self._header)
        bits, layers, _, _, hidden, rows = self._header
        numbers = 4 * (layers * rows + 1) * hidden if bits == 32 else layers * rows * hidden * bits // 8 + hidden
        scales = 0 if bits == 32 else 2 * (layers * rows + 1)
        body += bytes([self._fill]) * (2 * rows + scales + numbers)
        return {key: body + digest(body, key, self._secret) for key in keys}


def opened(model: Path, store: MemoryStore | None, secret: bytes = b"") -> EncoderScorer:
    return EncoderScorer(DocumentVectors(load_model(str(model)), VectorStorage(store, ROUNDED_BITS, secret)))


@SLOW
@given(
    header=st.tuples(
        st.sampled_from([4, 8, 32, 3]),
        st.integers(0, 3),
        st.integers(0, 1),
        st.integers(0, 1),
        st.sampled_from([8, 15, 16, 32, 0]),
        st.integers(0, 9),
    ),
    fill=st.sampled_from([0, 1, 60, 124, 255]),
)
def test_a_forged_vector_record_fails_no_search(model: Path, header: tuple[int, ...], fill: int) -> None:
    expected = opened(model, None).score(QUERY, DOCUMENTS, ALL).values
    forger = Forger(header, fill, b"")
    honest = opened(model, forger)
    honest.vectors.build(DOCUMENTS)
    scores = honest.score(QUERY, DOCUMENTS, ALL)
    assert set(scores.failures) <= {0}
    np.testing.assert_array_equal(scores.values[1:], expected[1:])
    assert np.isfinite(scores.values[0]) == (0 not in scores.failures)
    keyed = opened(model, Forger(header, fill, b""), SECRET).score(QUERY, DOCUMENTS, ALL)
    assert keyed.known == 0
    np.testing.assert_array_equal(keyed.values, expected)
