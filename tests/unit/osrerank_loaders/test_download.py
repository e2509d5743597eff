"""Downloads of collections: resuming, checksums, refusals, and catalogues."""

import hashlib
import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from osrerank.errors import ChecksumError, LoaderError
from osrerank.evaluation.published import COLLECTIONS
from osrerank_loaders.cli import download
from osrerank_loaders.download import RemoteFile, fetch, read_catalogue
from osrerank_loaders.load.retry import RetryBudget

CONTENT = random.Random(7).randbytes(3_000_000)
HURRIED = RetryBudget(first_pause_s=0.001, longest_pause_s=0.01, give_up_s=1, timeout_s=5)


class FileServer:
    """Serves ``content``; each of the first ``drops`` answers ends after a part; ``ranges`` may be ignored."""

    def __init__(
        self, content: bytes = CONTENT, *, drops: int = 0, ranges: bool = True, status: int = 0, kind: str = ""
    ) -> None:
        self.asked: list[str] = []
        self.tag = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.headers["Range"])
                is_part = ranges and self.headers["If-Range"] in (None, outer.tag)
                begin = int(self.headers["Range"].removeprefix("bytes=").rstrip("-")) if is_part else 0
                remaining = content[begin:]
                self.send_response(status or (206 if is_part else 200))
                self.send_header("Content-Length", str(len(remaining)))
                if kind:
                    self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(remaining[: len(remaining) // 3] if len(outer.asked) <= drops else remaining)

            def do_HEAD(self) -> None:
                outer.asked.append("size")
                self.send_response(status or 200)
                self.send_header("Content-Length", str(len(content)))
                if outer.tag:
                    self.send_header("ETag", outer.tag)
                self.end_headers()

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
def file_server() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda *given, **options: stack.enter_context(closing(FileServer(*given, **options)))


def test_a_download_resumes_after_a_dropped_connection(file_server: Serve, tmp_path: Path) -> None:
    server = file_server(drops=4)
    seen: list[int] = []
    path = fetch(server.file(), tmp_path / "folder", retry_budget=HURRIED, report=seen.append)
    assert path == tmp_path / "folder" / "collection.gz"
    assert path.read_bytes() == CONTENT
    assert server.asked[:2] == ["bytes=0-", "bytes=1000000-"]
    assert len(server.asked) == 5
    assert seen[-1] == len(CONTENT)
    assert [item.name for item in path.parent.iterdir()] == ["collection.gz"]


def test_a_server_without_ranges_or_with_another_content_type_is_downloaded_from(
    file_server: Serve, tmp_path: Path
) -> None:
    server = file_server(drops=1, ranges=False)
    assert fetch(server.file(), tmp_path, retry_budget=HURRIED).read_bytes() == CONTENT
    assert fetch(file_server(kind="text/html").file(), tmp_path, retry_budget=HURRIED).read_bytes() == CONTENT


def test_an_unfinished_download_continues(file_server: Serve, tmp_path: Path) -> None:
    (tmp_path / "collection.gz.part").write_bytes(CONTENT[:2_999_990])
    server = file_server()
    assert fetch(server.file(), tmp_path, retry_budget=HURRIED).read_bytes() == CONTENT
    assert server.asked == ["bytes=2999990-"]


def test_an_existing_file_is_checked_and_not_downloaded(file_server: Serve, tmp_path: Path) -> None:
    (tmp_path / "collection.gz").write_bytes(CONTENT)
    server = file_server()
    fetch(server.file(), tmp_path)
    assert server.asked == []
    (tmp_path / "collection.gz").write_bytes(CONTENT[:-1])
    with pytest.raises(ChecksumError, match=r"2,999,999 bytes, but 3,000,000 are published; move the file away"):
        fetch(server.file(), tmp_path)


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (
            CONTENT[1:] + b"!",
            ChecksumError,
            "the MD5 is [0-9a-f]{32}, but [0-9a-f]{32} is published; the file is del",
        ),
        (CONTENT + b"more", ChecksumError, "3,000,000 are published"),
        (CONTENT[:1000], LoaderError, "has not responded for 0.1 s .*same command again"),
    ],
    ids=["corrupt", "longer", "shorter"],
)
def test_a_download_with_another_checksum_is_refused(file_server, tmp_path, content, error, said):
    with pytest.raises(error, match=said):
        fetch(file_server(content).file(), tmp_path, retry_budget=replace(HURRIED, give_up_s=0.1))
    assert (list(tmp_path.iterdir()) == []) is (error is ChecksumError)  # an unfinished file stays


@pytest.mark.parametrize(
    ("page", "kind"), [(b"<html>login</html>", ""), (b"Please log in here", "text/html; charset=x")]
)
def test_an_html_page_in_place_of_the_file_is_named(file_server: Serve, tmp_path: Path, page: bytes, kind: str) -> None:
    server = file_server(page, ranges=False, kind=kind)
    with pytest.raises(
        LoaderError, match=r"responds with 18 bytes of HTML where 3\.0 MB are expected, such as a login"
    ):
        fetch(server.file(), tmp_path, retry_budget=HURRIED)
    with pytest.raises(LoaderError, match=r"responds with 18 bytes of HTML where collection\.gz is expected"):
        fetch(replace(server.file(), bytes=None, md5=None), tmp_path, retry_budget=HURRIED)
    assert server.asked == ["bytes=0-", "size", "bytes=0-"]


