"""A file of vectors that is damaged is deleted, and whoever opens it goes on with empty hands."""

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osrerank.vectors.file import FileStore

PAGE_BYTES = 4096
MEGABYTE = 1_000_000


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def records(count: int, start: int = 0) -> dict[bytes, bytes]:
    return {key(number): random.Random(number).randbytes(2_000) for number in range(start, start + count)}


KEPT = records(100)


def opened(folder: Path) -> FileStore:
    return FileStore(folder, max_bytes=4 * MEGABYTE, ttl_s=3600)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a whole file with records."""
    store = opened(tmp_path_factory.mktemp("whole"))
    for number, record in KEPT.items():
        store.write({number: record})
    (file,) = store.folder.glob("*.lmdb")
    return file.read_bytes()


@st.composite
def cut(draw: st.DrawFn, content: bytes) -> bytes:
    size = len(content)
    lengths = (
        st.integers(1, 2 * PAGE_BYTES)
        | st.integers(1, size - 1)
        | st.integers(1, size // PAGE_BYTES - 1).map(PAGE_BYTES.__mul__)
    )
    return content[: draw(lengths)]


@st.composite
def overwritten(draw: st.DrawFn, content: bytes) -> bytes:
    """Return a file with bad meta pages, with another version, or with nothing of LMDB's."""
    noise = draw(st.randoms(use_true_random=False)).randbytes
    first, tail = content[:PAGE_BYTES], content[PAGE_BYTES:]
    version = draw(st.integers(0, 2**32 - 1).filter(lambda version: version != 1)).to_bytes(4, "little")
    damaged = [
        bytes(PAGE_BYTES) + tail,
        first + bytes(PAGE_BYTES) + tail[PAGE_BYTES:],
        bytes(len(content)),
        noise(draw(st.integers(1, len(content)))),
        noise(2 * PAGE_BYTES) + content[2 * PAGE_BYTES :],
        content[:20] + version + content[24:],
        first + tail[:20] + version + tail[24:],
        content[: 2 * PAGE_BYTES] + bytes(len(content) - 2 * PAGE_BYTES),
    ]
    return draw(st.sampled_from(damaged))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])  # the log is cleared
@given(data=st.data())
def test_a_damaged_vector_file_is_deleted_named_once_and_replaced(
    data: st.DataObject, content: bytes, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    folder = tmp_path_factory.mktemp("damaged")
    file = folder / "vectors-000007.lmdb"
    file.write_bytes(data.draw(cut(content) | overwritten(content)))
    store = opened(folder)
    assert store.read(list(KEPT)) == {}
    lines = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert lines == [f"[vectors-damaged] deleted damaged file {file}"]
    assert [path.name for path in folder.glob("*.lmdb")] == ["vectors-000008.lmdb"]
    assert store.write(records(3)) == 3
    assert store.read(list(KEPT)) == records(3)
    assert (store.size().records, store.drop()) == (3, 3)


@settings(max_examples=25)
@given(at=st.integers(2, 10**6), is_zero=st.booleans(), seed=st.integers())
def test_a_vector_file_with_a_bad_page_only_loses_records(
    at: int, is_zero: bool, seed: int, content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    start = at % (len(content) // PAGE_BYTES - 2) * PAGE_BYTES + 2 * PAGE_BYTES
    page = bytes(PAGE_BYTES) if is_zero else random.Random(seed).randbytes(PAGE_BYTES)
    (folder / "vectors-000001.lmdb").write_bytes(content[:start] + page + content[start + PAGE_BYTES :])
    store = opened(folder)
    assert set(store.read(list(KEPT))) <= set(KEPT)
    assert store.write(records(50, start=500)) == 50
    assert store.read([*records(50, start=500)]) == records(50, start=500)
    store.drop()
    assert store.size().records == 0


def test_an_empty_vector_file_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "vectors-000001.lmdb").touch()
    store = opened(tmp_path)
    assert store.size().records == 0
    assert store.write(records(3)) == 3
    assert store.read(list(KEPT)) == records(3)


@pytest.mark.parametrize("length", [0, 100, PAGE_BYTES, 2 * PAGE_BYTES, 10 * PAGE_BYTES + 1])
def test_a_vector_file_cut_while_open_is_deleted_before_the_next_read(
    length: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    store.write(KEPT)
    assert len(store.read(list(KEPT))) == len(KEPT)
    (file,) = tmp_path.glob("*.lmdb")
    os.truncate(file, length)
    assert store.read(list(KEPT)) == {}
    assert caplog.text.count("[vectors-damaged]") == 1
    assert not file.exists()
    assert store.write(records(3)) == 3
    assert store.read(list(KEPT)) == records(3)


def test_of_two_vector_files_only_the_damaged_file_is_deleted(tmp_path: Path) -> None:
    store = FileStore(tmp_path, max_bytes=MEGABYTE, ttl_s=3600)
    for start in range(0, 400, 50):
        store.write(records(50, start=start))
    n_read = len(store.read(list(records(400))))
    store.close()
    old, young = sorted(tmp_path.glob("*.lmdb"))
    os.truncate(old, 10 * PAGE_BYTES)
    assert 0 < len(store.read(list(records(400)))) < n_read
    assert [file.name for file in tmp_path.glob("*.lmdb")] == [young.name]
