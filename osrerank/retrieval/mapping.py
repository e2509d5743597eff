"""Read the fields of an OpenSearch mapping, and resolve field names and patterns to them."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from osrerank.errors import ResponseFormatError

SEMANTIC_TEXT = "semantic_text"
"""Elasticsearch's type of a text with vectors: only ``match`` searches it, and only ``fields`` has its source text."""
PLAIN_TEXTS = frozenset({"text", "match_only_text", "annotated_text", "search_as_you_type", "semantic"})
TEXT_KINDS = PLAIN_TEXTS | {SEMANTIC_TEXT}
WRITTEN = PLAIN_TEXTS | {"keyword", "wildcard", "constant_keyword", ""}
"""Types whose text can be read from ``_source``; "" stands for a field that no mapping has."""
CHANGES = frozenset({"normalizer", "ignore_above", "null_value"})
"""Mapping parameters with which ``fields`` returns other values than ``_source`` has, or none."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field of a mapping that holds values (not an object).

    Attributes:
        path: its full dotted name, such as ``author.name`` or ``title.raw``.
        kind: its type; for an alias, the type of the field that it names.
        source: the path of its values in ``_source``; empty if ``_source`` lacks them, as for a derived field.
        analyzer: the name of its analyzer.
        nested: the nested object that contains it; empty outside nested objects.
        copied_from: the fields that are copied to it (``copy_to``).
        is_alias_or_subfield: whether it is a subfield (multi-field) or an alias.
        is_indexed: whether a query can search it.
        is_changed: whether ``fields`` may return other values than ``_source``.
    """

    path: str
    kind: str = "text"
    source: str = ""
    analyzer: str = ""
    nested: str = ""
    copied_from: tuple[str, ...] = ()
    is_alias_or_subfield: bool = False
    is_indexed: bool = True
    is_changed: bool = False

    @property
    def is_written(self) -> bool:
        """Whether ``_source`` has the field's text, under the field's own path."""
        return self.kind in WRITTEN and self.source == self.path


Leaves = Mapping[str, Leaf]


def leaves_by_index(mappings: Mapping[str, Any]) -> dict[str, Leaves]:
    """Return the fields of each index from the answer to ``GET INDEX/_mapping``.

    System indices, whose names begin with a dot, are left out if there are others; indices of data streams stay.

    Raises:
        ResponseFormatError: the answer has another form.
    """
    try:
        by_index: dict[str, Leaves] = {name: leaves_of(index["mappings"]) for name, index in mappings.items()}
    except (AttributeError, KeyError, TypeError):
        raise ResponseFormatError("the answer to GET _mapping has no mappings", path="$") from None
    shown = {name: leaves for name, leaves in by_index.items() if not name.startswith(".") or name.startswith(".ds-")}
    return shown or by_index


def leaves_of(mapping: Mapping[str, Any]) -> dict[str, Leaf]:
    """Return the fields of a mapping or a search body by name, with multi-fields, aliases and derived fields."""
    leaves: dict[str, Leaf] = {}
    copies: dict[str, set[str]] = {}
    aliases: dict[str, str] = {}
    for path, field, nested in _walk(mapping.get("properties") or {}, "", ""):
        if field["type"] == "alias":
            aliases[path] = str(field.get("path"))
            continue
        for name, form in {"": field, **(field.get("fields") or {})}.items():
            full = f"{path}.{name}" if name else path
            is_indexed = form.get("index", True) not in (False, "false")
            analyzer = str(form.get("analyzer", ""))
            is_changed = not CHANGES.isdisjoint(form)
            leaves[full] = Leaf(full, str(form["type"]), path, analyzer, nested, (), bool(name), is_indexed, is_changed)
        targets = field.get("copy_to") or ()
        for target in [targets] if isinstance(targets, str) else targets:
            copies.setdefault(target, set()).add(path)
    for target in copies.keys() & leaves.keys():  # on Elasticsearch, ``fields`` has the copies, too
        leaves[target] = replace(leaves[target], copied_from=tuple(sorted(copies[target])), is_changed=True)
    for name, path in aliases.items():
        if path in leaves:
            leaves[name] = replace(leaves[path], path=name, is_alias_or_subfield=True)
    for kind in ("derived", "runtime", "runtime_mappings"):
        for name, field in (mapping.get(kind) or {}).items():
            leaves[name] = Leaf(name, str(field.get("type", "keyword")))
    return leaves


def _walk(properties: Mapping[str, Any], parent: str, nested: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield the full name, the definition and the enclosing nested object of each field that is not an object."""
    for name, field in properties.items():
        path, kind = f"{parent}{name}", field.get("type", "object")
        if kind in ("object", "nested"):
            yield from _walk(field.get("properties") or {}, f"{path}.", path if kind == "nested" else nested)
        else:
            yield path, field, nested


def plain(name: str) -> str:
    """Return a field's name without its boost."""
    return name.partition("^")[0]


def resolve(leaves: Leaves, name: str) -> list[Leaf]:
    """Return the fields that a name stands for: a field, the fields of an object, or those that match a pattern.

    If some of several fields are text fields, only these are returned, and only one of any with the same values.

    Args:
        leaves: the mapping's fields.
        name: a name, with or without a boost.
    """
    name = plain(name)
    if name in leaves:
        return [leaves[name]]
    matching = [leaf for path, leaf in leaves.items() if _matches(path, name)]
    texts = [leaf for leaf in matching if leaf.kind in TEXT_KINDS] or matching
    by_source: dict[str, Leaf] = {}
    for leaf in sorted(texts, key=lambda leaf: (leaf.is_alias_or_subfield, leaf.path)):
        by_source.setdefault(leaf.source or leaf.path, leaf)
    return sorted(by_source.values(), key=lambda leaf: leaf.path)


def _matches(path: str, name: str) -> bool:
    return fnmatchcase(path, name) if "*" in name else path.startswith(f"{name}.")


def lacking(mappings: Iterable[Leaves], names: Iterable[str]) -> list[str]:
    """Return the names, patterns and objects that no mapping has.

    Names with a colon (``highlight:``, ``inner_hits:``) or a leading underscore are ignored: mappings do not list them.
    """
    mappings = list(mappings)
    wanted = dict.fromkeys(plain(name) for name in names if ":" not in name and not name.startswith("_"))
    return [name for name in wanted if not any(resolve(leaves, name) for leaves in mappings)]


def nearest(mappings: Iterable[Leaves], name: str) -> str:
    """Return the text field whose name is most similar; if there is no text field, any field; without fields, ""."""
    kinds = {leaf.path: leaf.kind for leaves in mappings for leaf in leaves.values() if leaf.path != plain(name)}
    texts = [path for path, kind in kinds.items() if kind in TEXT_KINDS]
    near = get_close_matches(plain(name), sorted(texts or kinds), 1, cutoff=0.0)
    return near[0] if near else ""


def names_of(mappings: Iterable[Leaves], kinds: Container[str] | None = None) -> list[str]:
    """Return the sorted names of all fields, or of those with the given types, without multi-fields and aliases."""
    chosen = (leaf for leaves in mappings for leaf in leaves.values() if kinds is None or leaf.kind in kinds)
    return sorted({leaf.path for leaf in chosen if not leaf.is_alias_or_subfield})
