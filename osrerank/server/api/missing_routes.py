"""Explain a 404 to a client. Usually, the client's base URL ends in a slash, or repeats a part such as /v1."""

from itertools import groupby

from fastapi.routing import APIRoute

from osrerank.server.api.routes import checks, dialects

METHOD_BY_PATH = {
    route.path: method
    for router in (dialects, checks)
    for route in router.routes
    if isinstance(route, APIRoute)
    for method in route.methods or ()
}
"""The HTTP method of each route, such as {"/v1/rerank": "POST"}."""
MAX_SEGMENTS = max(path.count("/") for path in METHOD_BY_PATH)
"""The maximum number of segments in a path. /v1/rerank has two."""


def explain_missing_route(path: str) -> str:
    """Return a message with the route that the client probably means, or else with all routes.

    The paths ``//v1/rerank``, ``/v1/v1/rerank`` and ``/api/v1/rerank`` all suggest ``/v1/rerank``.
    """
    segments = [segment for segment in path.split("/") if segment]
    without_repeats = [segment for segment, _repeats in groupby(segments)]
    longest_suffixes_first = [segments[-count:] for count in range(MAX_SEGMENTS, 0, -1)]
    for candidate in (segments, without_repeats, *longest_suffixes_first):
        route = f"/{'/'.join(candidate)}"
        if candidate and route in METHOD_BY_PATH:
            return f"no such route; did you mean {route}? Check the base URL for an extra slash or a part such as /v1"
    routes = ", ".join(f"{method} {path}" for path, method in METHOD_BY_PATH.items())
    return f"no such route; the routes are {routes}"
