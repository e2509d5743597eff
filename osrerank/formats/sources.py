"""Open files, folders, archives and standard input, compressed or not, without unpacking them to disk.

Compression is detected by a file's first bytes, not by its name. Memory use does not depend on the size of an archive.
Readers get bytes without a UTF-8 byte order mark, and an error for UTF-16.
"""

import bz2
import codecs
import contextlib
import fnmatch
import gzip
import io
import lzma
import re
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from osrerank._optional import require
from osrerank.errors import FormatError, LoaderError
from osrerank.formats.ir_datasets import IteratorStream, Part, is_dataset, open_part

STDIN = "-"
Patterns = tuple[str, ...]
"""Patterns of file names in shell style, such as ``*.jsonl``."""
ALL_FILES: Patterns = ("*",)
BUFFER_BYTES = 1 << 20
HEAD_BYTES = 512
"""A file's format is detected by this many bytes at its beginning."""
_COMPRESSION_SUFFIXES = (".gz", ".xz", ".zst", ".bz2", ".z", ".Z", ".0z", ".1z", ".2z")
_EXCLUDED_NAMES = ("*readme*", "*readchg*", "license*", "*.dtd")
"""Names of files without records on TREC's disks and in archives."""
_GZIP, _LZW, _XZ = b"\x1f\x8b", b"\x1f\x9d", b"\xfd7zXZ\x00"
_BZIP2, _ZSTANDARD, _ZIP = b"BZh", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
PACKED_PREFIXES = (_GZIP, _LZW, _XZ, _BZIP2, _ZSTANDARD, _ZIP)
"""The first bytes of compressed files and of ZIP archives."""
_WIDE_ENCODING = re.compile(rb"\xff\xfe|\xfe\xff|(?:[\t-~]\0){4}|(?:\0[\t-~]){4}")
"""The first bytes of a text in UTF-16 or UTF-32: a byte order mark, or ASCII characters separated by zeros."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An unpacked file that records can be read from.

    Attributes:
        name: the path that the user passed, or ``archive.tar!member`` for an archive member.
        stream: the decompressed bytes, without a byte order mark.
        encoding_error: the error that `file_errors` raises for a text in UTF-16 or UTF-32. None for other files.
    """

    name: str
    stream: io.BufferedReader
    encoding_error: FormatError | None = None


def record_error(source: SourceFile, reason: str, *, line: int | None = None, byte: int | None = None) -> FormatError:
    """Return the error for a bad record. The message starts with file, line and byte."""
    location = source.name
    if line is not None:
        location += f", line {line}"
    if byte is not None:
        location += f", byte {byte}"
    return FormatError(f"{location}: {reason}", file=source.name, line=line)


def wide_encoding_error(name: str, head: bytes) -> FormatError | None:
    """Return the error for a text in UTF-16 or UTF-32, detected by its first bytes, or None for other files."""
    if not (_WIDE_ENCODING.match(head) or head.startswith(codecs.BOM_UTF32_BE)):
        return None
    encoding = "UTF-32" if b"\0\0" in head[:8] else "UTF-16"
    return FormatError(
        f"{name}, line 1: the file is in {encoding}; convert it first: iconv -f {encoding} -t UTF-8", file=name, line=1
    )


@contextlib.contextmanager
def file_errors(source: SourceFile) -> Iterator[None]:
    """Name the file in errors that are raised while it is read.

    Raises:
        FormatError: the file is in UTF-16 or UTF-32, truncated or damaged.
    """
    if source.encoding_error is not None:
        raise source.encoding_error
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise record_error(source, f"the file is truncated or damaged ({error}); fetch it again") from error
    except OSError as error:
        if error.errno is not None:  # an error of the disk; decompressors set no errno
            raise
        raise record_error(source, f"the file is truncated or damaged ({error}); fetch it again") from error


class ByteCounter:
    """Counts the bytes read from disk, to show progress."""

    def __init__(self) -> None:
        self.bytes_read = 0


