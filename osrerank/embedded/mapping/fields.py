"""Read the mappings of an index, merge new mappings into them, and extract the values of a document's fields."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from osrerank.embedded.errors import (
    ApiError,
    Json,
    argument_error,
    parse_count,
    reject_unknown_keys,
    require_object,
    unsupported_error,
)
from osrerank.embedded.mapping import values

ColumnType = Literal["text", "keyword", "long", "double"]
"""The type of the tantivy column in which the values of a field are indexed."""

COLUMN_TYPES: Mapping[str, ColumnType] = {
    "text": "text",
    "keyword": "keyword",
    "long": "long",
    "integer": "long",
    "date": "long",
    "boolean": "long",
    "float": "double",
}
"""The column type for each of OpenSearch's field types. Dates are indexed as milliseconds, booleans as 0 or 1."""
_PARAMETERS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type", "analyzer", "index", "fields"}),
    "keyword": frozenset({"type", "ignore_above", "index", "doc_values", "fields"}),
    "object": frozenset({"type", "properties", "enabled"}),
}
"""The supported parameters of each OpenSearch type. The types that are left out support only ``type``."""
_IMMUTABLE_PARAMETERS = {"analyzer": "standard", "index": True, "doc_values": True, "enabled": True}
"""The default of each parameter that cannot be changed once the field exists."""
METADATA = frozenset(
    {"_id", "_index", "_source", "_type", "_routing", "_field_names", "_ignored", "_seq_no", "_version", "_doc_count",
     "_nested_path", "_primary_term", "_tier", "_size", "_feature", "_data_stream_timestamp"}
)  # fmt: skip
"""OpenSearch's names for metadata. A document cannot have a property with one of these names."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field that the mappings define.

    Attributes:
        path: the dotted path of the field, such as ``title`` or its sub-field ``title.keyword``.
        source_path: the dotted path of the field's value in a document: ``title`` for both of these fields.
        kind: OpenSearch's type of the field, such as ``integer``.
        definition: the field's object in the mappings.
    """

    path: str
    source_path: str
    kind: str
    definition: Json

    @property
    def column(self) -> ColumnType:
        return COLUMN_TYPES[self.kind]

    @property
    def analyzer_name(self) -> str:
        """The name of a text field's analyzer."""
        name: str = self.definition.get("analyzer", "standard")
        return name

    @property
    def is_indexed(self) -> bool:
        return _is_on(self.definition, "index")

    @property
    def has_doc_values(self) -> bool:
        """Whether documents can be sorted and counted by the field's values."""
        return self.column != "text" and _is_on(self.definition, "doc_values")

    def convert(self, value: Any) -> Any:
        """Convert a document's value to the column's type, such as "7" to 7.

        Return None for null, and for text longer than ``ignore_above``. These are not indexed.
        """
        if value is None:
            return None
        if self.kind in ("text", "keyword"):
            text = values.as_text(value)
            limit = self.definition.get("ignore_above")
            return None if limit is not None and values.count_utf16_units(text) > limit else text
        try:
            return values.CONVERTERS[self.kind](value)
        except (ValueError, TypeError, OverflowError):
            raise ApiError(
                400,
                "mapper_parsing_exception",
                f"failed to parse field [{self.path}] of type [{self.kind}]: the value is {value!r:.100}",
            ) from None


class IndexFields:
    """The fields that the mappings of an index define.

    Attributes:
        by_path: the fields by path, such as ``title.keyword``.
        disabled_paths: the paths of objects with ``"enabled": false``, which are stored but not indexed.

    Raises:
        ApiError: the engine does not support a type or parameter. The reason names the field.
    """

    def __init__(self, mappings: Json) -> None:
        reject_unknown_keys("mappings", mappings, frozenset({"properties", "dynamic", "_meta"}))
        self._is_dynamic = mappings.get("dynamic", "true") == "true"
        self.mappings = mappings
        self.by_path = {field.path: field for field in _read_fields("", mappings)}
        self.disabled_paths = frozenset(_find_disabled("", mappings))
        self._by_source_path: dict[str, list[Field]] = {}
        for field in self.by_path.values():
            self._by_source_path.setdefault(field.source_path, []).append(field)

    def find(self, pattern: str) -> list[Field]:
        """Return the fields whose path matches a pattern, in which ``*`` matches any text."""
        if "*" not in pattern:
            return [self.by_path[pattern]] if pattern in self.by_path else []
        return [field for path, field in self.by_path.items() if values.compile_wildcard(pattern).fullmatch(path)]

    def extract(self, document: Json) -> dict[str, list[Any]]:
        """Return the indexed values of a document by field path, such as ``{"tags": ["a", "b"], "year": [2024]}``."""
        extracted: dict[str, list[Any]] = {}
        for path, value in iterate_values(document, disabled_paths=self.disabled_paths):
            for field in self._by_source_path.get(path, ()):
                converted = field.convert(value) if field.is_indexed else None
                if converted is not None:
                    extracted.setdefault(field.path, []).append(converted)
        return extracted

    def guess_mappings(self, document: Json) -> Json:
        """Return the mappings that OpenSearch would add for a document, or an empty object if it would add none.

        If ``year`` is a new field, ``{"year": 2024}`` yields ``{"properties": {"year": {"type": "long"}}}``.

        Raises:
            ApiError: a property has an invalid name, or values of different types, or conflicts with the mappings.
        """
        _check_names(document)
        new_definitions: dict[str, Json] = {}
        for path, value in iterate_values(document, disabled_paths=self.disabled_paths):
            if path in self._by_source_path or value is None:
                continue
            self._check_conflict(path)
            if self._is_dynamic:
                guessed = _guess_definition(path, value)
                definition = new_definitions.setdefault(path, guessed)
                if definition != guessed:
                    raise _changed_type_error(path, definition["type"], guessed["type"])
        properties: Json = {}
        for path, definition in new_definitions.items():
            _insert_property(properties, path.split("."), definition)
        return {"properties": properties} if new_definitions else {}

    def _check_conflict(self, path: str) -> None:
        """Raise a 400 for a value at the path ``a.b`` if the mappings have the field ``a`` or ``a.b.c``."""
        parents = [path[:end] for end, letter in enumerate(path) if letter == "."]  # a and a.b for a.b.c
        parent_field = next((parent for parent in parents if parent in self._by_source_path), None)
        is_object = any(source_path.startswith(path + ".") for source_path in self._by_source_path)
        if parent_field or is_object:
            found = "object" if parent_field else "value"
            reason = f"object mapping for [{parent_field or path}] tried to parse field [{path}] as {found}"
            raise ApiError(400, "mapper_parsing_exception", reason)


