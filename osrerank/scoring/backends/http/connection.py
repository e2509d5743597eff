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
"""The most concurrent requests, and the most connections that are kept open."""
CONNECT_S = 3.0
MAX_S = 60.0
"""The timeout of an answer, if a search has no deadline."""
ATTEMPTS = 4
FIRST_WAIT_S = 0.1
"""The wait before the second attempt; each later wait is about twice as long."""
LONGEST_WAIT_S = 30.0
"""The longest wait that a server can ask for, in a request with a deadline."""
PATIENCE_S = 600.0
"""How long a batch run retries its requests to a server that is busy or away."""
LONGEST_BACKOFF_S = 10.0
LONGEST_RETRY_AFTER_S = 86_400.0
"""The upper bound of a ``Retry-After``."""
NO_REST = (-math.inf, "")
MAX_BYTES = 64 << 20
"""The largest size of an answer."""
CHUNK_BYTES = 4096
MAX_REASON = 200
"""The most characters of a server's own message in ours."""
BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE})
AWAY = BUSY | {HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.GATEWAY_TIMEOUT}
"""Statuses of a health check that mean that the server cannot score; any other status means that it can."""
TOO_LARGE = frozenset({400, 413, 422})
"""Statuses with which servers refuse a request for its size, or for one of its documents."""

logger = logging.getLogger(__name__)
warnings_due = Seldom()


class Answer(NamedTuple):
    """An answer with status 200.

    Attributes:
        content: JSON of the answer.
        headers: headers of the answer, by name in any case.
    """

    content: Any
    headers: Mapping[str, str]


class Options(TypedDict, total=False):
    """The options of a request.

    Attributes:
        tells_time: whether a header tells the server the remaining time, which ``osrerank serve`` understands.
        max_s: timeout of one answer, in seconds.
        attempts: the most attempts to send the request.
    """

    tells_time: bool
    max_s: float
    attempts: int


class _Request(NamedTuple):
    method: str
    url: str
    deadline: Deadline
    content: bytes | None = None
    tells_time: bool = False
    max_s: float = MAX_S
    attempts: int = ATTEMPTS


