"""Liveness and readiness of a worker over HTTP, for an orchestrator: ``GET /live`` and ``GET /ready``."""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from osrerank.errors import ConfigError

logger = logging.getLogger(__name__)

ANSWER_S = 5.0
"""A caller that says nothing for this long is hung up on."""


@dataclass(frozen=True, slots=True)
class Status:
    """How a worker is.

    Attributes:
        live: whether to leave the process running; False where its model hangs.
        ready: whether clients can send it chunks now.
        reason: why it is not ready; else empty.
        held: how many chunks it has.
    """

    live: bool
    ready: bool
    reason: str
    held: int


def serve_probes(port: int, status: Callable[[], Status]) -> Callable[[], None]:
    """Answer probes in threads of their own; return what stops it. Port 0 answers none.

    Args:
        port: the port on which all addresses are served.
        status: the worker's; called for each probe, asks nobody and computes nothing.

    Raises:
        ConfigError: the port cannot be used.
    """
    if not port:
        return lambda: None
    try:
        server = ThreadingHTTPServer(("", port), _handler(status))
    except OSError as error:
        raise ConfigError(
            f"probe_port: port {port} cannot be used ({error.strerror}); choose another", setting="probe_port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="osrerank-probes", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _handler(status: Callable[[], Status]) -> type[BaseHTTPRequestHandler]:
    class HealthProbe(BaseHTTPRequestHandler):
        timeout = ANSWER_S

        def do_GET(self) -> None:
            found = status()
            answers: Mapping[str, tuple[bool, dict[str, Any]]] = {
                "/live": (found.live, {"live": found.live}),
                "/ready": (found.ready, {"ready": found.ready, "reason": found.reason, "held": found.held}),
            }
            if self.path not in answers:
                self._answer(404, {"error": "there are /live and /ready"})
                return
            good, content = answers[self.path]
            self._answer(200 if good else 503, content)

        def _answer(self, code: int, content: Mapping[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Log nothing: there is a probe every few seconds."""

    return HealthProbe
