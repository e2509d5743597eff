"""The fields of an index: read mappings, find new fields in documents, extract the values of a document."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from osrerank.embedded.errors import Fault, Json, as_whole, illegal, only, unsupported
from osrerank.embedded.mapping import values

Column = Literal["text", "keyword", "long", "double"]
"""How tantivy stores a field; dates are milliseconds and booleans 0 or 1 in a long column."""

COLUMNS: Mapping[str, Column] = {
    "text": "text",
    "keyword": "keyword",
    "long": "long",
    "integer": "long",
    "short": "long",
    "byte": "long",
    "date": "long",
    "boolean": "long",
    "double": "double",
    "float": "double",
    "half_float": "double",
}
_COMMON = frozenset({"type", "index", "store", "doc_values", "fields", "meta", "boost"})
_PARAMETERS: Mapping[str, frozenset[str]] = {
    "text": frozenset(
        {"analyzer", "search_analyzer", "norms", "index_options", "term_vector", "similarity", "fielddata"}
    ),
    "keyword": frozenset(
        {"ignore_above", "norms", "index_options", "eager_global_ordinals", "split_queries_on_whitespace"}
    ),
    "date": frozenset({"format", "ignore_malformed"}),
}
_NUMBER = frozenset({"coerce", "ignore_malformed"})
_ROOT = frozenset(
    {"properties", "dynamic", "date_detection", "numeric_detection", "_source", "_meta", "dynamic_templates"}
)


@dataclass(frozen=True, slots=True)
class Field:
    """One indexed path.

    Attributes:
        path: dotted, a sub-field's name last.
        source: the dotted path of the value in the document.
        kind: OpenSearch's type.
        body: the field's mapping as given.
    """

    path: str
    source: str
    kind: str
    body: Json = field(default_factory=dict)

    @property
    def column(self) -> Column:
        return COLUMNS[self.kind]

    @property
    def indexed(self) -> bool:
        return self.body.get("index", True) not in (False, "false")

    def convert(self, value: Any) -> Any:
        """Return a document's value in the type of its column; None if it is not indexed."""
        if value is None:
            return None
        if self.kind in ("text", "keyword"):
            text = values.as_text(value)
            return None if len(text) > int(self.body.get("ignore_above", len(text))) else text
        try:
            return values.CONVERTERS[self.kind](value)
        except (ValueError, TypeError, OverflowError):
            if self.body.get("ignore_malformed"):
                return None
            raise Fault(
                400,
                "mapper_parsing_exception",
                f"failed to parse field [{self.path}] of type [{self.kind}]: the value is {value!r:.100}",
            ) from None


class IndexFields:
    """The fields of an index, by path; made from its mappings and never changed.

    Raises:
        Fault: the engine does not have a type or parameter; the reason names the field.
    """

    def __init__(self, mappings: Json) -> None:
        only("mappings", mappings, _ROOT)
        if mappings.get("dynamic_templates"):
            raise unsupported("[dynamic_templates]", "map the fields themselves")
        if mappings.get("_source", {}).get("enabled", True) is False:
            raise unsupported("[_source.enabled: false]", "reranking needs the texts")
        self.mappings = mappings
        self.by_path = {one.path: one for one in _walk("", mappings)}
        self.disabled = frozenset(_disabled("", mappings))
        self._by_source: dict[str, list[Field]] = {}
        for one in self.by_path.values():
            self._by_source.setdefault(one.source, []).append(one)

    def matching(self, pattern: str) -> list[Field]:
        """Return the fields whose path matches a pattern with ``*``."""
        if "*" not in pattern:
            return [self.by_path[pattern]] if pattern in self.by_path else []
        return [one for path, one in self.by_path.items() if values.wildcard(pattern).fullmatch(path)]

    def extract(self, source: Json) -> dict[str, list[Any]]:
        """Return the indexed values of a document, by field path."""
        found: dict[str, list[Any]] = {}
        for path, value in leaves(source, disabled=self.disabled):
            for one in self._by_source.get(path, ()):
                if one.indexed and (converted := one.convert(value)) is not None:
                    found.setdefault(one.path, []).append(converted)
        return found

    def additions(self, source: Json) -> Json:
        """Return mappings for the properties of a document that the mappings lack."""
        new: Json = {}
        for path, value in leaves(source, disabled=self.disabled):
            if path in self._by_source or value is None:
                continue
            self._refuse_conflict(path)
            policy = self._dynamic(path)
            if policy == "strict":
                parent, _, name = path.rpartition(".")
                inside = f"[{name}] within [{parent or '_doc'}]"
                reason = f"mapping set to strict, dynamic introduction of {inside} is not allowed"
                raise Fault(400, "strict_dynamic_mapping_exception", reason)
            if policy == "true":
                _put(new, path.split("."), self._guess(value))
        return {"properties": new} if new else {}

    def _refuse_conflict(self, path: str) -> None:
        """Refuse an object where a value is mapped, and a value where an object is."""
        parents = [path[:at] for at, letter in enumerate(path) if letter == "."]
        clash = next((parent for parent in parents if parent in self._by_source), None)
        below = any(known.startswith(path + ".") for known in self._by_source)
        if clash or below:
            found = "object" if clash else "value"
            reason = f"object mapping for [{clash or path}] tried to parse field [{path}] as {found}"
            raise Fault(400, "mapper_parsing_exception", reason)

    def _dynamic(self, path: str) -> str:
        """Return the nearest object's ``dynamic``: true, false or strict."""
        policy = self.mappings.get("dynamic", True)
        inside = self.mappings
        for part in path.split(".")[:-1]:
            inside = inside.get("properties", {}).get(part, {})
            policy = inside.get("dynamic", policy)
        return str(policy).lower()

    def _guess(self, value: Any) -> Json:
        if isinstance(value, bool):
            return {"type": "boolean"}
        if isinstance(value, int):
            return {"type": "long"}
        if isinstance(value, float):
            return {"type": "float"}
        if self.mappings.get("date_detection", True) and values.looks_like_date(value):
            return {"type": "date"}
        return {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}


