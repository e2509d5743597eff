"""Read the mappings of an index, merge new mappings into them, and extract the values of documents by field."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from osrerank.embedded.errors import (
    Fault,
    Json,
    argument_fault,
    parse_count,
    reject_unknown_keys,
    require_object,
    unsupported_fault,
)
from osrerank.embedded.mapping import values

Column = Literal["text", "keyword", "long", "double"]
"""The type in which tantivy stores a field; dates are milliseconds, and booleans 0 or 1, in a long column."""

COLUMNS: Mapping[str, Column] = {
    "text": "text",
    "keyword": "keyword",
    "long": "long",
    "integer": "long",
    "date": "long",
    "boolean": "long",
    "float": "double",
}
_PARAMETERS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type", "analyzer", "index", "fields"}),
    "keyword": frozenset({"type", "ignore_above", "index", "doc_values", "fields"}),
    "object": frozenset({"type", "properties", "enabled"}),
}
_IMMUTABLE_PARAMETERS = {"analyzer": "standard", "index": True, "doc_values": True, "enabled": True}
"""The parameters that an existing field cannot change, with their defaults."""
METADATA = frozenset(
    {"_id", "_index", "_source", "_type", "_routing", "_field_names", "_ignored", "_seq_no", "_version", "_doc_count",
     "_nested_path", "_primary_term", "_tier", "_size", "_feature", "_data_stream_timestamp"}
)  # fmt: skip
"""Metadata fields, which documents cannot contain as properties."""


@dataclass(frozen=True, slots=True)
class Field:
    """An indexed field.

    Attributes:
        path: the dotted path of the field; the name of a sub-field is its last part.
        source: the dotted path of the value in the document.
        kind: OpenSearch's type of the field.
        body: the mapping of the field.
    """

    path: str
    source: str
    kind: str
    body: Json = field(default_factory=dict)

    @property
    def column(self) -> Column:
        return COLUMNS[self.kind]

    @property
    def is_indexed(self) -> bool:
        return self.body.get("index", True) not in (False, "false")

    @property
    def has_doc_values(self) -> bool:
        """Whether documents can be sorted and counted by the field's values."""
        return self.column != "text" and self.body.get("doc_values", True) not in (False, "false")

    def convert(self, value: Any) -> Any:
        """Return a document's value in the type of its column. None if the value is not indexed."""
        if value is None:
            return None
        if self.kind in ("text", "keyword"):
            text = values.as_text(value)
            return None if len(text) > self.body.get("ignore_above", len(text)) else text
        try:
            return values.CONVERTERS[self.kind](value)
        except (ValueError, TypeError, OverflowError):
            raise Fault(
                400,
                "mapper_parsing_exception",
                f"failed to parse field [{self.path}] of type [{self.kind}]: the value is {value!r:.100}",
            ) from None


