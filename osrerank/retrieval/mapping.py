"""Read the fields of an index's mapping, and find the fields that a name or a pattern stands for."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from osrerank.errors import ResponseFormatError

SEMANTIC_TEXT = "semantic_text"
"""Elasticsearch's type for a text with vectors. ``match`` is the only query for it, and a hit has its text only in
``fields``, not in ``_source``."""
PLAIN_TEXT_KINDS = frozenset({"text", "match_only_text", "annotated_text", "search_as_you_type", "semantic"})
"""Types of text fields whose text can be read from ``_source``."""
TEXT_KINDS = PLAIN_TEXT_KINDS | {SEMANTIC_TEXT}
"""All types of text fields."""
SOURCE_KINDS = PLAIN_TEXT_KINDS | {"keyword", "wildcard", "constant_keyword", ""}
"""Types whose text can be read from ``_source``. A field that no mapping contains has the empty type."""
VALUE_PARAMETERS = frozenset({"normalizer", "ignore_above", "null_value"})
"""Mapping parameters that change or remove values in a hit's ``fields``."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field of a mapping that has values, so not an object.

    Attributes:
        path: the full dotted name, such as ``author.name`` or ``title.raw``.
        kind: the type. An alias has the type of the field that it stands for.
        source: the path of the values in ``_source``, such as ``title`` for ``title.raw``. Empty if the values are not
            in ``_source``, as for a derived field.
        analyzer: the name of the analyzer. Empty for the default.
        nested: the path of the nested object that contains the field. Empty outside nested objects.
        copied_from: the fields that are copied to this one (``copy_to``).
        is_alias_or_subfield: whether the field is a subfield (multi-field) or an alias.
        is_indexed: whether a query can search the field.
        may_alter_values: whether a hit's ``fields`` might have other values than its ``_source``.
    """

    path: str
    kind: str = "text"
    source: str = ""
    analyzer: str = ""
    nested: str = ""
    copied_from: tuple[str, ...] = ()
    is_alias_or_subfield: bool = False
    is_indexed: bool = True
    may_alter_values: bool = False

    @property
    def is_in_source(self) -> bool:
        """Whether ``_source`` has the field's text under the path of the field."""
        return self.kind in SOURCE_KINDS and self.source == self.path


Leaves = Mapping[str, Leaf]
"""All fields of a mapping by path, such as ``{"title": Leaf("title", source="title")}``."""


def read_leaves_by_index(mappings: Mapping[str, Any]) -> dict[str, Leaves]:
    """Return the fields of each index from the response to ``GET INDEX/_mapping``.

    System indices are left out if there are other indices. Their names begin with a dot, but not with ``.ds-``, which
    marks the indices of data streams.

    Raises:
        ResponseFormatError: the response has another form.
    """
    try:
        leaves_by_index: dict[str, Leaves] = {name: read_leaves(index["mappings"]) for name, index in mappings.items()}
    except (AttributeError, KeyError, TypeError):
        message = f"the engine's response to GET INDEX/_mapping is not a mapping for each index: {str(mappings)[:200]}"
        raise ResponseFormatError(message, path="$") from None
    without_system_indices = {
        name: leaves for name, leaves in leaves_by_index.items() if not name.startswith(".") or name.startswith(".ds-")
    }
    return without_system_indices or leaves_by_index


def read_leaves(mapping: Mapping[str, Any]) -> dict[str, Leaf]:
    """Return the fields of a mapping by path, with multi-fields, aliases, and derived or runtime fields."""
    leaves: dict[str, Leaf] = {}
    paths_by_target: dict[str, set[str]] = {}  # target of copy_to -> fields that are copied to it
    path_by_alias: dict[str, str] = {}
    for path, definition, nested in _walk(mapping.get("properties") or {}, prefix="", nested=""):
        if definition["type"] == "alias":
            path_by_alias[path] = str(definition.get("path"))
            continue
        leaves[path] = _make_leaf(path, definition, source=path, nested=nested)
        for name, subfield_definition in (definition.get("fields") or {}).items():
            subfield_path = f"{path}.{name}"
            leaves[subfield_path] = _make_leaf(subfield_path, subfield_definition, source=path, nested=nested)
        targets = definition.get("copy_to") or ()
        for target in [targets] if isinstance(targets, str) else targets:
            paths_by_target.setdefault(target, set()).add(path)
    for target in paths_by_target.keys() & leaves.keys():
        copied_from = tuple(sorted(paths_by_target[target]))
        # on Elasticsearch, ``fields`` of a hit includes the copies, ``_source`` does not
        leaves[target] = replace(leaves[target], copied_from=copied_from, may_alter_values=True)
    for alias, path in path_by_alias.items():
        if path in leaves and alias not in leaves:
            leaves[alias] = replace(leaves[path], path=alias, is_alias_or_subfield=True)
    for section in ("derived", "runtime", "runtime_mappings"):
        for name, definition in (mapping.get(section) or {}).items():
            leaves[name] = Leaf(name, kind=str(definition.get("type", "keyword")))
    return leaves


