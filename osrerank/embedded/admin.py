"""Requests about indices, aliases and the engine itself."""

import logging
from collections.abc import Mapping
from typing import Any

from osrerank.embedded.errors import Fault, Json, as_number, as_object, illegal, only
from osrerank.embedded.mapping import values
from osrerank.embedded.query.leaf_queries import K1, B
from osrerank.embedded.search.execute import shards
from osrerank.embedded.storage.engine import Engine, refresh_interval_s
from osrerank.embedded.storage.index import LiveIndex
from osrerank.embedded.storage.store import IndexRow

log = logging.getLogger(__name__)

OPENSEARCH_VERSION = "3.6.0"
"""The OpenSearch whose answers the engine imitates."""
_SETTINGS = frozenset(
    {"number_of_shards", "number_of_replicas", "refresh_interval", "analysis", "similarity", "max_result_window",
     "codec", "auto_expand_replicas", "translog", "merge", "highlight", "sort", "knn",
     "hidden"}
)  # fmt: skip
_FINAL = frozenset({"number_of_shards", "analysis", "codec", "sort"})


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
    """Create an index with its settings, mappings and aliases; return the response and warnings."""
    only("create index", body, frozenset({"settings", "mappings", "aliases"}))
    settings = normal_settings(as_object(body.get("settings") or {}, "settings"))
    warnings = _similarity_warnings(name, settings)
    aliases = as_object(body.get("aliases") or {}, "aliases")
    for alias, options in aliases.items():
        _check_alias(engine, name, alias, as_object(options, f"aliases.{alias}"))
    engine.create(name, as_object(body.get("mappings") or {}, "mappings"), settings)
    for alias, options in aliases.items():
        change_aliases(engine, [{"add": {"index": name, "alias": alias, **options}}])
    answer = {"acknowledged": True, "shards_acknowledged": True, "index": name}
    return answer, warnings


def _check_alias(engine: Engine, index: str, alias: str, options: Json) -> None:
    """Refuse an alias before its index is created."""
    only(f"aliases.{alias}", options, frozenset({"is_write_index"}))
    if alias == index or alias in engine.store.indices():
        reason = f"Invalid alias name [{alias}]: an index or data stream exists with the same name as the alias"
        raise Fault(400, "invalid_alias_name_exception", reason)


def normal_settings(given: Json) -> Json:
    """Return settings as nested objects below ``index`` and ``analysis``, however they were written.

    Raises:
        Fault: 400 naming a setting that the engine does not have.
    """
    nested = _nested(given)
    index = {**{key: value for key, value in nested.items() if key != "index"}, **nested.get("index", {})}
    for key in index:
        if key not in _SETTINGS:
            raise illegal(f"unknown setting [index.{key}] for the embedded engine; it knows {sorted(_SETTINGS)}")
    analysis = index.pop("analysis", None)
    if index.pop("sort", None):
        raise illegal("the embedded engine does not support [index.sort]")
    if str(index.get("knn", "false")).lower() == "true":
        raise illegal(
            "the embedded engine does not support [index.knn: true]: it searches text; use an OpenSearch server"
        )
    refresh_interval_s({"index": index})
    return {"index": index, **({"analysis": analysis} if analysis else {})}


def _nested(given: Mapping[str, Any]) -> Json:
    """Return an object with dotted keys expanded to nested objects."""
    nested: Json = {}
    for key, value in given.items():
        inside = nested
        *parents, last = key.split(".")
        for part in parents:
            inside = inside.setdefault(part, {})
        found = _nested(value) if isinstance(value, Mapping) else value
        both = isinstance(found, dict) and isinstance(inside.get(last), dict)
        inside[last] = {**inside[last], **found} if both else found
    return nested


def _similarity_warnings(name: str, settings: Json) -> list[str]:
    """Return a warning for each similarity with a formula that the engine does not have."""
    warnings = []
    for similarity, body in settings["index"].get("similarity", {}).items():
        kind = body.get("type", "BM25")
        asked = (as_number(body.get("k1", K1), "similarity.k1"), as_number(body.get("b", B), "similarity.b"))
        if kind != "BM25" or asked != (K1, B):
            warnings.append(
                f"the embedded engine scores with BM25 at k1={K1}, b={B}; the similarity [{similarity}] of [{name}]"
                f" asks for {kind} at k1={asked[0]}, b={asked[1]}: use an OpenSearch server for it"
            )
    for warning in warnings:
        log.info("%s", warning)
    return warnings


def describe(engine: Engine, expression: str) -> Json:
    """Answer ``GET /index``."""
    rows = [engine.live(name).row for name in engine.names(expression)]
    aliases = _aliases_of(engine)
    return {
        row.name: {"aliases": aliases.get(row.id, {}), "mappings": row.mappings, "settings": shown_settings(row)}
        for row in rows
    }


