"""Read the variables of a TensorFlow checkpoint: ``NAME.index`` and ``NAME.data-00000-of-00001``.

The index is a table of the format that LevelDB has (github.com/google/leveldb, doc/table_format.md): blocks of keys,
each of which shares a prefix with the one before, then a block of blocks, and a footer. Its values are protocol
buffers, of which these fields are read (tensorflow/core/protobuf/tensor_bundle.proto): of the header, under the empty
key, the number of data files (1) and the byte order (2); of a variable its type (1), shape (2), data file (3), offset
(4), size (5), CRC-32C (6) and slices (7). The data files have the numbers one after the other.

Blocks may be compressed with Snappy; TensorFlow writes them as they are, and others are refused.
"""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.errors import ModelLoadError

FOOTER_BYTES = 48
MAGIC = 0xDB4775248B80FB57
TRAILER_BYTES = 5
MASK = 0xA282EAD8
TYPES: Mapping[int, str] = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
"""NumPy's types by TensorFlow's numbers (tensorflow/core/framework/types.proto); others are refused."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of protocol buffers."""

Fields = dict[int, list[Any]]


class Variable(NamedTuple):
    """Where a variable is.

    Attributes:
        kind: NumPy's type.
        shape: its shape.
        shard: number of the data file.
        offset: the offset of its first byte there.
        size: in bytes.
        checksum: masked CRC-32C of its bytes.
    """

    kind: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def read_bundle(prefix: Path) -> dict[str, npt.NDArray[Any]]:
    """Return a checkpoint's variables of numbers, by name.

    Args:
        prefix: the checkpoint's path without its endings, such as ``model.ckpt-100000``.

    Raises:
        ModelLoadError: a file is missing, cut or damaged, or of a form that is not read.
        MissingDependencyError: the extra ``torch`` is not installed, which brings the checksums.
    """
    index = prefix.with_name(f"{prefix.name}.index")
    try:
        table = dict(_table(index))
        header = _fields(table.pop(b"", b""))
        shards = _shards(header)
        variables = {key.decode(): _variable(_fields(value)) for key, value in table.items()}
    except (OSError, ValueError, IndexError, struct.error, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{index} cannot be read as a TensorFlow checkpoint: {error}", path=str(index)) from error
    files = [prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{shards:05d}") for number in range(shards)]
    data = [_mapped(file) for file in files]
    return {name: _array(name, one, data, files) for name, one in variables.items() if one is not None}


def _shards(header: Fields) -> int:
    """Return how many data files there are."""
    if _number(header, 2):
        raise ValueError("its numbers are big-endian")
    return _number(header, 1)


def _table(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a table."""
    content = file.read_bytes()
    if len(content) < FOOTER_BYTES or struct.unpack("<Q", content[-8:])[0] != MAGIC:
        raise ValueError("it does not end as one does")
    footer = content[-FOOTER_BYTES:]
    _, at = _handle(footer, 0)
    index, _ = _handle(footer, at)
    for _, value in _entries(_block(content, *index)):
        handle, _ = _handle(value, 0)
        yield from _entries(_block(content, *handle))


def _block(content: bytes, offset: int, size: int) -> bytes:
    block, trailer = content[offset : offset + size], content[offset + size : offset + size + TRAILER_BYTES]
    if len(trailer) < TRAILER_BYTES:
        raise ValueError("it is cut")
    if trailer[0]:
        raise ValueError(f"a block is compressed in the way {trailer[0]}")
    if _masked_crc(block + trailer[:1]) != struct.unpack("<I", trailer[1:])[0]:
        raise ValueError("a block is damaged: its checksum is another")
    return block


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield a block's keys and values."""
    (restarts,) = struct.unpack("<I", block[-4:])
    end, at, key = len(block) - 4 - 4 * restarts, 0, b""
    while at < end:
        shared, at = _varint(block, at)
        own, at = _varint(block, at)
        length, at = _varint(block, at)
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + length]
        at += own + length


def _handle(content: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Return a block's offset and size, and where the next bytes begin."""
    offset, at = _varint(content, at)
    size, at = _varint(content, at)
    return (offset, size), at


def _varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = content[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at


def _fields(message: bytes) -> Fields:
    """Return a protocol buffer's fields by number: integers, or bytes."""
    found: Fields = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        value: int | bytes
        if kind == VARINT:
            value, at = _varint(message, at)
        elif kind == BYTES:
            length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
            value, at = int.from_bytes(message[at : at + length], "little"), at + length
        else:
            raise ValueError(f"a field has the wire type {kind}")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _number(fields: Fields, field: int) -> int:
    """Return a field's number; 0 where it is left out, as protocol buffers have it."""
    return int(fields.get(field, [0])[-1])


def _variable(fields: Fields) -> Variable | None:
    """Return where a variable is; None of what has no numbers, such as texts."""
    kind = TYPES.get(_number(fields, 1))
    if kind is None:
        return None
    if 7 in fields:
        raise ValueError("a variable is in slices; save it whole")
    dims = [_fields(dim) for shape in fields.get(2, []) for dim in _fields(shape).get(2, [])]
    shape = tuple(_number(dim, 1) for dim in dims)
    return Variable(kind, shape, *(_number(fields, field) for field in (3, 4, 5, 6)))


def _mapped(file: Path) -> npt.NDArray[np.uint8]:
    try:
        return np.memmap(file, np.uint8, mode="r") if file.stat().st_size else np.zeros(0, np.uint8)
    except OSError as error:
        raise ModelLoadError(f"{file} cannot be read: {error}; the index names it", path=str(file)) from error


def _array(name: str, one: Variable, data: list[npt.NDArray[np.uint8]], files: list[Path]) -> npt.NDArray[Any]:
    file = str(files[one.shard]) if one.shard < len(files) else ""
    content = data[one.shard][one.offset : one.offset + one.size] if file else b""
    if len(content) < one.size or np.dtype(one.kind).itemsize * int(np.prod(one.shape)) != one.size:
        reason = f"{file or name} is cut: the variable {name} has {len(content)} of {one.size} bytes"
        raise ModelLoadError(reason, path=file)
    if _masked_crc(bytes(content)) != one.checksum:
        raise ModelLoadError(f"{file} is damaged: the variable {name} has another checksum", path=file)
    return np.frombuffer(bytes(content), one.kind).reshape(one.shape)


def _masked_crc(content: bytes) -> int:
    """Return the CRC-32C as LevelDB's tables have it: turned by 15 bits, with a number added."""
    crc: int = require("google_crc32c", extra="torch").value(content)
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF
