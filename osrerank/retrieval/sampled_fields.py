"""Choose text fields by the values in sampled documents, for `osrerank init` and for hits without a known mapping.

A mapping does not say which text fields have titles or prose, and which have codes, tags or copies of other fields. The
values do.
"""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from osrerank.response import read_texts
from osrerank.retrieval.mapping import Leaf
from osrerank.retrieval.text_fields import MAX_FIELDS, is_title

MAX_TITLES = 2
"""At most this many titles are chosen."""
MIN_PROSE_WORDS = 3
"""A field whose median value has fewer words than this is not prose."""
LONG_PROSE_WORDS = 12
"""Prose with a median of at least this many words counts as long."""
MIN_ALPHABETIC_SHARE = 0.6
"""A field is not prose if fewer of its words than this share begin with a letter."""
MIN_LOWER_CASE_SHARE = 0.4
"""A field is not prose if fewer of its alphabetic words than this share are without a capital, as in lists of names."""
MIN_LONG_LOWER_CASE_SHARE = 0.3
"""The same for long prose, in which capitals are less of a sign."""
MIN_VALUES = 5
"""A field with fewer values than this does not show whether values repeat."""
MIN_COMPARED_DOCUMENTS = 3
"""Fewer documents than this do not show whether a field is a copy of others."""
COPY_SHARE = 0.9
"""A field is a copy if other fields have at least this share of its words, on average over documents."""
MIN_COPY_SHARE = 0.8
"""A field is not a copy if other fields have less than this share of its words in any document."""
MAX_LENGTH_RATIO = 1.2
"""Fields are not copies of each other if one has more than this many times the words of the other."""
MAX_WORDS = 300
"""Only this many words of a value are examined."""
MAX_CHARACTERS = MAX_WORDS * 20
"""Only this many characters of a value are examined."""
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u3040-\u30ff\u3400-\u9fff]")
_PUNCTUATION = ".,;:!?'\"()[]"
_CODE = re.compile(r"^\S*[\d/:@#<>\\.,{}+=-]\S*$")
_MARKUP = re.compile(r"<[^<>]{1,200}>")


@dataclass(frozen=True)
class SampledField:
    """A field that might have text, with its values in the sampled documents.

    Attributes:
        leaf: the field.
        values: one tuple of values for each document, which is empty if the document lacks the field.
    """

    leaf: Leaf
    values: tuple[tuple[str, ...], ...]

    @cached_property
    def all_values(self) -> list[str]:
        """The non-blank values of all documents."""
        return [value for values in self.values for value in values if value.strip()]

    @cached_property
    def median_words(self) -> float:
        """The median number of words of a value. A character of a script without spaces counts as half a word."""
        counts = [
            len(_split_words(value)) + len(_UNSPACED.findall(value[:MAX_CHARACTERS])) / 2 for value in self.all_values
        ]
        return statistics.median(counts) if counts else 0

    @cached_property
    def vocabulary(self) -> list[set[str]]:
        """The set of words in each document's values."""
        texts = (" ".join(values) for values in self.values)
        vocabularies = [{word.strip(_PUNCTUATION).casefold() for word in _split_words(text)} for text in texts]
        return [words - {""} for words in vocabularies]

    @property
    def parent(self) -> str:
        """The path of the object that contains the field. Empty at the top level."""
        return (self.leaf.source or self.leaf.path).rpartition(".")[0]

    @property
    def is_title(self) -> bool:
        """Whether the field has a title's name, and at most one value in each document."""
        return is_title(self.leaf.source or self.leaf.path) and all(len(values) < 2 for values in self.values)

    @property
    def is_code(self) -> bool:
        """Whether most values are numbers, addresses, paths or identifiers."""
        codes = [value for value in self.all_values if _CODE.match(value.strip(" \n.,;:!?").replace("_", " "))]
        return len(codes) > len(self.all_values) / 2

    @property
    def is_repeated(self) -> bool:
        """Whether the documents share a few values, as for a type or a status."""
        return len(self.all_values) >= MIN_VALUES and len(set(self.all_values)) < len(self.all_values) / 2

    @property
    def is_prose(self) -> bool:
        """Whether the values look like sentences, not like names, numbers or lists of them."""
        if self.median_words < MIN_PROSE_WORDS or self.is_code:
            return False
        words = [word.strip(_PUNCTUATION) for value in self.all_values for word in _split_words(value)]
        alphabetic = [word for word in words if word and word[0].isalpha() and not _CODE.match(word)]
        if len(alphabetic) < MIN_ALPHABETIC_SHARE * len(words):
            return False
        capitalised = [word for word in alphabetic if _is_capitalised(word)]
        min_share = MIN_LONG_LOWER_CASE_SHARE if self.median_words >= LONG_PROSE_WORDS else MIN_LOWER_CASE_SHARE
        return len(alphabetic) - len(capitalised) >= min_share * len(alphabetic)


def _is_capitalised(word: str) -> bool:
    """Return whether only a part of a word is upper-case, and this includes the first letter."""
    first = word[0]
    return first.upper() == first and first.lower() != first and not word.isupper()


def _split_words(value: str) -> list[str]:
    return _MARKUP.sub(" ", value[:MAX_CHARACTERS]).replace("_", " ").split()[:MAX_WORDS]