def shown_settings(row: IndexRow) -> Json:
    """Return an index's settings as OpenSearch shows them: as strings, with those that it adds."""
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
        return {key: _strings(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_strings(one) for one in value]
    return values.as_text(value)


def put_settings(engine: Engine, expression: str, body: Json) -> tuple[Json, list[str]]:
    """Set dynamic settings; None resets one."""
    given = normal_settings(body.get("settings", body))
    warnings = []
    for name in engine.names(expression):
        live = engine.live(name)
        final = sorted(_FINAL & {*given["index"], *given})
        if final:
            raise illegal(
                f"Can't update non dynamic settings [[index.{final[0]}]] for open indices [[{name}/{live.row.uuid}]]"
            )
        index = {**live.row.settings.get("index", {}), **given["index"]}
        kept = {key: value for key, value in index.items() if value is not None}
        engine.change(live, settings={**live.row.settings, "index": kept})
        warnings += _similarity_warnings(name, given)
    return {"acknowledged": True}, warnings


def delete_indices(engine: Engine, expression: str, *, ignore_unavailable: bool) -> Json:
    """Remove indices."""
    names: list[str] = []
    for part in expression.split(","):
        if part in engine.store.aliases():
            raise illegal(
                f"The provided expression [{part}] matches an alias, specify the corresponding concrete indices"
                " instead."
            )
        try:
            names += engine.names(part)
        except Fault:
            if not ignore_unavailable:
                raise
    for name in dict.fromkeys(names):
        engine.delete(name)
    return {"acknowledged": True}


def _aliases_of(engine: Engine) -> dict[int, Json]:
    """Return id of an index -> its aliases with their options."""
    found: dict[int, Json] = {}
    for alias, of in engine.store.aliases().items():
        for index_id, body in of.items():
            found.setdefault(index_id, {})[alias] = body
    return found


def get_aliases(engine: Engine, expression: str | None, wanted: str | None) -> Json:
    """Answer ``_alias``: the indices with their aliases that match ``wanted``.

    Raises:
        Fault: 404 if a named alias does not exist.
    """
    of = _aliases_of(engine)
    patterns = [values.wildcard("*" if part == "_all" else part) for part in (wanted or "*").split(",")]
    found: Json = {}
    for name in engine.names(expression):
        row = engine.live(name).row
        kept = {
            alias: body for alias, body in of.get(row.id, {}).items() if any(one.fullmatch(alias) for one in patterns)
        }
        if kept or wanted is None:
            found[name] = {"aliases": kept}
    if not found and wanted and "*" not in wanted:
        raise Fault(404, "aliases_not_found_exception", f"aliases [{wanted}] missing", {"resource.id": wanted})
    return found


def change_aliases(engine: Engine, actions: list[Json]) -> Json:
    """Add and remove aliases, all or none."""
    with engine.writing():
        steps = [step for action in actions for step in _alias_steps(engine, action)]
        with engine.store.transaction():
            for step in steps:
                _alias_step(engine, *step)
    return {"acknowledged": True}


def _alias_steps(engine: Engine, action: Json) -> list[tuple[str, IndexRow, str, Json]]:
    if len(action) != 1 or next(iter(action)) not in ("add", "remove"):
        raise illegal(f"an alias action is [add] or [remove] in the embedded engine, found {sorted(action)}")
    ((kind, body),) = action.items()
    only(f"aliases {kind}", body, frozenset({"index", "indices", "alias", "aliases", "is_write_index", "must_exist"}))
    names = body.get("indices") or [body.get("index")]
    aliases = body.get("aliases") or [body.get("alias")]
    if None in names or None in aliases:
        raise illegal("an alias action needs [index] and [alias]")
    options = {"is_write_index": body["is_write_index"]} if "is_write_index" in body else {}
    rows = [engine.live(name).row for expression in names for name in engine.names(expression)]
    for alias in aliases:
        if kind == "add" and alias in engine.store.indices():
            reason = f"Invalid alias name [{alias}]: an index or data stream exists with the same name as the alias"
            raise Fault(400, "invalid_alias_name_exception", reason)
    return [(kind, row, alias, options) for row in rows for alias in aliases]


def _alias_step(engine: Engine, kind: str, row: IndexRow, alias: str, options: Json) -> None:
    if kind == "add":
        engine.store.put_alias(alias, row, options)
    elif not engine.store.drop_alias(alias, row):
        raise Fault(404, "aliases_not_found_exception", f"aliases [{alias}] missing", {"resource.id": alias})


def stats(engine: Engine, expression: str | None) -> Json:
    """Answer ``_stats``: documents and bytes."""
    indices: Json = {}
    documents = size = 0
    for live in engine.searchable(expression):
        mine, bytes_used = live.snapshot().searcher.num_docs, _bytes(live)
        body = {"docs": {"count": mine, "deleted": 0}, "store": {"size_in_bytes": bytes_used, "reserved_in_bytes": 0}}
        indices[live.row.name] = {"uuid": live.row.uuid, "primaries": body, "total": body}
        documents, size = documents + mine, size + bytes_used
    body = {"docs": {"count": documents, "deleted": 0}, "store": {"size_in_bytes": size, "reserved_in_bytes": 0}}
    return {"_shards": shards(len(indices)), "_all": {"primaries": body, "total": body}, "indices": indices}


def _bytes(live: LiveIndex) -> int:
    return sum(path.stat().st_size for path in live.folder.rglob("*") if path.is_file())


def health(engine: Engine) -> Json:
    """Answer ``_cluster/health``: always green."""
    number = len(engine.store.indices())
    return {
        "cluster_name": "osrerank-embedded",
        "status": "green",
        "timed_out": False,
        "number_of_nodes": 1,
        "number_of_data_nodes": 1,
        "discovered_master": True,
        "discovered_cluster_manager": True,
        "active_primary_shards": number,
        "active_shards": number,
        "relocating_shards": 0,
        "initializing_shards": 0,
        "unassigned_shards": 0,
        "delayed_unassigned_shards": 0,
        "number_of_pending_tasks": 0,
        "number_of_in_flight_fetch": 0,
        "task_max_waiting_in_queue_millis": 0,
        "active_shards_percent_as_number": 100.0,
    }


def cat_indices(engine: Engine, expression: str | None) -> list[Json]:
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
        for live in engine.searchable(expression)
    ]


def table(rows: list[Json], *, header: bool) -> str:
    """Return rows as OpenSearch's aligned text."""
    lines = [list(rows[0])] if header and rows else []
    lines += [list(row.values()) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))] if lines else []
    return "".join(
        " ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )
