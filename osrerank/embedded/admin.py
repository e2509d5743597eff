"""Handle requests about indices, their mappings and settings, aliases, and the engine itself."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from osrerank.embedded.errors import (
    Fault,
    Json,
    argument_fault,
    missing_index_fault,
    parse_count,
    parse_number,
    reject_unknown_keys,
    require_list,
    require_object,
    require_string,
    unsupported_fault,
)
from osrerank.embedded.mapping import values
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
"""The settings that an existing index can change."""
_ALIAS = re.compile(r"[^_\-+ \"*\\<|,>/?#:][^ \"*\\<|,>/?#:]*")


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
    """Create an index with its settings and mappings; return the response and warnings."""
    reject_unknown_keys("create index", body, frozenset({"settings", "mappings"}))
    settings = normalise_settings(require_object(body.get("settings", {}), "settings"))
    warnings = _similarity_warnings(name, settings)
    engine.create(name, require_object(body.get("mappings", {}), "mappings"), settings)
    return {"acknowledged": True, "shards_acknowledged": True, "index": name}, warnings


def normalise_settings(settings: Json) -> Json:
    """Return settings as nested objects under ``index`` and ``analysis``. Their keys can be dotted or lack ``index``.

    Raises:
        Fault: 400; a setting is unknown or has a wrong value.
    """
    nested = _expand_dotted_keys(settings)
    index = {**{key: value for key, value in nested.items() if key != "index"}, **nested.get("index", {})}
    for key in index:
        if key not in _SETTINGS:
            raise argument_fault(f"unknown setting [index.{key}] for the embedded engine; it knows {sorted(_SETTINGS)}")
    if parse_count(index.get("number_of_shards", 1), "index.number_of_shards") < 1:
        raise argument_fault("[index.number_of_shards] must be at least 1")
    parse_count(index.get("number_of_replicas", 0), "index.number_of_replicas")
    if str(index.get("hidden", False)).lower() not in ("true", "false"):
        raise argument_fault(f"[index.hidden] is true or false, found [{index['hidden']}]")
    replicas = str(index.get("auto_expand_replicas", "false")).lower()
    if not re.fullmatch(r"false|\d+-(\d+|all)", replicas):
        raise argument_fault(f"[index.auto_expand_replicas] is false or a range such as 0-1, found [{replicas}]")
    analysis = index.pop("analysis", None)
    refresh_interval_s({"index": index})
    return {"index": index, **({"analysis": analysis} if analysis else {})}


def _expand_dotted_keys(settings: Mapping[str, Any]) -> Json:
    nested: Json = {}
    for key, value in settings.items():
        target = nested
        *parents, last = key.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
        expanded = _expand_dotted_keys(value) if isinstance(value, Mapping) else value
        are_objects = isinstance(expanded, dict) and isinstance(target.get(last), dict)
        target[last] = {**target[last], **expanded} if are_objects else expanded
    return nested


def _similarity_warnings(name: str, settings: Json) -> list[str]:
    """Return a warning if an index's settings name BM25 constants that the engine does not use."""
    similarities = require_object(settings["index"].get("similarity", {}), "index.similarity")
    reject_unknown_keys("index.similarity", similarities, frozenset({"default"}))
    body = require_object(similarities.get("default", {}), "index.similarity.default")
    reject_unknown_keys("index.similarity.default", body, frozenset({"type", "k1", "b"}))
    if body.get("type", "BM25") != "BM25":
        raise argument_fault(f"[index.similarity.default.type] is BM25 in the embedded engine, found [{body['type']}]")
    k1, b = (parse_number(body.get(key, normal), f"similarity.{key}") for key, normal in (("k1", K1), ("b", B)))
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
    aliases = engine.store.aliases()
    return {
        row.name: {
            "aliases": {alias: {} for alias, index_ids in aliases.items() if row.id in index_ids},
            "mappings": row.mappings,
            "settings": format_settings(row),
        }
        for row in rows
    }


def format_settings(row: IndexRow) -> Json:
    """Return an index's settings as OpenSearch returns them: as strings, with defaults, uuid and time of creation."""
    index = {
        "number_of_shards": "1",
        "number_of_replicas": "0",
        **_stringify(row.settings.get("index", {})),
        "creation_date": str(row.created_ms),
        "uuid": row.uuid,
        "provided_name": row.name,
    }
    if "analysis" in row.settings:
        index["analysis"] = _stringify(row.settings["analysis"])
    return {"index": index}


