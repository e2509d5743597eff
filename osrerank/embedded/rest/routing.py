"""Route requests to their endpoints, as OpenSearch's REST layer does."""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from osrerank.embedded.errors import Fault, Json, illegal, parsed_json, parsing, unsupported
from osrerank.embedded.mapping import values
from osrerank.embedded.storage.engine import Engine
from osrerank.embedded.storage.shard import Panic
from osrerank.embedded.storage.store import storage_fault

log = logging.getLogger(__name__)

MISSHAPEN = (TypeError, LookupError, AttributeError, ValueError, ArithmeticError, RecursionError, re.error)
"""Python's errors for a value of an unexpected type in a request."""
_PARTS = {"index": r"(?P<index>_all|[^/_][^/]*)"}
"""Patterns for parts of a path; no index name begins with an underscore, since paths of other APIs do."""


@dataclass(frozen=True, slots=True)
class RestRequest:
    """A request to the engine, with its parameters as text."""

    engine: Engine
    method: str
    path: Mapping[str, str]
    params: Mapping[str, str]
    body: str

    @property
    def index(self) -> str | None:
        return self.path.get("index")

    def json(self) -> Json:
        """Return the body as an object; an absent one is empty."""
        if not self.body.strip():
            return {}
        try:
            parsed = parsed_json(self.body)
        except ValueError as error:
            raise parsing(f"the body is not JSON: {error}") from None
        if not isinstance(parsed, dict):
            raise parsing("the body is not a JSON object")
        return parsed

    def flag(self, name: str) -> bool:
        """Return whether a boolean parameter is true; a parameter without a value is."""
        return self._chosen(name, {"true": "true", "": "true", "false": "false"}) == "true"

    @property
    def refresh(self) -> str:
        """The parameter ``refresh``: ``true``, ``false`` or ``wait_for``."""
        return self._chosen("refresh", {"true": "true", "": "true", "false": "false", "wait_for": "wait_for"})

    def _chosen(self, name: str, choices: Mapping[str, str]) -> str:
        value = self.params.get(name, "false")
        if value not in choices:
            raise illegal(f"Unknown value for [{name}]: [{value}]; pass one of {sorted(filter(None, choices))}")
        return choices[value]


@dataclass(frozen=True, slots=True)
class Response:
    """A response of the engine.

    Attributes:
        body: a value of JSON's types, or a text, which is sent as plain text.
        status: the HTTP status.
        warnings: the texts of ``Warning`` headers.
        is_own: whether the engine keeps no reference to the body, so that the caller can get it without a copy.
    """

    body: Any
    status: int = 200
    warnings: list[str] = field(default_factory=list)
    is_own: bool = False


Endpoint = Callable[[RestRequest], Response]


class Router:
    """Finds the endpoint for a request; the first one registered that matches answers."""

    def __init__(self) -> None:
        self._routes: list[tuple[frozenset[str], re.Pattern[str], frozenset[str], Endpoint]] = []

    def route(self, methods: str, *templates: str, params: str = "") -> Callable[[Endpoint], Endpoint]:
        """Register an endpoint for methods and paths; requests with parameters not named in ``params`` are refused."""

        def register(endpoint: Endpoint) -> Endpoint:
            for template in templates:
                pattern = re.sub(r"\{(\w+)\}", lambda match: _PARTS.get(match[1], rf"(?P<{match[1]}>[^/]+)"), template)
                known_params = frozenset(params.split())
                self._routes.append((frozenset(methods.split()), re.compile(pattern), known_params, endpoint))
            return endpoint

        return register

    def answer(self, engine: Engine, method: str, url: str, params: Mapping[str, Any], body: str) -> Response:
        """Answer a request.

        Raises:
            Fault: OpenSearch would refuse the request, or the engine does not support it.
        """
        for methods, pattern, known_params, endpoint in self._routes:
            match = pattern.fullmatch(url)
            if match and method in methods:
                texts = {key: _text(value) for key, value in params.items()}
                for name in texts:
                    if name not in known_params:
                        raise illegal(
                            f"request [{url}] contains unrecognized parameter for the embedded engine: [{name}]"
                            f"; it knows {sorted(known_params)} here"
                        )
                path = {key: unquote(value) for key, value in match.groupdict().items()}
                return _filtered(_answered(endpoint, RestRequest(engine, method, path, texts, body)), texts)
        raise illegal(f"the embedded engine does not support [{method} {url}]: use an OpenSearch server")


def _answered(endpoint: Endpoint, request: RestRequest) -> Response:
    with understood(request.engine, endpoint.__name__.strip("_")):
        return endpoint(request)


@contextlib.contextmanager
def understood(engine: Engine, name: str) -> Iterator[None]:
    """Turn Python's errors over an unexpected body into a 400, and the folder's errors into the engine's faults."""
    try:
        yield
    except OSError as error:
        raise storage_fault(engine.folder, str(error)) from error
    except Panic as error:
        reason = f"the search index in {engine.folder} failed ({error}): try again"
        raise Fault(500, "search_engine_exception", reason) from error
    except MISSHAPEN as error:
        log.debug("the request to [%s] cannot be read", name, exc_info=True)
        reason = f"the request to [{name}] has a value of a kind or range that cannot be used: {error!s:.200}"
        raise Fault(400, "x_content_parse_exception", reason) from error


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return value.decode() if isinstance(value, bytes) else str(value)


def _filtered(response: Response, params: Mapping[str, str]) -> Response:
    """Return the parts of the response that ``filter_path`` names, or all of it."""
    paths = params.get("filter_path")
    if not paths or not isinstance(response.body, dict):
        return response
    patterns = paths.split(",")
    if wrong := [pattern for pattern in patterns if "**" in pattern or pattern.startswith("-")]:
        raise unsupported(f"[{wrong[0]}] in [filter_path]", "name the paths that you want, with single *")
    return Response(_pick(response.body, patterns), response.status, response.warnings)


def _pick(body: Json, patterns: list[str], path: str = "") -> Json:
    picked: Json = {}
    for key, value in body.items():
        inner_path = f"{path}.{key}" if path else key
        if any(_segments_match(pattern, inner_path) for pattern in patterns):
            picked[key] = value
        elif isinstance(value, dict):
            if inside := _pick(value, patterns, inner_path):
                picked[key] = inside
        elif isinstance(value, list):
            picked_objects = [_pick(element, patterns, inner_path) for element in value if isinstance(element, dict)]
            if any(picked_objects):
                picked[key] = [picked_object for picked_object in picked_objects if picked_object]
    return picked


def _segments_match(pattern: str, path: str) -> bool:
    expected, segments = pattern.split("."), path.split(".")
    return len(expected) == len(segments) and all(
        values.wildcard(wildcard).fullmatch(segment) for wildcard, segment in zip(expected, segments, strict=True)
    )
