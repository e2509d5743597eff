"""Records in files, memory and Redis: what is shared, what is bounded, what an absent or broken store costs."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from osrerank.errors import OsrerankError
from osrerank.testing import ManualClock
from osrerank.vectors import file as file_module
from osrerank.vectors.file import FileStore, file_store
from osrerank.vectors.redis import KEPT, KEPT_BYTES, OLD, RECORD_OVERHEAD_BYTES, YOUNG, RedisStore
from osrerank.vectors.store import VectorStore
from tests import servers
from tests.memory_store import MemoryStore
from tests.waiting import in_a_child, wait_until

MEGABYTE = 1_000_000
RECORD = bytes(2_000)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def records(count: int, start: int = 0) -> dict[bytes, bytes]:
    return {key(number): number.to_bytes(4, "big") + RECORD for number in range(start, start + count)}


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "vectors", max_bytes=4 * MEGABYTE, ttl_s=3600)


@pytest.fixture(params=["file", "memory", pytest.param("Redis", marks=pytest.mark.server)])
def every_store(request: pytest.FixtureRequest, store: FileStore) -> Iterator[VectorStore]:
    """A store of each kind in turn, empty."""
    opened_store: VectorStore = store if request.param == "file" else MemoryStore()
    if request.param == "Redis":
        opened_store = RedisStore(request.getfixturevalue("redis_url"), max_bytes=4 * MEGABYTE, ttl_s=3600)
        opened_store.drop()
    yield opened_store
    opened_store.drop()
    opened_store.close()


def test_written_vectors_are_read_back(every_store: VectorStore) -> None:
    store = every_store
    assert store.read([key(1)]) == {}
    assert store.size().records == 0
    assert store.write(records(3)) == 3
    assert store.read([key(2), key(7), key(0)]) == {key(0): records(3)[key(0)], key(2): records(3)[key(2)]}
    assert store.size().records == 3
    assert store.write(records(3)) == 3  # again, which counts once
    assert store.size().records == 3
    assert store.drop() == 3
    assert store.read([key(1)]) == {}


def test_pruning_deletes_vectors_that_are_not_kept(every_store: VectorStore) -> None:
    store = every_store
    assert store.prune([[key(1)]]) == 0
    store.write(records(5))
    assert store.prune(iter([[key(1), key(8)], [], [key(4)]])) == 2
    assert store.read([key(number) for number in range(5)]) == {
        number: records(5)[number] for number in (key(1), key(4))
    }
    assert store.size().records == 2
    store.write(records(1))
    assert store.size().records == 3
    store.prune([])
    assert store.size().records == 0


def test_a_failed_pruning_leaves_all_vectors(every_store: VectorStore) -> None:
    every_store.write(records(300))

    def failing() -> Iterator[list[bytes]]:
        yield [key(1)]
        raise KeyError("the index is gone")

    with pytest.raises(KeyError, match="the index is gone"):
        every_store.prune(failing())
    every_store.write(records(1, start=300))
    assert len(every_store.read([key(number) for number in range(301)])) == 301
    assert every_store.prune([[key(1)], [key(1), key(2)]]) == 2


def test_pruning_reads_both_generations_and_keeps_the_age_of_vectors(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "vectors", max_bytes=MEGABYTE, ttl_s=3600)
    for start in range(0, 400, 50):
        store.write(records(50, start=start))
    assert len(list(store.folder.glob("vectors-*.lmdb"))) == 2
    stored = store.read([key(number) for number in range(400)])
    before = min(generation.created_at_s for generation in store._generations)
    assert store.prune([record_key] for record_key in stored) == len(stored)  # more than a generation may be kept
    assert store.read(list(stored)) == stored
    kept_keys = list(stored)[::7]
    assert store.prune([kept_keys]) == len(kept_keys)
    assert store.read(list(stored)) == {record_key: stored[record_key] for record_key in kept_keys}
    assert len(list(store.folder.glob("vectors-*.lmdb"))) == 1
    assert [generation.created_at_s for generation in store._generations] == [pytest.approx(before)]
    store.close()


def test_a_vector_folder_is_readable_only_by_its_user(store: FileStore) -> None:
    store.write(records(1))
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in store.folder.iterdir()} == {0o600}


def test_reading_creates_no_vector_folder(store: FileStore) -> None:
    store.read([key(1)])
    assert not store.folder.exists()
    store.write(records(1))
    before = {file.name: file.stat().st_mtime_ns for file in store.folder.glob("*.lmdb")}
    assert store.read([key(0), key(1)])
    assert {file.name: file.stat().st_mtime_ns for file in store.folder.glob("*.lmdb")} == before


def test_old_records_make_room_for_new_ones(store: FileStore) -> None:
    for start in range(0, 4000, 100):
        assert store.write(records(100, start)) == 100
    assert store.size().stored_bytes <= 4 * MEGABYTE
    kept_numbers = [number for number in range(4000) if store.read([key(number)])]
    assert kept_numbers == list(range(kept_numbers[0], 4000))
    assert len(kept_numbers) > 400
    assert len(list(store.folder.glob("*.lmdb"))) == 2


def test_a_record_larger_than_the_file_is_not_stored(store: FileStore, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert store.write({key(1): bytes(3 * MEGABYTE)}) == 0
    assert "writes of document vectors pause" in caplog.text
    assert store.read([key(1)]) == {}


def test_a_vector_record_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FileStore(tmp_path, max_bytes=4 * MEGABYTE, ttl_s=3600, clock=clock)
    store.write(records(1))
    clock.sleep(1900)  # the next generation
    store.write(records(1, start=1))
    assert len(store.read([key(0), key(1)])) == 2
    clock.sleep(1800)
    assert list(store.read([key(0), key(1)])) == [key(1)]
    clock.sleep(100)
    store.write(records(1, start=2))  # begins the third, and deletes the first
    clock.sleep(-3800)
    assert sorted(store.read([key(0), key(1), key(2)])) == [key(1), key(2)]


def test_a_process_opens_one_store_for_a_vector_folder(tmp_path: Path) -> None:
    first = file_store(tmp_path / "a", max_bytes=MEGABYTE, ttl_s=60)
    assert file_store(tmp_path / "b" / ".." / "a", max_bytes=MEGABYTE, ttl_s=60) is first
    assert file_store(tmp_path / "b", max_bytes=MEGABYTE, ttl_s=60) is not first


OPEN = """
from pathlib import Path
from osrerank.vectors.file import FileStore
store = FileStore(Path({!r}), max_bytes={}, ttl_s=3600)
"""
WRITE = """
for number in range({}, {}):
    store.write({{number.to_bytes(16, "big"): number.to_bytes(4, "big") + bytes(2000)}})
    print(number, flush=True)
