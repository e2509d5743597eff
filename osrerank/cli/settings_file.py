"""Write a settings file: what `osrerank.settings_file` reads."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from osrerank.errors import ConfigError
from osrerank.formats.files import write_atomically

Table = Mapping[str, Any]


def refuse_existing(output: Path, *, force: bool) -> None:
    """Refuse to write over a file without being told to.

    Raises:
        ConfigError: it exists.
    """
    if output.exists() and not force:
        reason = f"{output} exists; edit it, name another one with --output, or write over it with --force"
        raise ConfigError(reason, setting="output", source="argument")


def settings_text(
    notes: str,
    base: Table,
    by_index: Mapping[str, Table],
    models: Mapping[str, str] = MappingProxyType({}),
    http: Table = MappingProxyType({}),
) -> str:
    """Return the content of a settings file.

    Args:
        notes: lines of a comment at the beginning.
        base: options of every index.
        by_index: options of each index, over those.
        models: index -> its own model, for indices that have one.
        http: the table ``[http]``; empty for none.
    """
    lines = [f"# {line}" for line in notes.splitlines()]
    if base:
        lines += ["[rerank]", *_entries(base)]
    for index in {**by_index, **models}:
        if index in models:
            lines += ["", f"[index.{json.dumps(index)}]", *_entries({"model": models[index]})]
        if index in by_index:
            lines += ["", f"[index.{json.dumps(index)}.rerank]", *_entries(by_index[index])]
    if http:
        lines += ["", "[http]", *_entries(http)]
    return "\n".join([*lines, ""])


def write_index_settings(output: Path, notes: str, index: str, table: Table, model: str | None = None) -> str:
    """Write options of one index to a settings file, keep all others that it has, and return the new content.

    Comments of a file that exists are lost.

    Args:
        output: the settings file.
        notes: lines of a comment at the beginning.
        index: whose options they are.
        table: the options.
        model: the index's model; None for that which it has.

    Raises:
        ConfigError: the file exists and is not TOML.
    """
    content: dict[str, Any] = {}
    if output.exists():
        try:
            content = tomllib.loads(output.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            reason = f"the settings file {output} is not TOML: {error}"
            raise ConfigError(reason, setting="settings_file", source=str(output)) from None
    tables = content.get("index", {})
    others = {name: one["rerank"] for name, one in tables.items() if "rerank" in one}
    models = {name: one["model"] for name, one in tables.items() if "model" in one}
    if model is not None:
        models[index] = model
    own = {index: {**others.get(index, {}), **table}}
    options = {**own, **_without(others, index)}
    text = settings_text(notes, content.get("rerank", {}), options, models, content.get("http", {}))
    write_atomically(output, [text])
    return text


def _without(tables: Mapping[str, Table], index: str) -> dict[str, Table]:
    return {name: table for name, table in tables.items() if name != index}


def _entries(table: Table) -> list[str]:
    return [f"{name} = {_value(value)}" for name, value in table.items()]


def _value(value: Any) -> str:
    """Return a value as TOML: like JSON, but for inline tables."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_value(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)
