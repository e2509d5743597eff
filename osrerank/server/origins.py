"""Restrict the host names by which a server may be called, and the other origins whose pages may call it.

A page on another site can make its own name resolve to this server (DNS rebinding). The browser then sees one
origin; only the Host header shows the other name.
"""

import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from osrerank.server.api.access_log import REQUEST_ID
from osrerank.server.api.errors import RefusedRequest
from osrerank.server.api.middleware import Incoming, refuse
from osrerank.server.api.routes import TRUNCATED, UNSCORED

Application = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]


class HostMiddleware:
    """ASGI middleware: refuses requests for other hosts, and from other sites' pages.

    IP addresses and localhost are always accepted, because no other site can have them as its name.

    Args:
        application: the application that handles accepted requests.
        hosts: the names of this server, without ports.
        origins: the origins of other sites whose pages may call this server.
    """

    def __init__(self, application: Application, hosts: Iterable[str], origins: Iterable[str] = ()) -> None:
        self._application = application
        self._hosts = {host.lower() for host in hosts}
        self._origins = frozenset(origins)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Pass a request on to the application, or refuse it with status 403."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"host", b"origin")}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        reason = ""
        if not self._is_ours(host):
            reason = "the server does not know this host name: start it with --allow-host NAME"
        elif origin not in (None, *self._origins) and urlsplit(str(origin)).netloc.lower() != host.lower():
            reason = "this site may not call the server: start it with --allow-origin SITE"
        if reason:
            await refuse(RefusedRequest(403, reason), send, Incoming(receive))
        else:
            await self._application(scope, receive, send)

    def _is_ours(self, host: str) -> bool:
        name = _name(host)
        return name in self._hosts or name == "localhost" or name.endswith(".localhost") or _is_address(name)


def restrict(app: FastAPI, *, hosts: Iterable[str] | None, origins: Sequence[str]) -> None:
    """Add the middleware that accepts requests only for some host names and from some origins.

    Args:
        app: the server's application.
        hosts: the names of the server; None for any name.
        origins: the origins of other sites whose pages may read its responses.
    """
    if origins:
        exposed = [REQUEST_ID, UNSCORED, TRUNCATED, "Retry-After"]
        app.add_middleware(  # all request headers: each SDK has some of its own, such as x-fern-sdk-name
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=exposed
        )
    if hosts is not None:
        app.add_middleware(HostMiddleware, hosts=hosts, origins=origins)


def own_names(host: str) -> set[str]:
    """Return the names of a server that listens on a host: the host itself and this machine's host names."""
    return {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}


def _name(host: str) -> str:
    """Return a Host header's name, without the port and an IPv6 address's brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
