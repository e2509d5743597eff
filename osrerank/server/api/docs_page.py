"""Serve the page ``/docs``, which lists the server's routes and has a form to try each.

Unlike the page that FastAPI offers, this one loads nothing from the internet.
"""

from collections.abc import Awaitable, Callable, Mapping
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
"""The response headers. They keep the page from loading files of other sites, and other sites from embedding it."""
FILES = {
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs/docs.css": ("docs.css", "text/css; charset=utf-8"),
    "/docs/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
}
"""The file that each path serves: its name in the folder ``static``, and its media type."""


def add_docs_page(app: FastAPI) -> None:
    """Add the page to the rerank API."""
    for path, (name, media_type) in FILES.items():
        content = (files("osrerank.server.api") / "static" / name).read_bytes()
        app.add_api_route(path, file_endpoint(content, media_type, HEADERS), methods=["GET"], include_in_schema=False)


def file_endpoint(
    content: bytes, media_type: str, headers: Mapping[str, str] | None = None
) -> Callable[[], Awaitable[Response]]:
    """Return a function for `FastAPI.add_api_route` that responds to each request with a file's content."""

    async def respond() -> Response:
        return Response(content, media_type=media_type, headers=headers)

    return respond