class IndexFields:
    """The fields that the mappings of an index define.

    Raises:
        Fault: the engine does not support a type or parameter; the reason names the field.
    """

    def __init__(self, mappings: Json) -> None:
        reject_unknown_keys("mappings", mappings, frozenset({"properties", "dynamic", "_meta"}))
        self.is_dynamic = mappings.get("dynamic", "true") == "true"
        self.mappings = mappings
        self.by_path = {field_.path: field_ for field_ in _walk("", mappings)}
        self.disabled = frozenset(_disabled("", mappings))
        self._by_source: dict[str, list[Field]] = {}
        for field_ in self.by_path.values():
            self._by_source.setdefault(field_.source, []).append(field_)

    def matching(self, pattern: str) -> list[Field]:
        """Return the fields whose path matches a pattern with ``*``."""
        if "*" not in pattern:
            return [self.by_path[pattern]] if pattern in self.by_path else []
        return [field_ for path, field_ in self.by_path.items() if values.compile_wildcard(pattern).fullmatch(path)]

    def extract(self, source: Json) -> dict[str, list[Any]]:
        """Return the indexed values of a document, by field path."""
        extracted: dict[str, list[Any]] = {}
        for path, value in leaves(source, disabled=self.disabled):
            for field_ in self._by_source.get(path, ()):
                converted = field_.convert(value) if field_.is_indexed else None
                if converted is not None:
                    extracted.setdefault(field_.path, []).append(converted)
        return extracted

    def new_mappings(self, source: Json) -> Json:
        """Return mappings for a document's unmapped properties. Empty if all properties are mapped.

        Raises:
            Fault: a property has an invalid name, or values of different types, or conflicts with the mappings.
        """
        _check_names(source)
        new: dict[str, Json] = {}
        for path, value in leaves(source, disabled=self.disabled):
            if path in self._by_source or value is None:
                continue
            self._refuse_conflict(path)
            if self.is_dynamic:
                guessed = _guess_mapping(path, value)
                if new.setdefault(path, guessed) != guessed:
                    kinds = f"from type [{new[path]['type']}] to [{guessed['type']}]"
                    raise argument_fault(f"mapper [{path}] cannot be changed {kinds}")
        properties: Json = {}
        for path, body in new.items():
            _insert(properties, path.split("."), body)
        return {"properties": properties} if new else {}

    def _refuse_conflict(self, path: str) -> None:
        """Refuse an object in place of a mapped value, and a value in place of a mapped object."""
        parents = [path[:end] for end, letter in enumerate(path) if letter == "."]
        value_path = next((parent for parent in parents if parent in self._by_source), None)
        is_object = any(mapped.startswith(path + ".") for mapped in self._by_source)
        if value_path or is_object:
            kind = "object" if value_path else "value"
            reason = f"object mapping for [{value_path or path}] tried to parse field [{path}] as {kind}"
            raise Fault(400, "mapper_parsing_exception", reason)


def _guess_mapping(path: str, value: Any) -> Json:
    """Return the mapping that OpenSearch would give a new property with this value."""
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "long"}
    if isinstance(value, float):
        return {"type": "float"}
    if values.looks_like_date(value):
        return {"type": "date"}
    if values.SLASHED_DATE.fullmatch(value):
        raise unsupported_fault(f"[{path}] as a date written {value!r:.40}", f"map [{path}] as text or keyword")
    return {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}


def _check_names(source: Json) -> None:
    """Refuse metadata fields, and names that cannot be part of a path."""
    for key in source:
        if key in METADATA:
            reason = f"Field [{key}] is a metadata field and cannot be added inside a document."
            raise Fault(400, "mapper_parsing_exception", f"{reason} Use the index API request parameters.")
    for name in _property_names(source):
        _check_name(name, "mapper_parsing_exception")


def _check_name(name: str, kind: str) -> None:
    if not name or ("." in name and not all(segment.strip() for segment in name.split("."))):
        raise Fault(400, kind, f"the field name [{name}] is empty or has an empty part between dots")


def _property_names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for element in value:
            yield from _property_names(element)


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
    """Return mappings with new fields added; dotted names become objects.

    Raises:
        Fault: an existing field would get another type, or another value of an immutable parameter.
    """
    merged = {**old, **{key: value for key, value in new.items() if key != "properties"}}
    if "dynamic" in new:  # OpenSearch stores true and false as names
        merged["dynamic"] = str(_read_flag(new, "dynamic", "mappings")).lower()
    if properties := _merge_properties(
        old.get("properties", {}), require_object(new.get("properties", {}), "properties")
    ):
        merged["properties"] = properties
    return merged


def _merge_properties(old: Json, new: Json) -> Json:
    properties = dict(old)
    for name, definition in new.items():
        _check_name(name, "illegal_argument_exception")
        first, _, remaining = name.partition(".")
        body = (
            {"properties": {remaining: definition}}
            if remaining
            else dict(require_object(definition, f"properties.{name}"))
        )
        if "type" not in body and not {"properties", "enabled"} & body.keys():
            raise Fault(400, "mapper_parsing_exception", f"No type specified for field [{name}]")
        if body.get("type", "object") == "object":
            body = _normalise_object(name, body)
        properties[first] = _merge_field(first, properties[first], body) if first in properties else body
    return properties


