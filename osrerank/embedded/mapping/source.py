"""Select the parts of a document that a search returns: ``_source`` filters and ``fields``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osrerank.embedded.errors import Json, parsing_fault, reject_unknown_keys, require_string
from osrerank.embedded.mapping import values
from osrerank.embedded.mapping.fields import IndexFields, leaves


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """Selects the parts of a document's source that a search returns.

    Attributes:
        is_returned: whether the search returns a source.
        includes: the path patterns, with ``*``, of the parts to return; if empty, all parts are returned.
        excludes: the path patterns of the parts to leave out.
    """

    is_returned: bool = True
    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    def apply(self, source: Json) -> Json:
        """Return the parts of a source that the filter selects."""
        if not (self.includes or self.excludes):
            return source
        selection = self._select("", source, is_included=not self.includes)
        return selection if isinstance(selection, dict) else {}

    def _select(self, path: str, value: Any, *, is_included: bool) -> Any:
        """Return the selected parts of a value, or ``_NOTHING``.

        ``is_included`` says whether an included pattern matches the path of the value or of an object around it.
        """
        if isinstance(value, dict):
            inner_paths = {key: f"{path}.{key}" if path else key for key in value}
            selection = {
                key: self._select_property(inner_paths[key], inner, is_included=is_included)
                for key, inner in value.items()
            }
            selection = {key: inner for key, inner in selection.items() if inner is not _NOTHING}
            return selection if selection or (is_included and not value) or not path else _NOTHING
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


def source_filter(body_filter: Any, params: Mapping[str, str] | None = None) -> SourceFilter:
    """Return the filter for a body's ``_source`` and the URL parameters, which override it.

    Raises:
        Fault: 400; ``_source`` is not a boolean, pattern, list of patterns, or object with includes and excludes.
    """
    params = params or {}
    if "_source" in params:
        text = params["_source"]
        body_filter = {"true": True, "false": False}.get(text, text.split(","))
    includes, excludes = _read_patterns(body_filter)
    includes = params["_source_includes"].split(",") if "_source_includes" in params else includes
    excludes = params["_source_excludes"].split(",") if "_source_excludes" in params else excludes
    return SourceFilter(body_filter is not False, tuple(includes), tuple(excludes))


def _read_patterns(body_filter: Any) -> tuple[list[str], list[str]]:
    if body_filter is None or isinstance(body_filter, bool):
        return [], []
    if isinstance(body_filter, dict):
        reject_unknown_keys("_source", body_filter, frozenset({"includes", "excludes"}))
        return _patterns(body_filter.get("includes", [])), _patterns(body_filter.get("excludes", []))
    return _patterns(body_filter), []


def _patterns(patterns: Any) -> list[str]:
    if isinstance(patterns, str):
        return [patterns]
    if isinstance(patterns, list) and all(isinstance(pattern, str) for pattern in patterns):
        return patterns
    raise parsing_fault(f"[_source] takes true, false, a pattern or a list of patterns, found {patterns!r:.100}")


def field_values(source: Json, patterns: list[Any], fields: IndexFields) -> dict[str, list[Any]]:
    """Return field path -> a document's values, for the fields that match names and patterns."""
    by_source: dict[str, list[Any]] = {}
    for path, value in leaves(source, disabled=fields.disabled):
        by_source.setdefault(path, []).append(value)
    selected: dict[str, list[Any]] = {}
    for pattern in patterns:
        for field in fields.matching(require_string(pattern, "fields")):
            converted = [field.convert(value) for value in by_source.get(field.source, [])]
            formatted = [values.format_value(field.kind, value) for value in converted if value is not None]
            if formatted:
                selected[field.path] = formatted
    return selected
