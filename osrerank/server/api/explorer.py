"""The page ``/docs``, which shows the routes of ``/openapi.json`` with forms to try them; it loads nothing else."""

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import Response

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
FILES = {
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs/docs.css": ("docs.css", "text/css; charset=utf-8"),
    "/docs/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
}
"""Path -> name and media type of the file."""


def add_explorer(app: FastAPI) -> None:
    """Add the page to the rerank API."""
    for path, (name, kind) in FILES.items():
        content = (files("osrerank.server.api") / "static" / name).read_bytes()
        app.add_api_route(path, _answering(content, kind), methods=["GET"], include_in_schema=False)


def _answering(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def answer() -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return answer
