"""Refuse requests that pages of other web sites send to this server from a user's browser.

In the Origin header, a browser names the site whose page sends the request, such as ``https://evil.example``. This
header does not help against DNS rebinding, where evil.example makes its name resolve to this server's address. The
browser then believes that the page calls its own site, and only the Host header, evil.example, shows the attack.
"""

import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from osrerank.server.api.access_log import REQUEST_ID_HEADER
from osrerank.server.api.errors import RefusedRequest
from osrerank.server.api.middleware import RequestReceiver, refuse
from osrerank.server.api.routes import TRUNCATED_HEADER, UNSCORED_HEADER

Application = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]
"""An ASGI application, which is called with the scope, `receive` and `send`."""


class HostMiddleware:
    """ASGI middleware that checks the Host and Origin headers, and refuses requests from pages of other web sites.

    IP addresses and localhost are always accepted as host names, because an attacker cannot register them for a site.
    An origin with the host and port of the Host header belongs to this server's page, and is always accepted.

    Args:
        application: the ASGI application to protect.
        hosts: the host names of this server, such as ``search.example.org``.
        origins: the origins of other sites that are allowed to call the server, such as ``https://example.org``.
    """

    def __init__(self, application: Application, hosts: Iterable[str], origins: Iterable[str] = ()) -> None:
        self._application = application
        self._hosts = {host.lower() for host in hosts}
        self._origins = frozenset(origins)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Pass a request to the application, or refuse it with status 403."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"host", b"origin")}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        reason = ""
        if not self._is_allowed_host(host):
            reason = "the server does not have this host name: start it with --allow-host NAME"
        elif not self._is_allowed_origin(origin, host):
            reason = "this site is not allowed to call the server: start it with --allow-origin SITE"
        if reason:
            await refuse(RefusedRequest(403, reason), send, RequestReceiver(receive))
        else:
            await self._application(scope, receive, send)

    def _is_allowed_host(self, host: str) -> bool:
        """Return whether a Host header, such as ``localhost:8088``, contains one of this server's names."""
        name = _parse_host_name(host)
        is_localhost = name == "localhost" or name.endswith(".localhost")
        return name in self._hosts or is_localhost or _is_ip_address(name)

    def _is_allowed_origin(self, origin: str | None, host: str) -> bool:
        """Return whether a request comes from an allowed site, from this server's page, or has no Origin header."""
        if origin is None or origin in self._origins:
            return True
        _scheme, _separator, origin_host = origin.partition("://")
        return origin_host.lower() == host.lower()


def restrict_origins(app: FastAPI, *, hosts: Iterable[str] | None, origins: Sequence[str]) -> None:
    """Restrict from which web pages browsers can call an application.

    Args:
        app: the application, to which middleware is added.
        hosts: the accepted names in the Host header, or None to check neither the Host header nor the Origin header.
        origins: the other sites whose pages can call the application and read its responses (CORS).
    """
    if origins:
        exposed = [REQUEST_ID_HEADER, UNSCORED_HEADER, TRUNCATED_HEADER, "Retry-After"]
        app.add_middleware(  # all request headers are allowed, because SDKs send custom ones, such as x-fern-sdk-name
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=exposed
        )
    if hosts is not None:
        app.add_middleware(HostMiddleware, hosts=hosts, origins=origins)


def list_host_names(host: str) -> set[str]:
    """Return the names of a server that listens on the address ``host``: ``host`` and this machine's host names."""
    return {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}


def _parse_host_name(host: str) -> str:
    """Return the name in a Host header: ``localhost`` for ``localhost:8088``, and ``::1`` for ``[::1]:8088``."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_ip_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
