"""A Hugging Face hub on loopback: as much of its API as huggingface_hub asks for to fetch a repository."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.servers import ROOT

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """A running hub with one repository or several, which have the same files at every revision.

    Attributes:
        repository: the id of the first.
        files: its content by name.
        others: files of further repositories, by their ids.
        url: the hub's address, for ``HF_ENDPOINT``.
        fetched: names of the files whose content was asked for.
        revisions: that were asked for.
    """

    repository: str
    files: Mapping[str, bytes]
    others: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    url: str = ""
    fetched: list[str] = field(default_factory=list)
    revisions: list[str] = field(default_factory=list)


class Server(ThreadingHTTPServer):
    """Answers for a hub."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub = hub
        hub.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub, path = self.server.hub, self.path.partition("?")[0]
        everything = {hub.repository: hub.files, **hub.others}
        asked = path.removeprefix("/api/models").split("/resolve/")[0].split("/revision/")[0].removeprefix("/")
        repository, files = (asked, everything[asked]) if asked in everything else (hub.repository, hub.files)
        about, content = f"/api/models/{repository}/revision/", f"/{repository}/resolve/"
        if path.startswith(about):
            hub.revisions.append(path.removeprefix(about))
            siblings = [{"rfilename": name} for name in files]
            self.reply(200, json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode())
            return
        name = path.removeprefix(content).partition("/")[2]
        if not path.startswith(content) or name not in files:
            self.reply(404, b"", **{"X-Error-Code": "RepoNotFound"})
            return
        if self.command == "GET":
            hub.fetched.append(name)
        etag = hashlib.sha256(files[name]).hexdigest()
        self.reply(200, files[name], ETag=f'"{etag}"', **{"X-Repo-Commit": COMMIT})

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for header, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@contextmanager
def running_hub(
    repository: str, files: Mapping[str, bytes], others: Mapping[str, Mapping[str, bytes]] | None = None
) -> Iterator[Hub]:
    """Serve one repository, and others."""
    hub = Hub(repository, files, others or {})
    server = Server(hub)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def files_of(directory: Path) -> dict[str, bytes]:
    """Return a model directory's files by their names in a repository."""
    return {
        file.relative_to(directory).as_posix(): file.read_bytes() for file in directory.rglob("*") if file.is_file()
    }


def osrerank_at(endpoint: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, because huggingface_hub reads its settings when it is imported."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home / "hub"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [sys.executable, "-m", "osrerank", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
