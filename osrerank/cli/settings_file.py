"""Write a settings file, which `osrerank.settings_file` reads."""

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
    """Check that a file does not exist, unless it may be overwritten.

    Raises:
        ConfigError: the file exists, and ``force`` is False.
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
        notes: the lines of a comment at the beginning.
        base: the options of every index.
        by_index: the options of each index, which override those in ``base``.
        models: index -> its model, for indices with a model of their own.
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
    """Write the options of an index to a settings file, keep the rest of the file, and return its new content.

    The comments of an existing file are lost.

    Args:
        output: the settings file.
        notes: the lines of a comment at the beginning.
        index: the name of the index.
        table: the options of the index.
        model: the index's model; None to keep the one in the file.

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
    by_index = {name: settings["rerank"] for name, settings in tables.items() if "rerank" in settings}
    models = {name: settings["model"] for name, settings in tables.items() if "model" in settings}
    if model is not None:
        models[index] = model
    changed = {index: {**by_index.get(index, {}), **table}}
    options = {**changed, **_without(by_index, index)}
    text = settings_text(notes, content.get("rerank", {}), options, models, content.get("http", {}))
    write_atomically(output, [text])
    return text


def _without(tables: Mapping[str, Table], index: str) -> dict[str, Table]:
    return {name: table for name, table in tables.items() if name != index}


def _entries(table: Table) -> list[str]:
    return [f"{name} = {_value(value)}" for name, value in table.items()]


def _value(value: Any) -> str:
    """Return a value as TOML, which is like JSON except for inline tables."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_value(content)}" for name, content in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)
