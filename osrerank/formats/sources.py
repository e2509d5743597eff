"""Open files, folders, archives and standard input, compressed or not, without unpacking them to disk.

The first bytes decide the compression, never the name. Memory stays constant, however large the archive. A UTF-8 byte
order mark is removed, and UTF-16 is refused, so that no reader has to deal with either.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from osrerank._optional import require
from osrerank.errors import FormatError, LoaderError
from osrerank.formats.ir_datasets import Part, is_dataset, open_part

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STDIN = "-"
Patterns = tuple[str, ...]
ANY_NAME: Patterns = ("*",)
BUFFER_BYTES = 1 << 20
HEAD_BYTES = 512
_SUFFIXES = (".gz", ".xz", ".zst", ".bz2", ".z", ".Z", ".0z", ".1z", ".2z")
_EXCLUDED = ("*readme*", "*readchg*", "license*", "*.dtd")
PACKED_PREFIXES = (b"\x1f\x8b", b"\x1f\x9d", b"\xfd7zXZ\x00", b"BZh", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
"""The first bytes of compressed files and of ZIP archives."""
_UTF16 = re.compile(rb"\xff\xfe|\xfe\xff|(?:[\t-~]\0){4}|(?:\0[\t-~]){4}")
"""The first bytes of a text in UTF-16 or UTF-32: a byte order mark, or ASCII characters with zeros in between."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to read records from, already unpacked.

    Attributes:
        name: the path as the user named it; a member of an archive is ``archive.tar!member``.
        stream: the decompressed bytes, without the byte order mark that some editors write.
        refused: the error for a file that cannot be read, such as a text in UTF-16; `file_errors` raises it.
    """

    name: str
    stream: io.BufferedReader
    refused: FormatError | None = None


def record_error(source: SourceFile, reason: str, *, line: int | None = None, byte: int | None = None) -> FormatError:
    """Return the error for a bad record; its message starts with file, line and byte."""
    location = source.name
    if line is not None:
        location += f", line {line}"
    if byte is not None:
        location += f", byte {byte}"
    return FormatError(f"{location}: {reason}", file=source.name, line=line)


def wide_encoding_error(name: str, head: bytes) -> FormatError | None:
    """Return the error for a text in UTF-16 or UTF-32, recognised by its first bytes; None for other files."""
    if not (_UTF16.match(head) or head.startswith(codecs.BOM_UTF32_BE)):
        return None
    wide = "UTF-32" if b"\0\0" in head[:8] else "UTF-16"
    return FormatError(f"{name}, line 1: is in {wide}; convert it first: iconv -f {wide} -t UTF-8", file=name, line=1)


@contextlib.contextmanager
def file_errors(source: SourceFile) -> Iterator[None]:
    """Convert errors of the decompressors to errors that name the file.

    Raises:
        FormatError: the file is refused, truncated or damaged.
    """
    if source.refused is not None:
        raise source.refused
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise record_error(source, f"is truncated or damaged ({error}); fetch it again") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise record_error(source, f"is truncated or damaged ({error}); fetch it again") from error


class ByteCounter:
    """Counts the bytes read from disk, so that progress can be shown before decompression."""

    def __init__(self) -> None:
        self.bytes_read = 0


class _Raw(io.RawIOBase):
    """A stream with its first bytes put back; a meter counts its bytes."""

    def __init__(self, stream: IO[bytes], head: bytes = b"", meter: ByteCounter | None = None) -> None:
        self._stream = stream
        self._head = head
        self._meter = meter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer).cast("B")
        chunk = self._head[: len(view)] or self._stream.read(len(view))
        self._head = self._head[len(view) :]
        view[: len(chunk)] = chunk
        if self._meter is not None:
            self._meter.bytes_read += len(chunk)
        return len(chunk)

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Zstandard(io.RawIOBase):
    """Decompresses a zstd stream; unlike the library's own reader, it notices a truncated frame."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._library = require("zstandard", extra="loaders")
        self._stream = stream
        self._frame = self._library.ZstdDecompressor().decompressobj()
        self._remainder = b""
        self._ready = b""
        self._in_frame = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer).cast("B")
        while not self._ready:
            chunk = self._remainder or self._stream.read(1 << 17)
            if not chunk:
                if self._in_frame:
                    raise EOFError("the zstd frame ends too early")
                return 0
            self._ready = self._decompress(chunk)
        chunk = self._ready[: len(view)]
        self._ready = self._ready[len(view) :]
        view[: len(chunk)] = chunk
        return len(chunk)

    def _decompress(self, chunk: bytes) -> bytes:
        if not self._in_frame:
            self._frame = self._library.ZstdDecompressor().decompressobj()
        try:
            ready: bytes = self._frame.decompress(chunk)
        except self._library.ZstdError as error:
            raise EOFError(str(error)) from error
        self._in_frame = not self._frame.eof
        self._remainder = self._frame.unused_data
        return ready

    def close(self) -> None:
        self._stream.close()
        super().close()


