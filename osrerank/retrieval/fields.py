"""Decide which fields of each index the query searches and the model reads: those named, else text fields found."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Self

from osrerank.options.rerank import Rerank
from osrerank.retrieval.mapping import SEMANTIC_TEXT, TEXT_KINDS, Leaf, Leaves, lacking, nearest, plain, resolve
from osrerank.retrieval.text_fields import MOST_FIELDS, text_fields, titles_first, whole_fields
from osrerank.types.reasons import Warned, WarningCode


class FoundNames(tuple[str, ...]):
    """Field names that osrerank found, not names that the caller gave; a search with them looks fields up again."""

    __slots__ = ()


class CheckedNames(tuple[str, ...]):
    """Field names that were checked against the mapping: searches do not warn again of those that are missing."""

    __slots__ = ()


def named(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the field names that the caller gave; empty for None, and for names that osrerank found."""
    return () if names is None or isinstance(names, FoundNames) else tuple(names)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The fields that a search names, in its options and in its query.

    Attributes:
        searched: names in the options that a query given as text searches.
        read: names in the options that the model reads.
        own: names in the caller's own query; None if the query is a text.
        others: names that the other ranking of an interleaved search reads.
        defined: fields that the caller's body defines.
        is_checked: whether the names were checked against the mapping before.
        as_built: whether the fields that the last build of vectors read are read, where none are named.
    """

    searched: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    own: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    defined: tuple[Leaf, ...] = ()
    is_checked: bool = False
    as_built: bool = False

    def needs_found(self, mappings: Sequence[Leaves]) -> bool:
        """Return whether the search names too few fields, so that they must be found in the mapping."""
        if self.own is None:
            return not self.searched
        texts = self.own_texts(mappings)
        return not (self.read or self.searched) and (not texts or any("*" in name for name in texts))

    def own_texts(self, mappings: Sequence[Leaves]) -> list[str]:
        """Return the names in the caller's own query that are text fields, or patterns that match some."""
        return [name for name in self.own or () if any(leaf.kind in TEXT_KINDS for leaf in _leaves(mappings, name))]


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
        read: fields whose text the model reads; empty if only the hits can show which fields there are.
        parts: groups of indices with the same fields; empty if fields are named, or all indices have the same.
        paths: name in the options -> the names that are read for it.
        nested: field -> the nested object that it is in.
        nested_in: nested object -> the indices in which it is nested, if it is an ordinary object in others.
        semantic: fields with vectors, each of which needs a clause of its own.
        fetched: fields whose text ``_source`` does not have as written, so that the request asks for them in
            ``fields``.
        exact: fields that hold exact values in every index that has them, such as keywords and numbers; what a search
            requests does not depend on them.
        only_source: fields whose text ``_source`` alone has as written; ``fields`` would return another.
        is_lenient: whether a searched field is of a kind that rejects some texts, such as a date.
        options: name in the options, without its boost -> whether a query given as text searches it.
        missing: names in the options that the mapping lacks.
        nearest: name in the options -> the most similar name that the mapping has.
        left_out: text fields that a query given as text does not search, because it names none and they are too many.
        warnings: other warnings.
        timed_out: whether the mapping was not answered in time, so that other requests would wait in vain.
    """

    searched: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    parts: tuple[IndexGroup, ...] = ()
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
        return cls.of_names(named(options.query_fields), named(options.fields))

    @classmethod
    def of_names(cls, searched: tuple[str, ...], read: tuple[str, ...]) -> Self:
        """Return the fields with these names, without looking at a mapping."""
        names = union([map(plain, read or searched)])
        return cls(searched, names, paths={name: (name,) for name in names}, options=dict.fromkeys(names, False))

    def read_for(self, names: Sequence[str] | None) -> tuple[str, ...]:
        """Return the fields to read for the names in a ranking's ``fields`` option; the search's own if it has none."""
        given = named(names)
        return union(self.paths.get(plain(name), (plain(name),)) for name in given) if given else self.read

    def by_index(self, names: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
        """Return the fields to read in each index, if the options name none and the indices differ; else nothing."""
        return {} if named(names) else {index: part.read for part in self.parts for index in part.indices}

    def written_into(self, options: Rerank) -> Rerank:
        """Return the options with these fields; found names are marked, so that searches look them up again."""
        own = named(options.query_fields)
        searched = options.query_fields if own else FoundNames(self.searched or self.read) or None
        read = self.read if own or named(options.fields) else FoundNames(self.read)
        return replace(options, fields=read or None, query_fields=searched)

    def complaints(self, texts: Collection[str] | None) -> list[Warned]:
        """Return warnings about names in the options that the mapping lacks, or that have no text in the hits.

        Args:
            texts: the names that have text in some hit; None if there are no hits.
        """
        warnings = []
        for name, is_searched in self.options.items():
            gives = texts is not None and any(path in texts for path in self.paths.get(name, (name,)))
            near = f"; the nearest name is {self.nearest[name]}" if self.nearest.get(name) else ""
            if name in self.missing and (is_searched or not gives):
                warnings.append(Warned(f"the mapping has no {name}{near}", WarningCode.FIELDS_MISSING))
            elif texts is not None and not gives and name in self.paths:
                warnings.append(Warned(f"{name} has no text in any of the hits{near}", WarningCode.FIELDS_MISSING))
        return warnings


def parts_of(every: Mapping[str, Leaves]) -> tuple[IndexGroup, ...]:
    """Return each group of indices with the fields that are searched and read where none are named."""
    return joined(
        part_of(names, whole_fields(texts)[:MOST_FIELDS], every[names[0]]) for texts, names in groups_of(every)
    )


def as_built(
    parts: Sequence[IndexGroup], built: Mapping[str, tuple[str, ...]], every: Mapping[str, Leaves]
) -> tuple[IndexGroup, ...]:
    """Return the groups with the fields to read that the indices' last builds read, where the mapping has them all.

    Args:
        parts: the groups as `parts_of` returns them.
        built: index -> the fields that its last build of vectors read.
        every: index -> its fields.
    """
    return joined(
        IndexGroup((index,), part.searched, read if read and {*read} <= every[index].keys() else part.read)
        for part in parts
        for index in part.indices
        for read in [built.get(index, ())]
    )


def groups_of(every: Mapping[str, Leaves]) -> list[tuple[tuple[Leaf, ...], tuple[str, ...]]]:
    """Group the indices that have the same text fields; return each group's fields and names, largest group first."""
    groups: dict[tuple[Leaf, ...], list[str]] = {}
    for name in sorted(every):
        groups.setdefault(tuple(text_fields(every[name])), []).append(name)
    pairs = ((leaves, tuple(names)) for leaves, names in groups.items())
    return sorted(pairs, key=lambda group: (-len(group[1]), group[1]))