def _read_chunks(stream: IO[bytes], head: bytes, counter: ByteCounter | None = None) -> Iterator[bytes]:
    """Yield ``head``, the bytes that were already read from a stream, then the others. ``counter`` counts all bytes."""
    chunk = head or stream.read(BUFFER_BYTES)
    while chunk:
        if counter is not None:
            counter.bytes_read += len(chunk)
        yield chunk
        chunk = stream.read(BUFFER_BYTES)


def _decompress_zstandard(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the decompressed chunks of a zstd stream.

    Raises:
        EOFError: a frame is damaged or truncated. The library's own reader would ignore a truncated frame.
    """
    library = require("zstandard", extra="loaders")
    is_complete = True
    remainder = b""
    while chunk := remainder or stream.read(1 << 17):
        if is_complete:
            frame = library.ZstdDecompressor().decompressobj()
        try:
            decompressed: bytes = frame.decompress(chunk)
        except library.ZstdError as error:
            raise EOFError(str(error)) from error
        is_complete = frame.eof
        remainder = frame.unused_data
        if decompressed:
            yield decompressed
    if not is_complete:
        raise EOFError("the zstd frame ends too early")


def list_files(paths: Sequence[str], patterns: Patterns = ALL_FILES) -> tuple[str, ...]:
    """List the files to read, in the order of the paths. A folder is replaced by its files, sorted by name.

    In folders, hidden files and files that match no pattern are left out. Standard input and ir_datasets collections
    stay in the list as they are.

    Raises:
        LoaderError: a path does not exist, or no file in a folder matches a pattern.
    """
    files: list[str] = []
    for path in paths:
        if not is_virtual_path(path) and Path(path).is_dir():
            files += _list_folder(Path(path), patterns)
        elif is_virtual_path(path) or Path(path).exists():
            files.append(path)
        else:
            raise LoaderError(f"{path}: no such file or folder", file=path)
    return tuple(files)


def is_virtual_path(path: str) -> bool:
    """Return whether a path is not on disk: standard input, or an ir_datasets collection."""
    return path == STDIN or is_dataset(path)


def _list_folder(folder: Path, patterns: Patterns) -> list[str]:
    files = sorted(
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and _matches_patterns(path.name, patterns, accepts_archives=True)
    )
    if not files:
        reason = f"{folder} contains no file named {' or '.join(patterns)}; pass the paths of the files"
        raise LoaderError(reason, file=str(folder))
    return files


def _matches_patterns(name: str, patterns: Patterns, *, accepts_archives: bool = False) -> bool:
    """Return whether to read a file: its name, without compression suffixes, matches a pattern, or it is an archive."""
    for suffix in _COMPRESSION_SUFFIXES:
        name = name.removesuffix(suffix)
    if name.startswith(".") or any(fnmatch.fnmatch(name.lower(), pattern) for pattern in _EXCLUDED_NAMES):
        return False
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns) or (
        accepts_archives and name.endswith((".tar", ".tgz", ".zip"))
    )


def open_paths(
    paths: Path | str | Sequence[str], patterns: Patterns = ALL_FILES, *, part: Part = "docs"
) -> Iterator[SourceFile]:
    """Open files one after the other, and yield each before the next is opened.

    Args:
        paths: a file of any name, or a list of files, folders and archives.
        patterns: the names of the files to read from folders and archives.
        part: the part to read from an ir_datasets collection.

    Raises:
        LoaderError: a path in a list does not exist, or no file in a folder matches a pattern.
        FileNotFoundError: the single path does not exist.
    """
    files = (str(paths),) if isinstance(paths, str | Path) else list_files(paths, patterns)
    return open_sources(files, patterns, part=part)


def open_sources(
    files: Sequence[str],
    patterns: Patterns = ALL_FILES,
    counter: ByteCounter | None = None,
    *,
    first_bytes: bytes = b"",
    part: Part = "docs",
) -> Iterator[SourceFile]:
    """Open listed files and the members of archives one after the other. Each is closed before the next is opened.

    Args:
        files: the files, from `list_files`.
        patterns: the names of the members to read from archives.
        counter: counts the bytes read from disk.
        first_bytes: the bytes that were already read from standard input.
        part: the part to read from an ir_datasets collection.
    """
    for name in files:
        if is_dataset(name):
            with open_part(name, part) as lines:
                yield from _unpack(name, lines, patterns, counter)
            continue
        if name == STDIN:
            stdin: Any = sys.stdin.buffer
            if first_bytes:
                stdin = IteratorStream(_read_chunks(stdin, first_bytes))
            yield from _unpack("standard input", stdin, patterns, counter)
            continue
        with Path(name).open("rb", buffering=0) as stream:
            yield from _unpack(name, cast("IO[bytes]", stream), patterns, counter)


def _unpack(
    name: str, stream: IO[bytes], patterns: Patterns, counter: ByteCounter | None = None
) -> Iterator[SourceFile]:
    """Yield the files in a stream, which can be compressed, an archive, or both."""
    try:
        head = _read_head(stream)
        buffered = _buffer(_read_chunks(stream, head, counter))
        if head.startswith(_ZIP) and stream.seekable():  # ZIP archives cannot be read from a pipe
            yield from _read_zip(name, stream, patterns)
        elif (decompressed := _open_decompressor(head, buffered)) is not None:
            yield from _unpack(name, decompressed, patterns)
        elif head[257:262] == b"ustar":  # tar's magic number
            yield from _read_tar(name, buffered, patterns)
        else:
            text = _buffer(_read_chunks(stream, head.removeprefix(codecs.BOM_UTF8), counter))
            yield SourceFile(name, text, wide_encoding_error(name, head))
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise FormatError(f"{name} is truncated or damaged ({error}); fetch the file again", file=name) from error


def _buffer(chunks: Iterable[bytes]) -> io.BufferedReader:
    return io.BufferedReader(IteratorStream(chunks), BUFFER_BYTES)


def _read_head(stream: IO[bytes]) -> bytes:
    """Read the first bytes. A pipe can need several reads."""
    head = b""
    while len(head) < HEAD_BYTES and (chunk := stream.read(HEAD_BYTES - len(head))):
        head += chunk
    return head


def _open_decompressor(head: bytes, stream: IO[bytes]) -> IO[bytes] | None:
    """Return a stream of decompressed bytes, or None if the stream is not compressed."""
    if head.startswith(_GZIP):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stream))
    if head.startswith(_XZ):
        return lzma.LZMAFile(stream)
    if head.startswith(_BZIP2):
        return bz2.BZ2File(stream)
    if head.startswith(_ZSTANDARD):
        return cast("IO[bytes]", IteratorStream(_decompress_zstandard(stream)))
    if head.startswith(_LZW):
        return io.BytesIO(_decompress_lzw(stream))
    return None


def _decompress_lzw(stream: IO[bytes]) -> bytes:
    """Decompress a file of the Unix program ``compress`` in memory. TREC's files are one or two megabytes long.

    Raises:
        EOFError: the bytes are truncated or damaged.
    """
    unlzw = require("unlzw3", extra="loaders")
    try:
        content: bytes = unlzw.unlzw(stream.read())
    except (ValueError, IndexError) as error:
        raise EOFError(str(error)) from error
    return content


def _read_tar(name: str, stream: IO[bytes], patterns: Patterns) -> Iterator[SourceFile]:
    has_members = False
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # else tarfile keeps all members in memory
            if not member.isfile() or not _matches_patterns(Path(member.name).name, patterns):
                continue
            has_members = True
            unpacked = archive.extractfile(member)
            assert unpacked is not None  # None only if the member is not a regular file
            yield from _unpack(f"{name}!{member.name}", unpacked, patterns)
    if not has_members:
        raise _no_member_error(name, patterns)


def _read_zip(name: str, stream: IO[bytes], patterns: Patterns) -> Iterator[SourceFile]:
    with zipfile.ZipFile(stream) as archive:
        members = [member for member in archive.infolist() if _matches_patterns(Path(member.filename).name, patterns)]
        if not members:
            raise _no_member_error(name, patterns)
        for member in members:
            with archive.open(member) as unpacked:
                yield from _unpack(f"{name}!{member.filename}", unpacked, patterns)


def _no_member_error(name: str, patterns: Patterns) -> FormatError:
    return FormatError(f"{name} contains no file named {' or '.join(patterns)}", file=name)