def _normalise_object(name: str, body: Json) -> Json:
    """Return an object's mapping as OpenSearch stores it: with its type only if it has no properties."""
    properties = _merge_properties({}, require_object(body.get("properties", {}), f"{name}.properties"))
    remaining = {key: value for key, value in body.items() if key not in ("type", "properties")}
    return {**remaining, "properties": properties} if properties else {"type": "object", **remaining}


def _merge_field(name: str, old: Json, new: Json) -> Json:
    kinds = [body.get("type", "object") for body in (old, new)]
    if ("object" in kinds) and kinds[0] != kinds[1]:
        raise argument_fault(f"can't merge a non object mapping [{name}] with an object mapping")
    if kinds[0] != kinds[1]:
        raise argument_fault(f"mapper [{name}] cannot be changed from type [{kinds[0]}] to [{kinds[1]}]")
    for key, default in _IMMUTABLE_PARAMETERS.items():
        if new.get(key, default) != old.get(key, default):
            raise argument_fault(f"Mapper for [{name}] conflicts with existing mapper: Cannot update parameter [{key}]")
    if kinds[0] == "object":
        properties = _merge_properties(old.get("properties", {}), new.get("properties", {}))
        return _normalise_object(name, {**old, **new, "properties": properties})
    fields = _merge_properties(old.get("fields", {}), new.get("fields", {}))
    return {**new, "fields": fields} if fields else dict(new)


def _walk(prefix: str, body: Json) -> Iterator[Field]:
    for name, inner in body.get("properties", {}).items():
        path = prefix + name
        if inner.get("type", "object") == "object":
            reject_unknown_keys(f"mapping of {path}", inner, _PARAMETERS["object"])
            _read_flag(inner, "enabled", path)
            yield from _walk(path + ".", inner)
            continue
        yield _read_field(path, path, inner)
        for sub, sub_body in require_object(inner.get("fields", {}), f"{path}.fields").items():
            if "fields" in sub_body:
                raise unsupported_fault(f"[fields] in the sub-field [{path}.{sub}]")
            yield _read_field(f"{path}.{sub}", path, sub_body)


def _disabled(prefix: str, body: Json) -> Iterator[str]:
    """Yield the paths of objects that are stored but not indexed."""
    for name, inner in body.get("properties", {}).items():
        if inner.get("enabled", True) in (False, "false"):
            yield prefix + name
        yield from _disabled(f"{prefix}{name}.", inner)


def _read_field(path: str, source: str, body: Json) -> Field:
    """Return a field. Raises a `Fault` if its mapping is invalid."""
    kind = str(body.get("type"))
    if kind not in COLUMNS:
        reason = f"No handler for type [{kind}] declared on field [{path}]: the embedded engine knows {sorted(COLUMNS)}"
        raise Fault(400, "mapper_parsing_exception", reason)
    if not path.count(".") and path in METADATA:
        raise argument_fault(f"[{path}] is a metadata field, and cannot be mapped")
    reject_unknown_keys(f"mapping of {path}", body, _PARAMETERS.get(kind, frozenset({"type"})))
    is_indexed = _read_flag(body, "index", path)
    has_doc_values = _read_flag(body, "doc_values", path)
    if kind == "keyword" and has_doc_values and not is_indexed:
        raise unsupported_fault(f"[index: false] of [{path}] with doc values", "add [doc_values: false]")
    if "ignore_above" in body and isinstance(body["ignore_above"], str):
        raise argument_fault(f"[ignore_above] of [{path}] must be a whole number")
    parse_count(body.get("ignore_above", 0), f"mapping of {path}.ignore_above")
    return Field(path, source, kind, body)


def _read_flag(body: Json, name: str, path: str) -> bool:
    """Return a boolean parameter of a mapping; true if it is absent."""
    flag = body.get(name, True)
    if isinstance(flag, str):
        flag = {"true": True, "false": False}.get(flag, flag)
    if not isinstance(flag, bool):
        raise unsupported_fault(f"[{name}: {flag}] of [{path}]", "pass true or false")
    return flag


def _insert(properties: Json, segments: list[str], body: Json) -> None:
    for segment in segments[:-1]:
        properties = properties.setdefault(segment, {"properties": {}}).setdefault("properties", {})
    properties[segments[-1]] = body
