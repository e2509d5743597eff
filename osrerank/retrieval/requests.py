"""Build the requests that a search sends in addition to ``_search``, such as a request for the mapping."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

INDEX_OPTIONS = ("allow_no_indices", "expand_wildcards", "ignore_unavailable")
"""The URL parameters of a search that decide which indices a name or pattern such as ``logs-*`` stands for."""
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
"""The index options of a search without any of these parameters."""

ANONYMOUS_HEADERS = {
    "accept", "content-type", "elastic-api-version", "traceparent", "tracestate", "user-agent", "x-opaque-id",
    "x-request-id",
}  # fmt: skip
"""Headers that do not identify the user who sends a request. Any other header can identify the user to a proxy."""

HARMLESS_ACTIONS = frozenset({"_refresh", "_flush", "_forcemerge", "_analyze", "clear", "query"})
"""The last parts of URL paths, such as ``/_cache/clear``, whose ``POST`` changes no mapping, setting or index name."""


@dataclass(frozen=True, slots=True)
class SideRequest:
    """A request that osrerank sends in addition to ``_search``, such as a request for the mapping.

    Attributes:
        method: the HTTP method.
        path: the path of the URL.
        body: a JSON object, or a string with a JSON object on each line. None for a request without a body.
        params: the URL parameters.
    """

    method: str
    path: str
    body: Mapping[str, Any] | str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


def build_path(index: Any, action: str) -> str:
    """Return the path of an action on indices: ``/a,b/_search``, or ``/_search`` if ``index`` is None."""
    names = index if isinstance(index, str) or index is None else ",".join(index)
    return f"/{quote(names, safe=',*')}/{action}" if names else f"/{action}"


def select_index_options(params: Mapping[str, Any]) -> dict[str, str]:
    """Return the `INDEX_OPTIONS` among a search's URL parameters, as strings: ``{"ignore_unavailable": "true"}``."""
    return {name: _format_parameter(params[name]) for name in INDEX_OPTIONS if params.get(name) is not None}


def _format_parameter(value: Any) -> str:
    """Return a URL parameter as the engine expects it: ``true`` for True, ``open,hidden`` for a list."""
    if isinstance(value, list | tuple):
        return ",".join(map(_format_parameter, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def may_change_indices(method: str, path: str) -> bool:
    """Return whether a request of ``client.indices`` might change an index's mapping, settings or name."""
    return method not in ("GET", "HEAD") and path.rpartition("/")[2] not in HARMLESS_ACTIONS


def is_embedded(client: Any) -> bool:
    """Return whether a client is connected to the embedded engine."""
    return type(client.transport).__module__.startswith("osrerank.embedded.")


def name_engine(client: Any) -> str:
    """Return the name of a client's engine for messages. It does not distinguish OpenSearch and Elasticsearch."""
    return "the embedded engine" if is_embedded(client) else "the search engine"


def digest_authentication(client: Any) -> str:
    """Return a digest of a client's credentials and hosts.

    If the credentials are an object that signs requests, the digest depends on its ``repr``.
    """
    pool = getattr(client.transport, "node_pool", None)
    if pool is None:  # opensearch-py
        options = getattr(client.transport, "kwargs", {})
        credentials = [options.get(name) for name in ("http_auth", "headers", "client_cert", "client_key")]
        hosts = getattr(client.transport, "hosts", None)
    else:  # elasticsearch-py
        configs = [node.config for node in pool.all()]
        hosts = sorted(
            (config.scheme, config.host, config.port, config.path_prefix, config.client_cert or "")
            for config in configs
        )
        credentials = [sorted({digest_credentials(config.headers) for config in configs})]
    return hashlib.sha256(repr([*credentials, hosts]).encode()).hexdigest()


def digest_credentials(headers: Mapping[str, str] | None) -> str:
    """Return a digest of the headers that can identify the user who sends a request. Empty if there are none."""
    lower_case_headers = {str(name).lower(): str(value) for name, value in (headers or {}).items()}
    credentials = sorted((name, value) for name, value in lower_case_headers.items() if name not in ANONYMOUS_HEADERS)
    return hashlib.sha256(repr(credentials).encode()).hexdigest() if credentials else ""