def part_of(names: tuple[str, ...], texts: Sequence[Leaf], leaves: Leaves) -> IndexGroup:
    """Return indices that have the same mapping, with the fields that are searched there.

    A text with vectors is searched only where there are no others: its search is another one.
    """
    searched = [leaf for leaf in texts if leaf.kind != SEMANTIC_TEXT] or texts
    return IndexGroup(names, tuple(leaf.path for leaf in searched), union(_readable(leaf, leaves) for leaf in texts))


def joined(parts: Iterable[IndexGroup]) -> tuple[IndexGroup, ...]:
    """Merge the parts that have the same fields."""
    by_fields: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for part in parts:
        by_fields.setdefault((part.searched, part.read), []).extend(part.indices)
    return tuple(IndexGroup(tuple(sorted(names)), *fields) for fields, names in by_fields.items())


def _readable(leaf: Leaf, leaves: Leaves) -> tuple[str, ...]:
    """Return the names under which ``_source`` has a field's text; if it has not, those to ask for in ``fields``."""
    written = leaves.get(leaf.source)
    return (written.path,) if written is not None and written.is_written and not leaf.copied_from else read_of(leaf)


def resolved(every: Mapping[str, Leaves], found: Sequence[IndexGroup], wanted: Wanted) -> SearchFields:
    """Return the fields that a search uses: the named ones as the mapping has them, and found ones for the rest.

    Args:
        every: index -> its fields.
        found: the fields to search and read where none are named.
        wanted: the fields that the search names.
    """
    mappings = with_defined(every, wanted)
    paths = {plain(name): _paths(mappings, name) for name in (*wanted.read, *wanted.others)}
    parts = [IndexGroup(part.indices, part.searched, _own_read(mappings, part.read, wanted)) for part in found]
    if wanted.read or wanted.searched:
        read = union(paths[plain(name)] for name in wanted.read) or _each_text_once(mappings, wanted.searched)
    else:
        read = union(part.read for part in parts) or _own_read(mappings, (), wanted)
    searched = _expanded(mappings, wanted.searched) or union(part.searched for part in parts)
    leaves = {leaf.path: leaf for each in mappings for leaf in each.values()}
    texts = {leaf.path for each in mappings for leaf in each.values() if leaf.kind in TEXT_KINDS}
    nested = {leaf.path: leaf.nested for each in mappings for leaf in each.values() if leaf.nested}
    left_out = [] if wanted.searched or wanted.own is not None else _left_out(mappings, searched)
    searched_names = set(map(plain, wanted.searched))
    options = {plain(name): plain(name) in searched_names for name in (*wanted.searched, *wanted.read, *wanted.others)}
    if not wanted.read:
        paths |= {name: _read_under(mappings, name, read) for name in searched_names}
    differ = len({(part.searched, part.read) for part in parts}) > 1
    return SearchFields(
        searched=searched,
        read=read,
        parts=tuple(parts) if differ and not wanted.searched else (),
        paths=paths,
        nested=nested,
        nested_in=_nested_in(every, nested),
        semantic=frozenset(name for name, leaf in leaves.items() if leaf.kind == SEMANTIC_TEXT),
        fetched=frozenset(name for name, leaf in leaves.items() if not leaf.is_written),
        exact=frozenset(leaf.path for leaf in leaves.values() if leaf.kind not in TEXT_KINDS) - texts,
        only_source=frozenset(name for name in union([read, *paths.values()]) if _is_changed(mappings, name)),
        is_lenient=any(leaves[plain(name)].kind not in TEXT_KINDS for name in searched if plain(name) in leaves),
        options={} if wanted.is_checked else options,
        missing=tuple(lacking(mappings, options)),
        nearest={name: nearest(mappings, name) for name in options},
        left_out=tuple(left_out),
    )


