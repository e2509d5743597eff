"""Downloads from a server that drops connections, ignores ranges, or gives other bytes."""

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from osrerank.errors import ChecksumError, LoaderError
from osrerank_loaders.download import RemoteFile, fetch, published
from osrerank_loaders.load.retry import Patience

CONTENT = random.Random(7).randbytes(3_000_000)
HURRIED = Patience(first_s=0.001, longest_s=0.01, give_up_s=1, timeout_s=5)


class FileServer:
    """Serves ``content``; each of the first ``drops`` answers ends after a part; ``ranges`` may be ignored."""

    def __init__(self, content: bytes = CONTENT, *, drops: int = 0, ranges: bool = True, status: int = 0) -> None:
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.headers["Range"])
                begin = int(self.headers["Range"].removeprefix("bytes=").rstrip("-")) if ranges else 0
                rest = content[begin:]
                self.send_response(status or (206 if ranges else 200))
                self.send_header("Content-Length", str(len(rest)))
                self.end_headers()
                self.wfile.write(rest[: len(rest) // 3] if len(outer.asked) <= drops else rest)

            def log_message(self, *_arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def file(self) -> RemoteFile:
        url = f"http://127.0.0.1:{self.server.server_port}/collection.gz"
        return RemoteFile("collection.gz", url, len(CONTENT), hashlib.md5(CONTENT).hexdigest())

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


Serve = Callable[..., FileServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[FileServer] = []

    def start(*arguments: bytes, **options: int) -> FileServer:
        servers.append(FileServer(*arguments, **options))  # type: ignore[arg-type]  # the options are the server's own
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def test_a_dropped_connection_is_resumed(serve: Serve, tmp_path: Path) -> None:
    server = serve(drops=4)
    seen: list[int] = []
    path = fetch(server.file(), tmp_path / "folder", patience=HURRIED, report=seen.append)
    assert path == tmp_path / "folder" / "collection.gz"
    assert path.read_bytes() == CONTENT
    assert server.asked[:2] == ["bytes=0-", "bytes=1000000-"]
    assert len(server.asked) == 5
    assert seen[-1] == len(CONTENT)
    assert [item.name for item in path.parent.iterdir()] == ["collection.gz"]


def test_a_server_without_ranges_begins_anew(serve: Serve, tmp_path: Path) -> None:
    server = serve(drops=1, ranges=False)
    assert fetch(server.file(), tmp_path, patience=HURRIED).read_bytes() == CONTENT


def test_an_unfinished_file_is_gone_on_with(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "collection.gz.part").write_bytes(CONTENT[:2_999_990])
    server = serve()
    assert fetch(server.file(), tmp_path, patience=HURRIED).read_bytes() == CONTENT
    assert server.asked == ["bytes=2999990-"]


def test_a_file_that_is_there_is_checked_not_fetched(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "collection.gz").write_bytes(CONTENT)
    server = serve()
    fetch(server.file(), tmp_path)
    assert server.asked == []
    (tmp_path / "collection.gz").write_bytes(CONTENT[:-1])
    with pytest.raises(ChecksumError, match=r"2,999,999 bytes, published are 3,000,000; move it away"):
        fetch(server.file(), tmp_path)


def test_corrupt_bytes_are_deleted(serve: Serve, tmp_path: Path) -> None:
    server = serve(CONTENT[:-1] + b"!" if CONTENT[-1:] != b"!" else CONTENT[:-1] + b"?")
    with pytest.raises(ChecksumError, match=r"its MD5 is [0-9a-f]{32}, published is [0-9a-f]{32}; it is deleted"):
        fetch(server.file(), tmp_path, patience=HURRIED)
    assert list(tmp_path.iterdir()) == []


def test_a_longer_file_is_another_file(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(ChecksumError, match=r"published are 3,000,000"):
        fetch(serve(CONTENT + b"more").file(), tmp_path, patience=HURRIED)


def test_a_shorter_file_is_given_up(serve: Serve, tmp_path: Path) -> None:
    hurried = Patience(first_s=0.001, longest_s=0.01, give_up_s=0.1)
    with pytest.raises(LoaderError, match=r"has not answered for 0.1 s .*same command again"):
        fetch(serve(CONTENT[:1000]).file(), tmp_path, patience=hurried)


def test_a_missing_file_is_not_asked_for_again(serve: Serve, tmp_path: Path) -> None:
    server = serve(status=404)
    with pytest.raises(LoaderError, match="the server answers 404"):
        fetch(server.file(), tmp_path, patience=HURRIED)
    assert len(server.asked) == 1


def test_only_the_web_is_fetched_from(tmp_path: Path) -> None:
    with pytest.raises(LoaderError, match="only http and https"):
        fetch(RemoteFile("passwd", "file:///etc/passwd", 10, ""), tmp_path)


def test_every_published_file_has_size_and_md5() -> None:
    for name, collection in published().items():
        assert collection.about, name
        assert collection.files, name
        for file in collection.files:
            assert file.bytes > 0, file
            assert len(file.md5) == 32, file
            assert file.url.endswith(f"/{file.name}"), file
    (passages,) = (file for file in published()["msmarco-passage"].files if file.name == "collectionandqueries.tar.gz")
    assert (passages.bytes, passages.md5) == (1_057_717_952, "31644046b18952c1386cd4564ba2ae69")
