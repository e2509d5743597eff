"""Create the HTTP rerank API, an ASGI application with the routes of all dialects."""

import logging
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from osrerank._log_throttle import LogThrottle
from osrerank.errors import OsrerankError
from osrerank.server.api import routes
from osrerank.server.api.access_log import AccessLog
from osrerank.server.api.dialect_route import NOT_JSON_FIX, is_json, media_type
from osrerank.server.api.docs_page import add_docs_page
from osrerank.server.api.errors import RefusedRequest, describe_errors, error_body, error_headers, error_status
from osrerank.server.api.limits import ServerLimits
from osrerank.server.api.middleware import RequestMiddleware
from osrerank.server.api.missing_routes import explain_missing_route
from osrerank.server.api.numbers import encode
from osrerank.server.api.request_tracing import READINESS_PATHS
from osrerank.server.api.service import ApiService
from osrerank.service import RerankService
from osrerank.types.reasons import log_message

logger = logging.getLogger(__name__)
log_throttle = LogThrottle()

NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""The setting that turns off the telemetry of recent FastAPI releases. Its error reports would contain queries and
documents."""


def create_app(
    reranker: RerankService,
    limits: ServerLimits | None = None,
    *,
    token: str | None = None,
    access_log: AccessLog | None = None,
) -> FastAPI:
    """Return the rerank API as an application.

    Args:
        reranker: the service that scores. The caller closes it after the application has shut down.
        limits: the limits of the server.
        token: the token that clients must send in the header ``Authorization``, with or without ``Bearer`` before it.
            If it is None, clients need no token.
        access_log: the access log, which the caller closes. If it is None, no log is written.
    """
    limits = limits or ServerLimits()
    service = ApiService(reranker, limits)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="osrerank",
        summary="Rerank documents with BERT, in the dialects of Cohere, Voyage, Mixedbread, vLLM, TEI and others.",
        version=version("osrerank"),
        lifespan=lifespan,
        docs_url=None,  # FastAPI's page loads its files from the internet
        redoc_url=None,
        telemetry=NO_TELEMETRY,
    )
    app.state.service = service
    app.state.find_vector_share = None  # set only by a server with the comparison page, which reads indices
    app.state.started_at_s = int(time.time())
    app.include_router(routes.dialects)
    app.include_router(routes.checks)
    add_docs_page(app)
    app.add_middleware(
        RequestMiddleware,
        limits=limits,
        token=token,
        access_log=access_log,
        trace_queries=reranker.settings.trace_queries,
    )
    app.add_exception_handler(RequestValidationError, _respond_to_validation_error)
    app.add_exception_handler(HTTPException, _respond_to_http_error)
    app.add_exception_handler(OsrerankError, _respond_to_failure)
    app.add_exception_handler(RefusedRequest, _respond_to_failure)
    app.add_exception_handler(Exception, _respond_to_bug)
    return app


async def _respond_to_validation_error(http: HttpRequest, error: Exception) -> Response:
    """Respond to a request that FastAPI finds invalid. The message does not repeat the request's content."""
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    if any(invalid["type"] == "json_invalid" for invalid in errors):
        reason = errors[0].get("ctx", {}).get("error", "it cannot be decoded")
        return _error_response(400, f"the body is not JSON: {reason}")
    if http.method == "POST" and not is_json(media_type(http)):
        return _error_response(415, NOT_JSON_FIX)
    return _error_response(422, describe_errors(errors, skipped_parts=1))


async def _respond_to_http_error(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = explain_missing_route(http.url.path)
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and "Allow" in headers:
        message = f"this route does not accept {http.method} requests: use {headers['Allow']}"
    return _error_response(error.status_code, message, headers)


async def _respond_to_failure(http: HttpRequest, error: Exception) -> Response:
    status, message = error_status(error), log_message(error)
    if http.url.path in READINESS_PATHS:
        if log_throttle.should_log("not-ready"):  # monitoring checks the readiness every few seconds
            logger.warning("[not-ready] the server cannot serve requests: %s; not logged again for a minute", message)
    elif status >= 500:
        logger.warning("[request-failed] a request failed with status %d: %s", status, message)
    elif status == HTTPStatus.TOO_MANY_REQUESTS and log_throttle.should_log("overloaded"):
        logger.warning("[overloaded] refused a request: %s; not logged again for a minute", message)
    headers = {}
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(retry_after_s))
    return _error_response(status, str(error), headers)


async def _respond_to_bug(_http: HttpRequest, error: Exception) -> Response:
    """Respond to an unexpected exception. Starlette raises it again, so that the web server logs the traceback."""
    logger.error("[server-defect] a bug in osrerank failed a request: %s; the traceback follows", type(error).__name__)
    return _error_response(500, "internal error; the server's log has the traceback")


def _error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    content = encode(error_body(status, message))  # in ASCII: a message can contain half a surrogate pair
    return Response(content, status, {**error_headers(status), **(headers or {})}, media_type="application/json")
