"""Decide which fields of each index the query searches and the model reads.

They are the fields that the caller names, or else the text fields of the mapping.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Self

from osrerank.options.rerank import Rerank
from osrerank.retrieval.mapping import SEMANTIC_TEXT, TEXT_KINDS, Leaf, Leaves, lacking, nearest, plain, resolve
from osrerank.retrieval.text_fields import MAX_FIELDS, text_fields, titles_first, whole_fields
from osrerank.types.reasons import Warned, WarningCode


class FoundNames(tuple[str, ...]):
    """Field names that osrerank found in a mapping; a search with them looks the fields up again."""

    __slots__ = ()


class CheckedNames(tuple[str, ...]):
    """Field names that were checked against the mapping: searches do not warn again of those that are missing."""

    __slots__ = ()


def caller_names(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the field names that the caller gave; empty for None, and for names that osrerank found."""
    return () if names is None or isinstance(names, FoundNames) else tuple(names)


@dataclass(frozen=True, slots=True)
class NamedFields:
    """The fields that a search names, in its options and in its query.

    Attributes:
        searched: names in the options that a query given as text searches.
        read: names in the options that the model reads.
        in_query: names in the caller's own query; None if the query is a text.
        other_ranking: names that the other ranking of an interleaved search reads.
        defined: fields that the caller's body defines.
        is_checked: whether the names were checked against the mapping before.
        uses_built: whether a search that names no fields reads those that the last build of vectors read.
    """

    searched: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    in_query: tuple[str, ...] | None = None
    other_ranking: tuple[str, ...] = ()
    defined: tuple[Leaf, ...] = ()
    is_checked: bool = False
    uses_built: bool = False

    def needs_mapping_fields(self, mappings: Sequence[Leaves]) -> bool:
        """Return whether the search names too few fields, so that it takes fields from the mapping."""
        if self.in_query is None:
            return not self.searched
        texts = self.query_text_fields(mappings)
        return not (self.read or self.searched) and (not texts or any("*" in name for name in texts))

    def query_text_fields(self, mappings: Sequence[Leaves]) -> list[str]:
        """Return the names in the caller's own query that are text fields, or patterns that match some."""
        names = self.in_query or ()
        return [name for name in names if any(leaf.kind in TEXT_KINDS for leaf in _leaves(mappings, name))]