def _make_leaf(path: str, definition: Mapping[str, Any], source: str, nested: str) -> Leaf:
    return Leaf(
        path,
        kind=str(definition["type"]),
        source=source,
        analyzer=str(definition.get("analyzer", "")),
        nested=nested,
        is_alias_or_subfield=path != source,
        is_indexed=definition.get("index", True) not in (False, "false"),
        may_alter_values=not VALUE_PARAMETERS.isdisjoint(definition),
    )


def _walk(properties: Mapping[str, Any], prefix: str, nested: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield the full name, the definition and the enclosing nested object of each field that is not an object.

    The fields of an Elasticsearch object of the type ``passthrough`` have aliases without the object's name.

    ``prefix`` and ``nested`` are the prefix of the full names, and the nested object that encloses the properties.
    """
    for name, definition in properties.items():
        path, kind = f"{prefix}{name}", definition.get("type", "object")
        if kind == "passthrough":
            for inner_path, inner, inner_nested in _walk(definition.get("properties") or {}, f"{path}.", nested):
                yield inner_path, inner, inner_nested
                yield inner_path.removeprefix(f"{path}."), {"type": "alias", "path": inner_path}, inner_nested
        elif kind in ("object", "nested"):
            enclosing = path if kind == "nested" else nested
            yield from _walk(definition.get("properties") or {}, f"{path}.", enclosing)
        else:
            yield path, definition, nested


def without_boost(name: str) -> str:
    """Return a field's name without its boost: ``title`` for ``title^2``."""
    return name.partition("^")[0]


def resolve_name(leaves: Leaves, name: str) -> list[Leaf]:
    """Return the fields that a name stands for: a field, the fields of an object, or those that match a pattern.

    If an object or pattern has text fields, only these are returned. Of fields with the same values, such as ``title``
    and ``title.raw``, only one is returned.
    """
    name = without_boost(name)
    if name in leaves:
        return [leaves[name]]
    matching_leaves = [leaf for path, leaf in leaves.items() if _matches(path, name)]
    text_leaves = [leaf for leaf in matching_leaves if leaf.kind in TEXT_KINDS]
    leaf_by_source: dict[str, Leaf] = {}
    for leaf in sorted(text_leaves or matching_leaves, key=lambda leaf: (leaf.is_alias_or_subfield, leaf.path)):
        leaf_by_source.setdefault(leaf.source or leaf.path, leaf)
    return sorted(leaf_by_source.values(), key=lambda leaf: leaf.path)


def _matches(path: str, name: str) -> bool:
    """Return whether a field matches a pattern, or belongs to an object: ``author.name`` to ``author``."""
    return fnmatchcase(path, name) if "*" in name else path.startswith(f"{name}.")


def find_missing_names(mappings: Iterable[Leaves], names: Iterable[str]) -> list[str]:
    """Return the names that stand for no field in any mapping.

    Names with a colon (``highlight:body``, ``inner_hits:parts``) or a leading underscore are ignored, because mappings
    do not contain them.
    """
    mappings = list(mappings)
    checked = dict.fromkeys(without_boost(name) for name in names if ":" not in name and not name.startswith("_"))
    return [name for name in checked if not any(resolve_name(leaves, name) for leaves in mappings)]


def find_most_similar_field(mappings: Iterable[Leaves], name: str) -> str:
    """Return the path of the field that is most similar to a name. Text fields are preferred.

    Returns an empty string if the mappings have no other field.
    """
    name = without_boost(name)
    kinds = {leaf.path: leaf.kind for leaves in mappings for leaf in leaves.values() if leaf.path != name}
    text_paths = [path for path, kind in kinds.items() if kind in TEXT_KINDS]
    matches = get_close_matches(name, sorted(text_paths or kinds), n=1, cutoff=0.0)
    return matches[0] if matches else ""


def list_field_names(mappings: Iterable[Leaves], kinds: Container[str] | None = None) -> list[str]:
    """Return the sorted paths of all fields, or of those whose type is in ``kinds``, without subfields and aliases."""
    leaves = (leaf for fields in mappings for leaf in fields.values() if kinds is None or leaf.kind in kinds)
    return sorted({leaf.path for leaf in leaves if not leaf.is_alias_or_subfield})
