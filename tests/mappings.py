"""The table of mappings, and what a search engineer would read there."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).parent / "data" / "fields" / "mappings.toml"
DYNAMIC = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}


class Judged(NamedTuple):
    """A mapping, some documents, and the fields to read."""

    of: str
    properties: Mapping[str, Any]
    sources: list[dict[str, Any]]
    read: frozenset[str]


def judged_mappings() -> Iterator[Judged]:
    """Yield the table's entries."""
    for entry in tomllib.loads(TABLE.read_text("utf-8"))["mapping"]:
        properties: dict[str, Any] = {}
        fields = entry["fields"]
        sources: list[dict[str, Any]] = [{} for _ in range(max(len(field) - 1 for field in fields.values()))]
        for path, (kind, *values) in fields.items():
            _put(properties, path.split("."), kind if isinstance(kind, dict) else _mapped(kind))
            for index, source in enumerate(sources):
                if values:
                    source[path] = values[index % len(values)]
        yield Judged(entry["of"], properties, sources, frozenset(entry["read"]))


def _mapped(kind: str) -> dict[str, Any]:
    return DYNAMIC if kind == "dynamic" else {"type": kind}


def _put(properties: dict[str, Any], parts: list[str], mapped: dict[str, Any]) -> None:
    for part in parts[:-1]:
        properties = properties.setdefault(part, {"properties": {}})["properties"]
    properties[parts[-1]] = mapped
