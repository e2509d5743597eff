"""Read the variables of a TensorFlow checkpoint: ``NAME.index`` and ``NAME.data-00000-of-00001``.

The index file is a table in LevelDB's format (github.com/google/leveldb, doc/table_format.md). It consists of blocks of
keys and values, an index block that lists these blocks, and a footer. A handle gives the offset and size of a block. A
block stores each key without the prefix that it has in common with the previous key: after ``bert/a``, ``bert/b`` is
stored as 5 and ``b``. LevelDB can compress blocks, but TensorFlow does not, so compressed blocks are refused.

The values are protocol buffers (tensorflow/core/protobuf/tensor_bundle.proto). The value of the empty key is the
header, with the number of data files (field 1) and the byte order (2). Any other key is a variable's name, and its
value has the type (1), shape (2), data file (3), offset (4), size (5), CRC-32C (6) and slices (7) of the variable. The
data files contain the variables' numbers.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank._optional import require
from osrerank.errors import ModelLoadError

FOOTER_BYTES = 48
"""The size of the footer: the handles of the meta index block and the index block, padding, and `MAGIC`."""
MAGIC = 0xDB4775248B80FB57
"""The last eight bytes of a table."""
TRAILER_BYTES = 5
"""The size of the compression type (1) and the checksum (4) that follow each block."""
CRC_MASK = 0xA282EAD8
"""The constant that LevelDB adds to a checksum, after rotating it by 15 bits."""
DTYPES: Mapping[int, str] = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
"""TensorFlow's type number (tensorflow/core/framework/types.proto) -> NumPy's type name."""

Fields = dict[int, list[Any]]
"""The values of each field of a protocol buffer, by the field's number."""


