"""Write the settings file (``osrerank.toml``), for ``osrerank init`` and ``osrerank advise``."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from osrerank.errors import ConfigError
from osrerank.formats.files import write_atomically

Table = Mapping[str, Any]
"""A TOML table, such as ``{"depth": 50, "fields": ["title", "body"]}``."""


def refuse_existing(output: Path, *, force: bool) -> None:
    """Check that a file does not exist, unless ``force`` allows overwriting it.

    Raises:
        ConfigError: the file exists, and ``force`` is False.
    """
    if output.exists() and not force:
        reason = f"{output} already exists: edit it, choose another with --output, or overwrite it with --force"
        raise ConfigError(reason, setting="output", source="argument")


def format_settings(
    notes: str,
    base_options: Table,
    options_by_index: Mapping[str, Table],
    models: Mapping[str, str] = MappingProxyType({}),
    http: Table = MappingProxyType({}),
) -> str:
    """Return the content of a settings file.

    Args:
        notes: the comment at the beginning.
        base_options: the options for all indices.
        options_by_index: the options that override them, by index: ``{"articles": {"depth": 50}}``.
        models: the models of indices that do not use the default model: ``{"articles": "osrerank/e5-multilingual"}``.
        http: the table ``[http]``. If it is empty, the file gets no such table.
    """
    lines = [f"# {line}" for line in notes.splitlines()]
    if base_options:
        lines += ["[rerank]", *_format_entries(base_options)]
    for index in {**options_by_index, **models}:
        if index in models:
            lines += ["", f"[index.{json.dumps(index)}]", *_format_entries({"model": models[index]})]
        if index in options_by_index:
            lines += ["", f"[index.{json.dumps(index)}.rerank]", *_format_entries(options_by_index[index])]
    if http:
        lines += ["", "[http]", *_format_entries(http)]
    return "\n".join([*lines, ""])


def write_index_settings(output: Path, notes: str, index: str, table: Table, model: str | None = None) -> str:
    """Write the options in ``table`` for an index to a settings file, and return the file's content.

    The file's other options stay, including those of the index, but its comments are replaced with ``notes``. If
    ``model`` is None, the index's model stays.

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
    index_tables = content.get("index", {})
    options_by_index = {name: settings["rerank"] for name, settings in index_tables.items() if "rerank" in settings}
    models = {name: settings["model"] for name, settings in index_tables.items() if "model" in settings}
    if model is not None:
        models[index] = model
    merged = {**options_by_index.pop(index, {}), **table}
    text = format_settings(
        notes,
        content.get("rerank", {}),
        {index: merged, **options_by_index},
        models=models,
        http=content.get("http", {}),
    )
    write_atomically(output, [text])
    return text


def _format_entries(table: Table) -> list[str]:
    return [f"{name} = {_format_value(value)}" for name, value in table.items()]


def _format_value(value: Any) -> str:
    """Return a value as TOML, which is like JSON except for inline tables, such as ``{limit = 5}``."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(_format_entries(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_format_value, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)
