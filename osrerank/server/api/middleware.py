"""Check each HTTP request's token and body before the application handles it, then count and log the request."""

import asyncio
import contextlib
import hmac
import time
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

from osrerank.server.api.access_log import ACCESS_RECORD, REQUEST_ID_HEADER, AccessLog, request_id
from osrerank.server.api.bodies import inflate
from osrerank.server.api.errors import RefusedRequest, error_body, error_headers
from osrerank.server.api.limits import ServerLimits
from osrerank.server.api.metrics import REQUEST_SECONDS, REQUESTS
from osrerank.server.api.numbers import encode
from osrerank.server.api.request_tracing import READINESS_PATHS, record_response, server_span

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

PAGE_FILES = frozenset({"/ui", "/ui/page.css", "/ui/page.js", "/ui/view.js", "/ui/lines.js", "/ui/icon.svg"})
DOCUMENTATION = frozenset({"/docs", "/docs/docs.css", "/docs/docs.js", "/openapi.json"})
OPEN_PATHS = frozenset({"/health", "/live", "/ping"}) | READINESS_PATHS | DOCUMENTATION | PAGE_FILES
"""The paths that need no token. A readiness check with parameters, such as ``/ready?index=products``, does need one,
because it tells something about an index."""
GZIP = (b"gzip", b"x-gzip")
"""The values of ``Content-Encoding`` that mean gzip."""
DRAIN_TIMEOUT_S = 30.0
"""The default time for which `refuse` reads the rest of a refused request's body, in seconds."""
CLIENT_CLOSED_REQUEST = 499
"""The status in metrics and logs if the client closed the connection before the response. Nginx uses it as well."""


class ClientDisconnected(Exception):  # noqa: N818 - an event
    """The client closed the connection."""


class RequestMiddleware:
    """ASGI middleware that checks the token, reads the whole body, and counts, times, traces and logs the request.

    `create_app` describes most arguments. Of the limits, this middleware applies those on the size of bodies and the
    time in which they must arrive. With ``trace_queries``, the trace may contain queries.
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
        self._held_bytes = 0  # of the bodies of all requests in progress

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Respond to one request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        started_at_s = time.perf_counter()
        if scope["method"] == "HEAD":  # the GET route handles it, and uvicorn leaves out the body
            scope = {**scope, "method": "GET"}
        # Starlette would redirect, without TLS even if a proxy in front has it. Pages need it for their relative links.
        if scope["method"] == "POST" and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        scope[ACCESS_RECORD] = {}
        response = _ResponseSender(send, request_id(_header(scope, REQUEST_ID_HEADER.lower().encode())))
        with server_span(scope, response.request_id, records_queries=self._trace_queries) as span:
            try:
                await self._respond(scope, receive, response, started_at_s)
            finally:
                record_response(span, scope, response.status)

    async def _respond(
        self, scope: MutableMapping[str, Any], receive: Receive, response: "_ResponseSender", started_at_s: float
    ) -> None:
        body = bytearray()  # filled by `_read_body`, so that its bytes are discarded even if reading fails
        incoming = RequestReceiver(receive)
        try:
            self._check_token(scope)
            _check_encoding(scope)
            await self._read_body(scope, incoming, body)
            if body and _header(scope, b"content-encoding").lower() in GZIP:
                await self._decompress(body)
            await self._application(scope, _replay(bytes(body), receive), response.send)
        except RefusedRequest as refusal:
            self._discard(body)
            body_timed_out = refusal.status == HTTPStatus.REQUEST_TIMEOUT
            drain_timeout_s = 0.0 if body_timed_out else self._limits.body_timeout_s
            await refuse(refusal, response.send, incoming, drain_timeout_s)
        except ClientDisconnected:
            response.status = CLIENT_CLOSED_REQUEST
        finally:
            self._discard(body)
            route = getattr(scope.get("route"), "path", "other")
            REQUESTS.labels(route, response.status).inc()
            took_s = time.perf_counter() - started_at_s
            REQUEST_SECONDS.labels(route).observe(took_s)
            self._log(scope, response, route, took_s)

    def _discard(self, body: bytearray) -> None:
        """Free a body's memory, and no longer count its bytes."""
        self._held_bytes -= len(body)
        body.clear()

    def _log(self, scope: MutableMapping[str, Any], response: "_ResponseSender", route: str, took_s: float) -> None:
        if self._access_log is None:
            return
        record = dict(scope[ACCESS_RECORD])
        questions = record.pop("questions", None)
        entry = {
            "request_id": response.request_id,
            "method": scope["method"],
            "route": route,
            "status": response.status,
            "documents": 0,
            "cached": 0,
            "ms": round(took_s * 1000, 1),
            **record,
        }
        if questions and self._access_log.logs_texts:
            entry["questions"] = [{"query": question.query, "documents": question.documents} for question in questions]
        self._access_log.write(entry)

    def _check_token(self, scope: MutableMapping[str, Any]) -> None:
        has_index_parameters = scope["path"] in READINESS_PATHS and scope["query_string"]
        needs_token = scope["path"] not in OPEN_PATHS or has_index_parameters
        if self._token is None or not needs_token:
            return
        authorization = _header(scope, b"authorization")
        scheme, _, credentials = authorization.partition(b" ")
        is_bearer = scheme.lower() == b"bearer"  # Mixedbread's first SDK sends the token without a scheme
        token = credentials if is_bearer else authorization
        if hmac.compare_digest(token.strip(), self._token):
            return
        if authorization:
            raise RefusedRequest(401, "the token is wrong: send the server's token as Authorization: Bearer TOKEN")
        raise RefusedRequest(401, "this server needs a token: send the header Authorization: Bearer TOKEN")

    async def _read_body(self, scope: MutableMapping[str, Any], receive: Receive, body: bytearray) -> None:
        """Receive the whole body of the request, and append it to ``body``.

        Raises:
            ClientDisconnected: the client closed the connection.
            RefusedRequest: the body is too large, or does not arrive in time.
        """
        content_length = _header(scope, b"content-length")
        if content_length.isdigit():
            self._check_size(int(content_length))
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnected
                    chunk = message.get("body", b"")
                    body += chunk
                    self._held_bytes += len(chunk)
                    self._check_size(len(body))
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            raise RefusedRequest(408, f"the body did not arrive within {self._limits.body_timeout_s:g} s") from None

    async def _decompress(self, body: bytearray) -> None:
        """Replace a gzip body by its content."""
        content = await asyncio.to_thread(inflate, bytes(body), self._limits.max_body_bytes)
        self._held_bytes += len(content) - len(body)
        body[:] = content
        self._check_size(len(body))

    def _check_size(self, body_bytes: int) -> None:
        if body_bytes > self._limits.max_body_bytes:
            raise RefusedRequest(
                413, f"the body is larger than {self._limits.max_body_bytes} bytes: send fewer or shorter documents"
            )
        if self._held_bytes > self._limits.max_held_bytes:
            reason = f"the requests in progress exceed {self._limits.max_held_bytes} bytes in total"
            raise RefusedRequest(429, f"{reason}: try again later")