def list_files(paths: Sequence[str], patterns: Patterns = ANY_NAME) -> tuple[str, ...]:
    """List the files to read, in reading order, with the files of each folder sorted.

    Hidden files and files of other formats are left out. Standard input and collections of ir_datasets keep their
    names.

    Raises:
        LoaderError: a path does not exist, or a folder has no file of these names.
    """
    files: list[str] = []
    for path in paths:
        if not is_virtual_path(path) and not Path(path).exists():
            raise LoaderError(f"{path}: no such file or folder", file=path)
        is_folder = not is_virtual_path(path) and Path(path).is_dir()
        files += _files_in_folder(Path(path), patterns) if is_folder else [path]
    return tuple(files)


def is_virtual_path(path: str) -> bool:
    """Return whether a name means standard input or a collection of ir_datasets."""
    return path == STDIN or is_dataset(path)


def _files_in_folder(folder: Path, patterns: Patterns) -> list[str]:
    files = sorted(
        str(path) for path in folder.rglob("*") if path.is_file() and _matches(path.name, patterns, archive=True)
    )
    if not files:
        wanted = ", ".join(patterns)
        raise LoaderError(
            f"{folder}: no file in this folder is named {wanted}; name the files themselves", file=str(folder)
        )
    return files


def _matches(name: str, patterns: Patterns, *, archive: bool = False) -> bool:
    """Return whether a file in a folder or archive is wanted, by its name without the suffix of the compression."""
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    if name.startswith(".") or any(fnmatch.fnmatch(name.lower(), pattern) for pattern in _EXCLUDED):
        return False
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns) or (
        archive and name.endswith((".tar", ".tgz", ".zip"))
    )


def open_paths(
    paths: Path | str | Sequence[str], patterns: Patterns = ANY_NAME, *, part: Part = "docs"
) -> Iterator[SourceFile]:
    """Open a file, or several files, folders and archives, one source after the other.

    Args:
        paths: a file of any name, or a list of files, folders and archives.
        patterns: names of the wanted files within folders and archives.
        part: the kind of records to read from a collection of ir_datasets.

    Raises:
        LoaderError: one of several paths does not exist, or a folder has no file of these names.
        FileNotFoundError: the single path does not exist.
    """
    files = (str(paths),) if isinstance(paths, str | Path) else list_files(paths, patterns)
    return open_sources(files, patterns, part=part)


