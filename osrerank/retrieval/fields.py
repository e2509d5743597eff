"""Decide which fields of each index the query searches and the model reads.

They are the fields that the caller specifies, or else the text fields of the mapping.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Self

from osrerank.options.rerank import Rerank
from osrerank.retrieval.mapping import (
    SEMANTIC_TEXT,
    TEXT_KINDS,
    Leaf,
    Leaves,
    missing_names,
    most_similar_field,
    resolve,
    without_boost,
)
from osrerank.retrieval.text_fields import MAX_FIELDS, text_fields, titles_first, whole_fields
from osrerank.types.reasons import SearchWarning, WarningCode


class FoundNames(tuple[str, ...]):
    """Field names that osrerank found in a mapping. A search that gets them looks the fields up again."""

    __slots__ = ()


class CheckedNames(tuple[str, ...]):
    """Field names already checked against the mapping. Searches do not warn again about missing ones."""

    __slots__ = ()


def caller_names(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the field names that the caller specified, without names that osrerank found."""
    return () if names is None or isinstance(names, FoundNames) else tuple(names)


@dataclass(frozen=True, slots=True)
class NamedFields:
    """The fields that a search specifies, in its options and in its query.

    Attributes:
        query_fields: the names in the option ``query_fields``, which a plain-text query searches.
        text_fields: the names in the option ``fields``, whose text the model scores.
        in_query: the names in the caller's query body. None for a plain-text query.
        other_text_fields: the names in the option ``fields`` of an interleaved search's second ranking.
        body_fields: the fields that the caller's body defines, such as runtime fields.
        is_checked: whether the names were checked against the mapping before.
        uses_build_fields: whether the fields used by the last vector build are the default.
    """

    query_fields: tuple[str, ...] = ()
    text_fields: tuple[str, ...] = ()
    in_query: tuple[str, ...] | None = None
    other_text_fields: tuple[str, ...] = ()
    body_fields: tuple[Leaf, ...] = ()
    is_checked: bool = False
    uses_build_fields: bool = False

    def needs_mapping_fields(self, mappings: Sequence[Leaves]) -> bool:
        """Return whether the search specifies too few fields, so that the mapping's text fields are used."""
        if self.in_query is None:
            return not self.query_fields
        if self.text_fields or self.query_fields:
            return False
        texts = self.query_text_fields(mappings)
        return not texts or any("*" in name for name in texts)

    def query_text_fields(self, mappings: Sequence[Leaves]) -> list[str]:
        """Return the names in the caller's query that are text fields, or patterns that match text fields."""
        names = self.in_query or ()
        return [name for name in names if any(leaf.kind in TEXT_KINDS for leaf in _resolve_all(mappings, name))]


