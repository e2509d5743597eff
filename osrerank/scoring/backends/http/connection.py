"""Requests to a rerank server: pooled connections, retries within the deadline, and errors that name no secret."""

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
"""Requests that are under way at a time, each on a connection that is kept."""
CONNECT_S = 3.0
MOST_S = 60.0
"""For an answer, where a search has no deadline."""
ATTEMPTS = 4
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 30.0
"""Before the second attempt, about doubled before each later one; the most that is waited at a server's request."""
PATIENCE_S = 600.0
"""How long the requests of a batch go on asking a server that is busy or away."""
LONGEST_BACKOFF_S = 10.0
LONGEST_ASKED_S = 86_400.0
"""What a longer ``Retry-After`` counts as."""
AWAKE = (-math.inf, "")
MOST_BYTES = 64 << 20
"""Of an answer."""
PIECE_BYTES = 4096
MOST_REASON = 200
"""Characters of a server's own words in a message."""
BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE})
AWAY = BUSY | {HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.GATEWAY_TIMEOUT}
"""What a server's address for checks answers when it cannot score; any other status shows that it is there."""
TOO_LARGE = frozenset({400, 413, 422})
"""Statuses of requests that servers refuse for their size, or for one of their documents."""

logger = logging.getLogger(__name__)
due = Seldom()


class Answer(NamedTuple):
    """What a server answered with status 200.

    Attributes:
        content: its JSON.
        headers: by name, of any case.
    """

    content: Any
    headers: Mapping[str, str]


class Options(TypedDict, total=False):
    """How a request is sent.

    Attributes:
        tells_time: whether the server is told how much time is left, as ``osrerank serve`` understands it.
        most_s: for one answer.
        attempts: how often it is sent at most.
    """

    tells_time: bool
    most_s: float
    attempts: int


class _Request(NamedTuple):
    method: str
    url: str
    deadline: Deadline
    content: bytes | None = None
    tells_time: bool = False
    most_s: float = MOST_S
    attempts: int = ATTEMPTS


