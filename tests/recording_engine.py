"""An HTTP server that answers every search alike, and records what it is asked."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

from tests.rankings import response_of

MAPPING = {"articles": {"mappings": {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}}}}


class Engine(http.server.ThreadingHTTPServer):
    """Answers searches and mappings, and records what it is asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, dict[str, str]]] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(MAPPING)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(response_of(["a", "bbb", "cc"]))

    def answer(self, content: Any) -> None:
        assert isinstance(self.server, Engine)
        self.server.requests.append(
            (self.path.partition("?")[0], {name.title(): value for name, value in self.headers.items()})
        )
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def recording_engine() -> Iterator[Engine]:
    """Yield a server of this process."""
    with Engine() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
