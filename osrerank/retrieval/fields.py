"""Decide which fields of each index a query string searches, and which fields' text the model scores.

Both are the fields that the caller names, or else text fields of the mapping.
"""

import itertools
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
    find_missing_names,
    find_most_similar_field,
    resolve_name,
    without_boost,
)
from osrerank.retrieval.text_fields import MAX_FIELDS, find_text_fields, prefer_unnested, sort_titles_first
from osrerank.types.reasons import SearchWarning, WarningCode


class FoundNames(tuple[str, ...]):
    """Field names that osrerank, not the caller, put into options. The next search with the options chooses anew."""

    __slots__ = ()


class CheckedNames(tuple[str, ...]):
    """Field names that were already checked against the mapping. A search does not warn again if one is missing."""

    __slots__ = ()


def caller_names(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the field names in an option if the caller specified them, or an empty tuple for `FoundNames`."""
    return () if names is None or isinstance(names, FoundNames) else tuple(names)


@dataclass(frozen=True, slots=True)
class FieldChoice:
    """The caller's choice of fields, in the options and in the query.

    Attributes:
        query_fields: the names in the option ``query_fields``, which a query string searches.
        model_fields: the names in the option ``fields``, whose text the model scores.
        searched_by_body: the field names in the caller's query. None if the query is a string.
        second_ranking_fields: the names in the option ``fields`` of an interleaved search's second ranking.
        defined_by_body: the fields that the caller's body defines, such as runtime fields.
        is_checked: whether the names were already checked against the mapping.
        uses_build_fields: whether a search that names no fields uses those of the last vector build. If False, it uses
            text fields of the mapping.
    """

    query_fields: tuple[str, ...] = ()
    model_fields: tuple[str, ...] = ()
    searched_by_body: tuple[str, ...] | None = None
    second_ranking_fields: tuple[str, ...] = ()
    defined_by_body: tuple[Leaf, ...] = ()
    is_checked: bool = False
    uses_build_fields: bool = False

    def needs_mapping_fields(self, mappings: Sequence[Leaves]) -> bool:
        """Return whether text fields of the mapping must be added, because the caller named too few fields."""
        if self.searched_by_body is None:
            return not self.query_fields
        if self.model_fields or self.query_fields:
            return False
        names = self.find_text_names(mappings)
        return not names or any("*" in name for name in names)

    def find_text_names(self, mappings: Sequence[Leaves]) -> list[str]:
        """Return the names in the caller's query that stand for text fields. ``titl*`` stands for ``title``."""
        names = self.searched_by_body or ()
        return [name for name in names if any(leaf.kind in TEXT_KINDS for leaf in _resolve_all(mappings, name))]


@dataclass(frozen=True, slots=True)
class IndexGroup:
    """A group of indices in which a search uses the same fields.

    Attributes:
        indices: the names of the indices.
        query_fields: the fields that a query string searches.
        model_fields: the fields whose text the model scores.
    """

    indices: tuple[str, ...]
    query_fields: tuple[str, ...]
    model_fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MappedTraits:
    """What the mappings say about fields: how a query must search them, and where a hit has their text.

    Attributes:
        nested: for each field in a nested object, that object, such as ``{"authors.name": "authors"}``.
        nested_indices: for each object that is nested only in some indices, those indices, such as
            ``{"authors": ("papers",)}``.
        semantic: fields of the type ``semantic_text``, each of which needs a separate clause.
        non_text: keyword fields, numbers and other fields without text. Ignored in comparisons, because requests do not
            depend on them.
        needs_lenient: whether a query needs ``lenient``, because a searched field, such as a date, rejects some texts.
        absent_from_source: fields whose text is not in ``_source``. They are requested as ``fields``.
        source_only: fields whose text must come from ``_source``, because ``fields`` might return another text.
    """

    nested: Mapping[str, str] = field(default_factory=dict)
    nested_indices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    semantic: frozenset[str] = frozenset()
    non_text: frozenset[str] = field(default=frozenset(), compare=False)
    needs_lenient: bool = False
    absent_from_source: frozenset[str] = frozenset()
    source_only: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class OptionNames:
    """The field names in the options, without boosts, and what the mappings say about them.

    Attributes:
        paths: the fields that each name stands for, such as ``{"authors": ("authors.name", "authors.bio")}``.
        names_to_check: the names to check, each with whether a query string searches it, such as ``{"title": True}``.
            Empty if the names were already checked.
        missing: the names that are not in the mapping.
        similar: the most similar name in the mapping for each name, such as ``{"titel": "title"}``.
    """

    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names_to_check: Mapping[str, bool] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    similar: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SearchFields:
    """The fields that a search uses, and the warnings about them.

    Attributes:
        query_fields: the fields that a query string searches. If empty, it searches the index's default fields.
        model_fields: the fields whose text the model scores. If empty, they are chosen from the hits.
        groups: groups of indices with the same fields. Empty if a search uses the same fields in all indices.
        left_out: text fields that are not read, because the caller names none and the mapping has too many.
        traits: what the mappings say about the fields.
        option_names: the field names in the options.
        warnings: warnings about the mapping request.
        timed_out: whether the mapping request timed out. Further requests would probably time out too.
    """

    query_fields: tuple[str, ...] = ()
    model_fields: tuple[str, ...] = ()
    groups: tuple[IndexGroup, ...] = ()
    left_out: tuple[str, ...] = ()
    traits: MappedTraits = field(default_factory=MappedTraits)
    option_names: OptionNames = field(default_factory=OptionNames)
    warnings: tuple[SearchWarning, ...] = ()
    timed_out: bool = False

    @classmethod
    def from_options(cls, options: Rerank) -> Self:
        """Return the fields that the options name, without looking them up in a mapping."""
        return cls.from_names(caller_names(options.query_fields), caller_names(options.fields))

    @classmethod
    def from_names(cls, query_fields: tuple[str, ...], model_fields: tuple[str, ...]) -> Self:
        """Return the fields with these names, without looking them up in a mapping."""
        names = tuple(dict.fromkeys(map(without_boost, model_fields or query_fields)))
        # whether a name is searched counts only if it is missing in a mapping
        option_names = OptionNames({name: (name,) for name in names}, names_to_check=dict.fromkeys(names, False))
        return cls(query_fields, names, option_names=option_names)

    def resolve_model_fields(self, names: Sequence[str] | None) -> tuple[str, ...]:
        """Return the fields that a ranking's option ``fields`` stands for, or `model_fields` if it names none."""
        if not caller_names(names):
            return self.model_fields
        unboosted = [without_boost(name) for name in caller_names(names)]
        return union(self.option_names.paths.get(name, (name,)) for name in unboosted)

    def model_fields_by_index(self, names: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
        """Return the fields whose text the model scores, by index: ``{"papers": ("title", "body")}``.

        ``names`` is a ranking's option ``fields``. If the caller named any fields there, they apply to all indices, and
        the result is empty.
        """
        if caller_names(names):
            return {}
        return {index: group.model_fields for group in self.groups for index in group.indices}

    def update_options(self, options: Rerank) -> Rerank:
        """Return the options with these fields. Those that the caller did not name become `FoundNames`."""
        if caller_names(options.query_fields):
            return replace(options, fields=self.model_fields or None)
        has_caller_fields = bool(caller_names(options.fields))
        model_fields = self.model_fields if has_caller_fields else FoundNames(self.model_fields)
        query_fields = FoundNames(self.query_fields or self.model_fields)
        return replace(options, fields=model_fields or None, query_fields=query_fields or None)

    def check_names(self, fields_with_text: Collection[str] | None) -> list[SearchWarning]:
        """Return warnings about names in the options that are not in the mapping, or that have no text in any hit.

        ``fields_with_text`` are the fields that have text in at least one hit, or None if the search has no hits.
        """
        warnings = []
        option_names = self.option_names
        for name, is_searched in option_names.names_to_check.items():
            is_read_by_model = name in option_names.paths
            paths = option_names.paths.get(name, (name,))
            has_text = fields_with_text is not None and any(path in fields_with_text for path in paths)
            similar_name = option_names.similar.get(name)
            hint = f"; the nearest name is {similar_name!r}" if similar_name else ""
            if name in option_names.missing and (is_searched or not has_text):
                warnings.append(SearchWarning(f"the mapping has no field {name!r}{hint}", WarningCode.FIELDS_MISSING))
            elif fields_with_text is not None and not has_text and is_read_by_model:
                warnings.append(
                    SearchWarning(
                        f"the field {name!r} has no text in any of the hits{hint}", WarningCode.FIELDS_MISSING
                    )
                )
        return warnings


def choose_default_groups(leaves_by_index: Mapping[str, Leaves]) -> tuple[IndexGroup, ...]:
    """Choose each index's fields for a search that names none. Return the indices in groups with the same fields."""
    groups = []
    for text_leaves, names in group_by_text_fields(leaves_by_index):
        used_leaves = prefer_unnested(text_leaves)[:MAX_FIELDS]
        any_index = names[0]  # all indices of the group have the same text fields
        groups.append(create_group(names, used_leaves, leaves_by_index[any_index]))
    return merge_equal_groups(groups)


def with_build_fields(
    groups: Sequence[IndexGroup], build_fields: Mapping[str, tuple[str, ...]], leaves_by_index: Mapping[str, Leaves]
) -> tuple[IndexGroup, ...]:
    """Replace each index's model fields by those of its last vector build, if its mapping still has all of them."""
    new_groups = []
    for group in groups:
        for index in group.indices:
            names = build_fields.get(index, ())
            is_usable = bool(names) and set(names) <= leaves_by_index[index].keys()
            new_groups.append(IndexGroup((index,), group.query_fields, names if is_usable else group.model_fields))
    return merge_equal_groups(new_groups)


def group_by_text_fields(leaves_by_index: Mapping[str, Leaves]) -> list[tuple[tuple[Leaf, ...], tuple[str, ...]]]:
    """Group the indices that have the same text fields, largest group first.

    Returns:
        A pair for each group: its text fields, and the names of its indices.
    """
    names_by_leaves: dict[tuple[Leaf, ...], list[str]] = {}
    for name in sorted(leaves_by_index):
        text_leaves = tuple(find_text_fields(leaves_by_index[name]))
        names_by_leaves.setdefault(text_leaves, []).append(name)
    groups = [(leaves, tuple(names)) for leaves, names in names_by_leaves.items()]
    return sorted(groups, key=lambda group: (-len(group[1]), group[1]))


def create_group(indices: tuple[str, ...], text_leaves: Sequence[Leaf], leaves: Leaves) -> IndexGroup:
    """Return the group of the indices, in which a search uses the fields ``text_leaves``.

    Fields of the type ``semantic_text`` are searched only if there are no other text fields, because a search of them
    compares vectors. ``leaves`` are all fields of one of the indices.
    """
    query_leaves = [leaf for leaf in text_leaves if leaf.kind != SEMANTIC_TEXT] or text_leaves
    model_fields = union(_find_source_paths(leaf, leaves) for leaf in text_leaves)
    return IndexGroup(indices, tuple(leaf.path for leaf in query_leaves), model_fields)


def merge_equal_groups(groups: Iterable[IndexGroup]) -> tuple[IndexGroup, ...]:
    """Merge groups with the same fields into one."""
    names_by_fields: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for group in groups:
        names_by_fields.setdefault((group.query_fields, group.model_fields), []).extend(group.indices)
    return tuple(IndexGroup(tuple(sorted(names)), *fields) for fields, names in names_by_fields.items())


def _find_source_paths(leaf: Leaf, leaves: Leaves) -> tuple[str, ...]:
    """Return the paths of a field's text in ``_source``, or else the paths to request as ``fields``.

    For the subfield ``title.english`` of ``title``, it is ``title``.
    """
    original = leaves.get(leaf.source)
    if original is not None and original.is_in_source and not leaf.copied_from:
        return (original.path,)
    return _find_text_paths(leaf)


def resolve_fields(
    leaves_by_index: Mapping[str, Leaves], defaults: Sequence[IndexGroup], choice: FieldChoice
) -> SearchFields:
    """Return the fields that a search uses: those that the caller named, or else the ``defaults``.

    Args:
        leaves_by_index: the fields in each index's mapping.
        defaults: the fields of a search that names none, by group of indices. Empty if the caller named enough.
        choice: the caller's choice of fields.
    """
    mappings = add_body_fields(leaves_by_index, choice)
    model_names = (*choice.model_fields, *choice.second_ranking_fields)
    paths_by_name = {without_boost(name): _resolve_to_paths(mappings, name) for name in model_names}
    # if the caller's query searches text fields, the model scores these instead of the defaults
    groups = [
        replace(group, model_fields=_choose_query_text_fields(mappings, group.model_fields, choice))
        for group in defaults
    ]
    if choice.model_fields:
        model_fields = union(paths_by_name[without_boost(name)] for name in choice.model_fields)
    elif choice.query_fields:
        model_fields = _drop_repeated_texts(mappings, choice.query_fields)
    else:
        model_fields = union(group.model_fields for group in groups)
        model_fields = model_fields or _choose_query_text_fields(mappings, (), choice)
    query_fields = _expand_objects(mappings, choice.query_fields) or union(group.query_fields for group in groups)
    searched_names = set(map(without_boost, choice.query_fields))
    if not choice.model_fields:  # `check_names` needs to know where the text of each searched name is
        paths_by_name |= {name: _find_fields_with_same_text(mappings, name, model_fields) for name in searched_names}
    option_names = dict.fromkeys(map(without_boost, (*choice.query_fields, *model_names)))
    reads_defaults = not choice.model_fields and model_fields == union(group.model_fields for group in defaults)
    can_leave_out = not choice.query_fields and (choice.searched_by_body is None or reads_defaults)
    have_different_fields = len({(group.query_fields, group.model_fields) for group in groups}) > 1
    return SearchFields(
        query_fields,
        model_fields,
        groups=tuple(groups) if have_different_fields and not choice.query_fields else (),
        left_out=tuple(_find_unsearched_fields(mappings, query_fields)) if can_leave_out else (),
        traits=_read_traits(leaves_by_index, mappings, query_fields, union([model_fields, *paths_by_name.values()])),
        option_names=OptionNames(
            paths_by_name,
            names_to_check={} if choice.is_checked else {name: name in searched_names for name in option_names},
            missing=tuple(find_missing_names(mappings, option_names)),
            similar={name: find_most_similar_field(mappings, name) for name in option_names},
        ),
    )


def _read_traits(
    leaves_by_index: Mapping[str, Leaves],
    mappings: Sequence[Leaves],
    query_fields: Sequence[str],
    text_names: Sequence[str],
) -> MappedTraits:
    """Collect what the mappings say about fields.

    ``mappings`` are those of ``leaves_by_index``, together with the fields that the caller's body defines.
    ``text_names`` are the fields whose text might be read from a hit.
    """
    all_leaves = [leaf for mapping in mappings for leaf in mapping.values()]
    leaves = {leaf.path: leaf for leaf in all_leaves}
    text_paths = {leaf.path for leaf in all_leaves if leaf.kind in TEXT_KINDS}
    nested = {leaf.path: leaf.nested for leaf in all_leaves if leaf.nested}
    searched_leaves = [leaves[without_boost(name)] for name in query_fields if without_boost(name) in leaves]
    return MappedTraits(
        nested=nested,
        nested_indices=_find_nested_indices(leaves_by_index, nested),
        semantic=frozenset(name for name, leaf in leaves.items() if leaf.kind == SEMANTIC_TEXT),
        non_text=frozenset(leaves) - text_paths,  # a field that is text in only one of the indices counts as text
        needs_lenient=any(leaf.kind not in TEXT_KINDS for leaf in searched_leaves),
        absent_from_source=frozenset(name for name, leaf in leaves.items() if not leaf.is_in_source),
        source_only=frozenset(name for name in text_names if _may_alter_values(mappings, name)),
    )


def _find_unsearched_fields(mappings: Sequence[Leaves], query_fields: Collection[str]) -> list[str]:
    """Return the text fields that are not in ``query_fields``, without fields of the type ``semantic_text``."""
    text_paths = union(
        (leaf.path for leaf in find_text_fields(leaves) if leaf.kind != SEMANTIC_TEXT) for leaves in mappings
    )
    return [path for path in text_paths if path not in query_fields]


def add_body_fields(leaves_by_index: Mapping[str, Leaves], choice: FieldChoice) -> list[Leaves]:
    """Return the fields of each index, together with the fields that the caller's body defines."""
    body_leaves = {leaf.path: leaf for leaf in choice.defined_by_body}
    return [{**leaves, **body_leaves} for leaves in leaves_by_index.values()]


def _find_nested_indices(
    leaves_by_index: Mapping[str, Leaves], nested: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return `MappedTraits.nested_indices`, given `MappedTraits.nested`."""
    indices_by_object: dict[str, tuple[str, ...]] = {}
    for path in dict.fromkeys(nested.values()):
        names = [name for name, object_path in nested.items() if object_path == path]
        objects_by_index = {
            index: {leaves[name].nested for name in names if name in leaves}
            for index, leaves in leaves_by_index.items()
        }
        # the empty string stands for a field outside nested objects
        if any("" in objects for objects in objects_by_index.values()):
            indices_by_object[path] = tuple(index for index, objects in objects_by_index.items() if path in objects)
    return indices_by_object


def union(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Return the names of several lists without duplicates, in order of first appearance."""
    return tuple(dict.fromkeys(itertools.chain.from_iterable(names)))


def _may_alter_values(mappings: Sequence[Leaves], name: str) -> bool:
    """Return whether ``fields`` might return another text than ``_source``, as for ``a.b`` in a flat object ``a``."""
    mapped_leaves = [leaves[name] for leaves in mappings if name in leaves]
    if mapped_leaves:
        return any(leaf.may_alter_values and leaf.is_in_source for leaf in mapped_leaves)
    return any(name.startswith(f"{path}.") for leaves in mappings for path in leaves)


def _resolve_all(mappings: Sequence[Leaves], name: str) -> list[Leaf]:
    """Return the fields that a name stands for in any mapping, each path once."""
    return list({leaf.path: leaf for leaves in mappings for leaf in resolve_name(leaves, name)}.values())


def _resolve_to_paths(mappings: Sequence[Leaves], name: str) -> tuple[str, ...]:
    """Return the fields that a name in the options stands for, or the name itself if no mapping contains it."""
    # names with a colon, such as highlight:body, are parts of a hit instead of fields
    leaves = [] if ":" in name else _resolve_all(mappings, name)
    return union(_find_text_paths(leaf) for leaf in leaves) or (without_boost(name),)


def _find_text_paths(leaf: Leaf) -> tuple[str, ...]:
    """Return the paths of a field's text in hits: the fields that are copied to it (``copy_to``), then the field."""
    if leaf.kind == SEMANTIC_TEXT:  # its value in a hit includes the copied texts
        return (leaf.path,)
    return (*sort_titles_first(sorted(leaf.copied_from)), leaf.path)


def _drop_repeated_texts(mappings: Sequence[Leaves], names: Iterable[str]) -> tuple[str, ...]:
    """Return the fields that names stand for, without fields that repeat an earlier field's text.

    Of ``title`` and its subfield ``title.english``, only the first is returned.
    """
    path_by_source: dict[str, str] = {}
    for name in names:
        unmapped_leaf = Leaf(without_boost(name), source=without_boost(name))  # no mapping contains the name
        for leaf in _resolve_all(mappings, name) or [unmapped_leaf]:
            for path in _find_text_paths(leaf):
                source = leaf.source if path == leaf.path else path  # a field that is copied to this one
                path_by_source.setdefault(source or path, path)
    return tuple(path_by_source.values())


def _find_fields_with_same_text(mappings: Sequence[Leaves], name: str, fields: Collection[str]) -> tuple[str, ...]:
    """Return which of the fields have the text that a searched name stands for: ``title`` for ``title.english``."""
    sources: set[str] = set()
    for leaf in _resolve_all(mappings, name):
        sources |= {leaf.source or leaf.path, *leaf.copied_from}
    sources = sources or {name}
    same_text = []
    for path in fields:
        field_sources = {leaf.source or path for leaf in _resolve_all(mappings, path)} or {path}
        if field_sources & sources:
            same_text.append(path)
    return tuple(same_text)


def _choose_query_text_fields(
    mappings: Sequence[Leaves], default: tuple[str, ...], choice: FieldChoice
) -> tuple[str, ...]:
    """Return the text fields that the caller's query searches, or else ``default``.

    A pattern stands for all fields that match it, those of ``default`` first. If some fields of ``default`` match, the
    pattern ``*`` stands for these alone, and no pattern for nested fields.
    """
    names = choice.find_text_names(mappings)
    patterns = [without_boost(name) for name in names if "*" in name]
    matching = [name for name in default if any(fnmatchcase(name, pattern) for pattern in patterns)]
    chosen = list(matching)
    for name in names:
        if "*" not in name or not matching:
            chosen.append(name)
        elif without_boost(name) != "*":
            chosen += [leaf.path for leaf in _resolve_all(mappings, name) if not leaf.nested]
    return _drop_repeated_texts(mappings, chosen) or default


def _expand_objects(mappings: Sequence[Leaves], names: Iterable[str]) -> tuple[str, ...]:
    """Return the names to search, with objects replaced by their fields, because a query cannot search an object.

    ``author^2`` becomes ``author.name^2``. A pattern stays, and the nested fields that it matches are added, because
    they need a nested query.
    """
    expanded: list[str] = []
    for name in names:
        leaves = _resolve_all(mappings, name)
        boost = name[len(without_boost(name)) :]
        if "*" in name:
            nested_fields = [leaf.path + boost for leaf in leaves if leaf.nested]
            expanded += [*nested_fields, name]
        else:  # an object stands for its fields, a field for itself
            expanded += [leaf.path + boost for leaf in leaves] or [name]
    return tuple(dict.fromkeys(expanded))
