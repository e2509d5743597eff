"""Choose which parts of a document are returned: ``_source`` filters and ``fields``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osrerank.embedded.errors import Json, as_name, parsing, reject_unknown_keys
from osrerank.embedded.mapping import values
from osrerank.embedded.mapping.fields import IndexFields, leaves


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """Which parts of a document's source a search returns.

    Attributes:
        is_returned: whether the source is returned at all.
        includes: path patterns with ``*`` of the parts to return; empty for all.
        excludes: path patterns of the parts to leave out.
    """

    is_returned: bool = True
    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    def apply(self, source: Json) -> Json:
        """Return the parts of a source that the filter selects."""
        if not (self.includes or self.excludes):
            return source
        selection = self._keep("", source, inside=not self.includes)
        return selection if isinstance(selection, dict) else {}

    def _keep(self, path: str, value: Any, *, inside: bool) -> Any:
        """Return what remains of a value, ``_NOTHING`` if nothing does.

        ``inside`` is true below a path that an included pattern matches.
        """
        if isinstance(value, dict):
            selection = {
                key: remaining
                for key, inner in value.items()
                if (remaining := self._enter(f"{path}.{key}" if path else key, inner, inside=inside)) is not _NOTHING
            }
            return selection if selection or (inside and not value) or not path else _NOTHING
        if isinstance(value, list):
            elements = [self._keep(path, element, inside=inside) for element in value]
            elements = [element for element in elements if element is not _NOTHING]
            return elements if elements or (inside and not value) else _NOTHING
        return value if inside else _NOTHING

    def _enter(self, path: str, value: Any, *, inside: bool) -> Any:
        if any(values.wildcard(pattern).fullmatch(path) for pattern in self.excludes):
            return _NOTHING
        included = inside or any(values.wildcard(pattern).fullmatch(path) for pattern in self.includes)
        return self._keep(path, value, inside=included)


_NOTHING: Any = object()


def source_filter(body_filter: Any, params: Mapping[str, str] | None = None) -> SourceFilter:
    """Return the filter that a body's ``_source`` and the URL's parameters ask for; the URL's win.

    Raises:
        Fault: 400; ``_source`` is not a boolean, pattern, list of patterns, or object with includes and excludes.
    """
    params = params or {}
    if "_source" in params:
        text = params["_source"]
        body_filter = {"true": True, "false": False}.get(text, text.split(","))
    includes, excludes = _from_body(body_filter)
    includes = params["_source_includes"].split(",") if "_source_includes" in params else includes
    excludes = params["_source_excludes"].split(",") if "_source_excludes" in params else excludes
    return SourceFilter(body_filter is not False, tuple(includes), tuple(excludes))


def _from_body(body_filter: Any) -> tuple[list[str], list[str]]:
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
    raise parsing(f"[_source] takes true, false, a pattern or a list of patterns, found {patterns!r:.100}")


def field_values(source: Json, patterns: list[Any], fields: IndexFields) -> dict[str, list[Any]]:
    """Return field path -> list of a document's values, for the fields that the names and patterns match."""
    by_source: dict[str, list[Any]] = {}
    for path, value in leaves(source, disabled=fields.disabled):
        by_source.setdefault(path, []).append(value)
    shown: dict[str, list[Any]] = {}
    for pattern in patterns:
        for field in fields.matching(as_name(pattern, "fields")):
            converted = [field.convert(value) for value in by_source.get(field.source, [])]
            if shown_values := [values.shown(field.kind, value) for value in converted if value is not None]:
                shown[field.path] = shown_values
    return shown