"""


def elsewhere(folder: Path, code: str, max_bytes: int = 4 * MEGABYTE) -> str:
    """Return what another process prints that has the store open."""
    command = [sys.executable, "-c", OPEN.format(str(folder), max_bytes) + code]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def writer(folder: Path, start: int, stop: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", OPEN.format(str(folder), 4 * MEGABYTE) + WRITE.format(start, stop)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.long
def test_processes_share_a_vector_file(store: FileStore) -> None:
    store.write(records(1))
    with writer(store.folder, 100, 160) as first_writer, writer(store.folder, 200, 260) as second_writer:
        assert first_writer.wait(60) == second_writer.wait(60) == 0
    keys = [key(number) for number in (0, *range(100, 160), *range(200, 260))]
    assert len(store.read(keys)) == len(keys)


@pytest.mark.long
def test_a_larger_file_limit_of_another_process_is_adopted(store: FileStore, caplog: pytest.LogCaptureFixture) -> None:
    assert store.write(records(10)) == 10  # the file is mapped at 2 MB
    for last in (2_000, 4_000):
        many = f"store.write({{n.to_bytes(16, 'big'): bytes(2000) for n in range({last})}})"
        elsewhere(store.folder, many, max_bytes=64 * MEGABYTE)
        assert len(store.read([key(number) for number in range(last)])) == last
    assert store.write(records(10, start=9_000)) == 10
    assert len(store.read([key(number) for number in (3_999, 9_000)])) == 2
    assert caplog.text == ""


@pytest.mark.long
def test_a_killed_writer_leaves_whole_vector_records(store: FileStore) -> None:
    with writer(store.folder, 0, 1_000_000) as killed:
        assert killed.stdout is not None
        written = [int(killed.stdout.readline()) for _ in range(50)]
        killed.send_signal(signal.SIGKILL)
    stored = store.read([key(number) for number in range(60)])
    assert {key(number) for number in written} <= set(stored)
    assert all(stored[record_key] == record_key[-4:] + RECORD for record_key in stored)
    assert store.write(records(1, start=5000)) == 1  # the lock that it held is free


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_opens_the_vector_file_again(store: FileStore) -> None:
    store.write(records(2))
    assert in_a_child(lambda: len(store.read([key(0), key(1)])) == 2 and store.write(records(1, start=7)) == 1)
    assert store.read([key(7)])
    assert store.write(records(1, start=8)) == 1


@pytest.mark.long
def test_another_process_notices_dropped_records(store: FileStore) -> None:
    store.write(records(5))
    assert elsewhere(store.folder, "print(store.drop())") == "5\n"
    assert store.read([key(number) for number in range(5)]) == {}


def test_a_removed_vector_folder_is_created_again(store: FileStore) -> None:
    store.write(records(1))
    for file in store.folder.iterdir():
        file.unlink()
    store.folder.rmdir()
    assert store.read([key(0)]) == {}
    assert store.write(records(1)) == 1
    assert store.read([key(0)])


@pytest.mark.long
def test_a_process_closes_a_vector_file_that_another_found_damaged(store: FileStore) -> None:
    code = OPEN.format(str(store.folder), 4 * MEGABYTE) + (
        "store.write({bytes(15) + bytes([n]): bytes(2000) for n in range(50)})\n"
        "print('written', flush=True)\n"
        "input()\n"
        "print(len(store.read([bytes(16)])), store.write({bytes(16): b'again'}), flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        (file,) = store.folder.glob("*.lmdb")
        os.truncate(file, 10_000)
        assert store.write(records(1, start=60)) == 1  # and deletes the damaged file
        assert process.communicate("\n")[0] == "0 1\n"
    assert store.read([key(0), key(60)]) == {key(0): b"again", **records(1, start=60)}


def test_an_unusable_vector_folder_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "taken").write_text("a file")
    store = FileStore(tmp_path / "taken" / "vectors", max_bytes=MEGABYTE, ttl_s=60)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert store.write(records(1)) == 0
            assert store.read([key(0)]) == {}
    assert len(caplog.records) <= 2
    assert "taken" in caplog.text
    with pytest.raises(OsrerankError, match="cannot be used"):  # who asks is told
        store.drop()


def test_a_full_disk_stops_writing_vectors_but_not_reading(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(records(1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_module, "_put", full)
    assert store.write(records(1, start=1)) == 0
    assert store.read([key(0)])


def test_vectors_are_not_stored_on_a_network_file_system(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nserver:/home {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(file_module, "MOUNTS", mounts)
    assert store.write(records(1)) == 0
    assert "network file system (nfs4)" in caplog.text
    assert not list(store.folder.glob("*.lmdb"))


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    client = Redis.from_url(redis_url)
    client.flushall()
    yield client
    client.flushall()
    client.close()


def opened(redis_url: str, *, max_bytes: int = 4 * MEGABYTE, ttl_s: float = 3600) -> RedisStore:
    return RedisStore(redis_url, max_bytes=max_bytes, ttl_s=ttl_s)


def test_pruning_redis_keeps_the_age_of_vectors_and_leaves_no_empty_key(redis_url: str, client: Redis) -> None:
    store = opened(redis_url, ttl_s=100)
    store.write(records(5))
    client.pexpire(YOUNG, 60_000)
    assert store.prune([[key(1), key(4)]]) == 2
    assert store._redis.exists(KEPT, KEPT_BYTES) == 0
    assert store.size().stored_bytes == 2 * (2_004 + RECORD_OVERHEAD_BYTES)
    assert 0 < client.pttl(YOUNG) <= 60_000
    store.prune([])
    assert client.dbsize() == 0
    store.close()


def test_old_records_make_room_in_redis_too(redis_url: str, client: Redis) -> None:
    store = opened(redis_url)
    for start in range(0, 4000, 100):
        assert store.write(records(100, start)) == 100
        assert store.size().stored_bytes <= 4.3 * MEGABYTE
    kept_numbers = [number for number in range(4000) if store.read([key(number)])]
    assert kept_numbers == list(range(kept_numbers[0], 4000))
    assert len(kept_numbers) > 900
    bytes_in_redis = sum(client.memory_usage(generation, samples=0) or 0 for generation in (YOUNG, OLD))
    assert 0.9 < bytes_in_redis / store.size().stored_bytes < 1.4


def test_a_record_is_gone_from_redis_after_its_time(redis_url: str, client: Redis) -> None:
    store = opened(redis_url, ttl_s=60.0)
    store.write(records(1))
    assert store.read([key(0)])
    for name in client.scan_iter("*"):
        client.pexpire(name, client.pttl(name) - 61_000)
    assert store.read([key(0)]) == {}
    assert client.dbsize() == 0
    assert store.write(records(2)) == 2  # as after a flush
    assert len(store.read([key(0), key(1)])) == 2


def test_large_records_are_written_to_redis_in_pieces(redis_url: str, client: Redis) -> None:
    store = opened(redis_url, max_bytes=100 * MEGABYTE)
    many = {record: bytes(300_000) for record in records(40)}
    assert store.write(many) == 40
    assert store.read(list(many)) == many
    assert store.read(list(many)) == many  # now it knows how large they are


def test_a_redis_value_of_another_type_is_not_read_as_a_record(
    redis_url: str, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.set(YOUNG, "taken")
    store = opened(redis_url)
    with caplog.at_level(logging.WARNING):
        assert store.read([key(0)]) == {}
        assert store.write(records(1)) == 0
    assert "reads of document vectors pause" in caplog.text


def test_an_absent_redis_for_vectors_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    store = opened(f"redis://127.0.0.1:{servers.free_port()}/0")
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            assert store.read([key(0)]) == {}
            assert store.write(records(1)) == 0
    assert time.monotonic() - began < 3
    assert len(caplog.records) == 2
    for ask in (store.size, store.drop, lambda: store.prune([[key(0)]])):
        with pytest.raises(OsrerankError, match="the document vectors in Redis cannot be used"):
            ask()
    store.close()


@pytest.mark.long
def test_a_full_redis_gets_back_the_memory_of_vectors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("osrerank.vectors.store.PAUSE_S", 0.0)
    options = ("--maxmemory", "6mb", "--maxmemory-policy", "noeviction")
    with (
        servers.start_redis(servers.redis_binary(), tmp_path, options=options) as (url, _),
        Redis.from_url(url) as client,
    ):
        store = RedisStore(url, max_bytes=100 * MEGABYTE, ttl_s=3600)
        with caplog.at_level(logging.WARNING):
            written = []
            for start in range(0, 5000, 50):
                wait_until(lambda: client.info("memory")["lazyfree_pending_objects"] == 0)
                written.append(store.write(records(50, start)))
        assert 0 in written
        assert 50 in written[-4:]  # what it gave back is used again
        assert "writes of document vectors pause" in caplog.text