def leaves(source: Any, path: str = "", disabled: frozenset[str] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Yield each value of a document with its dotted path; the values of an array share their path."""
    if path in disabled:
        return
    if isinstance(source, dict):
        for key, value in source.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key), disabled)
    elif isinstance(source, list):
        for value in source:
            yield from leaves(value, path, disabled)
    else:
        yield path, source


def merge(old: Json, new: Json) -> Json:
    """Return mappings with new fields added.

    Raises:
        Fault: an existing field would get another type or analyzer.
    """
    if "_source" in new and new["_source"] != old.get("_source", {}):
        raise illegal("Mapper for [_source] conflicts with existing mapper: Cannot update its parameters")
    merged = {**old, **{key: value for key, value in new.items() if key != "properties"}}
    properties = dict(old.get("properties", {}))
    for name, body in new.get("properties", {}).items():
        properties[name] = _merge_field(name, properties[name], body) if name in properties else body
    if properties:
        merged["properties"] = properties
    return merged


def _merge_field(name: str, old: Json, new: Json) -> Json:
    if "properties" in old or "properties" in new:
        if not ("properties" in old and "properties" in new):
            raise illegal(f"can't merge a non object mapping [{name}] with an object mapping")
        return merge(old, new)
    if old.get("type") != new.get("type"):
        raise illegal(f"mapper [{name}] cannot be changed from type [{old.get('type')}] to [{new.get('type')}]")
    for key in ("analyzer", "index", "format"):
        if key in new and new[key] != old.get(key):
            raise illegal(f"Mapper for [{name}] conflicts with existing mapper: Cannot update parameter [{key}]")
    fields = {**old.get("fields", {}), **new.get("fields", {})}
    return {**old, **new, **({"fields": fields} if fields else {})}


def _walk(prefix: str, body: Json) -> Iterator[Field]:
    for name, inner in body.get("properties", {}).items():
        path = prefix + name
        kind = inner.get("type", "object")
        if kind == "object":
            only(f"mapping of {path}", inner, frozenset({"type", "properties", "dynamic", "enabled"}))
            yield from _walk(path + ".", inner)
            continue
        yield _field(path, path, inner)
        for sub, sub_body in inner.get("fields", {}).items():
            yield _field(f"{path}.{sub}", path, sub_body)


def _disabled(prefix: str, body: Json) -> Iterator[str]:
    """Yield the paths of objects that are stored but not indexed."""
    for name, inner in body.get("properties", {}).items():
        if inner.get("enabled") is False:
            yield prefix + name
        yield from _disabled(f"{prefix}{name}.", inner)


def _field(path: str, source: str, body: Json) -> Field:
    kind = str(body.get("type"))
    if kind not in COLUMNS:
        reason = f"No handler for type [{kind}] declared on field [{path}]: the embedded engine knows {sorted(COLUMNS)}"
        raise Fault(400, "mapper_parsing_exception", reason)
    specific = _PARAMETERS.get(kind, frozenset() if kind == "boolean" else _NUMBER)
    only(f"mapping of {path}", body, _COMMON | specific)
    if not values.known_format(body.get("format", "strict_date_optional_time")):
        raise unsupported(f"the date format [{body['format']}] of [{path}]", f"use one of {sorted(values.FORMATS)}")
    as_whole(body.get("ignore_above", 0), f"mapping of {path}.ignore_above")
    return Field(path, source, kind, body)


def _put(properties: Json, parts: list[str], body: Json) -> None:
    """Set a field's mapping in a nested ``properties`` object; the guess from the first value stays."""
    for part in parts[:-1]:
        properties = properties.setdefault(part, {"properties": {}}).setdefault("properties", {})
    properties.setdefault(parts[-1], body)


def analyzers_named(fields: Iterable[Field]) -> Iterator[str]:
    """Yield the names of the fields' analyzers."""
    for one in fields:
        for key in ("analyzer", "search_analyzer"):
            if key in one.body:
                yield one.body[key]