def _left_out(mappings: Sequence[Leaves], searched: Collection[str]) -> list[str]:
    """Return the text fields of any mapping that are not searched."""
    texts = union((leaf.path for leaf in text_fields(leaves) if leaf.kind != SEMANTIC_TEXT) for leaves in mappings)
    return [path for path in texts if path not in searched]


def with_defined(every: Mapping[str, Leaves], wanted: Wanted) -> list[Leaves]:
    """Return the fields of each index, and in each those that the search itself defines."""
    return [{**leaves, **{leaf.path: leaf for leaf in wanted.defined}} for leaves in every.values()]


def _nested_in(every: Mapping[str, Leaves], nested: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the indices in which an object is nested, for each object that some index nests and another does not."""
    found: dict[str, tuple[str, ...]] = {}
    for path in dict.fromkeys(nested.values()):
        names = [name for name, at in nested.items() if at == path]
        kinds = {index: {leaves[name].nested for name in names if name in leaves} for index, leaves in every.items()}
        if any("" in kind for kind in kinds.values()):
            found[path] = tuple(index for index, kind in kinds.items() if path in kind)
    return found


def union(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return the names of several lists in their order, without duplicates."""
    return tuple(dict.fromkeys(name for each in names for name in each))


def _is_changed(mappings: Sequence[Leaves], name: str) -> bool:
    """Return whether ``fields`` may return other text than ``_source`` has; it does for a part of a flat object."""
    leaves = [leaves[name] for leaves in mappings if name in leaves]
    if leaves:
        return any(leaf.is_changed and leaf.is_written for leaf in leaves)
    return any(name.startswith(f"{path}.") for each in mappings for path in each)


def _leaves(mappings: Sequence[Leaves], name: str) -> list[Leaf]:
    """Return the fields that a name stands for in any of the mappings, without duplicates."""
    return list({leaf.path: leaf for leaves in mappings for leaf in resolve(leaves, name)}.values())


def _paths(mappings: Sequence[Leaves], name: str) -> tuple[str, ...]:
    """Return the names that are read for a name in the options; the name itself if no mapping has it."""
    leaves = [] if ":" in name else _leaves(mappings, name)
    return union(read_of(leaf) for leaf in leaves) or (plain(name),)


def read_of(leaf: Leaf) -> tuple[str, ...]:
    """Return the names under which hits have a field's text: those of the fields copied to it, then its own."""
    if leaf.kind == SEMANTIC_TEXT:  # it has the copies itself
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
    """Return those of the fields read that have the text of a searched name: its own field, or copies of its text."""
    leaves = _leaves(mappings, name)
    sources = {path for leaf in leaves for path in (leaf.source or leaf.path, *leaf.copied_from)} or {name}
    texts = {path: {leaf.source or path for leaf in _leaves(mappings, path)} or {path} for path in read}
    return tuple(path for path in read if texts[path] & sources)


def _own_read(mappings: Sequence[Leaves], found: tuple[str, ...], wanted: Wanted) -> tuple[str, ...]:
    """Return the fields to read for the caller's own query: the text fields that it searches, or else those found."""
    texts = wanted.own_texts(mappings)
    patterns = [plain(name) for name in texts if "*" in name]
    fits = [name for name in found if any(fnmatchcase(name, pattern) for pattern in patterns)]
    return _each_text_once(mappings, [*fits, *(name for name in texts if "*" not in name or not fits)]) or found


def _expanded(mappings: Sequence[Leaves], names: Iterable[str]) -> tuple[str, ...]:
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
