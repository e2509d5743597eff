"""Requests to a rerank server: pooled connections, retries within the deadline, and errors that name no secret."""

import json
import logging
import random
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ProtocolError, SSLError
from urllib3.exceptions import TimeoutError as TooLateError

from osrerank.errors import DeadlineExceeded, EndpointError, InferenceError, Overloaded
from osrerank.metrics import ENDPOINT_REQUESTS, ENDPOINT_SECONDS
from osrerank.tracing.attributes import http_span, tell_status
from osrerank.tracing.spans import headers as trace_headers
from osrerank.types import Deadline

CONNECTIONS = 32
"""Requests that are under way at a time, each on a connection that is kept."""
CONNECT_S = 3.0
MOST_S = 60.0
"""For an answer, where a search has no deadline."""
ATTEMPTS = 4
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 30.0
"""Before the second attempt, about doubled before each later one; the most that is waited at a server's request."""
MOST_BYTES = 64 << 20
"""Of an answer."""
PIECE_BYTES = 4096
MOST_REASON = 200
"""Characters of a server's own words in a message."""
BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})

logger = logging.getLogger(__name__)


class Answer(NamedTuple):
    """What a server answered with status 200.

    Attributes:
        content: its JSON.
        headers: by name, of any case.
    """

    content: Any
    headers: Mapping[str, str]


