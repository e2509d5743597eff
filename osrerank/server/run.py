"""Run the server of ``osrerank serve``: the rerank API, and optionally the comparison page, in uvicorn."""

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
from osrerank.server.origins import list_host_names, restrict_origins
from osrerank.server.page.routes import ComparisonPage, add_page
from osrerank.service import RerankService
from osrerank.tracing.export import export_traces

MAX_CONNECTIONS = 2_000
"""The maximum number of open connections. Requests on further connections get status 503."""
KEEP_ALIVE_S = 30
"""How long an idle connection stays open, in seconds, so that OpenSearch can reuse it for its next search."""
MAX_PENDING_CONNECTIONS = 512
"""The maximum number of connections that the operating system queues until the server accepts them."""
HEADERS_TIMEOUT_S = 10.0
"""The timeout for a request's headers, in seconds. `RequestMiddleware` has the timeout for the body."""


class HeaderTimeoutProtocol(H11Protocol):
    """uvicorn's HTTP protocol with a timeout for a request's headers, for which uvicorn itself would wait forever."""

    _timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._update_timeout()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_timeout()

    def _update_timeout(self) -> None:
        """Start the timeout when the server begins to wait for headers, and cancel it when the headers have arrived."""
        cycle: Any = self.cycle  # the latest request and its response; None at first, which uvicorn does not annotate
        waits_for_headers = cycle is None or cycle.response_complete
        if not waits_for_headers:
            self._cancel_timeout()
        elif self._timeout is None:
            self._timeout = self.loop.call_later(HEADERS_TIMEOUT_S, self.transport.close)

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


@dataclass(frozen=True, slots=True)
class Access:
    """Which web sites can call the server, and what the access log contains.

    Attributes:
        hosts: host names to accept in addition to this machine's names, such as ``search.example.org``. Names are
            checked only if the server has the comparison page.
        origins: the origins of other sites whose pages are allowed to call the server, such as ``https://example.org``.
        log_file: the file of the access log, ``-`` for standard output, or None for no log.
        logs_texts: whether the log contains queries and documents.
    """

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    log_file: str | None = None
    logs_texts: bool = False


def run(
    reranker: RerankService,
    limits: ServerLimits,
    *,
    host: str,
    listener: socket.socket,
    access: Access | None = None,
    comparison: ComparisonPage | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then finish the accepted requests and return.

    Args:
        reranker: the service that scores. The caller closes it.
        limits: the limits of the server. After a signal, requests have the request timeout plus a second to finish.
        host: the address to which ``listener`` is bound, such as ``127.0.0.1``.
        listener: the socket from `bind`.
        access: which web sites can call the server, and the access log. By default, there is no access log.
        comparison: the searches of the comparison page, or None to serve no page.

    Raises:
        ConfigError: the access log cannot be written.
    """
    access = access or Access()
    export_traces("osrerank-server")
    log = None if access.log_file is None else AccessLog(access.log_file, logs_texts=access.logs_texts)
    secret = reranker.settings.server_token
    token = None if secret is None else secret.get_secret_value()
    app = create_app(reranker, limits, token=token, access_log=log)
    hosts = None  # host names are not checked
    if comparison is not None:
        add_page(app, comparison)
        hosts = {*access.hosts, *list_host_names(host)}
    restrict_origins(app, hosts=hosts, origins=access.origins)
    try:
        server = uvicorn.Server(configure_uvicorn(app, limits))
        # after its shutdown, uvicorn raises SIGTERM again, which would kill this process
        with end_on_signals(lambda: setattr(server, "should_exit", True)):
            server.run(sockets=[listener])
    finally:
        if log is not None:
            log.close()


def configure_uvicorn(app: FastAPI, limits: ServerLimits) -> uvicorn.Config:
    """Return uvicorn's configuration, with limits for connections and headers, and a graceful shutdown."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=HeaderTimeoutProtocol,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(limits.timeout_ms / 1000) + 1,
    )


def server_url(host: str, port: int) -> str:
    """Return the URL of a server, such as ``http://127.0.0.1:8088`` or ``http://[::1]:8088``."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, and refuses connections until `listen` is called.

    The address is bound before the model is loaded. If it is in use, the user learns it at once.

    Raises:
        ConfigError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # on Windows, this option would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # asyncio sets this option only on sockets that it creates
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _listen_error(server_url(host, port), error) from None
    return listener


def listen(listener: socket.socket) -> None:
    """Let a bound socket accept connections.

    Raises:
        ConfigError: another process listens on the address.
    """
    try:
        listener.listen(MAX_PENDING_CONNECTIONS)
    except OSError as error:
        raise _listen_error(server_url(*listener.getsockname()[:2]), error) from None


def _listen_error(url: str, error: OSError) -> ConfigError:
    reason = f"the server cannot listen at {url} ({error.strerror}): choose another --host or --port"
    return ConfigError(reason, setting="port", source="flag")
