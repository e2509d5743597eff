"""Handle requests about indices, their mappings and settings, aliases, and the engine itself."""

import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from osrerank.embedded.errors import (
    ApiError,
    Json,
    argument_error,
    missing_index_error,
    parse_count,
    parse_number,
    reject_unknown_keys,
    require_list,
    require_object,
    require_string,
    unsupported_error,
)
from osrerank.embedded.mapping.values import as_text
from osrerank.embedded.query.clauses import K1, B
from osrerank.embedded.storage.engine import Engine, refresh_interval_s
from osrerank.embedded.storage.index import LiveIndex
from osrerank.embedded.storage.store import IndexRow

logger = logging.getLogger(__name__)

OPENSEARCH_VERSION = "3.6.0"
"""The version of OpenSearch whose responses the engine imitates."""
_SETTINGS = frozenset(
    {"number_of_shards", "number_of_replicas", "auto_expand_replicas", "refresh_interval", "hidden", "similarity",
     "analysis"}
)  # fmt: skip
_DYNAMIC_SETTINGS = frozenset({"number_of_replicas", "auto_expand_replicas", "refresh_interval"})
"""The settings that can be changed after an index was created."""
_ALIAS_NAME = re.compile(r"[^_\-+ \"*\\<|,>/?#:][^ \"*\\<|,>/?#:]*")


def describe_engine(engine: Engine) -> Json:
    """Return the response to ``GET /``."""
    return {
        "name": "embedded",
        "cluster_name": "osrerank-embedded",
        "cluster_uuid": "embedded",
        "version": {"distribution": "opensearch", "number": OPENSEARCH_VERSION, "build_type": "embedded"},
        "tagline": f"The embedded engine of osrerank, in {engine.folder}",
    }


def create_index(engine: Engine, name: str, body: Json) -> tuple[Json, list[str]]:
    """Create an index with its settings and mappings. Return the response and its warnings."""
    reject_unknown_keys("create index", body, frozenset({"settings", "mappings"}))
    settings = normalise_settings(require_object(body.get("settings", {}), "settings"))
    warnings = _similarity_warnings(name, settings)
    engine.create(name, require_object(body.get("mappings", {}), "mappings"), settings)
    return {"acknowledged": True, "shards_acknowledged": True, "index": name}, warnings


def normalise_settings(settings: Json) -> Json:
    """Return an index's settings in one form: ``{"index": {...}}`` and, if the request has analyzers, ``"analysis"``.

    The requests ``{"index": {"hidden": true}}``, ``{"index.hidden": true}`` and ``{"hidden": true}`` all become
    ``{"index": {"hidden": true}}``.

    Raises:
        ApiError: 400 if a setting is unknown or has an invalid value.
    """
    nested = _expand_dotted_keys(settings)
    settings_in_index = nested.pop("index", {})
    index = {**nested, **settings_in_index}
    for key in index:
        if key not in _SETTINGS:
            raise argument_error(
                f"unknown setting [index.{key}] for the embedded engine; it supports {sorted(_SETTINGS)}"
            )
    if parse_count(index.get("number_of_shards", 1), "index.number_of_shards") < 1:
        raise argument_error("[index.number_of_shards] must be at least 1")
    parse_count(index.get("number_of_replicas", 0), "index.number_of_replicas")
    if str(index.get("hidden", False)).lower() not in ("true", "false"):
        raise argument_error(f"[index.hidden] must be true or false, found [{index['hidden']}]")
    replicas = str(index.get("auto_expand_replicas", "false")).lower()
    if not re.fullmatch(r"false|\d+-(\d+|all)", replicas):
        raise argument_error(f"[index.auto_expand_replicas] must be false or a range such as 0-1, found [{replicas}]")
    analysis = index.pop("analysis", None)
    refresh_interval_s({"index": index})  # raises an error for an invalid interval
    return {"index": index, "analysis": analysis} if analysis else {"index": index}


def _expand_dotted_keys(settings: Mapping[str, Any]) -> Json:
    """Replace dots by nested objects: ``{"a.b": 1, "a": {"c": 2}}`` becomes ``{"a": {"b": 1, "c": 2}}``."""
    nested: Json = {}
    for key, value in settings.items():
        target = nested
        *parents, last = key.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
        expanded = _expand_dotted_keys(value) if isinstance(value, Mapping) else value
        both_are_objects = isinstance(expanded, dict) and isinstance(target.get(last), dict)
        target[last] = {**target[last], **expanded} if both_are_objects else expanded
    return nested


