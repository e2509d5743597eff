"""Requests that a search sends besides its ``_search``, such as one for the mapping."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

INDEX_OPTIONS = ("allow_no_indices", "expand_wildcards", "ignore_unavailable")
"""The parameters of a search that decide which indices its index expression names."""
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
"""The index options of a search that has none."""


@dataclass(frozen=True, slots=True)
class SideRequest:
    """A request that prepares, explains or follows a search.

    Attributes:
        method: such as ``GET``.
        path: the path of the URL.
        body: the request's body, or its lines; None for none.
        params: the URL's parameters.
    """

    method: str
    path: str
    body: Mapping[str, Any] | str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


def path_of(index: Any, action: str) -> str:
    """Return the path of an action on indices.

    Args:
        index: a name, several, a pattern, or None for all.
        action: such as ``_search``.
    """
    names = index if isinstance(index, str) or index is None else ",".join(index)
    return f"/{quote(names, safe=',*')}/{action}" if names else f"/{action}"


def index_options(params: Mapping[str, Any]) -> dict[str, str]:
    """Return those of a search's parameters that decide which indices its index expression names."""
    return {name: _in_url(params[name]) for name in INDEX_OPTIONS if params.get(name) is not None}


def _in_url(value: Any) -> str:
    """Return a parameter's value as a URL has it."""
    if isinstance(value, list | tuple):
        return ",".join(map(_in_url, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_embedded(client: Any) -> bool:
    """Return whether a client's engine is the embedded one."""
    return type(client.transport).__module__.startswith("osrerank.embedded.")


def authentication_of(client: Any) -> str:
    """Return a digest of a client's credentials and hosts; a signing object is identified by its ``repr``."""
    given = getattr(client.transport, "kwargs", {})
    parts = [given.get(name) for name in ("http_auth", "headers", "client_cert", "client_key")]
    return hashlib.sha256(repr([*parts, getattr(client.transport, "hosts", None)]).encode()).hexdigest()


def engine_of(client: Any) -> str:
    """Return the name of a client's engine for messages."""
    return "the embedded engine" if is_embedded(client) else "OpenSearch"
