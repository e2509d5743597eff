"""Compute digests of some bytes of inputs, which distinguish inputs of the same name and size."""

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
    """The digests that identify the inputs of a load.

    Attributes:
        digests: the digest of each input, 16 hexadecimal digits.
        consumed: the bytes that were read from standard input for its digest, and cannot be read again.
    """

    digests: tuple[str, ...]
    consumed: bytes


def fingerprints(files: Sequence[str]) -> Fingerprints:
    """Compute a digest of the first and last 64 KiB of each file, or of the first 64 KiB of standard input.

    To read a named pipe would consume it, so its digest is random. The digest of an ir_datasets collection comes from
    its name, because ir_datasets checks its files itself.
    """
    first, consumed = _first_of_stdin() if STDIN in files else (b"", b"")
    return Fingerprints(tuple(_short_digest(first) if name == STDIN else _digest_of(name) for name in files), consumed)


def _digest_of(name: str) -> str:
    return _short_digest(name.encode()) if is_dataset(name) else _digest_of_file(Path(name))


def _first_of_stdin() -> tuple[bytes, bytes]:
    """Return the first block of standard input, and the bytes that cannot be read again; a file has no such bytes."""
    stream = sys.stdin.buffer
    start = stream.tell() if stream.seekable() else None
    first = stream.read(BLOCK_BYTES)
    if start is None:
        return first, first
    stream.seek(start)
    return first, b""


def _digest_of_file(path: Path) -> str:
    if not path.is_file():
        return secrets.token_hex(8)
    with path.open("rb") as stream:
        first = stream.read(BLOCK_BYTES)
        stream.seek(max(BLOCK_BYTES, path.stat().st_size - BLOCK_BYTES))
        return _short_digest(first + stream.read(BLOCK_BYTES))


def _short_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
