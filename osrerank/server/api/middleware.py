"""Middleware of every request: it checks the token, and limits the body's size and time."""

import asyncio
import contextlib
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

from osrerank.server.api.access_log import RECORD, REQUEST_ID, AccessLog, request_id
from osrerank.server.api.bodies import inflate
from osrerank.server.api.errors import RefusedRequest, body_of, headers_of
from osrerank.server.api.limits import ServerLimits
from osrerank.server.api.metrics import REQUESTS, SECONDS
from osrerank.server.api.numbers import encode
from osrerank.server.api.traced import READINESS, record_response, server_span

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

PAGE = frozenset({"/ui", "/ui/page.css", "/ui/page.js", "/ui/view.js", "/ui/lines.js", "/ui/icon.svg"})
"""The comparison page's files; its searches need the token."""
DOCUMENTATION = frozenset({"/docs", "/docs/docs.css", "/docs/docs.js", "/openapi.json"})
OPEN_PATHS = frozenset({"/health", "/live", "/ping"}) | READINESS | DOCUMENTATION | PAGE
"""Paths that need no token, because they only report whether and how the server works. A readiness path with parameters
reports on an index, and needs the token."""
GZIP = (b"gzip", b"x-gzip")
"""The encodings of a body that are accepted; the limits apply to the decoded body."""
LINGER_S = 30.0
"""The default time for reading the rest of a refused request's body, in seconds."""
CLIENT_LEFT = 499
"""The status in metrics and logs of a request whose client closed the connection."""


class Left(Exception):  # noqa: N818 - an event
    """The client closed the connection."""


class RequestMiddleware:
    """ASGI middleware that checks the token, reads the whole body, and counts and times the request.

    Args:
        application: the application that handles accepted requests.
        limits: the limits of the server; this middleware applies the limits of bytes and of the time for the body.
        token: the token that clients must send as ``Authorization``, with or without ``Bearer``; None for none.
        access_log: the access log; None for none.
        trace_queries: whether traces may contain queries.
    """

    def __init__(
        self,
        application: Application,
        limits: ServerLimits,
        token: str | None,
        access_log: AccessLog | None = None,
        *,
        trace_queries: bool = False,
    ) -> None:
        self._access_log = access_log
        self._trace_queries = trace_queries
        self._application = application
        self._limits = limits
        self._token = None if token is None else token.encode()
        self._held_bytes = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Respond to one request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        started = time.perf_counter()
        if scope["method"] == "HEAD":  # the GET route handles it, and uvicorn leaves out the body
            scope = {**scope, "method": "GET"}
        scope[RECORD] = {}
        response = _ResponseSender(send, request_id(_header(scope, REQUEST_ID.lower().encode())))
        with server_span(scope, response.request_id, queries=self._trace_queries) as traced:
            try:
                await self._respond(scope, receive, response, started)
            finally:
                record_response(traced, scope, response.status)

    async def _respond(
        self, scope: MutableMapping[str, Any], receive: Receive, response: "_ResponseSender", started: float
    ) -> None:
        """Respond to a request, count it and log it."""
        body = bytearray()
        incoming = Incoming(receive)
        try:
            self._check_token(scope)
            _check_encoding(scope)
            await self._read(scope, incoming, body)
            if body and _header(scope, b"content-encoding").lower() in GZIP:
                await self._inflate(body)
            await self._application(scope, _replayed(bytes(body), receive), response.send)
        except RefusedRequest as refusal:
            self._release(body)
            is_late = refusal.status == HTTPStatus.REQUEST_TIMEOUT
            await refuse(refusal, response.send, incoming, 0.0 if is_late else self._limits.body_timeout_s)
        except Left:
            response.status = CLIENT_LEFT
        finally:
            self._release(body)
            route = getattr(scope.get("route"), "path", "other")
            REQUESTS.labels(route, response.status).inc()
            took_s = time.perf_counter() - started
            SECONDS.labels(route).observe(took_s)
            self._log(scope, response, route, took_s)

    def _release(self, body: bytearray) -> None:
        self._held_bytes -= len(body)
        body.clear()

    def _log(self, scope: MutableMapping[str, Any], response: "_ResponseSender", route: str, took_s: float) -> None:
        if self._access_log is None:
            return
        record = dict(scope[RECORD])
        texts = record.pop("questions", None)
        line = {
            "request_id": response.request_id,
            "method": scope["method"],
            "route": route,
            "status": response.status,
            "documents": 0,
            "cached": 0,
            "ms": round(took_s * 1000, 1),
        }
        if texts and self._access_log.texts:
            record["questions"] = [{"query": question.query, "documents": question.documents} for question in texts]
        self._access_log.write({**line, **record})

    def _check_token(self, scope: MutableMapping[str, Any]) -> None:
        names_an_index = scope["path"] in READINESS and scope["query_string"]
        if self._token is None or (scope["path"] in OPEN_PATHS and not names_an_index):
            return
        sent = _header(scope, b"authorization")
        scheme, _, credentials = sent.partition(b" ")
        token = credentials if scheme.lower() == b"bearer" else sent  # Mixedbread's first SDK sends the bare token
        if hmac.compare_digest(token.strip(), self._token):
            return
        if sent:
            raise RefusedRequest(401, "the token is wrong: send the server's as Authorization: Bearer TOKEN")
        raise RefusedRequest(401, "this server needs a token: send the header Authorization: Bearer TOKEN")

    async def _read(self, scope: MutableMapping[str, Any], receive: Receive, body: bytearray) -> None:
        """Read the body; refuse it as soon as it is too large or takes too long."""
        announced = _header(scope, b"content-length")
        if announced.isdigit():
            self._check_size(int(announced))
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Left
                    chunk = message.get("body", b"")
                    body += chunk
                    self._held_bytes += len(chunk)
                    self._check_size(len(body))
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            raise RefusedRequest(408, f"the body did not arrive within {self._limits.body_timeout_s:g} s") from None

    async def _inflate(self, body: bytearray) -> None:
        content = await asyncio.to_thread(inflate, bytes(body), self._limits.max_body_bytes)
        self._held_bytes += len(content) - len(body)
        body[:] = content
        self._check_size(len(body))

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_body_bytes:
            raise RefusedRequest(
                413, f"the body is larger than {self._limits.max_body_bytes} bytes: send fewer or shorter documents"
            )
        if self._held_bytes > self._limits.max_held_bytes:
            raise RefusedRequest(
                429, f"requests of {self._limits.max_held_bytes} bytes are being answered; try again later"
            )


