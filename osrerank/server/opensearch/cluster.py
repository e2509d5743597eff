"""The cluster settings that ml-commons needs to call a rerank server, and their earlier values.

ml-commons calls only servers that a list of regular expressions trusts, private addresses only where that is allowed
(since 3.7 by a list of their own), and runs models on nodes with the role ``ml`` only, unless told otherwise.
"""

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from opensearchpy import ConnectionError as Unreachable
from opensearchpy import OpenSearch, TransportError

from osrerank.errors import InstallError

PREFIX = "plugins.ml_commons."
TRUSTED = f"{PREFIX}trusted_connector_endpoints_regex"
TRUSTED_PRIVATE = f"{PREFIX}trusted_connector_private_endpoints_regex"
PRIVATE = f"{PREFIX}connector.private_ip_enabled"
ML_NODES_ONLY = f"{PREFIX}only_run_on_ml_node"
PRIVATE_LIST_SINCE = (3, 7)
PLUGINS = ("opensearch-ml", "opensearch-neural-search")


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A change of a persistent cluster setting.

    Attributes:
        name: the setting's.
        before: its persistent value; None where it had none.
        after: its new value.
        added: of a list, the new entries.
    """

    name: str
    before: Any
    after: Any
    added: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.added:
            return f"cluster setting {self.name}: {' and '.join(self.added)} beside what is there"
        before = "not set" if self.before is None else self.before
        return f"cluster setting {self.name}: {before} -> {self.after}"


@contextmanager
def explained(step: str) -> Iterator[None]:
    """Turn OpenSearch's errors into one sentence.

    Raises:
        InstallError: a request failed within.
    """
    try:
        yield
    except Unreachable as error:
        raise InstallError(f"{step}: the cluster does not answer ({error.error})", step=step) from error
    except TransportError as error:
        if error.status_code in (401, 403):
            fix = "use a user who may change cluster settings, search pipelines and ml-commons' models"
            raise InstallError(f"{step}: not allowed ({reason_of(error)}); {fix}", step=step) from error
        raise InstallError(f"{step}: {reason_of(error)}", step=step) from error


def reason_of(error: TransportError) -> str:
    """Return OpenSearch's reason, in one line."""
    info = error.info if isinstance(error.info, Mapping) else {}
    fault = info.get("error", info)
    reason = fault.get("reason") or fault.get("type") if isinstance(fault, Mapping) else fault
    return " ".join(str(reason or error.error).split())[:500]


def check_plugins(client: OpenSearch) -> None:
    """Refuse a cluster that cannot rerank by itself.

    Raises:
        InstallError: a plugin is missing.
    """
    with explained("look at the plugins"):
        there = {entry["component"] for entry in client.cat.plugins(format="json")}
    missing = [name for name in PLUGINS if name not in there]
    if missing:
        raise InstallError(
            f"the cluster has no {' and no '.join(missing)}: install what is missing, or rerank in the client",
            step="look at the plugins",
        )


def needed_changes(client: OpenSearch, server: str) -> list[SettingChange]:
    """Return the settings that must change before the cluster can call a server.

    Raises:
        InstallError: the settings cannot be read, or a transient one stands in the way.
    """
    with explained("read the cluster settings"):
        settings = client.cluster.get_settings(include_defaults=True, flat_settings=True)
        has_ml_nodes = any("ml" in node["roles"] for node in client.nodes.info()["nodes"].values())
        version = client.info()["version"]["number"]
    changes = []
    for name, value in _wanted(server, version, has_ml_nodes=has_ml_nodes).items():
        current = _effective(settings, name)
        added: tuple[str, ...] = ()
        if isinstance(value, list):
            added = tuple(entry for entry in value if entry not in _listed(current))
            value = [*_listed(current), *added]  # noqa: PLW2901 - the list as it must be
        if added or not (isinstance(value, list) or _same(current, value)):
            if name in settings["transient"]:
                reason = f"the transient cluster setting {name} overrides persistent ones: set it to null first"
                raise InstallError(reason, step="read the cluster settings")
            changes.append(SettingChange(name, settings["persistent"].get(name), value, added))
    return changes


def joined(earlier: Sequence[SettingChange], later: Sequence[SettingChange]) -> tuple[SettingChange, ...]:
    """Return changes made one after the other as one change of each setting."""
    changes = {change.name: change for change in earlier}
    for change in later:
        first = changes.get(change.name, change)
        added = tuple(dict.fromkeys((*first.added, *change.added)))
        changes[change.name] = SettingChange(change.name, first.before, change.after, added)
    return tuple(changes.values())


def _wanted(server: str, version: str, *, has_ml_nodes: bool) -> dict[str, Any]:
    """Return setting -> value; of a list, the entries that it must have."""
    wanted: dict[str, Any] = {TRUSTED: [trusted(server)]}
    if _is_private(server):
        wanted[PRIVATE] = True
        if tuple(int(part) for part in version.split(".")[:2]) >= PRIVATE_LIST_SINCE:
            wanted[TRUSTED_PRIVATE] = [trusted(server)]
    if not has_ml_nodes:
        wanted[ML_NODES_ONLY] = False
    return wanted


def trusted(server: str) -> str:
    """Return the regular expression of a server's addresses."""
    return f"^{re.escape(server)}/.*$"


def _is_private(server: str) -> bool:
    """Return whether a server's address is private; an unknown name counts as private."""
    parts = urlsplit(server)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except OSError:
        return True
    return not all(ip_address(address[0]).is_global for *_, address in found)


def _effective(settings: Mapping[str, Any], name: str) -> Any:
    scopes = (settings[scope] for scope in ("transient", "persistent", "defaults"))
    return next((scope[name] for scope in scopes if name in scope), None)


def _same(one: Any, other: Any) -> bool:
    """Return whether two values of a setting are equal; OpenSearch returns them as strings."""
    return str(one).lower() == str(other).lower()


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def put(client: OpenSearch, values: Mapping[str, Any]) -> None:
    """Set persistent cluster settings; None removes one."""
    if values:
        with explained("change the cluster settings"):
            client.cluster.put_settings(body={"persistent": dict(values)})


def restored(client: OpenSearch, changes: Sequence[SettingChange]) -> dict[str, Any]:
    """Return the settings to restore; settings that somebody has changed since stay.

    Raises:
        InstallError: the settings cannot be read.
    """
    with explained("read the cluster settings"):
        current = client.cluster.get_settings(flat_settings=True)["persistent"]
    values: dict[str, Any] = {}
    for change in changes:
        value = current.get(change.name)
        if _same(value, change.after):
            values[change.name] = change.before
        elif change.added:
            values[change.name] = [entry for entry in _listed(value) if entry not in change.added]
    return values