class Variable(NamedTuple):
    """The type and location of a variable.

    Attributes:
        dtype: NumPy's type name.
        shape: the variable's shape.
        data_file: the number of the data file, from 0.
        offset: the variable's offset in the data file, in bytes.
        size: the variable's size, in bytes.
        checksum: the masked CRC-32C of the variable's bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    data_file: int
    offset: int
    size: int
    checksum: int


def read_bundle(prefix: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the numeric variables of a checkpoint, by name.

    Args:
        prefix: the checkpoint's path without suffixes, such as ``model.ckpt-100000``.

    Raises:
        ModelLoadError: a file is missing, truncated or damaged, or uses a feature that is not supported.
        MissingDependencyError: the extra ``torch`` is not installed.
    """
    index = prefix.with_name(f"{prefix.name}.index")
    try:
        table = dict(_read_table(index))
        n_files = _count_data_files(_parse_fields(table.pop(b"", b"")))
        variables = {key.decode(): _parse_variable(key.decode(), _parse_fields(value)) for key, value in table.items()}
    except (OSError, ValueError, TypeError, IndexError, struct.error) as error:
        raise ModelLoadError(f"{index} cannot be read as a TensorFlow checkpoint: {error}", path=str(index)) from error
    files = [prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{n_files:05d}") for number in range(n_files)]
    contents = [_map_file(file) for file in files]
    return {
        name: _read_array(name, variable, contents, files, index)
        for name, variable in variables.items()
        if variable is not None
    }


def _count_data_files(header: Fields) -> int:
    """Return the number of data files. Raises `ValueError` if their byte order is not supported."""
    if _integer_field(header, 2):
        raise ValueError("the checkpoint's numbers are big-endian; only little-endian ones are supported")
    return _integer_field(header, 1)


def _read_table(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of all blocks of an index file."""
    content = file.read_bytes()
    if len(content) < FOOTER_BYTES or struct.unpack("<Q", content[-8:])[0] != MAGIC:
        raise ValueError("the file does not end like the index of a checkpoint: it has another format or is incomplete")
    footer = content[-FOOTER_BYTES:]
    _, end = _read_handle(footer, 0)  # the meta index block, which is not needed
    index_handle, _ = _read_handle(footer, end)
    for _, value in _parse_block(_read_block(content, *index_handle)):
        handle, _ = _read_handle(value, 0)
        yield from _parse_block(_read_block(content, *handle))


def _read_block(content: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    block, trailer = content[offset:end], content[end : end + TRAILER_BYTES]
    if len(trailer) < TRAILER_BYTES:
        raise ValueError("the file is truncated; copy it again")
    if trailer[0]:
        raise ValueError(f"a block is compressed (type {trailer[0]}); save the checkpoint uncompressed")
    if _masked_crc(block + trailer[:1]) != struct.unpack("<I", trailer[1:])[0]:
        raise ValueError("a block is damaged (its checksum does not match); copy the file again")
    return block


def _parse_block(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block."""
    # the last entry is followed by restart offsets, which are not needed, and their number
    (restart_count,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 - 4 * restart_count
    position = 0
    key = b""
    while position < end:
        prefix_size, position = _read_varint(block, position)
        suffix_size, position = _read_varint(block, position)
        value_size, position = _read_varint(block, position)
        value_start = position + suffix_size
        key = key[:prefix_size] + block[position:value_start]
        position = value_start + value_size
        yield key, block[value_start:position]


def _read_handle(content: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Return the handle at a position, as the pair (offset, size) of a block, and the position after the handle."""
    offset, position = _read_varint(content, position)
    size, position = _read_varint(content, position)
    return (offset, size), position


def _read_varint(content: bytes, position: int) -> tuple[int, int]:
    """Return the integer at a position, and the position after it. Each byte has 7 bits of it, the lowest first."""
    number = shift = 0
    while True:
        byte = content[position]
        number |= (byte & 127) << shift
        position += 1
        shift += 7
        if byte < 128:
            return number, position


def _parse_fields(content: bytes) -> Fields:
    """Return a protocol buffer's fields, whose values are integers or bytes: ``{1: [3], 2: [b"..."]}``.

    TensorFlow's message types are not needed, because parsed as the type Empty, all fields become unknown fields.
    """
    message: Any = require("google.protobuf.message", extra="torch")
    empty: Any = require("google.protobuf.empty_pb2", extra="torch")
    unknown_fields: Any = require("google.protobuf.unknown_fields", extra="torch")
    try:
        parsed = empty.Empty.FromString(content)
    except message.DecodeError as error:
        raise ValueError(str(error)) from error
    fields: Fields = {}
    for field in unknown_fields.UnknownFieldSet(parsed):
        fields.setdefault(field.field_number, []).append(field.data)
    return fields


def _integer_field(fields: Fields, field: int) -> int:
    """Return an integer field. If the message does not contain it, return 0, as protocol buffers do."""
    return int(fields.get(field, [0])[-1])


def _parse_variable(name: str, fields: Fields) -> Variable | None:
    """Return a variable's type and location. Returns None if its type, such as string, is not in `DTYPES`."""
    dtype = DTYPES.get(_integer_field(fields, 1))
    if dtype is None:
        return None
    if 7 in fields:
        raise ValueError(f"the variable {name} is partitioned into slices; save it in one piece")
    # field 2 of a shape is a dimension, and field 1 of a dimension is its size
    dimensions = [dimension for shape in fields.get(2, []) for dimension in _parse_fields(shape).get(2, [])]
    return Variable(
        dtype,
        shape=tuple(_integer_field(_parse_fields(dimension), 1) for dimension in dimensions),
        data_file=_integer_field(fields, 3),
        offset=_integer_field(fields, 4),
        size=_integer_field(fields, 5),
        checksum=_integer_field(fields, 6),
    )


def _map_file(file: Path) -> npt.NDArray[np.uint8]:
    try:
        return np.memmap(file, np.uint8, mode="r") if file.stat().st_size else np.zeros(0, np.uint8)
    except OSError as error:
        raise ModelLoadError(f"{file}, which the index lists, cannot be read: {error}", path=str(file)) from error


def _read_array(
    name: str, variable: Variable, contents: list[npt.NDArray[np.uint8]], files: list[Path], index: Path
) -> npt.NDArray[Any]:
    """Return a variable's array from ``contents``, the contents of the data files ``files`` of ``index``."""
    expected_size = np.dtype(variable.dtype).itemsize * math.prod(variable.shape)
    if variable.data_file >= len(files) or expected_size != variable.size:
        place = f"{variable.size} bytes of data file {variable.data_file}, of {len(files)}"
        reason = f"{index} is damaged: the variable {name} of shape {variable.shape} is in {place}"
        raise ModelLoadError(reason, path=str(index))
    file = str(files[variable.data_file])
    content = bytes(contents[variable.data_file][variable.offset : variable.offset + variable.size])
    if len(content) < variable.size:
        reason = f"{file} is truncated: the variable {name} has {len(content)} of {variable.size} bytes; copy it again"
        raise ModelLoadError(reason, path=file)
    if _masked_crc(content) != variable.checksum:
        reason = f"{file} is damaged: the checksum of the variable {name} does not match; copy it again"
        raise ModelLoadError(reason, path=file)
    return np.frombuffer(content, variable.dtype).reshape(variable.shape)


def _masked_crc(content: bytes) -> int:
    """Return the CRC-32C in the masked form of LevelDB's tables; see `CRC_MASK`."""
    crc: int = require("google_crc32c", extra="torch").value(content)
    return ((crc >> 15 | crc << 17) + CRC_MASK) & 0xFFFFFFFF