class _ResponseSender:
    """Sends a response with the request's id as a header.

    Attributes:
        status: the status of the response, or 500 before the response begins.
    """

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status = 500

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            header = (REQUEST_ID_HEADER.lower().encode(), self.request_id.encode())
            message = {**message, "headers": [*message.get("headers", []), header]}
        await self._send(message)


class RequestReceiver:
    """Receives a request's ASGI messages.

    Attributes:
        has_ended: whether the whole body has been received, or the client has disconnected.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.has_ended = False

    async def __call__(self) -> Message:
        message = await self._receive()
        self.has_ended = not message.get("more_body", False)
        return message


async def refuse(
    refusal: RefusedRequest, send: Send, incoming: RequestReceiver, drain_timeout_s: float = DRAIN_TIMEOUT_S
) -> None:
    """Send an error response at once, then read and discard the rest of the body for at most ``drain_timeout_s``.

    Some clients read the response only after they have sent everything. If the connection were closed earlier, they
    would not receive it.
    """
    content = encode(error_body(refusal.status, str(refusal)))
    headers = {"Content-Type": "application/json", "Content-Length": str(len(content)), "Connection": "close"}
    headers |= error_headers(refusal.status)
    encoded_headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": encoded_headers})
    await send({"type": "http.response.body", "body": content, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(drain_timeout_s):
            while not incoming.has_ended:
                await incoming()
    await send({"type": "http.response.body", "body": b""})


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return an ASGI ``receive`` function that first returns the whole body, then the later messages of ``receive``."""
    body_messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body_first() -> Message:
        return body_messages.pop() if body_messages else await receive()

    return receive_body_first


def _check_encoding(scope: MutableMapping[str, Any]) -> None:
    if _header(scope, b"content-encoding").lower() not in (b"", b"identity", *GZIP):
        raise RefusedRequest(415, "the body's Content-Encoding is unknown: send it as gzip, or without an encoding")


def _header(scope: MutableMapping[str, Any], name: bytes) -> bytes:
    """Return the value of a header, or b"" if the request does not have it. ``name`` is in lower case."""
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")
