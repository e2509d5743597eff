"""The caller's query template: a search body in which ``{{query}}`` stands for a query's text."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.errors import ConfigError

PLACEHOLDER = "{{query}}"


@dataclass(frozen=True, slots=True)
class QueryTemplate:
    """A search body with a placeholder, such as ``{"query": {"match": {"title": "{{query}}"}}}``.

    Attributes:
        name: the file's name.
        body: the body of a ``_search`` request, in which ``{{query}}`` stands for the query's text.
    """

    name: str
    body: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "QueryTemplate":
        """Read a JSON file.

        Raises:
            ConfigError: the file is not a JSON object with a query and the placeholder.
        """
        try:
            body = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise _template_error(path, f"is not JSON: {error}") from None
        if not isinstance(body, dict) or "query" not in body:
            raise _template_error(path, 'is not a search body, such as {"query": {"match": {"title": "{{query}}"}}}')
        if PLACEHOLDER not in json.dumps(body):
            raise _template_error(path, f"has no {PLACEHOLDER}; write it in place of the query's text")
        return cls(path.name, body)

    def fill(self, text: str, size: int) -> dict[str, Any]:
        """Return the search body for a query's text and its first ``size`` hits."""
        return {**_fill_value(self.body, text), "from": 0, "size": size}


def _fill_value(value: Any, text: str) -> Any:
    """Return a copy of a JSON value in which all strings contain the query's text instead of the placeholder."""
    if isinstance(value, str):
        return value.replace(PLACEHOLDER, text)
    if isinstance(value, Mapping):
        return {name: _fill_value(element, text) for name, element in value.items()}
    if isinstance(value, list):
        return [_fill_value(element, text) for element in value]
    return value


def _template_error(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"{path} {reason}", setting="template", source="flag")
