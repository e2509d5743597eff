"""Requests about indices, aliases and the engine itself."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from osrerank.embedded.errors import (
    Fault,
    Json,
    as_list,
    as_name,
    as_number,
    as_object,
    as_whole,
    illegal,
    no_such_index,
    reject_unknown_keys,
    unsupported,
)
from osrerank.embedded.mapping import values
from osrerank.embedded.query.clauses import K1, B
from osrerank.embedded.storage.engine import Engine, refresh_interval_s
from osrerank.embedded.storage.index import LiveIndex
from osrerank.embedded.storage.store import IndexRow

log = logging.getLogger(__name__)

OPENSEARCH_VERSION = "3.6.0"
"""The version of OpenSearch whose responses the engine imitates."""
_SETTINGS = frozenset(
    {"number_of_shards", "number_of_replicas", "auto_expand_replicas", "refresh_interval", "hidden", "similarity",
     "analysis"}
)  # fmt: skip
_DYNAMIC = frozenset({"number_of_replicas", "auto_expand_replicas", "refresh_interval"})
"""The settings of an existing index that can be changed."""
_ALIAS = re.compile(r"[^_\-+ \"*\\<|,>/?#:][^ \"*\\<|,>/?#:]*")


def information(engine: Engine) -> Json:
    """Answer ``GET /``."""
    return {
        "name": "embedded",
        "cluster_name": "osrerank-embedded",
        "cluster_uuid": "embedded",
        "version": {
            "distribution": "opensearch",
            "number": OPENSEARCH_VERSION,
            "build_type": "embedded",
        },
        "tagline": f"The embedded engine of osrerank, in {engine.folder}",
    }


def create_index(engine: Engine, name: str, body: Json) -> tuple[Json, list[str]]:
    """Create an index with its settings and mappings; return the response and warnings."""
    reject_unknown_keys("create index", body, frozenset({"settings", "mappings"}))
    settings = normal_settings(as_object(body.get("settings", {}), "settings"))
    warnings = _similarity_warnings(name, settings)
    engine.create(name, as_object(body.get("mappings", {}), "mappings"), settings)
    return {"acknowledged": True, "shards_acknowledged": True, "index": name}, warnings


def normal_settings(settings: Json) -> Json:
    """Return settings as nested objects below ``index`` and ``analysis``, whether written nested or with dotted keys.

    Raises:
        Fault: 400; a setting is unknown or has a wrong value.
    """
    nested = _nested(settings)
    index = {**{key: value for key, value in nested.items() if key != "index"}, **nested.get("index", {})}
    for key in index:
        if key not in _SETTINGS:
            raise illegal(f"unknown setting [index.{key}] for the embedded engine; it knows {sorted(_SETTINGS)}")
    if as_whole(index.get("number_of_shards", 1), "index.number_of_shards") < 1:
        raise illegal("[index.number_of_shards] must be at least 1")
    as_whole(index.get("number_of_replicas", 0), "index.number_of_replicas")
    if str(index.get("hidden", False)).lower() not in ("true", "false"):
        raise illegal(f"[index.hidden] is true or false, found [{index['hidden']}]")
    expanded = str(index.get("auto_expand_replicas", "false")).lower()
    if not re.fullmatch(r"false|\d+-(\d+|all)", expanded):
        raise illegal(f"[index.auto_expand_replicas] is false or a range such as 0-1, found [{expanded}]")
    analysis = index.pop("analysis", None)
    refresh_interval_s({"index": index})
    return {"index": index, **({"analysis": analysis} if analysis else {})}


def _nested(settings: Mapping[str, Any]) -> Json:
    """Return an object with dotted keys expanded to nested objects."""
    nested: Json = {}
    for key, value in settings.items():
        inside = nested
        *parents, last = key.split(".")
        for parent in parents:
            inside = inside.setdefault(parent, {})
        expanded = _nested(value) if isinstance(value, Mapping) else value
        are_objects = isinstance(expanded, dict) and isinstance(inside.get(last), dict)
        inside[last] = {**inside[last], **expanded} if are_objects else expanded
    return nested


def _similarity_warnings(name: str, settings: Json) -> list[str]:
    """Return a warning if an index asks for BM25 constants that the engine does not use."""
    similarities = as_object(settings["index"].get("similarity", {}), "index.similarity")
    reject_unknown_keys("index.similarity", similarities, frozenset({"default"}))
    body = as_object(similarities.get("default", {}), "index.similarity.default")
    reject_unknown_keys("index.similarity.default", body, frozenset({"type", "k1", "b"}))
    if body.get("type", "BM25") != "BM25":
        raise illegal(f"[index.similarity.default.type] is BM25 in the embedded engine, found [{body['type']}]")
    k1, b = (as_number(body.get(key, normal), f"similarity.{key}") for key, normal in (("k1", K1), ("b", B)))
    if (k1, b) == (K1, B):
        return []
    warning = (
        f"the embedded engine scores with BM25 at k1={K1}, b={B}; the index [{name}] asks for BM25 at k1={k1}, b={b}:"
        " use an OpenSearch server for it"
    )
    log.info("%s", warning)
    return [warning]


def describe(engine: Engine, expression: str, *, hidden: bool) -> Json:
    """Answer ``GET /index``."""
    rows = [engine.live(name).row for name in engine.names(expression, hidden=hidden)]
    aliases = engine.store.aliases()
    return {
        row.name: {
            "aliases": {alias: {} for alias, index_ids in aliases.items() if row.id in index_ids},
            "mappings": row.mappings,
            "settings": shown_settings(row),
        }
        for row in rows
    }


def shown_settings(row: IndexRow) -> Json:
    """Return an index's settings as OpenSearch shows them: all strings, with the settings that it adds."""
    index = {
        "number_of_shards": "1",
        "number_of_replicas": "0",
        **_strings(row.settings.get("index", {})),
        "creation_date": str(row.created_ms),
        "uuid": row.uuid,
        "provided_name": row.name,
    }
    if "analysis" in row.settings:
        index["analysis"] = _strings(row.settings["analysis"])
    return {"index": index}


