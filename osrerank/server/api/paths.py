"""Explain to a client why its path has no route; usually, its base URL has a part too many."""

from itertools import pairwise

from fastapi.routing import APIRoute

from osrerank.server.api import routes

METHODS = {
    route.path: method
    for router in (routes.dialects, routes.checks)
    for route in router.routes
    if isinstance(route, APIRoute)
    for method in route.methods or ()
}
"""Path of a route -> its method."""
MAX_PARTS = max(path.count("/") for path in METHODS)


def no_route(path: str) -> str:
    """Return a sentence about a path without a route; the sentence does not repeat the path."""
    parts = [part for part in path.split("/") if part]
    without_repeats = [part for previous, part in pairwise(["", *parts]) if part != previous]
    for candidate in (parts, without_repeats, *(parts[-count:] for count in range(MAX_PARTS, 0, -1))):
        route = f"/{'/'.join(candidate)}"
        if candidate and route in METHODS:
            return f"there is no such route, but {route}: the base URL has a slash, or a part such as /v1, too many"
    return f"there is no such route; there are {', '.join(f'{method} {path}' for path, method in METHODS.items())}"
