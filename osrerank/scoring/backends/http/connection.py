"""Send requests to a rerank server over pooled connections, with retries within the deadline."""

import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, NamedTuple

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProtocolError, SSLError
from urllib3.exceptions import TimeoutError as Urllib3TimeoutError

from osrerank._log_throttle import LogThrottle
from osrerank.errors import DeadlineExceeded, EndpointError, InferenceError, Overloaded
from osrerank.metrics import ENDPOINT_REQUESTS, ENDPOINT_SECONDS
from osrerank.scoring.backends.http.refusal import (
    BUSY_STATUSES,
    MAX_MESSAGE_CHARACTERS,
    UNAVAILABLE_STATUSES,
    RawResponse,
    build_error,
    find_message,
)
from osrerank.tracing.attributes import create_http_span, set_http_status
from osrerank.tracing.spans import trace_headers
from osrerank.types import Deadline
from osrerank.types.reasons import log_message

MAX_CONNECTIONS = 32
"""A scorer sends at most this many requests at a time, and keeps as many connections open."""
CONNECT_TIMEOUT_S = 3.0
RESPONSE_TIMEOUT_S = 60.0
"""The timeout of a response if the search has no deadline, in seconds."""
MAX_ATTEMPTS = 4
"""How often a request is sent unless the caller says otherwise. A batch run's retry budget allows more attempts."""
FIRST_WAIT_S = 0.1
"""The wait before the second attempt, in seconds. Each later wait is about twice as long."""
MAX_BACKOFF_S = 10.0
"""The maximum wait between attempts if the response has no ``Retry-After``, in seconds."""
MAX_PAUSE_S = 30.0
"""The maximum ``Retry-After`` that a search waits for, in seconds. After a longer one, the search fails at once."""
RETRY_BUDGET_S = 600.0
"""How long a batch run retries its requests while the server is busy or unavailable, in seconds."""
MAX_BYTES = 64 << 20
"""The maximum size of a response: 64 MiB."""
CHUNK_BYTES = 4096
"""While a response is read, the deadline is checked each time this many bytes have come."""
UNREACHABLE_FIX = "start the server, or correct url in [http] of osrerank.toml"
REFUSED_CONTENT_STATUSES = frozenset({400, 413, 422})
"""The statuses with which servers refuse a request because of its size or one of its documents."""

logger = logging.getLogger(__name__)
warning_throttle = LogThrottle()


class Response(NamedTuple):
    """A response with status 200.

    Attributes:
        content: the decoded JSON of the body.
        headers: the headers, whose names are case-insensitive.
    """

    content: Any
    headers: Mapping[str, str]


class _Request(NamedTuple):
    """A request with its JSON body ``content``. For the other fields, see the arguments of `Connection.post`.

    ``timeout_s`` is the maximum time to wait for the response, even if the deadline is later.
    """

    method: str
    url: str
    deadline: Deadline
    content: bytes | None = None
    send_deadline: bool = False
    timeout_s: float = RESPONSE_TIMEOUT_S
    attempts: int = MAX_ATTEMPTS


