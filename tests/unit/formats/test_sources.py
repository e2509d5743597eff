"""Sources of records: compressed files, folders, archives and standard input."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from osrerank.errors import CorpusFormatError, LoaderError
from osrerank.formats.sources import list_files, open_sources
from osrerank.types import Document
from osrerank_loaders.collections.base import Record, read_records
from osrerank_loaders.collections.registry import LOADERS
from tests.unit.osrerank_loaders.conftest import Read

PASSAGES = LOADERS["msmarco-passage"]
PLAIN = b"".join(b"%d\tpassage number %d\n" % (number, number) for number in range(20_000))
EXPECTED = [Document(str(number), f"passage number {number}") for number in range(20_000)]


def zstd_of_two_frames(content: bytes) -> bytes:
    half = len(content) // 2
    return zstandard.compress(content[:half]) + zstandard.compress(content[half:])


def tar_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/collection.tsv", content)
        archive.writestr("set/queries.dev.tsv", b"1\tnot a passage\n")
    return buffer.getvalue()


def tar_of_packed(content: bytes) -> bytes:
    half = content.index(b"\n", len(content) // 2) + 1
    parts = {
        "collection_00.tsv.gz": gzip.compress(content[:half]),
        "collection_01.tsv.xz": lzma.compress(content[half:]),
    }
    return tar_of({"queries.dev.tsv": b"1\tnot a passage\n", **parts})


def lzw_of(content: bytes) -> bytes:
    """Pack as compress does, without any code for two bytes or more: nine bits a byte, and after each 256 a new table.

    Codes are written in groups of eight, so that a group is filled up before the table is cleared.
    """
    codes: list[int] = []
    for start in range(0, len(content), 250):
        part = content[start : start + 250]
        codes += part
        if start + 250 < len(content):
            codes.append(256)
            codes += [0] * (-len(codes) % 8)
    groups = (codes[start : start + 8] for start in range(0, len(codes), 8))
    return b"\x1f\x9d\x90" + b"".join(
        sum(code << (9 * index) for index, code in enumerate(group)).to_bytes(-(-9 * len(group) // 8), "little")
        for group in groups
    )


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gz": gzip.compress,
    "gz of two members": lambda content: gzip.compress(content[:1000]) + gzip.compress(content[1000:]),
    "xz": lzma.compress,
    "zst": zstandard.compress,
    "zst of two frames": zstd_of_two_frames,
    "bz2": bz2.compress,
    "z": lzw_of,
    "tar": lambda content: tar_of({"queries.dev.tsv": b"1\tnot a passage\n", "x/collection.tsv": content}),
    "tar.gz": lambda content: gzip.compress(tar_of({"collection.tsv": content})),
    "tar of packed files": tar_of_packed,
    "zip": zip_of,
}


@pytest.mark.long
@pytest.mark.parametrize("packing", PACKINGS)
def test_every_compression_gives_the_same_records(read: Read, packing: str) -> None:
    assert read(PASSAGES, PACKINGS[packing](PLAIN)) == EXPECTED


@pytest.mark.parametrize("packing", ["plain", "gz", "tar.gz", "zst"])
def test_records_are_read_from_standard_input(monkeypatch: pytest.MonkeyPatch, packing: str) -> None:
    class Pipe(io.BytesIO):
        """Gives few bytes at a time and cannot go back."""

        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size, 100) if size is not None and size >= 0 else 100)

        def seekable(self) -> bool:
            return False

    class Input:
        buffer = Pipe(PACKINGS[packing](PLAIN))

    monkeypatch.setattr("sys.stdin", Input)
    assert list(read_records(PASSAGES, open_sources(["-"], PASSAGES.files))) == EXPECTED


def test_a_folder_is_read_in_order_without_other_files(read: Read, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "collection.tsv").write_bytes(b"2\ttwo\n")
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b'{"id": "1", "contents": "one"}\n'))
    (folder / ".hidden.tsv").write_bytes(b"hidden")
    (folder / "README.jsonl").write_bytes(b"hidden")
    (folder / "qrels.tsv").write_bytes(b"1\t0\t1\t1\n")
    assert read(PASSAGES, folder) == [Document("1", "one"), Document("2", "two")]


@pytest.mark.long
@pytest.mark.parametrize("packing", ["gz", "xz", "zst", "bz2", "tar.gz", "tar", "zip"])
def test_a_truncated_compressed_file_is_named(read: Read, packing: str) -> None:
    packed = PACKINGS[packing](PLAIN)
    with pytest.raises(CorpusFormatError, match=r"file.* is truncated or damaged"):
        read(PASSAGES, packed[: len(packed) // 2])


@pytest.mark.parametrize("packing", ["gz", "xz", "zst"])
def test_a_damaged_compressed_file_is_named(read: Read, packing: str) -> None:
    packed = bytearray(PACKINGS[packing](PLAIN))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = bytes(40)
    with pytest.raises(CorpusFormatError, match="is truncated or damaged"):
        read(PASSAGES, bytes(packed))


def test_a_folder_without_files_is_an_error(read: Read, tmp_path: Path) -> None:
    with pytest.raises(LoaderError, match=r"nowhere.tsv: no such file or folder"):
        list_files([str(tmp_path / "nowhere.tsv")])
    (tmp_path / "other.txt").write_text("x")
    with pytest.raises(LoaderError, match=r"contains no file named collection\*.tsv"):
        read(PASSAGES, tmp_path)
    with pytest.raises(CorpusFormatError, match="contains no file named"):
        read(PASSAGES, tar_of({"other.txt": b"x"}))


def bad(records: list[Record]) -> list[str]:
    return [str(record) for record in records if isinstance(record, CorpusFormatError)]


def test_an_empty_file_of_a_folder_is_a_bad_record(read: Read) -> None:
    (message,) = bad(read(PASSAGES, b""))
    assert message.endswith("file: there is no record for the loader msmarco-passage; is this the right file?")