def choose_fields(leaves: Sequence[Leaf], sources: Sequence[Mapping[str, Any]]) -> tuple[Leaf, ...]:
    """Return the fields with titles and prose: at most five, titles first, then from short to long.

    Fields without a value in the sample, copies, ids, addresses and tags are left out. If no field has prose, the
    longest other field is added to the titles.
    """
    fields = [SampledField(leaf, tuple(read_field_values(source, leaf) for source in sources)) for leaf in leaves]
    filled = [field for field in fields if field.all_values]
    if not filled:
        return tuple(leaves[:MAX_FIELDS])
    chosen = _drop_copies([field for field in filled if _is_text(field, filled)])
    if all(field.is_title for field in chosen):
        remaining = [field for field in filled if field not in chosen and not (chosen and _is_tag(field))]
        chosen += [field for field in remaining if field.median_words == max(other.median_words for other in remaining)]
    return tuple(field.leaf for field in _limit_fields(chosen))


def choose_field_names(sources: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of the fields that `choose_fields` picks from documents whose mapping is unknown."""
    names = sorted({name for source in sources for name in _find_text_names(source)})
    return tuple(leaf.path for leaf in choose_fields([Leaf(name, source=name) for name in names], sources))


def _find_text_names(source: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    for name, value in source.items():
        if isinstance(value, Mapping):
            yield from _find_text_names(value, f"{parent}{name}.")
        elif isinstance(value, str) or (isinstance(value, list) and all(isinstance(element, str) for element in value)):
            yield f"{parent}{name}"


def read_field_values(source: Mapping[str, Any], leaf: Leaf) -> tuple[str, ...]:
    """Return the values of a field in a document."""
    paths = leaf.copied_from or (leaf.source,)
    return tuple(value for path in paths for value in read_texts(source, path.split(".")))


def _is_tag(field: SampledField) -> bool:
    """Return whether a field looks like a tag or a code, or belongs to an object, such as the name of an author."""
    is_list = any(len(values) > 1 for values in field.values)
    return bool(field.parent) or is_list or field.is_code or field.is_repeated


def _is_text(field: SampledField, fields: Sequence[SampledField]) -> bool:
    """Return whether a field has a title or prose of the document.

    A title in an object counts only if the object also has prose, or if no field outside objects is a title. Otherwise
    it is the name of something else, such as an author.
    """
    if field.parent and field.is_repeated:
        return False
    if field.is_title:
        siblings = [other for other in fields if other.parent == field.parent]
        has_prose = any(other.is_prose and other.median_words >= LONG_PROSE_WORDS for other in siblings)
        has_top_level_title = any(other.is_title and not other.parent for other in fields)
        if not field.parent or (not field.is_code and (has_prose or not has_top_level_title)):
            return True
    return field.is_prose and (not field.is_repeated or field.median_words >= LONG_PROSE_WORDS)


def _drop_copies(fields: list[SampledField]) -> list[SampledField]:
    """Drop fields that repeat the words of others: copies, parts of a longer field, and fields that join several."""
    for field in sorted(fields, key=_copy_sort_key, reverse=True):
        if any(_are_copies(field, other) for other in fields if other is not field):
            fields = [other for other in fields if other is not field]
    for field in sorted(fields, key=lambda field: (-field.median_words, field.leaf.path)):
        shorter = [other for other in fields if other is not field and other.median_words <= field.median_words]
        if len(shorter) > 1 and _covers(shorter, field):
            fields = [other for other in fields if other is not field]
    parts = [field for field in fields if not field.is_title and field.median_words >= MIN_PROSE_WORDS]
    parts = [
        field
        for field in parts
        if any(_covers([other], field) for other in fields if other.median_words > field.median_words)
    ]
    return [field for field in fields if field not in parts]


def _are_copies(field: SampledField, other: SampledField) -> bool:
    shorter, longer = sorted((field.median_words, other.median_words))
    return longer <= MAX_LENGTH_RATIO * shorter and _covers([other], field) and _covers([field], other)


def _copy_sort_key(field: SampledField) -> tuple[bool, bool, bool, bool, str]:
    """Return the sort key of copies. The first of them is chosen."""
    has_markup = any(_MARKUP.search(value[:1000]) for value in field.all_values)
    is_typeahead = field.leaf.kind == "search_as_you_type"
    return is_typeahead, has_markup, not field.is_title, bool(field.leaf.analyzer), field.leaf.path


def _covers(others: Sequence[SampledField], field: SampledField) -> bool:
    """Return whether ``others`` together have nearly all words of a field, in every document with the field."""
    shares = []
    for document, words in enumerate(field.vocabulary):
        if words:
            other_words: set[str] = set().union(*(other.vocabulary[document] for other in others))
            shares.append(len(words & other_words) / len(words))
    if len(shares) < MIN_COMPARED_DOCUMENTS:
        return False
    return min(shares) >= MIN_COPY_SHARE and statistics.mean(shares) >= COPY_SHARE


def _limit_fields(chosen: Sequence[SampledField]) -> list[SampledField]:
    """Return at most `MAX_FIELDS` fields, with at most `MAX_TITLES` titles, in reading order."""
    ordered = sorted(chosen, key=_reading_sort_key)
    titles = [field for field in ordered if field.is_title][:MAX_TITLES]
    other_fields = [field for field in ordered if not field.is_title]
    longest = sorted(other_fields, key=lambda field: -field.median_words)[: MAX_FIELDS - len(titles)]
    return sorted([*titles, *longest], key=_reading_sort_key)


def _reading_sort_key(field: SampledField) -> tuple[bool, int, str]:
    """Return the sort key that puts titles first, then shorter fields. Lengths are compared by powers of two."""
    return not field.is_title, int(field.median_words).bit_length(), field.leaf.path
