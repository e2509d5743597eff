"""Records of document states: their bytes, and what survives of a document in them."""

import numpy as np
import pytest

from osrerank.scoring.states.record import PROFILES, Profile, Record, TextStates, merged

KEY, SECRET = b"key of a text", b"secret"
HIDDEN = 384


def text(rows: int, layers: int = 1, seed: int = 0) -> TextStates:
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((layers, rows, HIDDEN), dtype=np.float32)
    vector = rng.standard_normal(HIDDEN, dtype=np.float32)
    return TextStates(states, np.ones(rows, dtype=np.uint16), vector / np.linalg.norm(vector))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=str)
@pytest.mark.parametrize(("rows", "layers"), [(90, 1), (7, 2), (3, 1), (0, 0)])
def test_the_bytes_give_the_record_back(profile: Profile, rows: int, layers: int) -> None:
    record = Record.of(text(rows, layers), profile)
    read = Record.read(record.write(KEY, SECRET), KEY, SECRET)
    assert read is not None
    for name in ("states", "scales", "pieces", "vector"):
        np.testing.assert_array_equal(getattr(read, name), getattr(record, name))
    assert (read.vector_scale, read.bits, read.cut) == (record.vector_scale, record.bits, record.cut)


@pytest.mark.parametrize(
    ("name", "layers", "most"), [("standard", 1, 10_240), ("small", 1, 3_072), ("standard", 0, 420)]
)
def test_a_passage_of_90_pieces_takes_so_many_bytes(name: str, layers: int, most: int) -> None:
    assert len(Record.of(text(90 if layers else 0, layers), PROFILES[name]).write(KEY)) <= most


@pytest.mark.parametrize(("name", "error"), [("exact", 0.0), ("standard", 0.005), ("small", 0.08)])
def test_quantised_rows_are_near_the_means(name: str, error: float) -> None:
    profile = PROFILES[name]
    states = text(90)
    record = Record.of(states, profile)
    means = merged(states, profile.factor).layers
    restored = record.states * record.scales[..., None].astype(np.float32)
    assert np.abs(restored - means).max() / np.abs(means).max() <= error
    assert np.abs(record.vector * np.float32(record.vector_scale) - states.vector).max() < 0.001


def test_every_other_content_is_no_record() -> None:
    content = Record.of(text(12), PROFILES["small"]).write(KEY, SECRET)
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
        patched.setattr("osrerank.scoring.states.record.MAGIC", b"ORS0")
        older = Record.of(text(12), PROFILES["small"]).write(KEY)
    assert Record.read(older, KEY) is None


def test_runs_of_like_pieces_share_a_row() -> None:
    states = text(6)
    states.layers[0, 1] = states.layers[0, 0] * 2
    states.layers[0, 4:] = states.layers[0, 3]
    short = merged(states, 2.0)
    assert short.pieces.tolist() == [2, 1, 3]
    np.testing.assert_allclose(short.layers[0, 0], states.layers[0, :2].mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("factor", [1.0, 2.5, 4.0, 8.0])
def test_runs_are_those_of_the_reference(factor: float) -> None:
    torch = pytest.importorskip("torch")
    from osrerank.scoring.networks.joined import TextStates as Reference
    from osrerank.scoring.networks.joined import merged as reference

    states = text(57, layers=2)
    layers = tuple(torch.from_numpy(layer[None]) for layer in states.layers)
    expected = reference(Reference(layers, torch.zeros(1, 57), torch.from_numpy(states.vector[None])), factor)
    short = merged(states, factor)
    np.testing.assert_allclose(np.log(short.pieces), expected.log_pieces[0], atol=1e-6)
    for layer, rows in zip(short.layers, expected.layers, strict=True):
        np.testing.assert_allclose(layer, rows[0], atol=1e-6)
