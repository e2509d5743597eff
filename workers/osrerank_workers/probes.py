"""Report a worker's liveness and readiness to an orchestrator over HTTP: ``GET /live`` and ``GET /ready``."""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from osrerank.errors import ConfigError

logger = logging.getLogger(__name__)

IDLE_TIMEOUT_S = 5.0
"""Time without data after which a connection is closed, in seconds."""


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a worker that the probes report.

    Attributes:
        live: whether the process works. False means that the model hangs, and that the process must be restarted.
        ready: whether the worker accepts chunks.
        reason: why the worker is not ready, or "" if it is ready.
        held: the number of chunks that the worker has accepted and not finished.
    """

    live: bool
    ready: bool
    reason: str
    held: int


def serve_probes(port: int, status: Callable[[], Status]) -> Callable[[], None]:
    """Start an HTTP server for probes in new threads. Return a function that stops it.

    Args:
        port: the port, on all addresses. 0 starts no server.
        status: a function that returns the worker's state. It is called for each probe, so it must be fast.

    Raises:
        ConfigError: the port cannot be used.
    """
    if not port:
        return lambda: None
    try:
        server = ThreadingHTTPServer(("", port), _handler(status))
    except OSError as error:
        reason = f"port {port} cannot be used for probes ({error.strerror}); set probe_port to another port"
        raise ConfigError(reason, setting="probe_port") from error
    thread = threading.Thread(target=server.serve_forever, name="osrerank-probes", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _handler(status: Callable[[], Status]) -> type[BaseHTTPRequestHandler]:
    """Return a handler class for the HTTP server, which answers ``GET /live`` and ``GET /ready`` with 200 or 503."""

    class HealthProbe(BaseHTTPRequestHandler):
        timeout = IDLE_TIMEOUT_S

        def do_GET(self) -> None:
            worker = status()
            # path -> (whether the probe passes, the response)
            responses: Mapping[str, tuple[bool, dict[str, Any]]] = {
                "/live": (worker.live, {"live": worker.live}),
                "/ready": (worker.ready, {"ready": worker.ready, "reason": worker.reason, "held": worker.held}),
            }
            if self.path not in responses:
                self._respond(404, {"error": "unknown path: use /live or /ready"})
                return
            passes, content = responses[self.path]
            self._respond(200 if passes else 503, content)

        def _respond(self, code: int, content: Mapping[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Log nothing, because orchestrators probe every few seconds."""

    return HealthProbe
