"""Refuse requests that pages of other web sites send to this server from a user's browser.

Browsers send the page's site in the header Origin. In DNS rebinding, however, a site makes its own name resolve to this
server, and the browser treats both as one origin. Only the Host header then shows the other site's name.
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


class HostMiddleware:
    """ASGI middleware that refuses other host names than ``hosts``, and other sites than ``origins``.

    IP addresses and localhost are always accepted as host names, because no other site can have them as its name.
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
        if not self._is_own_name(host):
            reason = "the server does not have this host name: start it with --allow-host NAME"
        elif origin is not None and origin not in self._origins and urlsplit(origin).netloc.lower() != host.lower():
            reason = "this site is not allowed to call the server: start it with --allow-origin SITE"
        if reason:
            await refuse(RefusedRequest(403, reason), send, RequestReceiver(receive))
        else:
            await self._application(scope, receive, send)

    def _is_own_name(self, host: str) -> bool:
        name = _parse_host_name(host)
        is_localhost = name == "localhost" or name.endswith(".localhost")
        return name in self._hosts or is_localhost or _is_ip_address(name)


def restrict_origins(app: FastAPI, *, hosts: Iterable[str] | None, origins: Sequence[str]) -> None:
    """Accept only requests with one of the host names, and from other sites' pages only if their origin is listed.

    If ``hosts`` is None, any name is accepted.
    """
    if origins:
        exposed = [REQUEST_ID_HEADER, UNSCORED_HEADER, TRUNCATED_HEADER, "Retry-After"]
        app.add_middleware(  # any request header is allowed, because each SDK sends its own, such as x-fern-sdk-name
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=exposed
        )
    if hosts is not None:
        app.add_middleware(HostMiddleware, hosts=hosts, origins=origins)


def list_host_names(host: str) -> set[str]:
    """Return the names of a server that listens on ``host``: this address, and the names of this machine."""
    return {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}


def _parse_host_name(host: str) -> str:
    """Return the name in a Host header, without the port and the brackets of an IPv6 address."""
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