class Connection:
    """The connections to one server; safe to use from many threads.

    Args:
        host: the server's, for messages.
        key: what it wants as a bearer token; "" for none.
        clock: returns seconds, never decreasing.
        wait: waits for so many seconds, or until the connections are closed.

    Attributes:
        patience_s: how long requests without a deadline go on asking a server that is busy or away.
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
        self._is_found = False  # whether it has ever answered
        self._works = False  # whether it scored the last request
        self._failed_at_s: float | None = None  # of the first failure since it worked
        self._resting = AWAKE  # until when it asked to be left alone, and in which words
        self._pool = urllib3.PoolManager(num_pools=4, maxsize=CONNECTIONS, retries=False)

    def post(self, url: str, body: Mapping[str, Any], deadline: Deadline, **options: Unpack[Options]) -> Answer:
        """Send a request until it is answered: again when the server is busy or hangs up.

        Args:
            url: where to.
            body: its JSON.
            deadline: the deadline of the search; without one it may be sent more often, as long as `patience_s` says.
            options: as `Options` lists them.

        Raises:
            DeadlineExceeded: the time ran out.
            Overloaded: the server has too much to do.
            EndpointError: it gives no answer, refuses the request (with its status), or answers an error or what is not
                JSON.
        """
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        try:
            status, given, answered = self._insisting(_Request("POST", url, deadline, content, **options))
            if status != HTTPStatus.OK:
                refusal = self._refusal(status, given, answered)
                is_late = status == HTTPStatus.GATEWAY_TIMEOUT and options.get("tells_time") and deadline.at_s
                raise DeadlineExceeded(str(refusal)) if is_late else refusal
            answer = Answer(self._decoded(answered), given)
        except (EndpointError, Overloaded) as error:
            self._works = self._works and getattr(error, "status", None) in TOO_LARGE
            raise
        self._works, self._failed_at_s, self._resting = True, None, AWAKE
        return answer

    def get(self, url: str, deadline: Deadline, **options: Unpack[Options]) -> Any:
        """Return the JSON that a server has at an address, None where it has none; sent again as `post` does.

        Raises:
            DeadlineExceeded: the time ran out.
            Overloaded, EndpointError: the server is busy, cannot be reached, or refuses the key.
        """
        status, given, answered = self._insisting(_Request("GET", url, deadline, **options))
        if status in (401, 403):
            raise self._refusal(status, given, answered)
        try:
            return json.loads(answered) if status == HTTPStatus.OK else None
        except ValueError:
            return None

    def is_there(self, url: str, deadline: Deadline) -> bool:
        """Return whether the server scored the last request and now answers at an address for checks."""
        if not self._works:
            return False
        try:
            return self._send(_Request("GET", url, deadline))[0] not in AWAY
        except (EndpointError, DeadlineExceeded, _HungUp):
            return False

    def check_rest(self) -> None:
        """Return unless the server asked to be left alone until later.

        Raises:
            EndpointError: it did, in these words.
        """
        until_s, words = self._resting
        if (left_s := until_s - self._clock()) > 0:
            raise EndpointError(f"{words}; retry in {left_s:.0f} s", retryable=True)

    def _insisting(self, request: "_Request") -> tuple[int, Mapping[str, str], bytes]:
        """Return the answer of the first attempt that finds the server neither busy nor away.

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
                self._is_found = True
                if answer[0] not in BUSY:
                    if answer[0] == HTTPStatus.OK and request.method == "POST":
                        ENDPOINT_SECONDS.observe(time.perf_counter() - started)
                    return answer
                failure = self._refusal(*answer)
            self._pause(attempt, request, failure)
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Close the connections; a request that waits for its next attempt ends."""
        self._closed.set()
        self._pool.clear()

    def _send(self, request: "_Request") -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of one attempt.

        Raises:
            DeadlineExceeded: the time ran out.
            EndpointError: no connection can be made in time, or no answer comes.
            _HungUp: the connection failed in a way that another attempt may not.
        """
        with http_span(request.method, request.url) as traced:
            answer = self._exchanged(request)
            tell_status(traced, answer[0])
        return answer

    def _exchanged(self, request: "_Request") -> tuple[int, Mapping[str, str], bytes]:
        """Do what `_send` does, within its span."""
        deadline = request.deadline
        left_s = min(request.most_s, deadline.remaining_s())
        timeout = urllib3.Timeout(connect=min(CONNECT_S, left_s), read=left_s)
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
        except NewConnectionError as error:  # first, as it is a time-out in old releases of urllib3
            raise _HungUp(f"the rerank server {self._host} cannot be reached ({type(error).__name__})") from None
        except TooLateError as error:
            self._check(deadline)
            if isinstance(error, ConnectTimeoutError):
                raise _HungUp(f"the rerank server {self._host} could not be reached in time") from None
            raise EndpointError(f"the rerank server {self._host} did not answer in time", retryable=True) from None
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

    def _pause(self, attempt: int, request: "_Request", failure: EndpointError | Overloaded) -> None:
        """Wait before the next attempt: what the server asks for and a little more, else the backoff.

        Raises:
            EndpointError, Overloaded: there is none: the failure, where it was the last, or the time left is too short.
        """
        deadline, asked_s, now_s = request.deadline, failure.retry_after_s, self._clock()
        self._works = False
        self._failed_at_s = since_s = now_s if self._failed_at_s is None else self._failed_at_s
        if asked_s is not None:
            self._resting = (now_s + min(asked_s, LONGEST_WAIT_S), str(failure))
        left_s = since_s + self.patience_s - now_s if deadline.at_s is None and self._is_found else 0.0
        if attempt >= request.attempts and left_s <= 0:
            raise failure
        wait_s = _backoff_s(attempt) if asked_s is None or attempt > ATTEMPTS else 0.0
        if asked_s is not None:
            wait_s = max(wait_s, asked_s + FIRST_WAIT_S * random.random())  # noqa: S311 - so that not all come at once
        if wait_s > max(min(LONGEST_WAIT_S, deadline.remaining_s()), left_s):
            failure.args = (f"{failure}; the next attempt would come too late, in {wait_s:.1f} s",)
            raise failure
        if left_s > 0 and due.is_due(self._host):
            logger.warning("[server-busy] %s; retrying for at most %.0f s", failure, left_s)
        self._wait(wait_s)

    def _check(self, deadline: Deadline, size: int = 0) -> None:
        if size > MOST_BYTES:
            raise EndpointError(f"the answer of {self._host} is larger than {MOST_BYTES >> 20} MiB")
        if self._closed.is_set():
            raise InferenceError(f"the connection to {self._host} is closed")
        if deadline.passed:
            raise DeadlineExceeded(f"the deadline passed before {self._host} answered")

    def _decoded(self, answered: bytes) -> Any:
        """Return the JSON of an answer with status 200, which some servers give to errors, too."""
        try:
            content = json.loads(answered)
        except (ValueError, RecursionError):
            raise EndpointError(f"the answer of {self._host} is not JSON", status=200) from None
        has_list = not isinstance(content, dict) or any(isinstance(value, list) for value in content.values())
        if not has_list and (said := self._sentence(answered)):  # scores are in a list in every dialect
            raise EndpointError(f"the rerank server {self._host} answered 200, but with: {said}", status=200)
        return content

    def _refusal(self, status: int, given: Mapping[str, str], answered: bytes) -> EndpointError | Overloaded:
        """Return the error for a status that is not 200, with the server's own sentence where it has one."""
        said = self._sentence(answered)
        reason = f"the rerank server {self._host} answered {status}{f': {said}' if said else ''}"
        error: EndpointError | Overloaded
        if status in BUSY:
            is_full = status == HTTPStatus.TOO_MANY_REQUESTS
            error = Overloaded(reason) if is_full else EndpointError(reason, status=status, retryable=True)
            error.retry_after_s = retry_after_s(given)
            return error
        if status in (401, 403):
            reason += "; set the key that it wants as OSRERANK_RERANK_KEY"
        elif status in (404, 405):
            reason += "; name another url or dialect in [http] of osrerank.toml, or another model"
        elif 300 <= status < 400:
            reason += "; it is elsewhere: name that address, as a key is not sent on"
        return EndpointError(reason, status=status, retryable=status in AWAY)

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
    if asked.isascii() and asked.isdigit():
        return min(float(asked), LONGEST_ASKED_S)
    try:
        until = parsedate_to_datetime(asked).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    try:
        now = parsedate_to_datetime(headers.get("Date") or "").timestamp()
    except (TypeError, ValueError, OverflowError):
        now = time.time()
    return min(max(0.0, until - now), LONGEST_ASKED_S)


def _backoff_s(attempt: int) -> float:
    longest = min(FIRST_WAIT_S * 2 ** (min(attempt, ATTEMPTS * 3) - 1), LONGEST_BACKOFF_S)
    return random.uniform(longest / 2, longest)  # noqa: S311 - so that not all come back at once
