"""A route that parses the body within limits, and off the event loop, before its dialect validates it."""

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine
from typing import Any, get_origin

from fastapi import Request as HttpRequest
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError

from osrerank.server.api.bodies import read_body
from osrerank.server.api.errors import RefusedRequest, sentence_of

TIMEOUT_HEADER = "X-Request-Timeout-Ms"
INLINE_BYTES = 1 << 14
"""Bodies up to this size are parsed at once, because a thread would take longer."""
NOT_JSON = "send the body as Content-Type: application/json"


class DialectRoute(APIRoute):
    """A route of a dialect: it parses the body that the endpoint's signature describes, instead of FastAPI."""

    def get_route_handler(self) -> Callable[[HttpRequest], Coroutine[Any, Any, Response]]:
        """Return the function that handles a request."""
        shape = inspect.get_annotations(self.endpoint)["request"]
        dialect: TypeAdapter[BaseModel] = TypeAdapter(shape)
        depth = 1 if get_origin(shape) is not None else 0  # an error's path begins with the name of the body's dialect
        endpoint = self.endpoint

        async def handle(http: HttpRequest) -> Response:
            kind = content_type(http)
            if kind and not is_json(kind):  # Go's clients often send none
                raise RefusedRequest(415, NOT_JSON)
            body = await http.body()
            max_entries = http.app.state.service.limits.max_documents
            if len(body) <= INLINE_BYTES:
                request = _validated(body, dialect, max_entries, depth)
            else:
                request = await asyncio.to_thread(_validated, body, dialect, max_entries, depth)
            response: Response = await endpoint(http, request, _timeout_ms(http))
            return response

        return handle


def content_type(http: HttpRequest) -> str:
    """Return the media type of a request's body; empty if the request has none."""
    return http.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Return whether a media type is JSON, such as ``application/problem+json``."""
    return kind == "application/json" or kind.endswith("+json")


def _validated(body: bytes, dialect: TypeAdapter[BaseModel], max_entries: int, depth: int) -> BaseModel:
    """Parse and validate a body.

    Args:
        body: the body as it was received.
        dialect: the validator of the dialect.
        max_entries: the maximum number of entries of a list.
        depth: the number of leading parts of an error's path that the client does not know.

    Raises:
        RefusedRequest: the body is not JSON, or not a request of the dialect.
    """
    content = read_body(body, max_entries)
    try:
        return dialect.validate_python(content)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise RefusedRequest(422, sentence_of(faults, depth=depth)) from None


def _timeout_ms(http: HttpRequest) -> float | None:
    """Return the time limit in the request's header, in milliseconds; None without one.

    Raises:
        RefusedRequest: the header is not a number above 0.
    """
    header = http.headers.get(TIMEOUT_HEADER)
    if header is None:
        return None
    try:
        duration_ms = float(header)
    except ValueError:
        duration_ms = math.nan
    if not 0 < duration_ms < math.inf:
        raise RefusedRequest(422, f"{TIMEOUT_HEADER}: it must be a number of milliseconds above 0")
    return duration_ms