def _strings(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strings(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_strings(element) for element in value]
    return values.as_text(value)


def put_mapping(engine: Engine, expression: str, body: Json) -> Json:
    """Add fields to all indices of an expression, or to none if one of them cannot have the fields."""
    with engine.writing():
        indices = _existing(engine, expression)
        for live in indices:
            engine.merged_fields(live, body)
        for live in indices:
            engine.change(live, mappings=body)
    return {"acknowledged": True}


def _existing(engine: Engine, expression: str) -> list[LiveIndex]:
    """Return the indices of an expression, or raise a 404 if there are none."""
    names = engine.names(expression)
    if not names:
        raise no_such_index(expression)
    return [engine.live(name) for name in names]


def put_settings(engine: Engine, expression: str, body: Json) -> Json:
    """Set dynamic settings on all indices of an expression, or on none if one setting is not dynamic."""
    requested = normal_settings(body)
    if not requested["index"] and len(requested) == 1:
        raise Fault(400, "action_request_validation_exception", "Validation Failed: 1: no settings to update;")
    with engine.writing():
        indices = _existing(engine, expression)
        for live in indices:
            if final := sorted({*requested["index"], *requested} - _DYNAMIC - {"index"}):
                location = f"[[index.{final[0]}]] for open indices [[{live.row.name}/{live.row.uuid}]]"
                raise illegal(f"Can't update non dynamic settings {location}")
        for live in indices:
            index = {**live.row.settings.get("index", {}), **requested["index"]}
            engine.change(live, settings={**live.row.settings, "index": index})
    return {"acknowledged": True}


def delete_indices(engine: Engine, expression: str, *, ignore_unavailable: bool) -> Json:
    """Remove all the named indices, or none. Patterns do not match aliases."""
    names = expression.split(",")
    if ignore_unavailable:
        names = [name for name in engine.without_missing(names) if name not in engine.store.aliases()]
    for name in _concrete(engine, names):
        engine.delete(name)
    return {"acknowledged": True}


def _concrete(engine: Engine, names: list[str]) -> list[str]:
    """Return the indices that the parts of an expression name; raise a 400 if a part is an alias."""
    for name in names:
        if name in engine.store.aliases():
            reason = "matches an alias, specify the corresponding concrete indices instead."
            raise illegal(f"The provided expression [{name}] {reason}")
    return engine.names(",".join(names), aliases=False) if names else []


def indices_of(engine: Engine, alias: str) -> Json:
    """Answer ``GET /_alias/name``: the indices that have the alias."""
    if set("*,") & set(alias) or alias.startswith(("-", "_")):
        raise unsupported(f"[{alias}] as a name in [_alias]", "name one alias")
    index_ids, rows = engine.store.aliases().get(alias, set()), engine.store.indices()
    return {name: {"aliases": {alias: {}}} for name, row in sorted(rows.items()) if row.id in index_ids}


def change_aliases(engine: Engine, actions: Any) -> Json:
    """Add and remove aliases, all or none."""
    if not as_list(actions, "actions"):
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
    """Return the steps of an action: its kind, an index and the alias."""
    if not isinstance(action, dict) or len(action) != 1 or next(iter(action)) not in ("add", "remove"):
        raise illegal(f"an alias action is [add] or [remove] in the embedded engine, found {action!r:.100}")
    ((kind, body),) = action.items()
    reject_unknown_keys(f"aliases {kind}", as_object(body, kind), frozenset({"index", "alias"}))
    index, alias = (as_name(body.get(key), f"{kind}.{key}") for key in ("index", "alias"))
    if not _ALIAS.fullmatch(alias):
        raise _invalid_alias(alias, 'must not begin with _, - or +, or have a space or one of "*\\<|,>/?#:')
    if alias in engine.store.indices():
        raise _invalid_alias(alias, "an index or data stream exists with the same name as the alias")
    names = _concrete(engine, index.split(","))
    if not names:
        raise no_such_index(index)
    return [(kind, engine.live(name).row, alias) for name in names]


def _invalid_alias(alias: str, reason: str) -> Fault:
    return Fault(400, "invalid_alias_name_exception", f"Invalid alias name [{alias}]: {reason}")


def cat_indices(engine: Engine) -> list[Json]:
    """Answer ``_cat/indices`` as rows."""
    return [
        {
            "health": "green",
            "status": "open",
            "index": live.row.name,
            "uuid": live.row.uuid,
            "pri": "1",
            "rep": str(live.row.settings.get("index", {}).get("number_of_replicas", 0)),
            "docs.count": str(live.snapshot().searcher.num_docs),
            "docs.deleted": "0",
            "store.size": f"{_bytes(live)}b",
            "pri.store.size": f"{_bytes(live)}b",
        }
        for live in engine.searchable(None)
    ]


def _bytes(live: LiveIndex) -> int:
    return sum(path.stat().st_size for path in live.folder.rglob("*") if path.is_file())