def _guess_definition(path: str, value: Any) -> Json:
    """Return the definition that OpenSearch would give to a new property with this value."""
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "long"}
    if isinstance(value, float):
        return {"type": "float"}
    if values.looks_like_date(value):
        return {"type": "date"}
    if values.SLASHED_DATE.fullmatch(value):
        raise unsupported_error(
            f"dates with slashes, such as {value!r:.40} in [{path}]", f"map [{path}] as text or keyword"
        )
    # any other string
    return {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}


def _check_names(document: Json) -> None:
    """Raise a 400 for a metadata field, or for a name that cannot be part of a path."""
    for key in document:
        if key in METADATA:
            reason = f"Field [{key}] is a metadata field and cannot be added inside a document."
            raise ApiError(400, "mapper_parsing_exception", f"{reason} Use the index API request parameters.")
    for name in _iterate_names(document):
        _check_name(name, "mapper_parsing_exception")


def _check_name(name: str, error_type: str) -> None:
    segments = name.split(".")
    # like OpenSearch, accept a name of spaces, but not as one of several segments
    is_valid = all(segment.strip() for segment in segments) if len(segments) > 1 else bool(name)
    if not is_valid:
        raise ApiError(400, error_type, f"the field name [{name}] is empty or has an empty part between dots")


def _iterate_names(value: Any) -> Iterator[str]:
    """Yield the name of each property in a document, at any depth."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for element in value:
            yield from _iterate_names(element)


def iterate_values(
    content: Any, path: str = "", disabled_paths: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Any]]:
    """Yield each value in a document, except in the objects at ``disabled_paths``, with its dotted path.

    ``{"author": {"name": "Ann"}, "tags": ["a", "b"]}`` yields ``("author.name", "Ann")``, ``("tags", "a")`` and
    ``("tags", "b")``. A recursive call gets the part of the document at ``path``.
    """
    if path in disabled_paths:
        return
    if isinstance(content, dict):
        for key, value in content.items():
            yield from iterate_values(value, f"{path}.{key}" if path else str(key), disabled_paths)
    elif isinstance(content, list):
        for value in content:
            yield from iterate_values(value, path, disabled_paths)
    else:
        yield path, content


def merge_mappings(old: Json, new: Json) -> Json:
    """Add new fields to mappings, and return the merged mappings.

    A field with a dotted name becomes an object: ``author.name`` becomes ``author`` with the property ``name``.

    Raises:
        ApiError: an existing field would get another type, or another value of an immutable parameter.
    """
    merged = {**old, **{key: value for key, value in new.items() if key != "properties"}}
    if "dynamic" in new:  # OpenSearch stores true and false as names
        merged["dynamic"] = str(_read_flag(new, "dynamic", "mappings")).lower()
    new_properties = require_object(new.get("properties", {}), "properties")
    properties = _merge_properties(old.get("properties", {}), new_properties)
    if properties:
        merged["properties"] = properties
    return merged


def _merge_properties(old: Json, new: Json) -> Json:
    properties = dict(old)
    for name, definition in new.items():
        _check_name(name, "illegal_argument_exception")
        first, _, remaining = name.partition(".")
        if remaining:
            added = {"properties": {remaining: definition}}
        else:
            added = dict(require_object(definition, f"properties.{name}"))
        if added.keys().isdisjoint({"type", "properties", "enabled"}):
            raise ApiError(400, "mapper_parsing_exception", f"No type specified for field [{name}]")
        if added.get("type", "object") == "object":
            added = _normalise_object(name, added)
        properties[first] = _merge_field(first, properties[first], added) if first in properties else added
    return properties


def _normalise_object(name: str, definition: Json) -> Json:
    """Return an object's definition as OpenSearch stores it: an object with properties has no ``type``."""
    properties = _merge_properties({}, require_object(definition.get("properties", {}), f"{name}.properties"))
    parameters = {key: value for key, value in definition.items() if key not in ("type", "properties")}
    return {**parameters, "properties": properties} if properties else {"type": "object", **parameters}


def _merge_field(name: str, old: Json, new: Json) -> Json:
    """Merge a new definition of a field into the old one, or raise a 400 if they conflict."""
    old_kind, new_kind = old.get("type", "object"), new.get("type", "object")
    if old_kind != new_kind and "object" in (old_kind, new_kind):
        raise argument_error(f"can't merge a non object mapping [{name}] with an object mapping")
    if old_kind != new_kind:
        raise _changed_type_error(name, old_kind, new_kind)
    for key, default in _IMMUTABLE_PARAMETERS.items():
        if new.get(key, default) != old.get(key, default):
            raise argument_error(f"Mapper for [{name}] conflicts with existing mapper: Cannot update parameter [{key}]")
    if old_kind == "object":
        properties = _merge_properties(old.get("properties", {}), new.get("properties", {}))
        return _normalise_object(name, {**old, **new, "properties": properties})
    fields = _merge_properties(old.get("fields", {}), new.get("fields", {}))
    return {**new, "fields": fields} if fields else dict(new)


def _changed_type_error(name: str, old_kind: str, new_kind: str) -> ApiError:
    return argument_error(f"mapper [{name}] cannot be changed from type [{old_kind}] to [{new_kind}]")


def _read_fields(prefix: str, parent: Json) -> Iterator[Field]:
    """Yield the fields and sub-fields of an object, or of the mappings, with the prefix of their paths.

    The prefix is "author." for the object ``author``, and empty for the mappings.
    """
    for name, definition in parent.get("properties", {}).items():
        path = prefix + name
        if definition.get("type", "object") == "object":
            reject_unknown_keys(f"mapping of {path}", definition, _PARAMETERS["object"])
            _read_flag(definition, "enabled", path)  # raises an error for an invalid value
            yield from _read_fields(path + ".", definition)
            continue
        yield _read_field(path, path, definition)
        for sub, sub_definition in require_object(definition.get("fields", {}), f"{path}.fields").items():
            if "fields" in sub_definition:
                raise unsupported_error(f"[fields] in the sub-field [{path}.{sub}]")
            yield _read_field(f"{path}.{sub}", path, sub_definition)


def _find_disabled(prefix: str, parent: Json) -> Iterator[str]:
    """Yield the path of each object with ``"enabled": false``. The arguments are those of `_read_fields`."""
    for name, definition in parent.get("properties", {}).items():
        if not _is_on(definition, "enabled"):
            yield prefix + name
        yield from _find_disabled(f"{prefix}{name}.", definition)


def _read_field(path: str, source_path: str, definition: Json) -> Field:
    """Check the definition of a field that is not an object, and return the field."""
    kind = str(definition.get("type"))
    if kind not in COLUMN_TYPES:
        supported = sorted(COLUMN_TYPES)
        reason = f"No handler for type [{kind}] declared on field [{path}]: the embedded engine supports {supported}"
        raise ApiError(400, "mapper_parsing_exception", reason)
    if path in METADATA:
        raise argument_error(f"[{path}] is a metadata field, and cannot be mapped")
    reject_unknown_keys(f"mapping of {path}", definition, _PARAMETERS.get(kind, frozenset({"type"})))
    is_indexed = _read_flag(definition, "index", path)
    has_doc_values = _read_flag(definition, "doc_values", path)
    if kind == "keyword" and has_doc_values and not is_indexed:
        raise unsupported_error(f"[index: false] of [{path}] with doc values", "add [doc_values: false]")
    ignore_above = definition.get("ignore_above", 0)
    if isinstance(ignore_above, str):
        raise argument_error(f"[ignore_above] of [{path}] must be a whole number")
    parse_count(ignore_above, f"mapping of {path}.ignore_above")  # raises an error for an invalid value
    return Field(path, source_path, kind, definition)


def _read_flag(definition: Json, name: str, place: str) -> bool:
    """Return a boolean parameter, or true if it is missing. ``place`` is named in the error for an invalid value."""
    flag = definition.get(name, True)
    if isinstance(flag, str):
        flag = {"true": True, "false": False}.get(flag, flag)
    if not isinstance(flag, bool):
        raise unsupported_error(f"[{name}: {flag}] of [{place}]", "pass true or false")
    return flag


def _is_on(definition: Json, name: str) -> bool:
    """Return whether a boolean parameter is true or missing. `_read_flag` has checked its value before."""
    return definition.get(name, True) not in (False, "false")


def _insert_property(properties: Json, segments: list[str], definition: Json) -> None:
    """Add a field's definition. ``["author", "name"]`` adds ``{"author": {"properties": {"name": definition}}}``."""
    for segment in segments[:-1]:
        properties = properties.setdefault(segment, {"properties": {}}).setdefault("properties", {})
    properties[segments[-1]] = definition