@dataclass(frozen=True, slots=True)
class IndexGroup:
    """A group of indices that have the same fields.

    Attributes:
        searched: the fields that a plain-text query searches.
        read: the fields whose text the model scores.
    """

    indices: tuple[str, ...]
    searched: tuple[str, ...]
    read: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SearchFields:
    """The fields that a search uses, and the warnings about them.

    Attributes:
        searched: the fields that a plain-text query searches. If empty, it searches the index's default fields.
        read: the fields whose text the model scores. If empty, they are chosen from the hits.
        groups: groups of indices with the same fields. Empty if all indices use the same fields.
        paths: name in the options -> the fields that it stands for.
        nested: field -> the nested object that contains it.
        nested_indices: nested object -> the indices in which it is nested, if it is an ordinary object in others.
        semantic: ``semantic_text`` fields, each of which needs a separate clause.
        not_in_source: fields without their text in ``_source``, which are requested as ``fields``.
        exact: non-text fields, such as keywords and numbers. Ignored in comparisons, because the requests do not
            depend on them.
        source_only: fields whose text must come from ``_source``, because ``fields`` might return a different text.
        is_lenient: whether a searched field has a type that rejects some texts, such as a date.
        options: name in the options, without its boost -> whether a plain-text query searches it.
        missing: the names in the options that are not in the mapping.
        similar: name in the options -> the most similar name in the mapping.
        left_out: the text fields beyond the maximum number that a search without field names searches.
        warnings: warnings about the mapping request.
        timed_out: whether the mapping request timed out. Further requests would probably time out too.
    """

    searched: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    groups: tuple[IndexGroup, ...] = ()
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nested: Mapping[str, str] = field(default_factory=dict)
    nested_indices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    semantic: frozenset[str] = frozenset()
    not_in_source: frozenset[str] = frozenset()
    exact: frozenset[str] = field(default=frozenset(), compare=False)
    source_only: frozenset[str] = frozenset()
    is_lenient: bool = False
    options: Mapping[str, bool] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    similar: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    warnings: tuple[SearchWarning, ...] = ()
    timed_out: bool = False

    @classmethod
    def from_options(cls, options: Rerank) -> Self:
        """Return the fields specified in the options, without a mapping."""
        return cls.from_names(caller_names(options.query_fields), caller_names(options.fields))

    @classmethod
    def from_names(cls, searched: tuple[str, ...], read: tuple[str, ...]) -> Self:
        """Return the fields with these names, without a mapping."""
        names = union([map(without_boost, read or searched)])
        return cls(searched, names, paths={name: (name,) for name in names}, options=dict.fromkeys(names, False))

    def fields_to_read(self, names: Sequence[str] | None) -> tuple[str, ...]:
        """Return the fields for the names in a ranking's ``fields`` option, or `read` if it is empty."""
        if not caller_names(names):
            return self.read
        return union(self.paths.get(without_boost(name), (without_boost(name),)) for name in caller_names(names))

    def fields_by_index(self, names: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
        """Return index -> the fields to read in it.

        Args:
            names: the names in a ranking's ``fields`` option. If the caller specified any, they apply to all indices,
                and the result is empty.
        """
        return {} if caller_names(names) else {index: group.read for group in self.groups for index in group.indices}

    def update_options(self, options: Rerank) -> Rerank:
        """Return the options with these fields; names that the caller did not give become `FoundNames`."""
        has_query_fields = bool(caller_names(options.query_fields))
        searched = options.query_fields if has_query_fields else FoundNames(self.searched or self.read) or None
        read = self.read if has_query_fields or caller_names(options.fields) else FoundNames(self.read)
        return replace(options, fields=read or None, query_fields=searched)

    def check_names(self, fields_with_text: Collection[str] | None) -> list[SearchWarning]:
        """Return warnings about option names that are not in the mapping, or that have no text in the hits.

        ``fields_with_text`` is None if there are no hits.
        """
        warnings = []
        for name, is_searched in self.options.items():
            paths = self.paths.get(name, (name,))
            has_text = fields_with_text is not None and any(path in fields_with_text for path in paths)
            hint = f"; the nearest name is {self.similar[name]}" if self.similar.get(name) else ""
            if name in self.missing and (is_searched or not has_text):
                warnings.append(SearchWarning(f"the mapping has no {name}{hint}", WarningCode.FIELDS_MISSING))
            elif fields_with_text is not None and not has_text and name in self.paths:
                warnings.append(
                    SearchWarning(f"{name} has no text in any of the hits{hint}", WarningCode.FIELDS_MISSING)
                )
        return warnings


def index_groups(by_index: Mapping[str, Leaves]) -> tuple[IndexGroup, ...]:
    """Return each group of indices with the fields that a search without field names searches and reads."""
    return merge_groups(
        index_group(names, whole_fields(texts)[:MAX_FIELDS], by_index[names[0]])
        for texts, names in group_by_text_fields(by_index)
    )


def with_built_fields(
    groups: Sequence[IndexGroup], built: Mapping[str, tuple[str, ...]], by_index: Mapping[str, Leaves]
) -> tuple[IndexGroup, ...]:
    """Return the groups with the fields used by each index's last build, if its mapping still contains them all."""
    changed = []
    for group in groups:
        for index in group.indices:
            build_fields = built.get(index, ())
            is_usable = bool(build_fields) and by_index[index].keys() >= {*build_fields}
            changed.append(IndexGroup((index,), group.searched, build_fields if is_usable else group.read))
    return merge_groups(changed)


def group_by_text_fields(by_index: Mapping[str, Leaves]) -> list[tuple[tuple[Leaf, ...], tuple[str, ...]]]:
    """Group the indices that have the same text fields; return each group's fields and names, largest group first."""
    groups: dict[tuple[Leaf, ...], list[str]] = {}
    for name in sorted(by_index):
        groups.setdefault(tuple(text_fields(by_index[name])), []).append(name)
    pairs = ((leaves, tuple(names)) for leaves, names in groups.items())
    return sorted(pairs, key=lambda group: (-len(group[1]), group[1]))


def index_group(names: tuple[str, ...], text_leaves: Sequence[Leaf], leaves: Leaves) -> IndexGroup:
    """Return a group of indices that have the same mapping.

    Fields of type ``semantic_text`` are searched only if there are no other text fields, because their search compares
    vectors.
    """
    searched = [leaf for leaf in text_leaves if leaf.kind != SEMANTIC_TEXT] or text_leaves
    read = union(_source_paths(leaf, leaves) for leaf in text_leaves)
    return IndexGroup(names, tuple(leaf.path for leaf in searched), read)


def merge_groups(groups: Iterable[IndexGroup]) -> tuple[IndexGroup, ...]:
    """Merge the groups that have the same fields."""
    by_fields: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for group in groups:
        by_fields.setdefault((group.searched, group.read), []).extend(group.indices)
    return tuple(IndexGroup(tuple(sorted(names)), *fields) for fields, names in by_fields.items())


def _source_paths(leaf: Leaf, leaves: Leaves) -> tuple[str, ...]:
    """Return the paths of a field's text in ``_source``, or else the paths to request as ``fields``."""
    original = leaves.get(leaf.source)
    if original is not None and original.is_in_source and not leaf.copied_from:
        return (original.path,)
    return _text_paths(leaf)


def resolve_fields(by_index: Mapping[str, Leaves], defaults: Sequence[IndexGroup], named: NamedFields) -> SearchFields:
    """Return the fields that a search uses: those that it specifies, or else the ``defaults``."""
    mappings = add_body_fields(by_index, named)
    text_names = (*named.text_fields, *named.other_text_fields)
    paths = {without_boost(name): _paths_to_read(mappings, name) for name in text_names}
    groups = [replace(group, read=_query_fields(mappings, group.read, named)) for group in defaults]
    if named.text_fields or named.query_fields:
        read = union(paths[without_boost(name)] for name in named.text_fields)
        read = read or _distinct_texts(mappings, named.query_fields)
    else:
        read = union(group.read for group in groups) or _query_fields(mappings, (), named)
    searched = _expand_objects(mappings, named.query_fields) or union(group.searched for group in groups)
    leaves = {leaf.path: leaf for mapping in mappings for leaf in mapping.values()}
    texts = {leaf.path for mapping in mappings for leaf in mapping.values() if leaf.kind in TEXT_KINDS}
    nested = {leaf.path: leaf.nested for mapping in mappings for leaf in mapping.values() if leaf.nested}
    left_out = [] if named.query_fields or named.in_query is not None else _unsearched_fields(mappings, searched)
    searched_names = set(map(without_boost, named.query_fields))
    names = map(without_boost, (*named.query_fields, *text_names))
    options = {name: name in searched_names for name in names}
    if not named.text_fields:
        paths |= {name: _fields_with_same_text(mappings, name, read) for name in searched_names}
    searched_leaves = [leaves[without_boost(name)] for name in searched if without_boost(name) in leaves]
    differ = len({(group.searched, group.read) for group in groups}) > 1
    return SearchFields(
        searched=searched,
        read=read,
        groups=tuple(groups) if differ and not named.query_fields else (),
        paths=paths,
        nested=nested,
        nested_indices=_nested_indices(by_index, nested),
        semantic=frozenset(name for name, leaf in leaves.items() if leaf.kind == SEMANTIC_TEXT),
        not_in_source=frozenset(name for name, leaf in leaves.items() if not leaf.is_in_source),
        exact=frozenset(leaf.path for leaf in leaves.values() if leaf.kind not in TEXT_KINDS) - texts,
        source_only=frozenset(name for name in union([read, *paths.values()]) if _may_differ(mappings, name)),
        is_lenient=any(leaf.kind not in TEXT_KINDS for leaf in searched_leaves),
        options={} if named.is_checked else options,
        missing=tuple(missing_names(mappings, options)),
        similar={name: most_similar_field(mappings, name) for name in options},
        left_out=tuple(left_out),
    )


def _unsearched_fields(mappings: Sequence[Leaves], searched: Collection[str]) -> list[str]:
    texts = union((leaf.path for leaf in text_fields(leaves) if leaf.kind != SEMANTIC_TEXT) for leaves in mappings)
    return [path for path in texts if path not in searched]


def add_body_fields(by_index: Mapping[str, Leaves], named: NamedFields) -> list[Leaves]:
    """Return the fields of each index together with those that the search body defines."""
    return [{**leaves, **{leaf.path: leaf for leaf in named.body_fields}} for leaves in by_index.values()]


def _nested_indices(by_index: Mapping[str, Leaves], nested: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return object -> the indices in which it is nested, for objects that are not nested in every index."""
    indices_by_object: dict[str, tuple[str, ...]] = {}
    for path in dict.fromkeys(nested.values()):
        names = [name for name, object_path in nested.items() if object_path == path]
        kinds = {index: {leaves[name].nested for name in names if name in leaves} for index, leaves in by_index.items()}
        if any("" in kind for kind in kinds.values()):
            indices_by_object[path] = tuple(index for index, kind in kinds.items() if path in kind)
    return indices_by_object


def union(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return the names of several lists in their order, without duplicates."""
    return tuple(dict.fromkeys(name for group in names for name in group))


def _may_differ(mappings: Sequence[Leaves], name: str) -> bool:
    """Return whether ``fields`` might return a different text than ``_source``, as for a part of a flat object."""
    leaves = [leaves[name] for leaves in mappings if name in leaves]
    if leaves:
        return any(leaf.may_differ and leaf.is_in_source for leaf in leaves)
    return any(name.startswith(f"{path}.") for leaves in mappings for path in leaves)


def _resolve_all(mappings: Sequence[Leaves], name: str) -> list[Leaf]:
    """Return the fields that a name stands for in any of the mappings, without duplicates."""
    return list({leaf.path: leaf for leaves in mappings for leaf in resolve(leaves, name)}.values())


def _paths_to_read(mappings: Sequence[Leaves], name: str) -> tuple[str, ...]:
    """Return the fields that a name in the options stands for, or the name itself if no mapping contains it."""
    leaves = [] if ":" in name else _resolve_all(mappings, name)
    return union(_text_paths(leaf) for leaf in leaves) or (without_boost(name),)


def _text_paths(leaf: Leaf) -> tuple[str, ...]:
    """Return the paths of a field's text in hits: the fields that are copied to it, then the field itself."""
    if leaf.kind == SEMANTIC_TEXT:  # its value includes the copied texts
        return (leaf.path,)
    return (*titles_first(sorted(leaf.copied_from)), leaf.path)


def _distinct_texts(mappings: Sequence[Leaves], names: Iterable[str]) -> tuple[str, ...]:
    """Return the fields that names stand for, without those that repeat an earlier field's text."""
    by_source: dict[str, str] = {}
    for name in names:
        for leaf in _resolve_all(mappings, name) or [Leaf(without_boost(name), source=without_boost(name))]:
            for path in _text_paths(leaf):
                source = leaf.source if path == leaf.path and leaf.source else path
                by_source.setdefault(source, path)
    return tuple(by_source.values())


def _fields_with_same_text(mappings: Sequence[Leaves], name: str, read: Collection[str]) -> tuple[str, ...]:
    """Return the fields in ``read`` that contain the text of a searched name."""
    leaves = _resolve_all(mappings, name)
    sources = {path for leaf in leaves for path in (leaf.source or leaf.path, *leaf.copied_from)} or {name}
    texts = {path: {leaf.source or path for leaf in _resolve_all(mappings, path)} or {path} for path in read}
    return tuple(path for path in read if texts[path] & sources)


def _query_fields(mappings: Sequence[Leaves], default: tuple[str, ...], named: NamedFields) -> tuple[str, ...]:
    """Return the text fields that the caller's query searches, or else ``default``."""
    texts = named.query_text_fields(mappings)
    patterns = [without_boost(name) for name in texts if "*" in name]
    matching = [name for name in default if any(fnmatchcase(name, pattern) for pattern in patterns)]
    unmatched = [name for name in texts if "*" not in name or not matching]
    return _distinct_texts(mappings, [*matching, *unmatched]) or default


def _expand_objects(mappings: Sequence[Leaves], names: Iterable[str]) -> tuple[str, ...]:
    """Return the names to search, with objects replaced by their fields, because a query cannot search an object."""
    expanded: list[str] = []
    for name in names:
        leaves = _resolve_all(mappings, name)
        is_object = "*" not in name and [leaf.path for leaf in leaves] != [without_boost(name)]
        boost = name[len(without_boost(name)) :]
        expanded += [leaf.path + boost for leaf in leaves if is_object or leaf.nested] or [name]
        if leaves and not is_object and "*" in name and any(leaf.nested for leaf in leaves):
            expanded.append(name)
    return tuple(dict.fromkeys(expanded))
