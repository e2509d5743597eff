"""Select the parts of a document that a search returns, by its ``_source`` filter and its ``fields``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osrerank.embedded.errors import Json, parsing_error, reject_unknown_keys, require_string
from osrerank.embedded.mapping import values
from osrerank.embedded.mapping.fields import IndexFields, iterate_values


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """Selects the parts of a document's source that a search returns.

    Attributes:
        is_returned: whether the search returns the source at all.
        includes: the patterns of the paths to return, such as ``author.*``. If empty, all paths are returned.
        excludes: the patterns of the paths to leave out.
    """

    is_returned: bool = True
    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    def apply(self, source: Json) -> Json:
        """Return the parts of a source that the patterns select. The caller checks ``is_returned``."""
        if not (self.includes or self.excludes):
            return source
        selection = self._select("", source, is_included=not self.includes)
        return selection if isinstance(selection, dict) else {}

    def _select(self, path: str, value: Any, *, is_included: bool) -> Any:
        """Return the selected parts of a value, or ``_NOTHING``.

        ``is_included`` is true if a pattern in ``includes`` matches the value or an object that contains it.
        """
        if isinstance(value, dict):
            selection = {}
            for key, inner in value.items():
                inner_path = f"{path}.{key}" if path else key
                selected = self._select_property(inner_path, inner, is_included=is_included)
                if selected is not _NOTHING:
                    selection[key] = selected
            is_whole_source = not path
            is_selected_empty = is_included and not value
            return selection if selection or is_selected_empty or is_whole_source else _NOTHING
        if isinstance(value, list):
            elements = [self._select(path, element, is_included=is_included) for element in value]
            elements = [element for element in elements if element is not _NOTHING]
            return elements if elements or (is_included and not value) else _NOTHING
        return value if is_included else _NOTHING

    def _select_property(self, path: str, value: Any, *, is_included: bool) -> Any:
        if any(values.compile_wildcard(pattern).fullmatch(path) for pattern in self.excludes):
            return _NOTHING
        matches = any(values.compile_wildcard(pattern).fullmatch(path) for pattern in self.includes)
        return self._select(path, value, is_included=is_included or matches)


_NOTHING: Any = object()
"""The result for a value of which no part is selected. None would mean that JSON's null is selected."""


def read_source_filter(body_filter: Any, params: Mapping[str, str] | None = None) -> SourceFilter:
    """Return the filter that a request's ``_source`` and URL parameters describe. URL parameters override the body.

    Raises:
        ApiError: 400 if ``_source`` is not a boolean, a pattern, a list of patterns, or an object of includes and
            excludes.
    """
    params = params or {}
    if "_source" in params:
        text = params["_source"]
        patterns = text.split(",")
        body_filter = {"true": True, "false": False}.get(text, patterns)
    includes, excludes = _read_patterns(body_filter)
    if "_source_includes" in params:
        includes = params["_source_includes"].split(",")
    if "_source_excludes" in params:
        excludes = params["_source_excludes"].split(",")
    return SourceFilter(is_returned=body_filter is not False, includes=tuple(includes), excludes=tuple(excludes))


def _read_patterns(body_filter: Any) -> tuple[list[str], list[str]]:
    """Return the patterns to include, and the patterns to exclude."""
    if body_filter is None or isinstance(body_filter, bool):
        return [], []
    if isinstance(body_filter, dict):
        reject_unknown_keys("_source", body_filter, frozenset({"includes", "excludes"}))
        return _list_patterns(body_filter.get("includes", [])), _list_patterns(body_filter.get("excludes", []))
    return _list_patterns(body_filter), []


def _list_patterns(patterns: Any) -> list[str]:
    if isinstance(patterns, str):
        return [patterns]
    if isinstance(patterns, list) and all(isinstance(pattern, str) for pattern in patterns):
        return patterns
    raise parsing_error(f"[_source] must be true, false, a pattern or a list of patterns, found {patterns!r:.100}")


def select_fields(source: Json, patterns: list[Any], fields: IndexFields) -> dict[str, list[Any]]:
    """Return the ``fields`` of a hit, such as ``{"year": [2024]}``, for the fields whose paths match a pattern.

    A subfield such as ``title.raw`` has the values at the path of its source, ``title``.
    """
    values_by_path: dict[str, list[Any]] = {}
    for path, value in iterate_values(source, disabled_paths=fields.disabled_paths):
        values_by_path.setdefault(path, []).append(value)
    selected: dict[str, list[Any]] = {}
    for pattern in patterns:
        for field in fields.find(require_string(pattern, "fields")):
            converted = [field.convert(value) for value in values_by_path.get(field.source_path, [])]
            formatted = [values.format_value(field.kind, value) for value in converted if value is not None]
            if formatted:
                selected[field.path] = formatted
    return selected