@dataclass(frozen=True, slots=True)
class IndexGroup:
    """A group of indices that have the same fields.

    Attributes:
        indices: their names.
        searched: fields that a query given as text searches.
        read: fields whose text the model reads.
    """

    indices: tuple[str, ...]
    searched: tuple[str, ...]
    read: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SearchFields:
    """The fields that a search uses, and the warnings about them.

    Attributes:
        searched: fields that a query given as text searches; empty for the index's default fields.
        read: fields whose text the model reads; empty if they are to be taken from the hits.
        groups: groups of indices with the same fields; empty if fields are named, or all indices have the same.
        paths: name in the options -> the names that are read for it.
        nested: field -> the nested object that it is in.
        nested_in: nested object -> the indices in which it is nested, if it is an ordinary object in others.
        semantic: fields with vectors, each of which needs a clause of its own.
        fetched: fields whose text ``_source`` does not have as written, so that the request asks for them in
            ``fields``.
        exact: fields that hold exact values in every index that has them, such as keywords and numbers; what a search
            requests does not depend on them.
        only_source: fields whose text ``_source`` alone has as written; ``fields`` would return another.
        is_lenient: whether a searched field has a type that rejects some texts, such as a date.
        options: name in the options, without its boost -> whether a query given as text searches it.
        missing: names in the options that the mapping lacks.
        nearest: name in the options -> the most similar name that the mapping has.
        left_out: text fields that are not searched, because the search names none and there are too many.
        warnings: warnings about reading the mapping.
        timed_out: whether the request for the mapping timed out; other requests would time out, too.
    """

    searched: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    groups: tuple[IndexGroup, ...] = ()
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nested: Mapping[str, str] = field(default_factory=dict)
    nested_in: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    semantic: frozenset[str] = frozenset()
    fetched: frozenset[str] = frozenset()
    exact: frozenset[str] = field(default=frozenset(), compare=False)
    only_source: frozenset[str] = frozenset()
    is_lenient: bool = False
    options: Mapping[str, bool] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    nearest: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    warnings: tuple[Warned, ...] = ()
    timed_out: bool = False

    @classmethod
    def named_by(cls, options: Rerank) -> Self:
        """Return the fields that the options name, without looking at a mapping."""
        return cls.of_names(caller_names(options.query_fields), caller_names(options.fields))

    @classmethod
    def of_names(cls, searched: tuple[str, ...], read: tuple[str, ...]) -> Self:
        """Return the fields with these names, without looking at a mapping."""
        names = union([map(plain, read or searched)])
        return cls(searched, names, paths={name: (name,) for name in names}, options=dict.fromkeys(names, False))

    def read_for(self, names: Sequence[str] | None) -> tuple[str, ...]:
        """Return the fields to read for the names in a ranking's ``fields`` option; `read` if it names none."""
        if not caller_names(names):
            return self.read
        return union(self.paths.get(plain(name), (plain(name),)) for name in caller_names(names))

    def by_index(self, names: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
        """Return index -> the fields to read in it; empty if ``names`` has any, or all indices have the same fields."""
        return {} if caller_names(names) else {index: group.read for group in self.groups for index in group.indices}

    def written_into(self, options: Rerank) -> Rerank:
        """Return the options with these fields; names that the caller did not give become `FoundNames`."""
        has_query_fields = bool(caller_names(options.query_fields))
        searched = options.query_fields if has_query_fields else FoundNames(self.searched or self.read) or None
        read = self.read if has_query_fields or caller_names(options.fields) else FoundNames(self.read)
        return replace(options, fields=read or None, query_fields=searched)

    def complaints(self, texts: Collection[str] | None) -> list[Warned]:
        """Return warnings about names in the options that the mapping lacks, or that have no text in the hits.

        Args:
            texts: the names that have text in some hit; None if there are no hits.
        """
        warnings = []
        for name, is_searched in self.options.items():
            has_text = texts is not None and any(path in texts for path in self.paths.get(name, (name,)))
            near = f"; the nearest name is {self.nearest[name]}" if self.nearest.get(name) else ""
            if name in self.missing and (is_searched or not has_text):
                warnings.append(Warned(f"the mapping has no {name}{near}", WarningCode.FIELDS_MISSING))
            elif texts is not None and not has_text and name in self.paths:
                warnings.append(Warned(f"{name} has no text in any of the hits{near}", WarningCode.FIELDS_MISSING))
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
    """Return the groups with the fields that the last build of each index read, if its mapping still has them all.

    Args:
        groups: the groups as `index_groups` returns them.
        built: index -> the fields that its last build of vectors read.
        by_index: index -> its fields.
    """
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

    Args:
        names: the indices.
        text_leaves: their text fields.
        leaves: all their fields.
    """
    searched = [leaf for leaf in text_leaves if leaf.kind != SEMANTIC_TEXT] or text_leaves
    read = union(_readable(leaf, leaves) for leaf in text_leaves)
    return IndexGroup(names, tuple(leaf.path for leaf in searched), read)


def merge_groups(groups: Iterable[IndexGroup]) -> tuple[IndexGroup, ...]:
    """Merge the groups that have the same fields."""
    by_fields: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for group in groups:
        by_fields.setdefault((group.searched, group.read), []).extend(group.indices)
    return tuple(IndexGroup(tuple(sorted(names)), *fields) for fields, names in by_fields.items())


def _readable(leaf: Leaf, leaves: Leaves) -> tuple[str, ...]:
    """Return the names under which ``_source`` has a field's text, or else those to request as ``fields``."""
    written = leaves.get(leaf.source)
    return (written.path,) if written is not None and written.is_written and not leaf.copied_from else read_of(leaf)


def resolve_fields(by_index: Mapping[str, Leaves], defaults: Sequence[IndexGroup], named: NamedFields) -> SearchFields:
    """Return the fields that a search uses: those that it names, and fields of the mapping where it names none.

    Args:
        by_index: index -> its fields.
        defaults: the fields to search and read if none are named.
        named: the fields that the search names.
    """
    mappings = with_defined(by_index, named)
    paths = {plain(name): _paths(mappings, name) for name in (*named.read, *named.other_ranking)}
    groups = [replace(group, read=_query_fields(mappings, group.read, named)) for group in defaults]
    if named.read or named.searched:
        read = union(paths[plain(name)] for name in named.read) or _each_text_once(mappings, named.searched)
    else:
        read = union(group.read for group in groups) or _query_fields(mappings, (), named)
    searched = _expand_objects(mappings, named.searched) or union(group.searched for group in groups)
    leaves = {leaf.path: leaf for mapping in mappings for leaf in mapping.values()}
    texts = {leaf.path for mapping in mappings for leaf in mapping.values() if leaf.kind in TEXT_KINDS}
    nested = {leaf.path: leaf.nested for mapping in mappings for leaf in mapping.values() if leaf.nested}
    left_out = [] if named.searched or named.in_query is not None else _left_out(mappings, searched)
    searched_names = set(map(plain, named.searched))
    names = map(plain, (*named.searched, *named.read, *named.other_ranking))
    options = {name: name in searched_names for name in names}
    if not named.read:
        paths |= {name: _read_under(mappings, name, read) for name in searched_names}
    differ = len({(group.searched, group.read) for group in groups}) > 1
    return SearchFields(
        searched=searched,
        read=read,
        groups=tuple(groups) if differ and not named.searched else (),
        paths=paths,
        nested=nested,
        nested_in=_nesting_indices(by_index, nested),
        semantic=frozenset(name for name, leaf in leaves.items() if leaf.kind == SEMANTIC_TEXT),
        fetched=frozenset(name for name, leaf in leaves.items() if not leaf.is_written),
        exact=frozenset(leaf.path for leaf in leaves.values() if leaf.kind not in TEXT_KINDS) - texts,
        only_source=frozenset(name for name in union([read, *paths.values()]) if _is_changed(mappings, name)),
        is_lenient=any(leaves[plain(name)].kind not in TEXT_KINDS for name in searched if plain(name) in leaves),
        options={} if named.is_checked else options,
        missing=tuple(lacking(mappings, options)),
        nearest={name: nearest(mappings, name) for name in options},
        left_out=tuple(left_out),
    )


def _left_out(mappings: Sequence[Leaves], searched: Collection[str]) -> list[str]:
    """Return the text fields of any mapping that are not searched."""
    texts = union((leaf.path for leaf in text_fields(leaves) if leaf.kind != SEMANTIC_TEXT) for leaves in mappings)
    return [path for path in texts if path not in searched]


def with_defined(by_index: Mapping[str, Leaves], named: NamedFields) -> list[Leaves]:
    """Return the fields of each index together with those that the search itself defines."""
    return [{**leaves, **{leaf.path: leaf for leaf in named.defined}} for leaves in by_index.values()]


def _nesting_indices(by_index: Mapping[str, Leaves], nested: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return object -> the indices in which it is nested, for objects that are not nested in every index."""
    indices_of: dict[str, tuple[str, ...]] = {}
    for path in dict.fromkeys(nested.values()):
        names = [name for name, object_path in nested.items() if object_path == path]
        kinds = {index: {leaves[name].nested for name in names if name in leaves} for index, leaves in by_index.items()}
        if any("" in kind for kind in kinds.values()):
            indices_of[path] = tuple(index for index, kind in kinds.items() if path in kind)
    return indices_of


def union(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return the names of several lists in their order, without duplicates."""
    return tuple(dict.fromkeys(name for group in names for name in group))


def _is_changed(mappings: Sequence[Leaves], name: str) -> bool:
    """Return whether ``fields`` may return other text than ``_source``, as it does for a part of a flat object."""
    leaves = [leaves[name] for leaves in mappings if name in leaves]
    if leaves:
        return any(leaf.is_changed and leaf.is_written for leaf in leaves)
    return any(name.startswith(f"{path}.") for leaves in mappings for path in leaves)


def _leaves(mappings: Sequence[Leaves], name: str) -> list[Leaf]:
    """Return the fields that a name stands for in any of the mappings, without duplicates."""
    return list({leaf.path: leaf for leaves in mappings for leaf in resolve(leaves, name)}.values())


def _paths(mappings: Sequence[Leaves], name: str) -> tuple[str, ...]:
    """Return the names that are read for a name in the options; the name itself if no mapping has it."""
    leaves = [] if ":" in name else _leaves(mappings, name)
    return union(read_of(leaf) for leaf in leaves) or (plain(name),)


def read_of(leaf: Leaf) -> tuple[str, ...]:
    """Return the names under which hits have a field's text: the fields that are copied to it, then the field."""
    if leaf.kind == SEMANTIC_TEXT:  # its value includes the copied texts
        return (leaf.path,)
    return (*titles_first(sorted(leaf.copied_from)), leaf.path)


def _each_text_once(mappings: Sequence[Leaves], names: Iterable[str]) -> tuple[str, ...]:
    """Return the fields that names stand for, without fields that repeat the text of an earlier one."""
    by_source: dict[str, str] = {}
    for name in names:
        for leaf in _leaves(mappings, name) or [Leaf(plain(name), source=plain(name))]:
            for path in read_of(leaf):
                by_source.setdefault(leaf.source if path == leaf.path and leaf.source else path, path)
    return tuple(by_source.values())


def _read_under(mappings: Sequence[Leaves], name: str, read: Collection[str]) -> tuple[str, ...]:
    """Return the fields in ``read`` that have the text of a searched name: the field itself, or copies of its text."""
    leaves = _leaves(mappings, name)
    sources = {path for leaf in leaves for path in (leaf.source or leaf.path, *leaf.copied_from)} or {name}
    texts = {path: {leaf.source or path for leaf in _leaves(mappings, path)} or {path} for path in read}
    return tuple(path for path in read if texts[path] & sources)


def _query_fields(mappings: Sequence[Leaves], default: tuple[str, ...], named: NamedFields) -> tuple[str, ...]:
    """Return the fields to read for the caller's own query: the text fields that it searches, or else ``default``."""
    texts = named.query_text_fields(mappings)
    patterns = [plain(name) for name in texts if "*" in name]
    matching = [name for name in default if any(fnmatchcase(name, pattern) for pattern in patterns)]
    unmatched = [name for name in texts if "*" not in name or not matching]
    return _each_text_once(mappings, [*matching, *unmatched]) or default


def _expand_objects(mappings: Sequence[Leaves], names: Iterable[str]) -> tuple[str, ...]:
    """Return the names to search, with objects replaced by their fields, because a query cannot search an object."""
    expanded: list[str] = []
    for name in names:
        leaves = _leaves(mappings, name)
        is_object = "*" not in name and [leaf.path for leaf in leaves] != [plain(name)]
        boost = name[len(plain(name)) :]
        expanded += [leaf.path + boost for leaf in leaves if is_object or leaf.nested] or [name]
        if leaves and not is_object and "*" in name and any(leaf.nested for leaf in leaves):
            expanded.append(name)
    return tuple(dict.fromkeys(expanded))