@pytest.mark.parametrize(("known", "asked"), [({}, "bytes=0-"), ({"bytes": None}, "size")])
def test_a_download_that_is_not_found_is_not_retried(
    file_server: Serve, tmp_path: Path, known: dict, asked: str
) -> None:
    server = file_server(status=404)
    with pytest.raises(LoaderError, match="the server responds with 404"):
        fetch(replace(server.file(), **known), tmp_path, retry_budget=HURRIED)
    assert server.asked == [asked]


def test_a_url_that_is_not_http_and_an_empty_file_are_refused(tmp_path: Path, file_server: Serve) -> None:
    with pytest.raises(LoaderError, match="only http and https"):
        fetch(RemoteFile("passwd", "file:///etc/passwd", 10, ""), tmp_path)
    with pytest.raises(LoaderError, match="sends no Content-Length; add bytes"):
        fetch(replace(file_server(b"").file(), bytes=None), tmp_path, retry_budget=HURRIED)


def test_a_download_of_unknown_size_has_the_length_that_the_server_states(file_server: Serve, tmp_path: Path) -> None:
    server = file_server(drops=2)  # the first question has no content
    unknown = replace(server.file(), bytes=None, md5=None)
    assert fetch(unknown, tmp_path, retry_budget=HURRIED).read_bytes() == CONTENT
    assert server.asked == ["size", "bytes=0-", "bytes=1000000-"]
    fetch(unknown, tmp_path)  # it is there
    assert len(server.asked) == 3


@pytest.mark.parametrize("tag", ["", '"first"', '"second"'])
def test_two_versions_of_a_file_without_md5_are_not_joined(file_server: Serve, tmp_path: Path, tag: str) -> None:
    (tmp_path / "collection.gz.part").write_bytes(bytes(1000) if tag != '"first"' else CONTENT[:1000])
    (tmp_path / "collection.gz.part.version").write_text('"first"')
    server = file_server()
    server.tag = tag
    assert fetch(replace(server.file(), md5=None), tmp_path, retry_budget=HURRIED).read_bytes() == CONTENT
    assert server.asked == ["size", "bytes=1000-" if tag == '"first"' else "bytes=0-"]
    assert [path.name for path in tmp_path.iterdir()] == ["collection.gz"]


def test_published_files_have_size_and_md5_but_for_twelve() -> None:
    assert all(collection.about for collection in read_catalogue().values())
    files = [file for collection in read_catalogue().values() for file in collection.files]
    assert all(file.url.endswith(f"/{file.name}") for file in files)
    assert len({file.name for file in files if file.bytes is None or file.md5 is None}) == 12
    (passages,) = (
        file for file in read_catalogue()["msmarco-passage"].files if file.name == "collectionandqueries.tar.gz"
    )
    assert (passages.bytes, passages.md5) == (1_057_717_952, "31644046b18952c1386cd4564ba2ae69")


def test_every_file_that_reproduce_needs_can_be_downloaded() -> None:
    for name, collection in COLLECTIONS.items():
        files = {(file.name, file.url) for file in read_catalogue()[name].files}
        assert files == {(file.name, file.url) for file in (collection.qrels, *collection.candidates.values())}


def test_a_users_catalogue_replaces_the_packages_list(file_server, tmp_path):
    file = file_server().file()
    listed = {"mine": {"about": "of ours", "files": [{"name": file.name, "url": file.url}]}}
    catalogue = tmp_path / "catalogue.json"
    catalogue.write_text(json.dumps(listed))
    listed_there = ["--catalogue", str(catalogue)]
    outcome = CliRunner().invoke(download, ["mine", "--output", str(tmp_path / "made"), *listed_there])
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout == f"{tmp_path / 'made' / 'collection.gz'}\n"
    assert (
        f"is not verified: no MD5 is published; its SHA-256 is {hashlib.sha256(CONTENT).hexdigest()}" in outcome.stderr
    )
    error = CliRunner().invoke(download, ["msmarco-passage", *listed_there]).exception
    assert str(error) == "there is no collection 'msmarco-passage'; choose one of mine"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"md6": "0"}, "mine.files.0.md6: there is no such field"),
        ({"name": "../passwd"}, "mine.files.0.name: it must match the pattern"),
        ({"url": "file:///etc/passwd"}, "mine.files.0.url: it must match the pattern"),
    ],
)
def test_an_error_in_a_catalogue_names_file_and_field(change: dict[str, str], field: str, tmp_path: Path) -> None:
    file = {"name": "a.gz", "url": "http://127.0.0.1/a.gz", **change}
    catalogue = tmp_path / "catalogue.json"
    catalogue.write_text(json.dumps({"mine": {"about": "of ours", "files": [file]}}))
    with pytest.raises(LoaderError, match=re.escape(f"{catalogue}: {field}")):
        read_catalogue(catalogue)


def test_a_malformed_catalogue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoaderError, match=r"nothing\.json: No such file"):
        read_catalogue(tmp_path / "nothing.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(LoaderError, match=r"broken\.json: the whole file: it is not JSON"):
        read_catalogue(tmp_path / "broken.json")
