"""Run the application in this process."""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from osrerank.errors import ConfigError
from osrerank.server.api.access_log import AccessLog
from osrerank.server.api.app import create_app
from osrerank.server.api.limits import ServerLimits
from osrerank.server.origins import own_names, restrict
from osrerank.server.page.routes import ComparisonPage, add_page
from osrerank.service import RerankService
from osrerank.tracing.export import export_traces

MOST_CONNECTIONS = 2_000
"""Connections at a time; others get 503 at once."""
KEEP_ALIVE_S = 30
"""Keep-alive, longer than a search takes, so that OpenSearch's connector finds its connections open."""
BACKLOG = 512
HEAD_TIMEOUT_S = 10.0
"""Time for a request's first line and headers; the application bounds the time of its body."""


class PunctualProtocol(H11Protocol):
    """uvicorn's protocol with a timeout for a request's headers; uvicorn itself waits without end."""

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    def _expect_request(self) -> None:
        """Start the timeout of a request's headers at its first byte."""
        cycle: Any = self.cycle  # None at first, whatever its annotation says
        is_waiting = cycle is None or cycle.response_complete
        if not is_waiting:
            self._stop_waiting()
        elif self._closing is None:
            self._closing = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None


@dataclass(frozen=True, slots=True)
class Access:
    """Who may call the server, and where that is written down.

    Attributes:
        hosts: names of the server besides its own, where it serves the comparison page.
        origins: other sites whose pages may call it, such as ``https://example.org``.
        log: file of the access log; ``-`` for standard output, None for none.
        texts: whether the log has queries and documents, too.
    """

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    log: str | None = None
    texts: bool = False


def run(
    reranker: RerankService,
    limits: ServerLimits,
    *,
    host: str,
    port: int,
    access: Access | None = None,
    comparison: ComparisonPage | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish accepted requests.

    Args:
        reranker: scores; the caller closes it.
        limits: bounds of the work accepted; the timeout also bounds the finishing.
        host: address to listen on.
        port: port to listen on.
        access: who may call it; without, everybody who has the token.
        comparison: what the comparison page searches; None for no page.

    Raises:
        ConfigError: the address cannot be listened on, or the access log not be written.
    """
    access = access or Access()
    export_traces("osrerank-server")
    log = None if access.log is None else AccessLog(access.log, texts=access.texts)
    token = reranker.settings.server_token
    app = create_app(reranker, limits, token=None if token is None else token.get_secret_value(), access_log=log)
    if comparison is not None:
        add_page(app, comparison)
    hosts = None if comparison is None else {*access.hosts, *own_names(host)}
    restrict(app, hosts=hosts, origins=access.origins)
    try:
        with listening(host, port) as listener:
            server = uvicorn.Server(configuration(app, limits))
            with _ending_well(server):
                server.run(sockets=[listener])
    finally:
        if log is not None:
            log.close()


@contextmanager
def _ending_well(server: uvicorn.Server) -> Iterator[None]:
    """Let SIGTERM end the server and not, as uvicorn does by raising it again afterwards, this process."""
    if threading.current_thread() is not threading.main_thread():  # where signals cannot be received
        yield
        return

    def end(*_signal: object) -> None:
        server.should_exit = True

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def configuration(app: FastAPI, limits: ServerLimits) -> uvicorn.Config:
    """Return uvicorn's configuration: quiet, with bounded connections and a graceful end."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=PunctualProtocol,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(limits.timeout_ms / 1000) + 1,
    )


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket without Nagle's delay, which asyncio sets only on its own sockets.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = f"http://{host}:{port} cannot be listened on ({error.strerror}): choose another --host or --port"
        raise ConfigError(reason, setting="port", source="flag") from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
    return listener
