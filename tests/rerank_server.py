"""A rerank server for tests that answers as a function says: other servers' documented answers, and faults."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple


class Received(NamedTuple):
    """A request that came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Reply(NamedTuple):
    """What is answered: JSON content, or bytes as they are; None for a connection that is closed without an answer."""

    content: Any = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class RerankServer(ThreadingHTTPServer):
    """Answers each request with what the function returns; a Reply of None as content hangs up."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Callable[[Received], Reply], read: Callable[[bytes], Any] = json.loads) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer, self.read = answer, read
        self.received: list[Received] = []
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that leaves is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: RerankServer

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        content = self.rfile.read(length)
        headers = {name.lower(): value for name, value in self.headers.items()}
        received = Received(self.command, self.path, headers, self.server.read(content) if content else None)
        self.server.received.append(received)
        reply = self.server.answer(received)
        if reply.content is None:
            self.close_connection = True
            return
        body = reply.content if isinstance(reply.content, bytes) else json.dumps(reply.content).encode()
        self.send_response(reply.status)
        for name, value in (("Content-Length", str(len(body))), *reply.headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815 - the base class's name

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def answering(answer: Callable[[Received], Reply], read: Callable[[bytes], Any] = json.loads) -> Iterator[RerankServer]:
    """Yield a server that runs, and reads bodies with a function."""
    server = RerankServer(answer, read)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def by_length(received: Received) -> Reply:
    """Answer as TEI does, with the length of each text as its logit, best first."""
    order = sorted(enumerate(received.body["texts"]), key=lambda one: -len(one[1]))
    return Reply([{"index": doc_index, "score": float(len(text))} for doc_index, text in order])


def server_file(folder: Path, url: str, **keys: str | int) -> Path:
    """Write a settings file that names a rerank server, and return its path."""
    file = folder / "osrerank.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"url": url, **keys}.items()]
    file.write_text("\n".join(["[http]", *lines]))
    return file