def _stringify(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _stringify(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_stringify(element) for element in value]
    return values.as_text(value)


def put_mapping(engine: Engine, expression: str, body: Json) -> Json:
    """Add fields to all indices of an expression, or to none if one of them cannot have the fields."""
    with engine.writing():
        indices = _require_indices(engine, expression)
        for live_index in indices:
            engine.merge_fields(live_index, body)
        for live_index in indices:
            engine.change(live_index, mappings=body)
    return {"acknowledged": True}


def _require_indices(engine: Engine, expression: str) -> list[LiveIndex]:
    """Return the indices of an expression; raise a 404 if it matches none."""
    names = engine.resolve_names(expression)
    if not names:
        raise missing_index_fault(expression)
    return [engine.open_index(name) for name in names]


def put_settings(engine: Engine, expression: str, body: Json) -> Json:
    """Set dynamic settings on all indices of an expression, or on none if one setting is not dynamic."""
    settings = normalise_settings(body)
    if not settings["index"] and len(settings) == 1:
        raise Fault(400, "action_request_validation_exception", "Validation Failed: 1: no settings to update;")
    static_settings = sorted({*settings["index"], *settings} - _DYNAMIC_SETTINGS - {"index"})
    with engine.writing():
        indices = _require_indices(engine, expression)
        if static_settings:
            row = indices[0].row
            location = f"[[index.{static_settings[0]}]] for open indices [[{row.name}/{row.uuid}]]"
            raise argument_fault(f"Can't update non dynamic settings {location}")
        for live_index in indices:
            index = {**live_index.row.settings.get("index", {}), **settings["index"]}
            engine.change(live_index, settings={**live_index.row.settings, "index": index})
    return {"acknowledged": True}


def delete_indices(engine: Engine, expression: str, *, ignore_unavailable: bool) -> Json:
    """Delete all indices of an expression, or none if a name is wrong. Patterns do not match aliases."""
    names = expression.split(",")
    if ignore_unavailable:
        names = [name for name in engine.drop_missing(names) if name not in engine.store.aliases()]
    for name in _resolve_without_aliases(engine, names):
        engine.delete(name)
    return {"acknowledged": True}


def _resolve_without_aliases(engine: Engine, names: list[str]) -> list[str]:
    """Return the indices that names and patterns match; raise a 400 for an alias."""
    for name in names:
        if name in engine.store.aliases():
            reason = "matches an alias, specify the corresponding concrete indices instead."
            raise argument_fault(f"The provided expression [{name}] {reason}")
    return engine.resolve_names(",".join(names), aliases=False) if names else []


def describe_alias(engine: Engine, alias: str) -> Json:
    """Return the response to ``GET /_alias/{name}``: the indices that have the alias."""
    if set("*,") & set(alias) or alias.startswith(("-", "_")):
        raise unsupported_fault(f"[{alias}] as a name in [_alias]", "name one alias")
    index_ids, rows = engine.store.aliases().get(alias, set()), engine.store.indices()
    return {name: {"aliases": {alias: {}}} for name, row in sorted(rows.items()) if row.id in index_ids}


def change_aliases(engine: Engine, actions: Any) -> Json:
    """Add and remove aliases; either all actions take effect or none."""
    if not require_list(actions, "actions"):
        raise Fault(400, "action_request_validation_exception", "Validation Failed: 1: No action specified;")
    with engine.writing():
        steps = [step for action in actions for step in _alias_steps(engine, action)]
        current = engine.store.aliases()
        applicable = [
            (kind, row, alias) for kind, row, alias in steps if kind == "add" or row.id in current.get(alias, ())
        ]
        if not applicable:
            missing = steps[0][2]
            reason = f"aliases [{missing}] missing"
            raise Fault(404, "aliases_not_found_exception", reason, {"resource.id": missing})
        with engine.store.transaction():
            for kind, row, alias in applicable:
                (engine.store.put_alias if kind == "add" else engine.store.drop_alias)(alias, row)
    return {"acknowledged": True}


def _alias_steps(engine: Engine, action: Any) -> list[tuple[str, IndexRow, str]]:
    """Return a step for each index of an action: ``add`` or ``remove``, the index and the alias."""
    if not isinstance(action, dict) or len(action) != 1 or next(iter(action)) not in ("add", "remove"):
        raise argument_fault(f"an alias action is [add] or [remove] in the embedded engine, found {action!r:.100}")
    ((kind, body),) = action.items()
    reject_unknown_keys(f"aliases {kind}", require_object(body, kind), frozenset({"index", "alias"}))
    index, alias = (require_string(body.get(key), f"{kind}.{key}") for key in ("index", "alias"))
    if not _ALIAS.fullmatch(alias):
        raise _invalid_alias(alias, 'must not begin with _, - or +, or have a space or one of "*\\<|,>/?#:')
    if alias in engine.store.indices():
        raise _invalid_alias(alias, "an index or data stream exists with the same name as the alias")
    names = _resolve_without_aliases(engine, index.split(","))
    if not names:
        raise missing_index_fault(index)
    return [(kind, engine.open_index(name).row, alias) for name in names]


def _invalid_alias(alias: str, reason: str) -> Fault:
    return Fault(400, "invalid_alias_name_exception", f"Invalid alias name [{alias}]: {reason}")


def cat_indices(engine: Engine) -> list[Json]:
    """Return the rows of ``_cat/indices``."""
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
        for live_index in engine.searchable_indices(None)
    ]


def _stored_bytes(live_index: LiveIndex) -> int:
    return sum(path.stat().st_size for path in live_index.folder.rglob("*") if path.is_file())
