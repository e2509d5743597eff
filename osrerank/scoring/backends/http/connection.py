"""Send requests to a rerank server: pooled connections, retries within the deadline, and errors without secrets."""

import itertools
import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple, TypedDict, Unpack

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProtocolError, SSLError
from urllib3.exceptions import TimeoutError as TooLateError

from osrerank._seldom import Seldom
from osrerank.errors import DeadlineExceeded, EndpointError, InferenceError, Overloaded
from osrerank.metrics import ENDPOINT_REQUESTS, ENDPOINT_SECONDS
from osrerank.tracing.attributes import http_span, tell_status
from osrerank.tracing.spans import headers as trace_headers
from osrerank.types import Deadline

CONNECTIONS = 32
"""The maximum number of concurrent requests, and of connections that stay open."""
CONNECT_TIMEOUT_S = 3.0
TIMEOUT_S = 60.0
"""The timeout of a response, if a search has no deadline."""
ATTEMPTS = 4
FIRST_WAIT_S = 0.1
"""The wait before the second attempt; each later wait is about twice as long."""
MAX_WAIT_S = 30.0
"""The maximum wait before a retry of a request with a deadline. If the server asks for more, the request fails."""
RETRY_BUDGET_S = 600.0
"""How long a batch run retries its requests while the server is busy or unavailable."""
MAX_BACKOFF_S = 10.0
MAX_RETRY_AFTER_S = 86_400.0
"""The maximum ``Retry-After``; longer ones are lowered to it."""
NO_BACKOFF = (-math.inf, "")
MAX_BYTES = 64 << 20
"""The maximum size of a response."""
CHUNK_BYTES = 4096
MAX_REASON = 200
"""The maximum number of characters that an error quotes from the server's own message."""
BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE})
UNAVAILABLE = BUSY | {HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.GATEWAY_TIMEOUT}
"""Statuses of a health check that mean that the server cannot score. All other statuses mean that it can."""
TOO_LARGE = frozenset({400, 413, 422})
"""Statuses with which servers refuse a request because of its size or because of one of its documents."""

logger = logging.getLogger(__name__)
warnings_due = Seldom()


class Response(NamedTuple):
    """A response with status 200.

    Attributes:
        content: decoded JSON of the body.
        headers: headers; their names match in any case.
    """

    content: Any
    headers: Mapping[str, str]


class Options(TypedDict, total=False):
    """The options of a request.

    Attributes:
        send_deadline: whether a header sends the remaining time, which ``osrerank serve`` understands.
        timeout_s: timeout of one response, in seconds.
        attempts: maximum number of attempts to send the request.
    """

    send_deadline: bool
    timeout_s: float
    attempts: int


class _Request(NamedTuple):
    method: str
    url: str
    deadline: Deadline
    content: bytes | None = None
    send_deadline: bool = False
    timeout_s: float = TIMEOUT_S
    attempts: int = ATTEMPTS


