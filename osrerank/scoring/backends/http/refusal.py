"""Build the error for a rerank server's response with an error status. The message never contains the user's key."""

import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from osrerank.errors import EndpointError, Overloaded

BUSY_STATUSES = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE})
"""The statuses of a server that is overloaded or starting. Its ``Retry-After`` says when to send the request again."""
UNAVAILABLE_STATUSES = BUSY_STATUSES | {HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.GATEWAY_TIMEOUT}
"""The statuses with which a health check fails. After any other status, the server is expected to score."""
MAX_RETRY_AFTER_S = 86_400.0
"""The maximum wait that is read from ``Retry-After``, in seconds. A longer one is read as this maximum."""
MAX_MESSAGE_CHARACTERS = 200
"""The maximum length of a server's message in our errors. A longer one is truncated."""


class RawResponse(NamedTuple):
    """A response with any status."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def build_error(host: str, key: str, response: RawResponse) -> EndpointError | Overloaded:
    """Return the error for a status other than 200, with the server's message if the body has one."""
    status = response.status
    reason = f"the rerank server {host} answered {status}"
    message = find_message(response.body, key)
    if message:
        reason += f": {message}"
    if status in BUSY_STATUSES:
        is_overload = status == HTTPStatus.TOO_MANY_REQUESTS
        error: EndpointError | Overloaded = (
            Overloaded(reason) if is_overload else EndpointError(reason, status=status, retryable=True)
        )
        error.retry_after_s = parse_retry_after(response.headers)
        error.server_message = message
        return error
    if status in (401, 403):
        reason += "; set OSRERANK_RERANK_KEY to a key that the server accepts"
    elif status in (404, 405):
        reason += "; change url or dialect in [http] of osrerank.toml, or the model"
    elif 300 <= status < 400:
        reason += "; set url to the address that it redirects to, because osrerank does not forward the key"
    error = EndpointError(reason, status=status, retryable=status in UNAVAILABLE_STATUSES)
    error.server_message = message
    return error


def find_message(body: bytes, key: str) -> str:
    """Return the error message in a body, truncated and without the key, or "" if there is no message."""
    try:
        message = _find_in_json(json.loads(body))
    except (ValueError, RecursionError):
        return ""
    message = " ".join(message.split())
    if key:
        message = message.replace(key, "***")
    return message[:MAX_MESSAGE_CHARACTERS]


def _find_in_json(content: Any) -> str:
    """Return the message in an error's JSON, or "" if there is none: "bad" in ``{"error": {"message": "bad"}}``."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        return _find_in_json(content[0])
    if isinstance(content, dict):
        for name in ("message", "detail", "error", "msg"):
            message = _find_in_json(content.get(name))
            if message:
                return message
    return ""


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that ``Retry-After`` states as a number or date, or None if it is missing or invalid.

    A date is compared with the response's ``Date`` if there is one, because the server's clock can differ from ours.
    """
    value = (headers.get("Retry-After") or "").strip()
    if value.isascii() and value.isdigit():
        return min(float(value), MAX_RETRY_AFTER_S)
    retry_at_s = _parse_date(value)
    if retry_at_s is None:
        return None
    now_s = _parse_date(headers.get("Date") or "")
    if now_s is None:
        now_s = time.time()
    return min(max(0.0, retry_at_s - now_s), MAX_RETRY_AFTER_S)


def _parse_date(date: str) -> float | None:
    """Return the Unix time of a header's date, or None if it is not a date."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
