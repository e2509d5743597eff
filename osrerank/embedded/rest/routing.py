"""Pass each request to the endpoint for its method and path, and turn exceptions into OpenSearch's errors."""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

from osrerank.embedded.errors import ApiError, Json, argument_error, parse_json, parsing_error, unsupported_error
from osrerank.embedded.mapping.values import compile_wildcard
from osrerank.embedded.storage.engine import Engine
from osrerank.embedded.storage.shard import Panic
from osrerank.embedded.storage.store import storage_error

logger = logging.getLogger(__name__)

REQUEST_ERRORS = (TypeError, LookupError, AttributeError, ValueError, ArithmeticError, RecursionError, re.error)
"""The exceptions that can be raised if a value in a request has an unexpected type, such as a list for a number."""
_INDEX_PATTERN = r"(?P<index>_all|[^/_][^/]*)"
"""Matches an index in a path. Parts that begin with an underscore, except ``_all``, are names of APIs."""


@dataclass(frozen=True, slots=True)
class RestRequest:
    """A request to the engine.

    Attributes:
        path_variables: the variable parts of the path, such as ``index`` and ``id``.
        params: the URL parameters, as text.
        body: the body, as text.
    """

    engine: Engine
    path_variables: Mapping[str, str]
    params: Mapping[str, str]
    body: str

    @property
    def index(self) -> str | None:
        return self.path_variables.get("index")

    def json(self) -> Json:
        """Parse the body, which must be a JSON object. An empty body counts as an empty object."""
        return parse_body(self.body)

    @property
    def ignores_unavailable(self) -> bool:
        """The parameter ``ignore_unavailable``: whether indices that do not exist are left out."""
        return self._read_choice("ignore_unavailable", "true", "false") == "true"

    @property
    def refresh(self) -> str:
        """The parameter ``refresh``: ``true``, ``false`` or ``wait_for``."""
        return self._read_choice("refresh", "true", "false", "wait_for")

    def _read_choice(self, name: str, *choices: str) -> str:
        """Return a parameter's value. A missing parameter means ``false``, and an empty value means ``true``."""
        value = self.params.get(name, "false") or "true"
        if value not in choices:
            raise argument_error(f"Unknown value for [{name}]: [{value}]; pass one of {sorted(choices)}")
        return value


@dataclass(frozen=True, slots=True)
class Response:
    """A response of the engine.

    Attributes:
        body: an object or list to be sent as JSON, or a string to be sent as plain text.
        status: the HTTP status.
        warnings: the texts of ``Warning`` headers.
        can_share_body: whether the client may get ``body`` itself instead of a copy, because the engine keeps no
            reference to it.
    """

    body: Any
    status: int = 200
    warnings: list[str] = field(default_factory=list)
    can_share_body: bool = False