def open_sources(
    files: Sequence[str],
    patterns: Patterns = ANY_NAME,
    meter: ByteCounter | None = None,
    *,
    first_bytes: bytes = b"",
    part: Part = "docs",
) -> Iterator[SourceFile]:
    """Open the files one after the other, archives member by member; each is closed before the next is opened.

    Args:
        files: the files, as `list_files` lists them.
        patterns: names of the wanted files within archives.
        meter: counts the bytes read from disk.
        first_bytes: bytes that were already read from standard input; they are put back in front.
        part: the kind of records to read from a collection of ir_datasets.
    """
    for name in files:
        if is_dataset(name):
            with open_part(name, part) as lines:
                yield from _unpack(name, lines, patterns, meter)
            continue
        if name == STDIN:
            stdin = cast("IO[bytes]", _Raw(sys.stdin.buffer, first_bytes)) if first_bytes else sys.stdin.buffer
            yield from _unpack("standard input", stdin, patterns, meter)
            continue
        with Path(name).open("rb", buffering=0) as stream:
            yield from _unpack(name, cast("IO[bytes]", stream), patterns, meter)


def _unpack(name: str, stream: IO[bytes], patterns: Patterns, meter: ByteCounter | None = None) -> Iterator[SourceFile]:
    """Unpack compressions and archives, one inside the other, down to the files themselves."""
    try:
        head = _head(stream)
        buffered = io.BufferedReader(_Raw(stream, head, meter), BUFFER_BYTES)
        if head.startswith(b"PK\x03\x04") and stream.seekable():
            yield from _zip_members(name, stream, patterns)
        elif (inner := _decompressed(head, buffered)) is not None:
            yield from _unpack(name, inner, patterns)
        elif head[257:262] == b"ustar":
            yield from _tar_members(name, buffered, patterns)
        else:
            text = io.BufferedReader(_Raw(stream, head.removeprefix(codecs.BOM_UTF8), meter), BUFFER_BYTES)
            yield SourceFile(name, cast("io.BufferedReader", text), wide_encoding_error(name, head))
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise FormatError(f"{name}: is truncated or damaged ({error}); fetch it again", file=name) from error


def _head(stream: IO[bytes]) -> bytes:
    """Read the first bytes; a pipe may return them in pieces."""
    head = b""
    while len(head) < HEAD_BYTES and (chunk := stream.read(HEAD_BYTES - len(head))):
        head += chunk
    return head


def _decompressed(head: bytes, stream: IO[bytes]) -> IO[bytes] | None:
    if head.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stream))
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(stream)
    if head.startswith(b"BZh"):
        return bz2.BZ2File(stream)
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return cast("IO[bytes]", _Zstandard(stream))
    if head.startswith(b"\x1f\x9d"):
        return io.BytesIO(_without_lzw(stream))
    return None


def _without_lzw(stream: IO[bytes]) -> bytes:
    """Return the bytes that the Unix program ``compress`` packed, all at once: TREC's files have a megabyte or two.

    Raises:
        EOFError: the bytes are truncated or damaged.
    """
    unlzw = require("unlzw3", extra="loaders")
    try:
        content: bytes = unlzw.unlzw(stream.read())
    except (ValueError, IndexError) as error:
        raise EOFError(str(error)) from error
    return content


def _tar_members(name: str, stream: IO[bytes], patterns: Patterns) -> Iterator[SourceFile]:
    has_members = False
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # tarfile keeps every member: memory would grow
            if not member.isfile() or not _matches(Path(member.name).name, patterns):
                continue
            has_members = True
            unpacked = archive.extractfile(member)
            assert unpacked is not None  # a regular file has content
            yield from _unpack(f"{name}!{member.name}", unpacked, patterns)
    if not has_members:
        raise _no_member_error(name, patterns)


def _zip_members(name: str, stream: IO[bytes], patterns: Patterns) -> Iterator[SourceFile]:
    with zipfile.ZipFile(stream) as archive:
        members = [member for member in archive.infolist() if _matches(Path(member.filename).name, patterns)]
        if not members:
            raise _no_member_error(name, patterns)
        for member in members:
            with archive.open(member) as unpacked:
                yield from _unpack(f"{name}!{member.filename}", unpacked, patterns)


def _no_member_error(name: str, patterns: Patterns) -> FormatError:
    return FormatError(f"{name}: nothing in this archive is named {', '.join(patterns)}", file=name)