def _similarity_warnings(name: str, settings: Json) -> list[str]:
    """Return a warning if an index's settings ask for another k1 or b than the engine's, or an empty list.

    Raises:
        ApiError: 400 if the settings ask for another similarity than BM25.
    """
    similarities = require_object(settings["index"].get("similarity", {}), "index.similarity")
    reject_unknown_keys("index.similarity", similarities, frozenset({"default"}))
    body = require_object(similarities.get("default", {}), "index.similarity.default")
    reject_unknown_keys("index.similarity.default", body, frozenset({"type", "k1", "b"}))
    if body.get("type", "BM25") != "BM25":
        raise argument_error(
            f"[index.similarity.default.type] must be BM25 in the embedded engine, found [{body['type']}]"
        )
    k1 = parse_number(body.get("k1", K1), "similarity.k1")
    b = parse_number(body.get("b", B), "similarity.b")
    if (k1, b) == (K1, B):
        return []
    warning = (
        f"the embedded engine scores with BM25 at k1={K1}, b={B}; the index [{name}] asks for BM25 at k1={k1}, b={b}:"
        " use an OpenSearch server for it"
    )
    logger.info("%s", warning)
    return [warning]


def describe_indices(engine: Engine, expression: str, *, hidden: bool) -> Json:
    """Return the response to ``GET /{index}``."""
    rows = [engine.open_index(name).row for name in engine.resolve_names(expression, hidden=hidden)]
    index_ids_by_alias = engine.store.aliases()
    return {
        row.name: {
            "aliases": {alias: {} for alias, index_ids in index_ids_by_alias.items() if row.id in index_ids},
            "mappings": row.mappings,
            "settings": format_settings(row),
        }
        for row in rows
    }


def format_settings(row: IndexRow) -> Json:
    """Return an index's settings as OpenSearch does: with defaults, uuid, creation date, and 1 as ``"1"``."""
    index = {
        "number_of_shards": "1",
        "number_of_replicas": "0",
        **_as_strings(row.settings.get("index", {})),
        "creation_date": str(row.created_ms),
        "uuid": row.uuid,
        "provided_name": row.name,
    }
    if "analysis" in row.settings:
        index["analysis"] = _as_strings(row.settings["analysis"])
    return {"index": index}