class Connection:
    """The connections to one server; safe to use from many threads.

    Args:
        host: the server's host, for messages.
        key: key that is sent as a bearer token; "" to send no key.
        clock: function that returns monotonic seconds.
        wait: function that waits for the given seconds, or until the connections are closed.

    Attributes:
        retry_budget_s: how long requests without a deadline are retried while the server is busy or unavailable.
    """

    def __init__(
        self,
        host: str,
        key: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self.retry_budget_s = 0.0
        self._host = host
        self._key = key
        self._closed = threading.Event()
        self._clock = clock
        self._wait = wait or self._closed.wait
        self._has_responded = False  # the server has responded at least once
        self._works = False  # the server scored the last request
        self._failed_at_s: float | None = None  # time of the first failure since the server last worked
        self._backoff = NO_BACKOFF  # end of the pause that the server asked for; its refusal
        self._pool = urllib3.PoolManager(num_pools=4, maxsize=CONNECTIONS, retries=False)

    def post(self, url: str, body: Mapping[str, Any], deadline: Deadline, **options: Unpack[Options]) -> Response:
        """Send a request and return the response; retry if the server is busy or closes the connection.

        Args:
            url: URL of the request.
            body: JSON of the request.
            deadline: deadline of the search; a request without a deadline is retried for up to `retry_budget_s`.
            options: see `Options`.

        Raises:
            DeadlineExceeded: the time ran out.
            Overloaded: the server is overloaded.
            EndpointError: the server does not respond, refuses the request (with its status), or its response is an
                error or not JSON.
        """
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        try:
            status, headers, response_body = self._send_with_retries(
                _Request("POST", url, deadline, content, **options)
            )
            if status != HTTPStatus.OK:
                refusal = self._refusal(status, headers, response_body)
                is_late = status == HTTPStatus.GATEWAY_TIMEOUT and options.get("send_deadline") and deadline.at_s
                raise DeadlineExceeded(str(refusal)) if is_late else refusal
            response = Response(self._decode(response_body), headers)
        except (EndpointError, Overloaded) as error:
            self._works = self._works and getattr(error, "status", None) in TOO_LARGE
            raise
        self._works, self._failed_at_s, self._backoff = True, None, NO_BACKOFF
        return response

    def get(self, url: str, deadline: Deadline, **options: Unpack[Options]) -> Any:
        """Return the JSON at a URL; None if the response is an error or not JSON. Retry as `post` does.

        Raises:
            DeadlineExceeded: the time ran out.
            Overloaded, EndpointError: the server is busy, cannot be reached, or refuses the key.
        """
        status, headers, body = self._send_with_retries(_Request("GET", url, deadline, **options))
        if status in (401, 403):
            raise self._refusal(status, headers, body)
        try:
            return json.loads(body) if status == HTTPStatus.OK else None
        except ValueError:
            return None

    def is_healthy(self, url: str, deadline: Deadline) -> bool:
        """Return whether the server scored the last request and its health check at the URL succeeds now."""
        if not self._works:
            return False
        try:
            return self._send(_Request("GET", url, deadline))[0] not in UNAVAILABLE
        except (EndpointError, DeadlineExceeded, _ConnectionLost):
            return False

    def check_backoff(self) -> None:
        """Raise if the server asked for a pause that has not ended.

        Raises:
            EndpointError: the pause has not ended; the message is that of the server's refusal.
        """
        until_s, refusal = self._backoff
        remaining_s = until_s - self._clock()
        if remaining_s > 0:
            raise EndpointError(f"{refusal}; retry in {remaining_s:.0f} s", retryable=True)

    def _send_with_retries(self, request: "_Request") -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of the first attempt whose status is not in `BUSY`.

        Raises:
            DeadlineExceeded, Overloaded, EndpointError: as `post`.
        """
        for attempt in itertools.count(1):
            self._check(request.deadline)
            if attempt > 1:
                ENDPOINT_REQUESTS.labels("retried").inc()
            started = time.perf_counter()
            try:
                response = self._send(request)
            except _ConnectionLost as error:
                failure: EndpointError | Overloaded = EndpointError(str(error), retryable=True)
            else:
                self._has_responded = True
                if response[0] not in BUSY:
                    if response[0] == HTTPStatus.OK and request.method == "POST":
                        ENDPOINT_SECONDS.observe(time.perf_counter() - started)
                    return response
                failure = self._refusal(*response)
            self._wait_or_raise(attempt, request, failure)
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Close the connections; requests that wait for their next attempt fail at once."""
        self._closed.set()
        self._pool.clear()

    def _send(self, request: "_Request") -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of one attempt.

        Raises:
            DeadlineExceeded: the time ran out.
            EndpointError: the server cannot be reached, or does not respond in time.
            _ConnectionLost: the connection failed, and another attempt may succeed.
        """
        with http_span(request.method, request.url) as traced:
            response = self._exchange(request)
            tell_status(traced, response[0])
        return response

    def _exchange(self, request: "_Request") -> tuple[int, Mapping[str, str], bytes]:
        """Do what `_send` does, within its span."""
        deadline = request.deadline
        timeout_s = min(request.timeout_s, deadline.remaining_s())
        timeout = urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, timeout_s), read=timeout_s)
        headers = {"Content-Type": "application/json", "Accept": "application/json", **trace_headers()}
        if request.send_deadline and deadline.at_s:
            headers["X-Request-Timeout-Ms"] = str(max(1, int(1000 * deadline.remaining_s())))
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            response = self._pool.request(
                request.method,
                request.url,
                body=request.content,
                headers=headers,
                timeout=timeout,
                preload_content=False,
                redirect=False,
            )
            return response.status, response.headers, self._read(response, deadline)
        except NewConnectionError as error:  # in old releases of urllib3, it is also a timeout
            raise _ConnectionLost(
                f"the rerank server {self._host} cannot be reached ({type(error).__name__})"
            ) from None
        except TooLateError as error:
            self._check(deadline)
            if isinstance(error, ConnectTimeoutError):
                raise _ConnectionLost(f"the rerank server {self._host} could not be reached in time") from None
            raise EndpointError(f"the rerank server {self._host} did not respond in time", retryable=True) from None
        except ProtocolError:
            raise _ConnectionLost(f"the rerank server {self._host} closed the connection without a response") from None
        except HTTPError as error:
            reason = str(error)[:MAX_REASON] if isinstance(error, SSLError) else type(error).__name__
            raise EndpointError(f"the rerank server {self._host} cannot be reached ({reason})") from None

    def _read(self, response: Any, deadline: Deadline) -> bytes:
        """Return the body. If it is too late or too large, close the connection and raise."""
        body = bytearray()
        try:
            for chunk in response.stream(CHUNK_BYTES):
                body += chunk
                self._check(deadline, len(body))
        except BaseException:
            response.close()
            raise
        response.release_conn()
        return bytes(body)

    def _wait_or_raise(self, attempt: int, request: "_Request", failure: EndpointError | Overloaded) -> None:
        """Wait before the next attempt: for the backoff, or slightly longer than the server's ``Retry-After``.

        Raises:
            EndpointError, Overloaded: the given failure, if no attempt is left or the next attempt would be too late.
        """
        deadline, retry_after_s, now_s = request.deadline, failure.retry_after_s, self._clock()
        self._works = False
        self._failed_at_s = since_s = now_s if self._failed_at_s is None else self._failed_at_s
        if retry_after_s is not None:
            self._backoff = (now_s + min(retry_after_s, MAX_WAIT_S), str(failure))
        has_budget = deadline.at_s is None and self._has_responded
        budget_left_s = since_s + self.retry_budget_s - now_s if has_budget else 0.0
        if attempt >= request.attempts and budget_left_s <= 0:
            raise failure
        wait_s = _backoff_s(attempt) if retry_after_s is None or attempt > ATTEMPTS else 0.0
        if retry_after_s is not None:
            jitter_s = FIRST_WAIT_S * random.random()  # noqa: S311 - so that not all clients retry at once
            wait_s = max(wait_s, retry_after_s + jitter_s)
        if wait_s > max(min(MAX_WAIT_S, deadline.remaining_s()), budget_left_s):
            failure.args = (f"{failure}; the next attempt would come too late, in {wait_s:.1f} s",)
            raise failure
        if budget_left_s > 0 and warnings_due.is_due(self._host):
            logger.warning("[server-busy] %s; retrying for at most %.0f s", failure, budget_left_s)
        self._wait(wait_s)

    def _check(self, deadline: Deadline, size: int = 0) -> None:
        """Raise if the deadline has passed, the connection is closed, or a response of ``size`` bytes is too large."""
        if size > MAX_BYTES:
            raise EndpointError(f"the response of {self._host} is larger than {MAX_BYTES >> 20} MiB")
        if self._closed.is_set():
            raise InferenceError(f"the connection to {self._host} is closed")
        if deadline.passed:
            raise DeadlineExceeded(f"the deadline passed before {self._host} responded")

    def _decode(self, body: bytes) -> Any:
        """Return the JSON of a response with status 200.

        Raises:
            EndpointError: the body is not JSON, or it reports an error, as some servers do with status 200.
        """
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            raise EndpointError(f"the response of {self._host} is not JSON", status=200) from None
        has_list = not isinstance(content, dict) or any(isinstance(value, list) for value in content.values())
        message = "" if has_list else self._server_message(body)  # in every dialect, scores are in a list
        if message:
            raise EndpointError(f"the rerank server {self._host} sent status 200 with an error: {message}", status=200)
        return content

    def _refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> EndpointError | Overloaded:
        """Return the error for a status other than 200, with the server's own message if the body has one."""
        message = self._server_message(body)
        reason = f"the rerank server {self._host} answered {status}{f': {message}' if message else ''}"
        error: EndpointError | Overloaded
        if status in BUSY:
            is_overloaded = status == HTTPStatus.TOO_MANY_REQUESTS
            error = Overloaded(reason) if is_overloaded else EndpointError(reason, status=status, retryable=True)
            error.retry_after_s = retry_after_s(headers)
            return error
        if status in (401, 403):
            reason += "; set OSRERANK_RERANK_KEY to a key that the server accepts"
        elif status in (404, 405):
            reason += "; change url or dialect in [http] of osrerank.toml, or the model"
        elif 300 <= status < 400:
            reason += (
                "; it redirects: set url to the address it redirects to, because osrerank does not forward the key"
            )
        return EndpointError(reason, status=status, retryable=status in UNAVAILABLE)

    def _server_message(self, body: bytes) -> str:
        """Return the error message in a body, without the key; "" if the body has no message."""
        try:
            message = _message_in(json.loads(body))
        except (ValueError, RecursionError):
            return ""
        message = " ".join(message.split())
        return (message.replace(self._key, "***") if self._key else message)[:MAX_REASON]


class _ConnectionLost(Exception):  # noqa: N818 - an event
    """The connection failed; another attempt may succeed."""


def _message_in(content: Any) -> str:
    """Return the message in an error's body; servers use different keys for it."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return _message_in(content[0]) if content else ""
    if not isinstance(content, dict):
        return ""
    messages = (_message_in(content.get(name)) for name in ("message", "detail", "error", "msg"))
    return next(filter(None, messages), "")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of ``Retry-After``, which is a number or a date; None if it is missing or invalid.

    A date is compared with the server's own ``Date`` if it sends one, because clocks differ.
    """
    value = (headers.get("Retry-After") or "").strip()
    if value.isascii() and value.isdigit():
        return min(float(value), MAX_RETRY_AFTER_S)
    until = _timestamp(value)
    if until is None:
        return None
    now = _timestamp(headers.get("Date") or "")
    return min(max(0.0, until - (time.time() if now is None else now)), MAX_RETRY_AFTER_S)


def _timestamp(date: str) -> float | None:
    """Return the timestamp of a header's date; None if it is not a date."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _backoff_s(attempt: int) -> float:
    """Return a random wait, whose upper bound doubles with each attempt."""
    longest = min(FIRST_WAIT_S * 2 ** (min(attempt, ATTEMPTS * 3) - 1), MAX_BACKOFF_S)
    return random.uniform(longest / 2, longest)  # noqa: S311 - so that not all clients retry at once
