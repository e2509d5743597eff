"""Compute a digest of each input of a load, so that a resumed load notices if an input's content has changed."""

import hashlib
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from osrerank.formats.ir_datasets import is_dataset
from osrerank.formats.sources import STDIN

BLOCK_BYTES = 1 << 16
"""The number of bytes at the beginning and at the end of a file that its digest covers."""


class Fingerprints(NamedTuple):
    """The digests of the inputs of a load.

    Attributes:
        digests: one digest per input, with 16 hexadecimal digits.
        consumed: the bytes of standard input that were read for its digest, or empty if they can be read again.
    """

    digests: tuple[str, ...]
    consumed: bytes


def compute_fingerprints(files: Sequence[str]) -> Fingerprints:
    """Compute a digest of each file's first and last 64 KiB, or of standard input's first 64 KiB.

    An ir_datasets collection is identified by its name, because ir_datasets checks its files itself. A named pipe gets
    a random digest, because reading would consume it.
    """
    block = consumed = b""
    if STDIN in files:
        block, consumed = _read_stdin_block()
    return Fingerprints(
        tuple(_compute_digest(block) if name == STDIN else _compute_input_digest(name) for name in files), consumed
    )


def _read_stdin_block() -> tuple[bytes, bytes]:
    """Return the first block of standard input, and the bytes that cannot be read again."""
    stream = sys.stdin.buffer
    if not stream.seekable():
        block = stream.read(BLOCK_BYTES)
        return block, block
    start = stream.tell()
    block = stream.read(BLOCK_BYTES)
    stream.seek(start)
    return block, b""


def _compute_input_digest(name: str) -> str:
    if is_dataset(name):
        return _compute_digest(name.encode())
    path = Path(name)
    if not path.is_file():  # a named pipe
        return secrets.token_hex(8)
    with path.open("rb") as stream:
        first_block = stream.read(BLOCK_BYTES)
        # in a file of less than two blocks, the last block begins where the first ends
        stream.seek(max(BLOCK_BYTES, path.stat().st_size - BLOCK_BYTES))
        return _compute_digest(first_block + stream.read(BLOCK_BYTES))


def _compute_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
