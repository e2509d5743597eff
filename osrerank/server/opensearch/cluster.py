"""Check whether an OpenSearch cluster has the plugins and settings with which ml-commons can call a rerank server.

The plugin ml-commons calls a server only if its URL matches a regular expression in the setting `TRUSTED_URLS`. Private
addresses, such as 10.0.0.5, must also be allowed by `PRIVATE_ALLOWED` and, since OpenSearch 3.7, must match an
expression in `TRUSTED_PRIVATE_URLS`. By default (`ML_NODES_ONLY`), only nodes with the role ``ml`` run models.

This module only reads the settings. `find_missing_settings` returns the request that an administrator must send.
"""

import re
import socket
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from opensearchpy import OpenSearch

from osrerank.errors import InstallError
from osrerank.server.failures import explain_failures

SETTING_PREFIX = "plugins.ml_commons."
PLUGINS_STEP = "list the plugins"
TRUSTED_URLS = f"{SETTING_PREFIX}trusted_connector_endpoints_regex"
TRUSTED_PRIVATE_URLS = f"{SETTING_PREFIX}trusted_connector_private_endpoints_regex"
PRIVATE_ALLOWED = f"{SETTING_PREFIX}connector.private_ip_enabled"
ML_NODES_ONLY = f"{SETTING_PREFIX}only_run_on_ml_node"
PLUGINS = ("opensearch-ml", "opensearch-neural-search")
RERANK_PATH = "/v1/rerank"
"""The path that OpenSearch calls on the rerank server."""


def check_plugins(client: OpenSearch) -> None:
    """Check that the cluster has the plugins that reranking needs.

    Raises:
        InstallError: a plugin is missing.
    """
    with explain_failures(PLUGINS_STEP):
        installed = {entry["component"] for entry in client.cat.plugins(format="json")}
    missing = [name for name in PLUGINS if name not in installed]
    if missing:
        reason = f"the cluster does not have the plugins {', '.join(missing)}"
        raise InstallError(f"{reason}: install them on every node, or rerank in the client", step=PLUGINS_STEP)


def find_missing_settings(client: OpenSearch, server: str) -> dict[str, dict[str, Any]]:
    """Return the body of ``PUT _cluster/settings`` that lets the cluster call a server, or {} if no setting is missing.

    An example is ``{"persistent": {"plugins.ml_commons.connector.private_ip_enabled": True}}``. Lists in the body
    contain the current values and the new one. A transient setting would override the persistent one, so the body sets
    it to None under ``"transient"``, which removes it.
    """
    with explain_failures("read the cluster settings"):
        settings = client.cluster.get_settings(include_defaults=True, flat_settings=True)
        has_ml_nodes = any("ml" in node["roles"] for node in client.nodes.info()["nodes"].values())
    current = {**settings["defaults"], **settings["persistent"], **settings["transient"]}
    missing: dict[str, Any] = {}
    is_private = _is_private(server)
    pattern_settings = (TRUSTED_URLS, TRUSTED_PRIVATE_URLS) if is_private else (TRUSTED_URLS,)
    for name in pattern_settings:
        if name in current and not any(_matches(pattern, server) for pattern in current[name]):
            missing[name] = [*current[name], build_url_pattern(server)]
    if is_private and current.get(PRIVATE_ALLOWED) == "false":
        missing[PRIVATE_ALLOWED] = True
    if not has_ml_nodes and current.get(ML_NODES_ONLY) == "true":
        missing[ML_NODES_ONLY] = False
    removed = {name: None for name in missing if name in settings["transient"]}
    body = {"persistent": missing, "transient": removed}
    return {scope: values for scope, values in body.items() if values}


def build_url_pattern(server: str) -> str:
    """Return a regular expression that matches the URLs of a server, such as ``^http://localhost:8088/.*$``."""
    return f"^{re.escape(server)}/.*$"


def _matches(pattern: str, server: str) -> bool:
    """Return whether a pattern matches the URL that OpenSearch calls on a server."""
    try:
        return re.fullmatch(pattern, server + RERANK_PATH) is not None
    except re.error:  # the pattern uses syntax of Java that Python does not have
        return False


def _is_private(server: str) -> bool:
    """Return whether a server has a private address, or a name that cannot be resolved."""
    url = urlsplit(server)
    try:
        addresses = socket.getaddrinfo(url.hostname, url.port or 80, type=socket.SOCK_STREAM)
    except OSError:  # a name that only the cluster can resolve is probably private
        return True
    return not all(ip_address(socket_address[0]).is_global for *_, socket_address in addresses)
