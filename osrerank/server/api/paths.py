"""Explain a 404 to a client. Usually, its base URL ends in a slash or repeats a part such as /v1."""

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
    """Return the message for a path without a route: the route that the client probably means, or all routes."""
    segments = [segment for segment in path.split("/") if segment]
    without_repeats = [segment for previous, segment in pairwise(["", *segments]) if segment != previous]
    endings = [segments[-count:] for count in range(MAX_SEGMENTS, 0, -1)]
    for candidate in (segments, without_repeats, *endings):
        route = f"/{'/'.join(candidate)}"
        if candidate and route in METHODS:
            return f"there is no such route, but {route}: remove a slash, or a part such as /v1, from the base URL"
    routes = ", ".join(f"{method} {path}" for path, method in METHODS.items())
    return f"there is no such route; the routes are {routes}"