class Connection:
    """The connections to one server; safe to use from many threads.

    Args:
        host: the server's, for messages.
        key: what it wants as a bearer token; "" for none.
    """

    def __init__(self, host: str, key: str) -> None:
        self._host = host
        self._key = key
        self._closed = threading.Event()
        self._pool = urllib3.PoolManager(num_pools=4, maxsize=CONNECTIONS, retries=False)

    def post(self, url: str, body: Mapping[str, Any], deadline: Deadline, *, tells_time: bool = False) -> Answer:
        """Send a request until it is answered, at most four times: again when the server is busy or hangs up.

        Args:
            url: where to.
            body: its JSON.
            deadline: of the search.
            tells_time: whether the server is told how much time is left, as ``osrerank serve`` understands it.

        Raises:
            DeadlineExceeded: the time ran out.
            Overloaded: the server has too much to do.
            EndpointError: it gives no answer, refuses the request (with its status), or answers what is not JSON.
        """
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        for attempt in range(1, ATTEMPTS + 1):
            backoff_s = _backoff_s(attempt) if attempt < ATTEMPTS else None
            self._check(deadline)
            headers = {"X-Request-Timeout-Ms": _milliseconds(deadline)} if tells_time and deadline.at_s else {}
            started = time.perf_counter()
            try:
                status, given, answered = self._send("POST", url, deadline, content, headers)
            except _HungUp as error:
                self._pause(backoff_s, deadline, EndpointError(str(error)))
                continue
            if status == HTTPStatus.OK:
                ENDPOINT_SECONDS.observe(time.perf_counter() - started)
                return Answer(self._decoded(answered), given)
            refusal = self._refusal(status, answered)
            if status not in BUSY:
                raise refusal
            self._pause(_asked_s(given, backoff_s), deadline, refusal)
        raise AssertionError("the last attempt returns or raises")

    def get(self, url: str, deadline: Deadline) -> Any:
        """Return the JSON that a server has at an address; None where it has none.

        Raises:
            DeadlineExceeded: the time ran out.
            EndpointError: the server cannot be reached, or refuses the key.
        """
        self._check(deadline)
        try:
            status, _, answered = self._send("GET", url, deadline, None, {})
        except _HungUp as error:
            raise EndpointError(str(error)) from None
        if status in (401, 403):
            raise self._refusal(status, answered)
        try:
            return json.loads(answered) if status == HTTPStatus.OK else None
        except ValueError:
            return None

    def close(self) -> None:
        """Close the connections; a request that waits for its next attempt ends."""
        self._closed.set()
        self._pool.clear()

    def _send(
        self, method: str, url: str, deadline: Deadline, content: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of one attempt.

        Raises:
            DeadlineExceeded: the time ran out.
            EndpointError: no connection can be made in time, or no answer comes.
            _HungUp: the connection failed in a way that another attempt may not.
        """
        with http_span(method, url) as traced:
            answer = self._exchanged(method, url, deadline, content, headers)
            tell_status(traced, answer[0])
        return answer

    def _exchanged(
        self, method: str, url: str, deadline: Deadline, content: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Do what `_send` does, within its span."""
        left_s = min(MOST_S, deadline.remaining_s())
        timeout = urllib3.Timeout(connect=min(CONNECT_S, left_s), read=left_s)
        sent = {"Content-Type": "application/json", "Accept": "application/json", **headers, **trace_headers()}
        if self._key:
            sent["Authorization"] = f"Bearer {self._key}"
        try:
            response = self._pool.request(
                method, url, body=content, headers=sent, timeout=timeout, preload_content=False, redirect=False
            )
            return response.status, response.headers, self._read(response, deadline)
        except NewConnectionError as error:  # first, as it is a time-out in old releases of urllib3
            raise _HungUp(f"the rerank server {self._host} cannot be reached ({type(error).__name__})") from None
        except TooLateError as error:
            self._check(deadline)
            what = "could not be reached" if isinstance(error, ConnectTimeoutError) else "did not answer"
            raise EndpointError(f"the rerank server {self._host} {what} in time") from None
        except ProtocolError:
            raise _HungUp(f"the rerank server {self._host} closed the connection without an answer") from None
        except HTTPError as error:
            why = str(error)[:MOST_REASON] if isinstance(error, SSLError) else type(error).__name__
            raise EndpointError(f"the rerank server {self._host} cannot be reached ({why})") from None

    def _read(self, response: Any, deadline: Deadline) -> bytes:
        """Return a body that comes in time and is not too large; a connection that failed is not used again."""
        body = bytearray()
        try:
            for piece in response.stream(PIECE_BYTES):
                body += piece
                self._check(deadline, len(body))
        except BaseException:
            response.close()
            raise
        response.release_conn()
        return bytes(body)

    def _pause(self, wait_s: float | None, deadline: Deadline, failure: EndpointError | Overloaded) -> None:
        """Wait before the next attempt.

        Raises:
            EndpointError, Overloaded: there is none: the failure, where the time left is too short, or wait_s is None.
        """
        if wait_s is None:
            raise failure
        if wait_s > min(LONGEST_WAIT_S, deadline.remaining_s()):
            failure.args = (f"{failure}; the next attempt would come too late, in {wait_s:.1f} s",)
            raise failure
        ENDPOINT_REQUESTS.labels("retried").inc()
        self._closed.wait(wait_s)

    def _check(self, deadline: Deadline, size: int = 0) -> None:
        if size > MOST_BYTES:
            raise EndpointError(f"the answer of {self._host} is larger than {MOST_BYTES >> 20} MiB")
        if self._closed.is_set():
            raise InferenceError(f"the connection to {self._host} is closed")
        if deadline.passed:
            raise DeadlineExceeded(f"the deadline passed before {self._host} answered")

    def _decoded(self, answered: bytes) -> Any:
        try:
            return json.loads(answered)
        except (ValueError, RecursionError):
            raise EndpointError(f"the answer of {self._host} is not JSON", status=200) from None

    def _refusal(self, status: int, answered: bytes) -> EndpointError | Overloaded:
        """Return the error for a status that is not 200, with the server's own sentence where it has one."""
        said = self._sentence(answered)
        reason = f"the rerank server {self._host} answered {status}{f': {said}' if said else ''}"
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return Overloaded(reason)
        if status in (401, 403):
            reason += "; set the key that it wants as OSRERANK_RERANK_KEY"
        elif status in (404, 405):
            reason += "; name another address (OSRERANK_RERANK_URL), dialect (OSRERANK_RERANK_DIALECT) or model"
        elif 300 <= status < 400:
            reason += "; it is elsewhere: name that address, as a key is not sent on"
        return EndpointError(reason, status=status)

    def _sentence(self, answered: bytes) -> str:
        """Return what a server says is wrong, without the key, which some repeat."""
        try:
            said = _message_in(json.loads(answered))
        except (ValueError, RecursionError):
            return ""
        said = " ".join(said.split())
        return (said.replace(self._key, "***") if self._key else said)[:MOST_REASON]


class _HungUp(Exception):  # noqa: N818 - an event
    """A connection failed, and the next one may not."""


def _message_in(content: Any) -> str:
    """Return the sentence in an error's body, under the names that servers use."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return _message_in(content[0]) if content else ""
    if not isinstance(content, dict):
        return ""
    return next(
        (found for name in ("message", "detail", "error", "msg") if (found := _message_in(content.get(name)))), ""
    )


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait by ``Retry-After``, a number or a date; None where it does not.

    A date is compared with the server's own ``Date`` where it sends one, as clocks differ.
    """
    asked = (headers.get("Retry-After") or "").strip()
    if asked.isdigit():
        return float(asked)
    try:
        until = parsedate_to_datetime(asked).timestamp()
    except (TypeError, ValueError):
        return None
    try:
        now = parsedate_to_datetime(headers.get("Date") or "").timestamp()
    except (TypeError, ValueError):
        now = time.time()
    return max(0.0, until - now)


def _asked_s(headers: Mapping[str, str], backoff_s: float | None) -> float | None:
    """Return how long to wait where a server is busy: what it asks for and a little more, else the backoff."""
    asked_s = retry_after_s(headers)
    if backoff_s is None or asked_s is None:
        return backoff_s
    return asked_s + random.uniform(0, FIRST_WAIT_S)  # noqa: S311 - so that not all come back at once


def _backoff_s(attempt: int) -> float:
    longest = FIRST_WAIT_S * 2 ** (attempt - 1)
    return random.uniform(longest / 2, longest)  # noqa: S311 - so that not all come back at once


def _milliseconds(deadline: Deadline) -> str:
    return str(max(1, int(1000 * deadline.remaining_s())))
