"""Distinguish inputs of the same name and size by their bytes, without reading all of them."""

import hashlib
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from osrerank.formats.ir_datasets import is_dataset
from osrerank.formats.sources import STDIN

BLOCK_BYTES = 1 << 16


class Fingerprints(NamedTuple):
    """What identifies the inputs of a load.

    Attributes:
        digests: one for each input, 16 hexadecimal digits.
        taken: the bytes of standard input that were read for its digest and cannot be read again.
    """

    digests: tuple[str, ...]
    taken: bytes


def fingerprints(files: Sequence[str]) -> Fingerprints:
    """Digest the first and the last 64 KiB of each file on disk, and only the first of standard input.

    A named pipe cannot be read without consuming it, so its digest is random. A collection of ir_datasets, which checks
    its files itself, is known by its name.
    """
    first, taken = _first_of_stdin() if STDIN in files else (b"", b"")
    return Fingerprints(tuple(_short(first) if name == STDIN else _of(name) for name in files), taken)


def _of(name: str) -> str:
    return _short(name.encode()) if is_dataset(name) else _of_file(Path(name))


def _first_of_stdin() -> tuple[bytes, bytes]:
    """Return the first block, and the bytes to put back: none if standard input is a file."""
    stream = sys.stdin.buffer
    start = stream.tell() if stream.seekable() else None
    first = stream.read(BLOCK_BYTES)
    if start is None:
        return first, first
    stream.seek(start)
    return first, b""


def _of_file(path: Path) -> str:
    if not path.is_file():
        return secrets.token_hex(8)
    with path.open("rb") as stream:
        first = stream.read(BLOCK_BYTES)
        stream.seek(max(BLOCK_BYTES, path.stat().st_size - BLOCK_BYTES))
        return _short(first + stream.read(BLOCK_BYTES))


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