def parse_body(body: str) -> Json:
    """Parse a JSON object. An empty text becomes an empty object. Raise a 400 for anything else."""
    if not body.strip():
        return {}
    try:
        parsed = parse_json(body)
    except ValueError as error:
        raise parsing_error(f"the body is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise parsing_error("the body is not a JSON object")
    return parsed


Endpoint = Callable[[RestRequest], Response]


class Router:
    """Passes each request to the first registered endpoint that matches its method and path."""

    def __init__(self) -> None:
        self._routes: list[_Route] = []

    def route(self, methods: str, *templates: str, params: str = "") -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that registers an endpoint.

        Args:
            methods: the HTTP methods, separated by spaces.
            templates: the paths, which can have variable parts such as ``{index}``.
            params: the names of the accepted URL parameters, separated by spaces. Other parameters are refused.
        """

        def register(endpoint: Endpoint) -> Endpoint:
            for template in templates:
                pattern = template.replace("{index}", _INDEX_PATTERN)
                pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern)
                route = _Route(
                    methods=frozenset(methods.split()),
                    path=re.compile(pattern),
                    params=frozenset(params.split()),
                    endpoint=endpoint,
                )
                self._routes.append(route)
            return endpoint

        return register

    def handle(self, engine: Engine, method: str, url: str, params: Mapping[str, Any], body: str) -> Response:
        """Return the response to a request.

        Raises:
            ApiError: OpenSearch would refuse the request, or the engine does not support it.
        """
        for route in self._routes:
            match = route.path.fullmatch(url)
            if match and method in route.methods:
                text_params = {key: _format_parameter(value) for key, value in params.items()}
                for name in text_params:
                    if name not in route.params:
                        raise argument_error(
                            f"request [{url}] contains unrecognized parameter for the embedded engine: [{name}]"
                            f"; it supports {sorted(route.params)} here"
                        )
                path_variables = {key: unquote(value) for key, value in match.groupdict().items()}
                with translate_errors(engine, route.endpoint.__name__.strip("_")):
                    response = route.endpoint(RestRequest(engine, path_variables, text_params, body))
                return _apply_filter_path(response, text_params)
        raise argument_error(f"the embedded engine does not support [{method} {url}]: use an OpenSearch server")


class _Route(NamedTuple):
    """An endpoint, and the methods, paths and URL parameters that it accepts."""

    methods: frozenset[str]
    path: re.Pattern[str]
    params: frozenset[str]
    endpoint: Endpoint


@contextlib.contextmanager
def translate_errors(engine: Engine, name: str) -> Iterator[None]:
    """Turn the exceptions of an endpoint into `ApiError`. ``name`` is its name in messages, such as "search".

    `REQUEST_ERRORS` become a 400, because an unexpected value in the request has caused them.
    """
    try:
        yield
    except OSError as error:
        raise storage_error(engine.folder, str(error)) from error
    except Panic as error:
        reason = f"the search index in {engine.folder} failed ({error}): try again"
        raise ApiError(500, "search_engine_exception", reason) from error
    except REQUEST_ERRORS as error:
        logger.debug("the request to [%s] cannot be read", name, exc_info=True)
        reason = f"the request to [{name}] has a value of a kind or range that cannot be used: {error!s:.200}"
        raise ApiError(400, "x_content_parse_exception", reason) from error


def _format_parameter(value: Any) -> str:
    """Return a URL parameter as text: ``true`` for True, and ``a,b`` for a list."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(_format_parameter, value))
    return value.decode() if isinstance(value, bytes) else str(value)


def _apply_filter_path(response: Response, params: Mapping[str, str]) -> Response:
    """Reduce a response to the parts that the parameter ``filter_path`` names, if it is set."""
    paths = params.get("filter_path")
    if not paths or not isinstance(response.body, dict):
        return response
    patterns = paths.split(",")
    for pattern in patterns:
        if "**" in pattern or pattern.startswith("-"):
            raise unsupported_error(f"[{pattern}] in [filter_path]", "name the paths that you want, with single *")
    return Response(_select_paths(response.body, patterns), response.status, response.warnings)


def _select_paths(body: Json, patterns: list[str], path: str = "") -> Json:
    """Return the parts of a response whose paths match a pattern, such as ``hits.hits._id``.

    ``body`` is the response or an object in it, and ``path`` is the object's path, such as ``hits``.
    """
    selected: Json = {}
    for key, value in body.items():
        inner_path = f"{path}.{key}" if path else key
        if any(_matches(pattern, inner_path) for pattern in patterns):
            selected[key] = value
        elif isinstance(value, dict):
            inner = _select_paths(value, patterns, inner_path)
            if inner:
                selected[key] = inner
        elif isinstance(value, list):
            objects = [_select_paths(element, patterns, inner_path) for element in value if isinstance(element, dict)]
            if any(objects):
                selected[key] = [element for element in objects if element]
    return selected


def _matches(pattern: str, path: str) -> bool:
    """Return whether each part of a path matches the same part of a pattern: ``items.index`` matches ``*.index``."""
    wildcards, segments = pattern.split("."), path.split(".")
    return len(wildcards) == len(segments) and all(
        compile_wildcard(wildcard).fullmatch(segment) for wildcard, segment in zip(wildcards, segments, strict=True)
    )
