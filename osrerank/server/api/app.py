"""The rerank API as an ASGI application."""

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
from osrerank.server.api.dialect_route import NOT_JSON, content_type, is_json
from osrerank.server.api.errors import RefusedRequest, body_of, headers_of, sentence_of, status_of
from osrerank.server.api.explorer import add_explorer
from osrerank.server.api.limits import ServerLimits
from osrerank.server.api.middleware import RequestMiddleware
from osrerank.server.api.numbers import encode
from osrerank.server.api.paths import no_route
from osrerank.server.api.service import ApiService
from osrerank.server.api.traced import READINESS
from osrerank.service import RerankService

logger = logging.getLogger(__name__)
due = LogThrottle()

NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""Switches FastAPI's telemetry off, in releases that have one: it would report a body's texts with its errors."""


def create_app(
    reranker: RerankService,
    limits: ServerLimits | None = None,
    *,
    token: str | None = None,
    access_log: AccessLog | None = None,
) -> FastAPI:
    """Return the rerank API as an application.

    Args:
        reranker: the service that scores; the caller closes it after the application has shut down.
        limits: the limits of the accepted work.
        token: the token that clients must send as ``Authorization``, with or without ``Bearer``; None for none.
        access_log: the access log, which the caller closes; None for none.
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
    app.state.share_of = None  # only the comparison page has indexes
    app.state.started = int(time.time())
    app.include_router(routes.dialects)
    app.include_router(routes.checks)
    add_explorer(app)
    queries = reranker.settings.trace_queries
    app.add_middleware(RequestMiddleware, limits=limits, token=token, access_log=access_log, trace_queries=queries)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused_by_framework)
    app.add_exception_handler(OsrerankError, _failed)
    app.add_exception_handler(RefusedRequest, _failed)
    app.add_exception_handler(Exception, _broken)
    return app


async def _invalid(http: HttpRequest, error: Exception) -> Response:
    """Answer an invalid request of the comparison page, without repeating its content."""
    assert isinstance(error, RequestValidationError)
    faults = error.errors()
    if any(fault["type"] == "json_invalid" for fault in faults):
        return _fault(400, f"the body is not JSON: {faults[0].get('ctx', {}).get('error', 'it cannot be decoded')}")
    if http.method == "POST" and not is_json(content_type(http)):
        return _fault(415, NOT_JSON)
    return _fault(422, sentence_of(faults, depth=1))


async def _refused_by_framework(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message, headers = str(error.detail), dict(error.headers or {})
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = no_route(http.url.path)
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and "Allow" in headers:
        message = f"this route does not take the method: send {headers['Allow']}"
    return _fault(error.status_code, message, headers)


async def _failed(http: HttpRequest, error: Exception) -> Response:
    status = status_of(error)
    if http.url.path in READINESS:  # probes come all the time
        if due.is_due("not-ready"):
            logger.warning("[not-ready] requests cannot be answered now: %s; not logged again for a minute", error)
    elif status >= 500:
        logger.warning("[request-failed] a request was answered with %d: %s", status, error)
    elif status == HTTPStatus.TOO_MANY_REQUESTS and due.is_due("overloaded"):
        logger.warning("[overloaded] refused a request: %s; not logged again for a minute", error)
    after_s = getattr(error, "retry_after_s", None)
    return _fault(status, str(error), None if after_s is None else {"Retry-After": str(math.ceil(after_s))})


async def _broken(_http: HttpRequest, error: Exception) -> Response:
    logger.error("[server-defect] a bug in osrerank failed a request: %s; the traceback follows", type(error).__name__)
    return _fault(500, "internal error; the server's log has the traceback")


def _fault(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    content = encode(body_of(status, message))  # in ASCII: a message may contain half a surrogate pair
    return Response(content, status, {**headers_of(status), **(headers or {})}, media_type="application/json")
