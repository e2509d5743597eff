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
_EVERYWHERE = frozenset(
    {"pretty", "human", "error_trace", "filter_path", "timeout", "cluster_manager_timeout", "master_timeout",
     "wait_for_active_shards", "ignore_unavailable", "allow_no_indices", "expand_wildcards", "request_timeout",
     "local", "preference"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RestRequest:
    """A request, its parameters as text."""

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
        """Return whether a parameter is on; given without a value it is."""
        return self.params.get(name, "false") in ("true", "")

    @property
    def refresh(self) -> str:
        return self.params.get("refresh", "false") or "true"


@dataclass(frozen=True, slots=True)
class Response:
    """A response; a text body is sent as such.

    Attributes:
        body: JSON's own types, or a text.
        status: HTTP's.
        warnings: for the header of this name.
        is_own: whether the engine keeps no part of the body, so that the caller may get it without a copy.
    """

    body: Any
    status: int = 200
    warnings: list[str] = field(default_factory=list)
    is_own: bool = False


Endpoint = Callable[[RestRequest], Response]


class Router:
    """The endpoints, in the order of registration."""

    def __init__(self) -> None:
        self._routes: list[tuple[frozenset[str], re.Pattern[str], frozenset[str], Endpoint]] = []

    def route(
        self, methods: str, *templates: str, params: frozenset[str] = frozenset()
    ) -> Callable[[Endpoint], Endpoint]:
        """Register an endpoint for methods and paths; other parameters are refused."""

        def register(endpoint: Endpoint) -> Endpoint:
            for template in templates:
                pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template)
                self._routes.append((frozenset(methods.split()), re.compile(pattern), params | _EVERYWHERE, endpoint))
            return endpoint

        return register

    def answer(self, engine: Engine, method: str, url: str, params: Mapping[str, Any], body: str) -> Response:
        """Answer a request.

        Raises:
            Fault: OpenSearch would refuse the request, or the engine does not support it.
        """
        verb = "GET" if method == "HEAD" else method
        for methods, pattern, allowed, endpoint in self._routes:
            match = pattern.fullmatch(url)
            if match and verb in methods:
                texts = {key: _text(value) for key, value in params.items()}
                for name in texts:
                    if name not in allowed:
                        reason = f"request [{url}] contains unrecognized parameter for the embedded engine: [{name}]"
                        raise illegal(reason)
                path = {key: unquote(value) for key, value in match.groupdict().items()}
                return _filtered(_answered(endpoint, RestRequest(engine, method, path, texts, body)), texts)
        raise Fault(
            400,
            "illegal_argument_exception",
            f"the embedded engine does not support [{method} {url}]: use an OpenSearch server",
        )


def _answered(endpoint: Endpoint, request: RestRequest) -> Response:
    with understood(request.engine, endpoint.__name__.strip("_")):
        return endpoint(request)


@contextlib.contextmanager
def understood(engine: Engine, name: str) -> Iterator[None]:
    """Turn errors over an unexpected body into a 400."""
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
    if any("**" in one for one in patterns):
        raise unsupported("[**] in [filter_path]", "name the path with single *")
    kept = [one for one in patterns if not one.startswith("-")]
    dropped = [one[1:] for one in patterns if one.startswith("-")]
    return Response(_pick(response.body, kept, dropped), response.status, response.warnings)


def _pick(body: Json, kept: list[str], dropped: list[str], path: str = "") -> Any:
    picked = {}
    for key, value in body.items():
        here = f"{path}.{key}" if path else key
        if any(values.wildcard(one).fullmatch(here) and one.count(".") == here.count(".") for one in dropped):
            continue
        whole = not kept or any(_segments_match(one, here) for one in kept)
        if isinstance(value, dict) and (dropped or not whole):
            if inside := _pick(value, [] if whole else kept, dropped, here):
                picked[key] = inside
        elif isinstance(value, list) and not whole:
            items = [found for one in value if isinstance(one, dict) and (found := _pick(one, kept, dropped, here))]
            if items:
                picked[key] = items
        elif whole:
            picked[key] = value
    return picked


def _segments_match(pattern: str, path: str) -> bool:
    wanted, found = pattern.split("."), path.split(".")
    return len(wanted) == len(found) and all(
        values.wildcard(one).fullmatch(part) for one, part in zip(wanted, found, strict=True)
    )
