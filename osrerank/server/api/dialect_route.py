"""Parse and validate the JSON bodies of rerank requests, without blocking the event loop.

This replaces FastAPI's parser, which has no limits and blocks the event loop while it parses a large body.
"""

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
from osrerank.server.api.errors import RefusedRequest, describe_errors

TIMEOUT_HEADER = "X-Request-Timeout-Ms"
MAX_INLINE_BYTES = 1 << 14
"""The maximum size of a body that is parsed on the event loop, because starting a thread would take longer."""
NOT_JSON_FIX = "send the body as Content-Type: application/json"


class DialectRoute(APIRoute):
    """A route that parses and validates the body itself. FastAPI only describes the body in the OpenAPI document.

    The type of the body is the annotation of the endpoint's parameter ``request``, such as ``CohereRequest``.
    """

    def get_route_handler(self) -> Callable[[HttpRequest], Coroutine[Any, Any, Response]]:
        """Return the function that parses a request and calls the endpoint."""
        body_type = inspect.get_annotations(self.endpoint)["request"]
        validator: TypeAdapter[BaseModel] = TypeAdapter(body_type)
        # A union's error paths begin with a tag, such as ("texts", "query").
        skipped_parts = 0 if get_origin(body_type) is None else 1
        endpoint = self.endpoint

        async def handle(http: HttpRequest) -> Response:
            content_type = media_type(http)
            if content_type and not is_json(content_type):  # Go's clients often omit the header
                raise RefusedRequest(415, NOT_JSON_FIX)
            body = await http.body()
            max_entries = http.app.state.service.limits.max_documents
            if len(body) <= MAX_INLINE_BYTES:
                request = _parse_request(body, validator, max_entries, skipped_parts)
            else:
                request = await asyncio.to_thread(_parse_request, body, validator, max_entries, skipped_parts)
            response: Response = await endpoint(http, request, _parse_timeout_ms(http))
            return response

        return handle


def media_type(http: HttpRequest) -> str:
    """Return the media type of a request's body, or "" if it has no ``Content-Type`` header."""
    return http.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Return whether a media type is JSON, as are ``application/json`` and ``application/problem+json``."""
    return content_type == "application/json" or content_type.endswith("+json")


def _parse_request(body: bytes, validator: TypeAdapter[BaseModel], max_entries: int, skipped_parts: int) -> BaseModel:
    """Parse and validate a body that is not compressed.

    ``max_entries`` is an argument of `read_body`, and ``skipped_parts`` of `describe_errors`.
    """
    content = read_body(body, max_entries)
    try:
        return validator.validate_python(content)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        raise RefusedRequest(422, describe_errors(errors, skipped_parts=skipped_parts)) from None


def _parse_timeout_ms(http: HttpRequest) -> float | None:
    """Return the time limit in the header `TIMEOUT_HEADER`, in milliseconds, or None if there is no such header."""
    header = http.headers.get(TIMEOUT_HEADER)
    if header is None:
        return None
    try:
        timeout_ms = float(header)
    except ValueError:
        timeout_ms = math.nan
    if not 0 < timeout_ms < math.inf:  # NaN is refused, too
        raise RefusedRequest(422, f"{TIMEOUT_HEADER} must be a positive number of milliseconds")
    return timeout_ms