def _as_strings(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_strings(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_as_strings(element) for element in value]
    return as_text(value)


def put_mapping(engine: Engine, expression: str, body: Json) -> Json:
    """Add fields to the indices that an expression matches. If they conflict with an index's fields, change none."""
    with engine.hold_write_lock():
        indices = _require_indices(engine, expression)
        for live_index in indices:
            engine.merge_fields(live_index, body)  # raises an error for fields that conflict
        for live_index in indices:
            engine.change(live_index, mappings=body)
    return {"acknowledged": True}


def _require_indices(engine: Engine, expression: str) -> list[LiveIndex]:
    """Return the indices that an expression matches, or raise a 404 if it matches none."""
    names = engine.resolve_names(expression)
    if not names:
        raise missing_index_error(expression)
    return [engine.open_index(name) for name in names]


def put_settings(engine: Engine, expression: str, body: Json) -> Json:
    """Change settings of the indices that an expression matches. If a setting is not dynamic, change none."""
    settings = normalise_settings(body)
    if settings == {"index": {}}:
        raise ApiError(400, "action_request_validation_exception", "Validation Failed: 1: no settings to update;")
    names = {*settings["index"], *settings} - {"index"}  # "analysis" is not within "index"
    static_settings = sorted(names - _DYNAMIC_SETTINGS)
    with engine.hold_write_lock():
        indices = _require_indices(engine, expression)
        if static_settings:
            row = indices[0].row
            location = f"[[index.{static_settings[0]}]] for open indices [[{row.name}/{row.uuid}]]"
            raise argument_error(f"Can't update non dynamic settings {location}")
        for live_index in indices:
            index = {**live_index.row.settings.get("index", {}), **settings["index"]}
            engine.change(live_index, settings={**live_index.row.settings, "index": index})
    return {"acknowledged": True}


def delete_indices(engine: Engine, expression: str, *, ignore_unavailable: bool) -> Json:
    """Delete the indices that an expression matches.

    Unless ``ignore_unavailable`` is set, a missing index or an alias is an error, and no index is deleted.
    """
    names = expression.split(",")
    if ignore_unavailable:
        names = [name for name in engine.drop_missing(names) if name not in engine.store.aliases()]
    for name in _resolve_without_aliases(engine, names):
        engine.delete(name)
    return {"acknowledged": True}


def _resolve_without_aliases(engine: Engine, names: list[str]) -> list[str]:
    """Return the indices that names and patterns match, or raise a 400 if a name is an alias."""
    for name in names:
        if name in engine.store.aliases():
            reason = "matches an alias, specify the corresponding concrete indices instead."
            raise argument_error(f"The provided expression [{name}] {reason}")
    return engine.resolve_names(",".join(names), aliases=False) if names else []


def describe_alias(engine: Engine, alias: str) -> Json:
    """Return the response to ``GET /_alias/{name}``, which lists the indices that have the alias."""
    if "*" in alias or "," in alias or alias.startswith(("-", "_")):
        raise unsupported_error(f"[{alias}] as a name in [_alias]", "name one alias")
    index_ids, rows = engine.store.aliases().get(alias, set()), engine.store.indices()
    return {name: {"aliases": {alias: {}}} for name, row in sorted(rows.items()) if row.id in index_ids}


def change_aliases(engine: Engine, actions: Any) -> Json:
    """Run the actions of an ``_aliases`` request, such as ``{"add": {"index": "news-1", "alias": "news"}}``.

    Either all actions take effect or none. If all of them remove aliases that do not exist, the response is a 404.
    """
    if not require_list(actions, "actions"):
        raise ApiError(400, "action_request_validation_exception", "Validation Failed: 1: No action specified;")
    with engine.hold_write_lock():
        changes = [change for action in actions for change in _read_alias_changes(engine, action)]
        index_ids_by_alias = engine.store.aliases()
        applicable = [
            change for change in changes if change.adds or change.row.id in index_ids_by_alias.get(change.alias, ())
        ]
        if not applicable:  # all changes remove an alias that the index does not have
            missing = changes[0].alias
            reason = f"aliases [{missing}] missing"
            raise ApiError(404, "aliases_not_found_exception", reason, {"resource.id": missing})
        with engine.store.transaction():
            for change in applicable:
                apply = engine.store.put_alias if change.adds else engine.store.drop_alias
                apply(change.alias, change.row)
    return {"acknowledged": True}


class _AliasChange(NamedTuple):
    """A change of one index, which gets the alias if ``adds`` is true and loses it otherwise."""

    adds: bool
    row: IndexRow
    alias: str


def _read_alias_changes(engine: Engine, action: Any) -> list[_AliasChange]:
    """Return the changes that an action of ``_aliases`` asks for, one for each index that it names."""
    if not isinstance(action, dict) or len(action) != 1 or next(iter(action)) not in ("add", "remove"):
        raise argument_error(f"an alias action must be [add] or [remove] in the embedded engine, found {action!r:.100}")
    ((kind, body),) = action.items()
    reject_unknown_keys(f"aliases {kind}", require_object(body, kind), frozenset({"index", "alias"}))
    index, alias = (require_string(body.get(key), f"{kind}.{key}") for key in ("index", "alias"))
    if not _ALIAS_NAME.fullmatch(alias):
        raise _alias_name_error(alias, 'must not begin with _, - or +, or have a space or one of "*\\<|,>/?#:')
    if alias in engine.store.indices():
        raise _alias_name_error(alias, "an index or data stream exists with the same name as the alias")
    names = _resolve_without_aliases(engine, index.split(","))
    if not names:
        raise missing_index_error(index)
    return [_AliasChange(adds=kind == "add", row=engine.open_index(name).row, alias=alias) for name in names]


def _alias_name_error(alias: str, reason: str) -> ApiError:
    return ApiError(400, "invalid_alias_name_exception", f"Invalid alias name [{alias}]: {reason}")


def cat_indices(engine: Engine) -> list[Json]:
    """Return the response to ``GET /_cat/indices``, with an object for each index."""
    return [
        {
            "health": "green",
            "status": "open",
            "index": live_index.row.name,
            "uuid": live_index.row.uuid,
            "pri": "1",
            "rep": str(live_index.row.settings.get("index", {}).get("number_of_replicas", 0)),
            "docs.count": str(live_index.snapshot().searcher.num_docs),
            "docs.deleted": "0",
            "store.size": f"{_stored_bytes(live_index)}b",
            "pri.store.size": f"{_stored_bytes(live_index)}b",
        }
        for live_index in engine.searchable_indices(None)  # all indices
    ]


def _stored_bytes(live_index: LiveIndex) -> int:
    return sum(path.stat().st_size for path in live_index.folder.rglob("*") if path.is_file())
