"""Explain a 404 to a client. Usually, its base URL ends in a slash, or repeats a part such as /v1."""

from itertools import pairwise

from fastapi.routing import APIRoute

from osrerank.server.api.routes import checks, dialects

METHODS = {
    route.path: method
    for router in (dialects, checks)
    for route in router.routes
    if isinstance(route, APIRoute)
    for method in route.methods or ()
}
"""The HTTP method of each route's path."""
MAX_SEGMENTS = max(path.count("/") for path in METHODS)


def explain_missing_route(path: str) -> str:
    """Return a message with the route that the client probably means, or else with all routes."""
    segments = [segment for segment in path.split("/") if segment]
    without_repeats = [segment for previous, segment in pairwise(["", *segments]) if segment != previous]
    suffixes = [segments[-count:] for count in range(MAX_SEGMENTS, 0, -1)]
    for candidate in (segments, without_repeats, *suffixes):
        route = f"/{'/'.join(candidate)}"
        if candidate and route in METHODS:
            return f"no such route; did you mean {route}? Check the base URL for an extra slash or a part such as /v1"
    routes = ", ".join(f"{method} {path}" for path, method in METHODS.items())
    return f"no such route; the routes are {routes}"
