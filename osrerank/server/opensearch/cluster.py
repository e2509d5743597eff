"""Check the plugins and cluster settings that ml-commons needs to call a rerank server; change neither.

ml-commons calls only servers that match a list of regular expressions. Private addresses must be allowed; since
OpenSearch 3.7, they have a list of their own. By default, models run only on nodes with the role ``ml``.
"""

import re
import socket
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from opensearchpy import OpenSearch

from osrerank.errors import InstallError
from osrerank.server.explained import explained

PREFIX = "plugins.ml_commons."
TRUSTED = f"{PREFIX}trusted_connector_endpoints_regex"
TRUSTED_PRIVATE = f"{PREFIX}trusted_connector_private_endpoints_regex"
PRIVATE = f"{PREFIX}connector.private_ip_enabled"
ML_NODES_ONLY = f"{PREFIX}only_run_on_ml_node"
PLUGINS = ("opensearch-ml", "opensearch-neural-search")
RERANK_PATH = "/v1/rerank"


def check_plugins(client: OpenSearch) -> None:
    """Check that the cluster has the plugins with which it can rerank.

    Raises:
        InstallError: a plugin is missing.
    """
    with explained("look at the plugins"):
        installed = {entry["component"] for entry in client.cat.plugins(format="json")}
    missing = [name for name in PLUGINS if name not in installed]
    if missing:
        raise InstallError(
            f"the cluster has no {' and no '.join(missing)}: install what is missing, or rerank in the client",
            step="look at the plugins",
        )


def needed_settings(client: OpenSearch, server: str) -> dict[str, dict[str, Any]]:
    """Return the body of the ``PUT _cluster/settings`` that lets the cluster call a server; empty if it can already.

    A list keeps its entries. A transient value, which would override the persistent one, is set to null.

    Raises:
        InstallError: the settings cannot be read.
    """
    with explained("read the cluster settings"):
        settings = client.cluster.get_settings(include_defaults=True, flat_settings=True)
        has_ml_nodes = any("ml" in node["roles"] for node in client.nodes.info()["nodes"].values())
    current = {**settings["defaults"], **settings["persistent"], **settings["transient"]}
    missing: dict[str, Any] = {}
    for name in (TRUSTED, TRUSTED_PRIVATE) if _is_private(server) else (TRUSTED,):
        if name in current and not any(_matches(entry, server) for entry in current[name]):
            missing[name] = [*current[name], trusted(server)]
    if _is_private(server) and current.get(PRIVATE) == "false":
        missing[PRIVATE] = True
    if not has_ml_nodes and current.get(ML_NODES_ONLY) == "true":
        missing[ML_NODES_ONLY] = False
    overriding = {name: None for name in missing if name in settings["transient"]}
    return {scope: values for scope, values in (("persistent", missing), ("transient", overriding)) if values}


def trusted(server: str) -> str:
    """Return a regular expression that matches the URLs of a server."""
    return f"^{re.escape(server)}/.*$"


def _matches(expression: str, server: str) -> bool:
    """Return whether an entry of a list trusts a server; OpenSearch matches it against the whole URL."""
    try:
        return re.fullmatch(expression, server + RERANK_PATH) is not None
    except re.error:  # Java knows more syntax than Python
        return False


def _is_private(server: str) -> bool:
    """Return whether a server's address is private; an unknown name counts as private."""
    url = urlsplit(server)
    try:
        addresses = socket.getaddrinfo(url.hostname, url.port or 80, type=socket.SOCK_STREAM)
    except OSError:
        return True
    return not all(ip_address(address[0]).is_global for *_, address in addresses)