class Connection:
    """The connections to one server. Safe to use from many threads.

    Args:
        host: the server's host, for messages.
        key: the key to send as a bearer token. If it is "", none is sent.
        clock: returns monotonic seconds.
        wait: waits for the given seconds, or until the connections are closed.

    Attributes:
        retry_budget_s: how long requests without a deadline are retried while the server is busy or unavailable, in
            seconds. It is 0 until a batch run sets it to `RETRY_BUDGET_S`.
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
        self._has_responded = False  # whether the server has ever sent a response
        self._last_post_succeeded = False
        self._first_failure_at_s: float | None = None  # the first failure since the last successful `post`
        self._retry_at_s = -math.inf  # the end of the pause that the server requested by Retry-After
        self._pause_reason = ""  # the message of the response that requested this pause
        self._pool = urllib3.PoolManager(num_pools=4, maxsize=MAX_CONNECTIONS, retries=False)

    def post(
        self,
        url: str,
        body: Mapping[str, Any],
        deadline: Deadline,
        *,
        send_deadline: bool = False,
        attempts: int = MAX_ATTEMPTS,
    ) -> Response:
        """Send a request, again if the server is busy or closes the connection, and return the response.

        Args:
            url: the URL of the request.
            body: the JSON of the request.
            deadline: the deadline of the search. If it has none, the request is retried for up to `retry_budget_s`.
            send_deadline: whether a header contains the remaining time, which ``osrerank serve`` understands.
            attempts: the maximum number of times that the request is sent.

        Raises:
            DeadlineExceeded: the time ran out.
            Overloaded: the server is overloaded.
            EndpointError: the server does not respond, refuses the request (with its status), or its response is an
                error or not JSON.
        """
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        request = _Request("POST", url, deadline, content, send_deadline=send_deadline, attempts=attempts)
        try:
            response = self._send_with_retries(request)
            if response.status == HTTPStatus.GATEWAY_TIMEOUT and send_deadline and deadline.at_s is not None:
                raise DeadlineExceeded(str(build_error(self._host, self._key, response)))
            if response.status != HTTPStatus.OK:
                raise build_error(self._host, self._key, response)
            decoded = self._decode(response.body)
        except (EndpointError, Overloaded) as error:
            is_content_refused = getattr(error, "status", None) in REFUSED_CONTENT_STATUSES
            if not is_content_refused:  # otherwise, the server is still healthy
                self._last_post_succeeded = False
            raise
        self._last_post_succeeded = True
        self._first_failure_at_s = None
        self._retry_at_s = -math.inf
        return Response(decoded, response.headers)

    def get(
        self, url: str, deadline: Deadline, *, timeout_s: float = RESPONSE_TIMEOUT_S, attempts: int = MAX_ATTEMPTS
    ) -> Any:
        """Return the JSON at a URL, or None if the status is not 200 or the body is not JSON. Retries as `post` does.

        Raises:
            DeadlineExceeded: the time ran out.
            Overloaded, EndpointError: the server is busy, cannot be reached, or refuses the key.
        """
        response = self._send_with_retries(_Request("GET", url, deadline, timeout_s=timeout_s, attempts=attempts))
        if response.status in (401, 403):
            raise build_error(self._host, self._key, response)
        try:
            return json.loads(response.body) if response.status == HTTPStatus.OK else None
        except ValueError:
            return None

    def is_healthy(self, url: str, deadline: Deadline) -> bool:
        """Return whether the last `post` succeeded and the server's health check at the URL succeeds now."""
        if not self._last_post_succeeded:
            return False
        try:
            return self._send(_Request("GET", url, deadline)).status not in UNAVAILABLE_STATUSES
        except (EndpointError, DeadlineExceeded, _ConnectionFailed):
            return False

    def check_retry_after(self) -> None:
        """Raise an `EndpointError` if the pause that the server requested by ``Retry-After`` has not ended."""
        remaining_s = self._retry_at_s - self._clock()
        if remaining_s > 0:
            raise EndpointError(f"{self._pause_reason}; retry in {remaining_s:.0f} s", retryable=True)

    def close(self) -> None:
        """Close the connections. Requests that wait to be sent again fail at once."""
        self._closed.set()
        self._pool.clear()

    def _send_with_retries(self, request: _Request) -> RawResponse:
        """Return the first response whose status is not in `BUSY_STATUSES`. For the errors, see `post`."""
        attempt = 0
        while True:
            attempt += 1
            self._check_can_continue(request.deadline)
            if attempt > 1:
                ENDPOINT_REQUESTS.labels("retried").inc()
            began_at_s = time.perf_counter()
            try:
                response = self._send(request)
            except _ConnectionFailed as error:
                failure: EndpointError | Overloaded = EndpointError(str(error), retryable=True)
            else:
                self._has_responded = True
                if response.status == HTTPStatus.OK and request.method == "POST":
                    ENDPOINT_SECONDS.observe(time.perf_counter() - began_at_s)
                if response.status not in BUSY_STATUSES:
                    return response
                failure = build_error(self._host, self._key, response)
            self._wait_or_raise(attempt, request, failure)

    def _send(self, request: _Request) -> RawResponse:
        """Return the response to one attempt. Raises `_ConnectionFailed` if another attempt might succeed."""
        deadline = request.deadline
        timeout_s = min(request.timeout_s, deadline.remaining_s())
        timeout = urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, timeout_s), read=timeout_s)
        with create_http_span(request.method, request.url) as span, self._translate_errors(deadline):
            response = self._pool.request(
                request.method,
                request.url,
                body=request.content,
                headers=self._build_headers(request),
                timeout=timeout,
                preload_content=False,
                redirect=False,
            )
            body = self._read_body(response, deadline)
            set_http_status(span, response.status)
        return RawResponse(response.status, response.headers, body)

    def _build_headers(self, request: _Request) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", **trace_headers()}
        if request.send_deadline and request.deadline.at_s is not None:
            headers["X-Request-Timeout-Ms"] = str(max(1, int(1000 * request.deadline.remaining_s())))
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers

    @contextmanager
    def _translate_errors(self, deadline: Deadline) -> Iterator[None]:
        """Raise osrerank's errors instead of urllib3's, whose messages quote the request (except an `SSLError`'s)."""
        try:
            yield
        except NewConnectionError as error:  # first, because it is also a TimeoutError in old releases of urllib3
            cause = error.__cause__
            detail = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(error).__name__
            reason = f"the rerank server {self._host} cannot be reached ({detail}); {UNREACHABLE_FIX}"
            raise _ConnectionFailed(reason) from None
        except Urllib3TimeoutError as error:
            self._check_can_continue(deadline)
            if isinstance(error, ConnectTimeoutError):
                reason = f"the rerank server {self._host} could not be reached in time; {UNREACHABLE_FIX}"
                raise _ConnectionFailed(reason) from None
            raise EndpointError(f"the rerank server {self._host} did not respond in time", retryable=True) from None
        except ProtocolError:
            raise _ConnectionFailed(
                f"the rerank server {self._host} closed the connection without a response"
            ) from None
        except HTTPError as error:
            reason = str(error)[:MAX_MESSAGE_CHARACTERS] if isinstance(error, SSLError) else type(error).__name__
            raise EndpointError(f"the rerank server {self._host} cannot be reached ({reason})") from None

    def _read_body(self, response: Any, deadline: Deadline) -> bytes:
        """Return the body of a response. If it is too late or too large, close the connection and raise an error."""
        body = bytearray()
        try:
            for chunk in response.stream(CHUNK_BYTES):
                body += chunk
                self._check_can_continue(deadline, len(body))
        except BaseException:
            response.close()
            raise
        response.release_conn()
        return bytes(body)

    def _wait_or_raise(self, attempt: int, request: _Request, failure: EndpointError | Overloaded) -> None:
        """Wait for the next attempt. Raises the failure if no attempt is left, or ``Retry-After`` is too long.

        A batch run, which has no deadline but a retry budget, can make further attempts until the budget is spent.
        """
        now_s = self._clock()
        first_failure_at_s = self._record_failure(failure, now_s)
        remaining_budget_s = 0.0
        # a server that has never responded is not busy: its address is probably wrong
        if request.deadline.at_s is None and self._has_responded:
            remaining_budget_s = first_failure_at_s + self.retry_budget_s - now_s
        if attempt >= request.attempts and remaining_budget_s <= 0:
            raise failure
        wait_s = _choose_wait_s(attempt, failure.retry_after_s)
        max_wait_s = min(MAX_PAUSE_S, request.deadline.remaining_s())
        if wait_s > max(max_wait_s, remaining_budget_s):
            # changed in place, so that the error keeps its status and retry_after_s
            failure.args = (f"{failure}; the next attempt would come too late, in {wait_s:.1f} s",)
            raise failure
        if remaining_budget_s > 0 and warning_throttle.should_log(self._host):
            logger.warning("[server-busy] %s; retrying for at most %.0f s", log_message(failure), remaining_budget_s)
        self._wait(wait_s)

    def _record_failure(self, failure: EndpointError | Overloaded, now_s: float) -> float:
        """Record a failed attempt, and return the time of the first failure since the last successful `post`."""
        self._last_post_succeeded = False
        if failure.retry_after_s is not None:
            self._retry_at_s = now_s + min(failure.retry_after_s, MAX_PAUSE_S)
            self._pause_reason = log_message(failure)  # other users' requests get it, too
        first_failure_at_s = self._first_failure_at_s  # read once, because another thread may reset it
        if first_failure_at_s is None:
            first_failure_at_s = self._first_failure_at_s = now_s
        return first_failure_at_s

    def _check_can_continue(self, deadline: Deadline, size: int = 0) -> None:
        """Raise if the deadline has passed, the connections are closed, or a body of ``size`` bytes is too large."""
        if size > MAX_BYTES:
            raise EndpointError(f"the response of the rerank server {self._host} is larger than {MAX_BYTES >> 20} MiB")
        if self._closed.is_set():
            raise InferenceError(f"the connection to the rerank server {self._host} is closed; connect again")
        if deadline.passed:
            raise DeadlineExceeded(f"the deadline passed before the rerank server {self._host} responded")

    def _decode(self, body: bytes) -> Any:
        """Return the JSON of a response with status 200. Raises an error if the JSON contains one."""
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            reason = (
                f"the response of the rerank server {self._host} is not JSON; correct url in [http] of osrerank.toml"
            )
            raise EndpointError(reason, status=200) from None
        # In every dialect, a response with scores contains a list.
        if isinstance(content, dict) and not any(isinstance(value, list) for value in content.values()):
            message = find_message(body, self._key)
            if message:
                reason = f"the rerank server {self._host} sent status 200 with an error: {message}"
                error = EndpointError(reason, status=200)
                error.server_message = message
                raise error
        return content


class _ConnectionFailed(Exception):  # noqa: N818 - an event
    """The connection failed before a response came, but another attempt might succeed."""


def _choose_wait_s(attempt: int, retry_after_s: float | None) -> float:
    """Return ``Retry-After`` plus jitter. Without that header, return a random wait that grows with each attempt.

    A batch run makes more than `MAX_ATTEMPTS` attempts. The waits between its further attempts are at least as long as
    without the header, so that they grow although the header names a short time.
    """
    doublings = min(attempt - 1, 10)  # bounded, because a batch run makes many attempts
    max_backoff_s = min(FIRST_WAIT_S * 2**doublings, MAX_BACKOFF_S)
    backoff_s = random.uniform(max_backoff_s / 2, max_backoff_s)  # noqa: S311 - spreads retries
    if retry_after_s is None:
        return backoff_s
    wait_s = retry_after_s + FIRST_WAIT_S * random.random()  # noqa: S311 - spreads retries
    return wait_s if attempt <= MAX_ATTEMPTS else max(wait_s, backoff_s)
