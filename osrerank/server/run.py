"""Run the server in this process, with uvicorn."""

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from osrerank._signals import end_on_signals
from osrerank.errors import ConfigError
from osrerank.server.api.access_log import AccessLog
from osrerank.server.api.app import create_app
from osrerank.server.api.limits import ServerLimits
from osrerank.server.origins import own_names, restrict
from osrerank.server.page.routes import ComparisonPage, add_page
from osrerank.service import RerankService
from osrerank.tracing.export import export_traces

MAX_CONNECTIONS = 2_000
"""The most connections at a time; further ones get status 503 at once."""
KEEP_ALIVE_S = 30
"""The seconds after which an idle connection is closed: longer than a search, so that OpenSearch reuses it."""
BACKLOG = 512
HEAD_TIMEOUT_S = 10.0
"""The timeout of a request's first line and headers, in seconds; the application limits the time for the body."""


class PunctualProtocol(H11Protocol):
    """uvicorn's protocol with a timeout for a request's headers; uvicorn itself waits for them forever."""

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
        cycle: Any = self.cycle  # None before the first request, despite its annotation
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
    """The rules for callers of the server, and the access log.

    Attributes:
        hosts: the names of the server besides its own; checked only if it serves the comparison page.
        origins: the origins of other sites whose pages may call the server, such as ``https://example.org``.
        log: the file of the access log; ``-`` for standard output, None for none.
        texts: whether queries and documents are logged, too.
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
    listener: socket.socket,
    access: Access | None = None,
    comparison: ComparisonPage | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then finish the accepted requests.

    Args:
        reranker: the service that scores; the caller closes it.
        limits: the limits of the accepted work; the timeout also limits the time for finishing.
        host: the address that the socket is bound to; its names are the server's own.
        listener: the socket (`bind`), which may listen already.
        access: the rules for callers; None for everybody with the token.
        comparison: the searches of the comparison page; None for no page.

    Raises:
        ConfigError: the access log cannot be written.
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
        server = uvicorn.Server(configuration(app, limits))
        # uvicorn raises SIGTERM again when it has ended, which would end this process by the signal
        with end_on_signals(lambda: setattr(server, "should_exit", True)):
            server.run(sockets=[listener])
    finally:
        if log is not None:
            log.close()


def configuration(app: FastAPI, limits: ServerLimits) -> uvicorn.Config:
    """Return uvicorn's configuration: no access log, a limit of connections, and a graceful shutdown."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=PunctualProtocol,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(limits.timeout_ms / 1000) + 1,
    )


def url_of(host: str, port: int) -> str:
    """Return the URL of a server; an IPv6 address is put in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address but refuses connections until `listen` is called.

    An address that is in use is thus reported before the model is loaded.

    Raises:
        ConfigError: the address cannot be used.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere, two servers could then share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # asyncio sets it only on sockets that it creates
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _address_in_use(url_of(host, port), error) from None
    return listener


def listen(listener: socket.socket) -> None:
    """Start to accept connections.

    Raises:
        ConfigError: another process has begun to listen on the address.
    """
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        raise _address_in_use(url_of(*listener.getsockname()[:2]), error) from None


def _address_in_use(url: str, error: OSError) -> ConfigError:
    reason = f"the server cannot listen on {url} ({error.strerror}): choose another --host or --port"
    return ConfigError(reason, setting="port", source="flag")
