"""Choose which parts of a document are returned: ``_source`` filters and ``fields``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osrerank.embedded.errors import Json, as_name, only, parsing
from osrerank.embedded.mapping import values
from osrerank.embedded.mapping.fields import IndexFields, leaves


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """Which parts of a document's source are wanted.

    Attributes:
        wanted: False for no source at all.
        includes: path patterns with ``*``; empty for all.
        excludes: path patterns to leave out.
    """

    wanted: bool = True
    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    def apply(self, source: Json) -> Json:
        """Return the wanted parts."""
        if not (self.includes or self.excludes):
            return source
        kept = self._keep("", source, inside=not self.includes)
        return kept if isinstance(kept, dict) else {}

    def _keep(self, path: str, value: Any, *, inside: bool) -> Any:
        """Return what remains of a value, None if nothing does; ``inside`` is true below an included pattern."""
        if isinstance(value, dict):
            kept = {
                key: rest
                for key, one in value.items()
                if (rest := self._enter(f"{path}.{key}" if path else key, one, inside=inside)) is not _NOTHING
            }
            return kept if kept or (inside and not value) or not path else _NOTHING
        if isinstance(value, list):
            items = [self._keep(path, one, inside=inside) for one in value]
            items = [item for item in items if item is not _NOTHING]
            return items if items or (inside and not value) else _NOTHING
        return value if inside else _NOTHING

    def _enter(self, path: str, value: Any, *, inside: bool) -> Any:
        if any(values.wildcard(pattern).fullmatch(path) for pattern in self.excludes):
            return _NOTHING
        included = inside or any(values.wildcard(pattern).fullmatch(path) for pattern in self.includes)
        return self._keep(path, value, inside=included)


_NOTHING: Any = object()


def source_filter(given: Any, params: Mapping[str, str] | None = None) -> SourceFilter:
    """Return the filter of a body's ``_source`` or the URL's parameters; the URL's win.

    Raises:
        Fault: 400 when it is neither a boolean, a pattern, a list of patterns nor includes and excludes.
    """
    params = params or {}
    if "_source" in params:
        text = params["_source"]
        given = {"true": True, "false": False}.get(text, text.split(","))
    includes, excludes = _from_body(given)
    includes = params["_source_includes"].split(",") if "_source_includes" in params else includes
    excludes = params["_source_excludes"].split(",") if "_source_excludes" in params else excludes
    return SourceFilter(given is not False, tuple(includes), tuple(excludes))


def _from_body(given: Any) -> tuple[list[str], list[str]]:
    if given is None or isinstance(given, bool):
        return [], []
    if isinstance(given, dict):
        only("_source", given, frozenset({"includes", "excludes"}))
        return _patterns(given.get("includes", [])), _patterns(given.get("excludes", []))
    return _patterns(given), []


def _patterns(given: Any) -> list[str]:
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and all(isinstance(one, str) for one in given):
        return given
    raise parsing(f"[_source] takes true, false, a pattern or a list of patterns, found {given!r:.100}")


def field_values(source: Json, wanted: list[Any], fields: IndexFields) -> dict[str, list[Any]]:
    """Return the values of the fields of these names and patterns, each as a list."""
    by_source: dict[str, list[Any]] = {}
    for path, value in leaves(source, disabled=fields.disabled):
        by_source.setdefault(path, []).append(value)
    found: dict[str, list[Any]] = {}
    for pattern in wanted:
        for field in fields.matching(as_name(pattern, "fields")):
            converted = [field.convert(value) for value in by_source.get(field.source, [])]
            if kept := [values.shown(field.kind, value) for value in converted if value is not None]:
                found[field.path] = kept
    return found
