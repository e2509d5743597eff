"""Route requests to their endpoints, as the REST layer of OpenSearch does, and turn errors into faults."""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from osrerank.embedded.errors import Fault, Json, argument_fault, parse_json, parsing_fault, unsupported_fault
from osrerank.embedded.mapping import values
from osrerank.embedded.storage.engine import Engine
from osrerank.embedded.storage.shard import Panic
from osrerank.embedded.storage.store import storage_fault

logger = logging.getLogger(__name__)

REQUEST_ERRORS = (TypeError, LookupError, AttributeError, ValueError, ArithmeticError, RecursionError, re.error)
"""The exceptions that a value of an unexpected type in a request can raise."""
_INDEX_PATTERN = r"(?P<index>_all|[^/_][^/]*)"
"""Matches the index in a path. It cannot begin with an underscore, as the names of other APIs do."""


@dataclass(frozen=True, slots=True)
class RestRequest:
    """A request to the engine.

    Attributes:
        path: the variable parts of the path, such as ``index``.
        params: the URL parameters, as text.
        body: the body, as text.
    """

    engine: Engine
    method: str
    path: Mapping[str, str]
    params: Mapping[str, str]
    body: str

    @property
    def index(self) -> str | None:
        return self.path.get("index")

    def json(self) -> Json:
        """Return the body as an object; an empty one without a body."""
        if not self.body.strip():
            return {}
        try:
            parsed = parse_json(self.body)
        except ValueError as error:
            raise parsing_fault(f"the body is not JSON: {error}") from None
        if not isinstance(parsed, dict):
            raise parsing_fault("the body is not a JSON object")
        return parsed

    def flag(self, name: str) -> bool:
        """Return whether a boolean parameter is true or has an empty value."""
        return self._choice(name, "true", "false") == "true"

    @property
    def refresh(self) -> str:
        """The parameter ``refresh``: ``true``, ``false`` or ``wait_for``."""
        return self._choice("refresh", "true", "false", "wait_for")

    def _choice(self, name: str, *choices: str) -> str:
        """Return a parameter's value: ``false`` by default, ``true`` if the value is empty."""
        value = self.params.get(name, "false") or "true"
        if value not in choices:
            raise argument_fault(f"Unknown value for [{name}]: [{value}]; pass one of {sorted(choices)}")
        return value


@dataclass(frozen=True, slots=True)
class Response:
    """A response of the engine.

    Attributes:
        body: a value of JSON's types, or a text, which is sent as plain text.
        status: the HTTP status.
        warnings: the texts of ``Warning`` headers.
        needs_no_copy: whether the client can keep the body itself, because the engine holds no reference to it.
    """

    body: Any
    status: int = 200
    warnings: list[str] = field(default_factory=list)
    needs_no_copy: bool = False


Endpoint = Callable[[RestRequest], Response]


class Router:
    """Passes a request to the first registered endpoint that matches it."""

    def __init__(self) -> None:
        self._routes: list[tuple[frozenset[str], re.Pattern[str], frozenset[str], Endpoint]] = []

    def route(self, methods: str, *templates: str, params: str = "") -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that registers an endpoint for methods, paths and URL parameters.

        The methods and the parameters are separated by spaces; a path can have variable parts, such as ``{index}``.
        Requests with other parameters are refused.
        """

        def register(endpoint: Endpoint) -> Endpoint:
            for template in templates:
                pattern = template.replace("{index}", _INDEX_PATTERN)
                pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern)
                known_params = frozenset(params.split())
                self._routes.append((frozenset(methods.split()), re.compile(pattern), known_params, endpoint))
            return endpoint

        return register

    def handle(self, engine: Engine, method: str, url: str, params: Mapping[str, Any], body: str) -> Response:
        """Return the response to a request.

        Raises:
            Fault: OpenSearch would refuse the request, or the engine does not support it.
        """
        for methods, pattern, known_params, endpoint in self._routes:
            match = pattern.fullmatch(url)
            if match and method in methods:
                texts = {key: _format_parameter(value) for key, value in params.items()}
                for name in texts:
                    if name not in known_params:
                        raise argument_fault(
                            f"request [{url}] contains unrecognized parameter for the embedded engine: [{name}]"
                            f"; it knows {sorted(known_params)} here"
                        )
                path = {key: unquote(value) for key, value in match.groupdict().items()}
                with translate_errors(engine, endpoint.__name__.strip("_")):
                    response = endpoint(RestRequest(engine, method, path, texts, body))
                return _apply_filter_path(response, texts)
        raise argument_fault(f"the embedded engine does not support [{method} {url}]: use an OpenSearch server")


@contextlib.contextmanager
def translate_errors(engine: Engine, name: str) -> Iterator[None]:
    """Turn exceptions into faults: a 400 for those of an unexpected request, others for those of the folder."""
    try:
        yield
    except OSError as error:
        raise storage_fault(engine.folder, str(error)) from error
    except Panic as error:
        reason = f"the search index in {engine.folder} failed ({error}): try again"
        raise Fault(500, "search_engine_exception", reason) from error
    except REQUEST_ERRORS as error:
        logger.debug("the request to [%s] cannot be read", name, exc_info=True)
        reason = f"the request to [{name}] has a value of a kind or range that cannot be used: {error!s:.200}"
        raise Fault(400, "x_content_parse_exception", reason) from error


def _format_parameter(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(_format_parameter, value))
    return value.decode() if isinstance(value, bytes) else str(value)


def _apply_filter_path(response: Response, params: Mapping[str, str]) -> Response:
    """Return the response with only the parts that ``filter_path`` names, if it is set."""
    paths = params.get("filter_path")
    if not paths or not isinstance(response.body, dict):
        return response
    patterns = paths.split(",")
    for pattern in patterns:
        if "**" in pattern or pattern.startswith("-"):
            raise unsupported_fault(f"[{pattern}] in [filter_path]", "name the paths that you want, with single *")
    return Response(_select(response.body, patterns), response.status, response.warnings)


def _select(body: Json, patterns: list[str], path: str = "") -> Json:
    selected: Json = {}
    for key, value in body.items():
        inner_path = f"{path}.{key}" if path else key
        if any(_matches(pattern, inner_path) for pattern in patterns):
            selected[key] = value
        elif isinstance(value, dict):
            inner = _select(value, patterns, inner_path)
            if inner:
                selected[key] = inner
        elif isinstance(value, list):
            objects = [_select(element, patterns, inner_path) for element in value if isinstance(element, dict)]
            if any(objects):
                selected[key] = [element for element in objects if element]
    return selected


def _matches(pattern: str, path: str) -> bool:
    wildcards, segments = pattern.split("."), path.split(".")
    return len(wildcards) == len(segments) and all(
        values.compile_wildcard(wildcard).fullmatch(segment)
        for wildcard, segment in zip(wildcards, segments, strict=True)
    )
