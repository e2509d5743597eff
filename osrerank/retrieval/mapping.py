"""Read the fields of a mapping, and resolve names and patterns to them."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from osrerank.errors import ResponseFormatError

TEXT_KINDS = frozenset({"text", "match_only_text", "annotated_text", "search_as_you_type", "semantic"})
WRITTEN = TEXT_KINDS | {"keyword", "wildcard", "constant_keyword", ""}
"""Kinds whose values OpenSearch returns as they are written in ``_source``; "" is a field that no mapping has."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field that has values.

    Attributes:
        path: its full dotted name, such as ``author.name`` or ``title.raw``.
        kind: its type; of an alias the type of its field.
        source: where ``_source`` has its values; empty where it has none, as of a derived field.
        analyzer: the analyzer's name.
        nested: the nested object that it is in; empty where it is in none.
        copied_from: the fields that are copied to it.
        is_other_name: whether it is a multi-field or an alias.
        is_indexed: whether a query can search it.
    """

    path: str
    kind: str = "text"
    source: str = ""
    analyzer: str = ""
    nested: str = ""
    copied_from: tuple[str, ...] = ()
    is_other_name: bool = False
    is_indexed: bool = True

    @property
    def is_written(self) -> bool:
        """Whether ``_source`` has its text as it is read."""
        return self.kind in WRITTEN and self.source == self.path


Leaves = Mapping[str, Leaf]


def leaves_by_index(mappings: Mapping[str, Any]) -> dict[str, Leaves]:
    """Return the fields of each index in the answer to ``GET INDEX/_mapping``.

    System indices, whose names begin with a dot, are left out where there are others; parts of data streams are not.

    Raises:
        ResponseFormatError: the answer has another form.
    """
    try:
        found: dict[str, Leaves] = {name: leaves_of(one["mappings"]) for name, one in mappings.items()}
    except (AttributeError, KeyError, TypeError):
        raise ResponseFormatError("the answer to GET _mapping has no mappings", path="$") from None
    shown = {name: leaves for name, leaves in found.items() if not name.startswith(".") or name.startswith(".ds-")}
    return shown or found


def leaves_of(mapping: Mapping[str, Any]) -> dict[str, Leaf]:
    """Return the fields of one mapping or search body by their names: its own, multi-fields, aliases, derived ones."""
    leaves: dict[str, Leaf] = {}
    copies: dict[str, set[str]] = {}
    aliases: dict[str, str] = {}
    for path, field, nested in _walk(mapping.get("properties") or {}, "", ""):
        if field["type"] == "alias":
            aliases[path] = str(field.get("path"))
            continue
        for name, one in {"": field, **(field.get("fields") or {})}.items():
            full = f"{path}.{name}" if name else path
            is_indexed = one.get("index", True) not in (False, "false")
            analyzer = str(one.get("analyzer", ""))
            leaves[full] = Leaf(full, str(one["type"]), path, analyzer, nested, (), bool(name), is_indexed)
        targets = field.get("copy_to") or ()
        for target in [targets] if isinstance(targets, str) else targets:
            copies.setdefault(target, set()).add(path)
    for target in copies.keys() & leaves.keys():
        leaves[target] = replace(leaves[target], copied_from=tuple(sorted(copies[target])))
    for name, path in aliases.items():
        if path in leaves:
            leaves[name] = replace(leaves[path], path=name, is_other_name=True)
    for kind in ("derived", "runtime", "runtime_mappings"):
        for name, field in (mapping.get(kind) or {}).items():
            leaves[name] = Leaf(name, str(field.get("type", "keyword")))
    return leaves


def _walk(properties: Mapping[str, Any], above: str, nested: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield the name of each field that is no object, its definition, and the nested object that it is in."""
    for name, field in properties.items():
        path, kind = f"{above}{name}", field.get("type", "object")
        if kind in ("object", "nested"):
            yield from _walk(field.get("properties") or {}, f"{path}.", path if kind == "nested" else nested)
        else:
            yield path, field, nested


def plain(name: str) -> str:
    """Return a field's name without its boost."""
    return name.partition("^")[0]


def resolve(leaves: Leaves, name: str) -> list[Leaf]:
    """Return the fields that a name stands for: itself, those of an object, or those that fit a pattern.

    Of several fields, only texts are returned if there are any, and each text once.

    Args:
        leaves: of a mapping.
        name: with or without a boost.
    """
    name = plain(name)
    if name in leaves:
        return [leaves[name]]
    fits = [leaf for path, leaf in leaves.items() if _fits(path, name)]
    texts = [leaf for leaf in fits if leaf.kind in TEXT_KINDS] or fits
    by_source: dict[str, Leaf] = {}
    for leaf in sorted(texts, key=lambda one: (one.is_other_name, one.path)):
        by_source.setdefault(leaf.source or leaf.path, leaf)
    return sorted(by_source.values(), key=lambda one: one.path)


def _fits(path: str, name: str) -> bool:
    return fnmatchcase(path, name) if "*" in name else path.startswith(f"{name}.")


def lacking(every: Iterable[Leaves], names: Iterable[str]) -> list[str]:
    """Return the names, patterns and objects that no mapping has; ``highlight:`` and ``inner_hits:`` are no fields."""
    mappings = list(every)
    wanted = dict.fromkeys(plain(name) for name in names if ":" not in name and not name.startswith("_"))
    return [name for name in wanted if not any(resolve(leaves, name) for leaves in mappings)]


def nearest(every: Iterable[Leaves], name: str) -> str:
    """Return the text field whose name is most like a name, or else any field; empty where there are none."""
    kinds = {leaf.path: leaf.kind for each in every for leaf in each.values() if leaf.path != plain(name)}
    texts = [path for path, kind in kinds.items() if kind in TEXT_KINDS]
    near = get_close_matches(plain(name), sorted(texts or kinds), 1, cutoff=0.0)
    return near[0] if near else ""


def names_of(every: Iterable[Leaves], kinds: Container[str] | None = None) -> list[str]:
    """Return the names of all fields, or of those of some kinds, without multi-fields and aliases."""
    leaves = (leaf for each in every for leaf in each.values() if kinds is None or leaf.kind in kinds)
    return sorted({leaf.path for leaf in leaves if not leaf.is_other_name})