class Connection:
    """The connections to one server; safe to use from many threads.

    Args:
        host: the server's host, for messages.
        key: key that is sent as a bearer token; "" for none.
        clock: function that returns monotonic seconds.
        wait: function that waits so many seconds, or until the connections are closed.

    Attributes:
        patience_s: how long requests without a deadline are retried while the server is busy or away.
    """

    def __init__(
        self,
        host: str,
        key: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self.patience_s = 0.0
        self._host = host
        self._key = key
        self._closed = threading.Event()
        self._clock = clock
        self._wait = wait or self._closed.wait
        self._has_answered = False  # the server has answered at least once
        self._works = False  # the server scored the last request
        self._failed_at_s: float | None = None  # time of the first failure since the server last worked
        self._rest = NO_REST  # the time until which the server asked for no requests, and its refusal
        self._pool = urllib3.PoolManager(num_pools=4, maxsize=CONNECTIONS, retries=False)

    def post(self, url: str, body: Mapping[str, Any], deadline: Deadline, **options: Unpack[Options]) -> Answer:
        """Send a request, again if the server is busy or closes the connection, and return the answer.

        Args:
            url: URL of the request.
            body: JSON of the request.
            deadline: deadline of the search; a request without a deadline is retried for up to `patience_s`.
            options: see `Options`.

        Raises:
            DeadlineExceeded: the time ran out.
            Overloaded: the server is overloaded.
            EndpointError: the server does not answer, refuses the request (with its status), or answers with an error
                or without JSON.
        """
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        try:
            status, headers, answer = self._send_until_answered(_Request("POST", url, deadline, content, **options))
            if status != HTTPStatus.OK:
                refusal = self._refusal(status, headers, answer)
                is_late = status == HTTPStatus.GATEWAY_TIMEOUT and options.get("tells_time") and deadline.at_s
                raise DeadlineExceeded(str(refusal)) if is_late else refusal
            decoded = Answer(self._decode(answer), headers)
        except (EndpointError, Overloaded) as error:
            self._works = self._works and getattr(error, "status", None) in TOO_LARGE
            raise
        self._works, self._failed_at_s, self._rest = True, None, NO_REST
        return decoded

    def get(self, url: str, deadline: Deadline, **options: Unpack[Options]) -> Any:
        """Return the JSON at a URL, None if the server has none there; retry as `post` does.

        Raises:
            DeadlineExceeded: the time ran out.
            Overloaded, EndpointError: the server is busy, cannot be reached, or refuses the key.
        """
        status, headers, answer = self._send_until_answered(_Request("GET", url, deadline, **options))
        if status in (401, 403):
            raise self._refusal(status, headers, answer)
        try:
            return json.loads(answer) if status == HTTPStatus.OK else None
        except ValueError:
            return None

    def is_healthy(self, url: str, deadline: Deadline) -> bool:
        """Return whether the server scored the last request and now answers at the URL of its health check."""
        if not self._works:
            return False
        try:
            return self._send(_Request("GET", url, deadline))[0] not in AWAY
        except (EndpointError, DeadlineExceeded, _HungUp):
            return False

    def check_rest(self) -> None:
        """Check that the server did not ask for a pause that still lasts.

        Raises:
            EndpointError: it did; the message is that of its refusal.
        """
        until_s, refusal = self._rest
        if (remaining_s := until_s - self._clock()) > 0:
            raise EndpointError(f"{refusal}; retry in {remaining_s:.0f} s", retryable=True)

    def _send_until_answered(self, request: "_Request") -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of the first attempt that finds the server neither busy nor away.

        Raises:
            DeadlineExceeded, Overloaded, EndpointError: as `post`.
        """
        for attempt in itertools.count(1):
            self._check(request.deadline)
            if attempt > 1:
                ENDPOINT_REQUESTS.labels("retried").inc()
            started = time.perf_counter()
            try:
                answer = self._send(request)
            except _HungUp as error:
                failure: EndpointError | Overloaded = EndpointError(str(error), retryable=True)
            else:
                self._has_answered = True
                if answer[0] not in BUSY:
                    if answer[0] == HTTPStatus.OK and request.method == "POST":
                        ENDPOINT_SECONDS.observe(time.perf_counter() - started)
                    return answer
                failure = self._refusal(*answer)
            self._pause(attempt, request, failure)
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Close the connections; requests that wait for their next attempt fail at once."""
        self._closed.set()
        self._pool.clear()

    def _send(self, request: "_Request") -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of one attempt.

        Raises:
            DeadlineExceeded: the time ran out.
            EndpointError: the server cannot be reached, or does not answer in time.
            _HungUp: the connection failed, and another attempt may succeed.
        """
        with http_span(request.method, request.url) as traced:
            answer = self._exchange(request)
            tell_status(traced, answer[0])
        return answer

    def _exchange(self, request: "_Request") -> tuple[int, Mapping[str, str], bytes]:
        """Do what `_send` does, within its span."""
        deadline = request.deadline
        timeout_s = min(request.max_s, deadline.remaining_s())
        timeout = urllib3.Timeout(connect=min(CONNECT_S, timeout_s), read=timeout_s)
        headers = {"Content-Type": "application/json", "Accept": "application/json", **trace_headers()}
        if request.tells_time and deadline.at_s:
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
        except NewConnectionError as error:  # before the timeouts, of which old releases of urllib3 made it one
            raise _HungUp(f"the rerank server {self._host} cannot be reached ({type(error).__name__})") from None
        except TooLateError as error:
            self._check(deadline)
            if isinstance(error, ConnectTimeoutError):
                raise _HungUp(f"the rerank server {self._host} could not be reached in time") from None
            raise EndpointError(f"the rerank server {self._host} did not answer in time", retryable=True) from None
        except ProtocolError:
            raise _HungUp(f"the rerank server {self._host} closed the connection without an answer") from None
        except HTTPError as error:
            reason = str(error)[:MAX_REASON] if isinstance(error, SSLError) else type(error).__name__
            raise EndpointError(f"the rerank server {self._host} cannot be reached ({reason})") from None

    def _read(self, response: Any, deadline: Deadline) -> bytes:
        """Return the body if it comes in time and is not too large; otherwise, close the connection."""
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

    def _pause(self, attempt: int, request: "_Request", failure: EndpointError | Overloaded) -> None:
        """Wait before the next attempt: for the backoff, or a little longer than the server asks.

        Raises:
            EndpointError, Overloaded: the failure, if it was the last attempt or the next one would come too late.
        """
        deadline, retry_after_s, now_s = request.deadline, failure.retry_after_s, self._clock()
        self._works = False
        self._failed_at_s = since_s = now_s if self._failed_at_s is None else self._failed_at_s
        if retry_after_s is not None:
            self._rest = (now_s + min(retry_after_s, LONGEST_WAIT_S), str(failure))
        is_patient = deadline.at_s is None and self._has_answered
        patience_s = since_s + self.patience_s - now_s if is_patient else 0.0
        if attempt >= request.attempts and patience_s <= 0:
            raise failure
        wait_s = _backoff_s(attempt) if retry_after_s is None or attempt > ATTEMPTS else 0.0
        if retry_after_s is not None:
            jitter_s = FIRST_WAIT_S * random.random()  # noqa: S311 - so that not all clients retry at once
            wait_s = max(wait_s, retry_after_s + jitter_s)
        if wait_s > max(min(LONGEST_WAIT_S, deadline.remaining_s()), patience_s):
            failure.args = (f"{failure}; the next attempt would come too late, in {wait_s:.1f} s",)
            raise failure
        if patience_s > 0 and warnings_due.is_due(self._host):
            logger.warning("[server-busy] %s; retrying for at most %.0f s", failure, patience_s)
        self._wait(wait_s)

    def _check(self, deadline: Deadline, size: int = 0) -> None:
        """Raise if the deadline has passed, the connection is closed, or an answer of this many bytes is too large."""
        if size > MAX_BYTES:
            raise EndpointError(f"the answer of {self._host} is larger than {MAX_BYTES >> 20} MiB")
        if self._closed.is_set():
            raise InferenceError(f"the connection to {self._host} is closed")
        if deadline.passed:
            raise DeadlineExceeded(f"the deadline passed before {self._host} answered")

    def _decode(self, answer: bytes) -> Any:
        """Return the JSON of an answer with status 200.

        Raises:
            EndpointError: the answer is not JSON, or reports an error, as some servers do with status 200.
        """
        try:
            content = json.loads(answer)
        except (ValueError, RecursionError):
            raise EndpointError(f"the answer of {self._host} is not JSON", status=200) from None
        has_list = not isinstance(content, dict) or any(isinstance(value, list) for value in content.values())
        if not has_list and (message := self._server_message(answer)):  # scores are in a list in every dialect
            raise EndpointError(f"the rerank server {self._host} answered 200, but with: {message}", status=200)
        return content

    def _refusal(self, status: int, headers: Mapping[str, str], answer: bytes) -> EndpointError | Overloaded:
        """Return the error for a status other than 200, with the server's own message if it gave one."""
        message = self._server_message(answer)
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
            reason += "; name another url or dialect in [http] of osrerank.toml, or another model"
        elif 300 <= status < 400:
            reason += "; it redirects to another address: name that one, because osrerank does not forward a key"
        return EndpointError(reason, status=status, retryable=status in AWAY)

    def _server_message(self, answer: bytes) -> str:
        """Return the server's error message, in which the key is hidden; "" if the answer has none."""
        try:
            message = _message_in(json.loads(answer))
        except (ValueError, RecursionError):
            return ""
        message = " ".join(message.split())
        return (message.replace(self._key, "***") if self._key else message)[:MAX_REASON]


class _HungUp(Exception):  # noqa: N818 - an event
    """A connection failed; another attempt may succeed."""


def _message_in(content: Any) -> str:
    """Return the message in an error's body, which servers put under different names."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return _message_in(content[0]) if content else ""
    if not isinstance(content, dict):
        return ""
    messages = (_message_in(content.get(name)) for name in ("message", "detail", "error", "msg"))
    return next(filter(None, messages), "")


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of ``Retry-After``, which is a number or a date; None without a valid one.

    A date is compared with the server's own ``Date`` if it sends one, because clocks differ.
    """
    value = (headers.get("Retry-After") or "").strip()
    if value.isascii() and value.isdigit():
        return min(float(value), LONGEST_RETRY_AFTER_S)
    until = _timestamp(value)
    if until is None:
        return None
    now = _timestamp(headers.get("Date") or "")
    return min(max(0.0, until - (time.time() if now is None else now)), LONGEST_RETRY_AFTER_S)


def _timestamp(date: str) -> float | None:
    """Return the timestamp of a header's date; None if it is not a date."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _backoff_s(attempt: int) -> float:
    longest = min(FIRST_WAIT_S * 2 ** (min(attempt, ATTEMPTS * 3) - 1), LONGEST_BACKOFF_S)
    return random.uniform(longest / 2, longest)  # noqa: S311 - so that not all clients retry at once
