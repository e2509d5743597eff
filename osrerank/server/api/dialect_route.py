"""A FastAPI route for the dialects, which parses bodies within limits and without blocking the event loop."""

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
from osrerank.server.api.errors import RefusedRequest, describe_faults

TIMEOUT_HEADER = "X-Request-Timeout-Ms"
MAX_INLINE_BYTES = 1 << 14
"""The maximum size of a body that is parsed on the event loop: a thread would take longer than the parsing."""
NOT_JSON = "send the body as Content-Type: application/json"


class DialectRoute(APIRoute):
    """A route that parses and validates the body itself. FastAPI only describes the body in the OpenAPI document.

    The endpoint's annotation of ``request`` is the type of the body.
    """

    def get_route_handler(self) -> Callable[[HttpRequest], Coroutine[Any, Any, Response]]:
        """Return the function that handles a request."""
        body_type = inspect.get_annotations(self.endpoint)["request"]
        validator: TypeAdapter[BaseModel] = TypeAdapter(body_type)
        depth = 1 if get_origin(body_type) is not None else 0  # for a union, errors begin with the name of the dialect
        endpoint = self.endpoint

        async def handle(http: HttpRequest) -> Response:
            content_type = media_type(http)
            if content_type and not is_json(content_type):  # Go's clients often omit the header
                raise RefusedRequest(415, NOT_JSON)
            body = await http.body()
            max_entries = http.app.state.service.limits.max_documents
            if len(body) <= MAX_INLINE_BYTES:
                request = _parse_request(body, validator, max_entries, depth)
            else:
                request = await asyncio.to_thread(_parse_request, body, validator, max_entries, depth)
            response: Response = await endpoint(http, request, _parse_timeout_ms(http))
            return response

        return handle


def media_type(http: HttpRequest) -> str:
    """Return the media type of a request's body, or "" without a ``Content-Type`` header."""
    return http.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(media_type: str) -> bool:
    """Return whether a media type is JSON, such as ``application/problem+json``."""
    return media_type == "application/json" or media_type.endswith("+json")


def _parse_request(body: bytes, validator: TypeAdapter[BaseModel], max_entries: int, depth: int) -> BaseModel:
    """Parse and validate a body.

    Args:
        body: the body, decompressed.
        validator: the validator of the dialect.
        max_entries: the maximum number of entries of a list.
        depth: the number of leading parts of an error's path to leave out, as for `describe_faults`.

    Raises:
        RefusedRequest: the body is not JSON, or not a request of the dialect.
    """
    content = read_body(body, max_entries)
    try:
        return validator.validate_python(content)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise RefusedRequest(422, describe_faults(faults, depth=depth)) from None


def _parse_timeout_ms(http: HttpRequest) -> float | None:
    """Return the time limit in the header `TIMEOUT_HEADER`, in milliseconds, or None without the header.

    Raises:
        RefusedRequest: the header is not a finite number above 0.
    """
    header = http.headers.get(TIMEOUT_HEADER)
    if header is None:
        return None
    try:
        duration_ms = float(header)
    except ValueError:
        duration_ms = math.nan
    if not 0 < duration_ms < math.inf:
        raise RefusedRequest(422, f"{TIMEOUT_HEADER} must be a number of milliseconds above 0")
    return duration_ms