class _ResponseSender:
    """Sends a response with the request's id in its headers, and stores its status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status = 500

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            header = (REQUEST_ID.lower().encode(), self.request_id.encode())
            message = {**message, "headers": [*message.get("headers", []), header]}
        await self._send(message)


class Incoming:
    """Receives a request's messages, and stores whether the body has ended."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.has_ended = False

    async def __call__(self) -> Message:
        message = await self._receive()
        self.has_ended = not message.get("more_body", False)
        return message


async def refuse(refusal: RefusedRequest, send: Send, incoming: Incoming, max_s: float = LINGER_S) -> None:
    """Refuse a request, and close its connection once the client has sent the whole body.

    A client that sends the whole body before it reads would not see the response if the connection were closed earlier.

    Args:
        refusal: the status and the message of the response.
        send: the function that sends a message.
        incoming: the function that receives the rest of the body, which is discarded.
        max_s: the maximum wait for the rest of the body, in seconds.
    """
    content = encode(body_of(refusal.status, str(refusal)))
    headers = {"Content-Type": "application/json", "Content-Length": str(len(content)), "Connection": "close"}
    headers |= headers_of(refusal.status)
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
    await send({"type": "http.response.body", "body": content, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max_s):
            while not incoming.has_ended:
                await incoming()
    await send({"type": "http.response.body", "body": b""})


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a function that receives the body in one piece, then further messages of the connection."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def _check_encoding(scope: MutableMapping[str, Any]) -> None:
    if _header(scope, b"content-encoding").lower() not in (b"", b"identity", *GZIP):
        raise RefusedRequest(415, "the body's Content-Encoding is unknown: send it as gzip, or without an encoding")


def _header(scope: MutableMapping[str, Any], name: bytes) -> bytes:
    """Return a header's value; empty if the request lacks it."""
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")
