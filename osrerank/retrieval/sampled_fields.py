"""Choose text fields by the values in sampled documents, for `osrerank init` and for hits without a mapping.

A mapping does not say which text fields have titles or prose, and which have codes, tags or copies of other fields. The
values show this.
"""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from osrerank.response import read_texts
from osrerank.retrieval import text_fields
from osrerank.retrieval.mapping import Leaf
from osrerank.retrieval.text_fields import MAX_FIELDS

MAX_TITLES = 2
"""The maximum number of titles that are chosen."""
MIN_PROSE_WORDS = 3
"""The minimum number of words in the median value of a field with prose."""
LONG_PROSE_WORDS = 12
"""The minimum number of words in the median value of a field with long prose."""
MIN_ALPHABETIC_FRACTION = 0.6
"""The minimum fraction of words in prose that begin with a letter."""
MIN_LOWER_CASE_FRACTION = 0.4
"""The minimum fraction of alphabetic words in prose that are not capitalised. Lists of names have fewer."""
MIN_LONG_LOWER_CASE_FRACTION = 0.3
"""The same minimum for long prose. It is lower, because long values are rarely lists of names."""
MIN_VALUES = 5
"""The minimum number of values of a field that show whether values repeat."""
MIN_COMPARED_DOCUMENTS = 3
"""The minimum number of documents that show whether a field is a copy of others."""
MEAN_COPIED_FRACTION = 0.9
"""The minimum fraction of a copy's words that other fields have, too, on average over documents."""
MIN_COPIED_FRACTION = 0.8
"""The minimum fraction of a copy's words that other fields have, too, in every document."""
MAX_LENGTH_RATIO = 1.2
"""The maximum ratio of the lengths of two fields that are copies of each other."""
MAX_WORDS = 300
"""The number of words at the beginning of a value that are examined."""
MAX_CHARACTERS = MAX_WORDS * 20
"""The number of characters at the beginning of a value that are examined."""
_UNSPACED_CHARACTER = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u3040-\u30ff\u3400-\u9fff]")
"""Matches a character of a script without spaces between words, such as Thai or Chinese."""
_PUNCTUATION = ".,;:!?'\"()[]"
"""The characters that are removed from both ends of a word."""
_CODE = re.compile(r"^\S*[\d/:@#<>\\.,{}+=-]\S*$")
"""Matches a value without spaces that has a digit or a sign: a number, an address, a path or an identifier."""
_MARKUP = re.compile(r"<[^<>]{1,200}>")
"""Matches a tag of HTML or XML."""


@dataclass(frozen=True)
class SampledField:
    """A field that might have text, with its values in the sampled documents.

    Attributes:
        leaf: the field.
        values: the field's values in each document: ``(("A title",), ())`` if the second document has no value.
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
        counts = []
        for value in self.all_values:
            n_unspaced = len(_UNSPACED_CHARACTER.findall(value[:MAX_CHARACTERS]))
            counts.append(len(_split_words(value)) + n_unspaced / 2)
        return statistics.median(counts) if counts else 0

    @cached_property
    def vocabularies(self) -> list[set[str]]:
        """For each document, the set of words in its values, in lower case and without punctuation."""
        texts = (" ".join(values) for values in self.values)
        vocabularies = [{word.strip(_PUNCTUATION).casefold() for word in _split_words(text)} for text in texts]
        return [words - {""} for words in vocabularies]

    @property
    def source_path(self) -> str:
        """The path of the values in documents, such as ``title`` for ``title.raw``, or else the field's own path."""
        return self.leaf.source or self.leaf.path

    @property
    def parent(self) -> str:
        """The path of the object that contains the field. Empty at the top level."""
        return self.source_path.rpartition(".")[0]

    @property
    def is_title(self) -> bool:
        """Whether the field's name is that of a title, and no document has several values of the field."""
        return text_fields.is_title(self.source_path) and all(len(values) < 2 for values in self.values)

    @property
    def is_code(self) -> bool:
        """Whether most values are numbers, addresses, paths or identifiers."""
        # without the punctuation around it; an underscore separates words
        stripped_values = [value.strip(" \n.,;:!?").replace("_", " ") for value in self.all_values]
        n_codes = sum(_CODE.match(value) is not None for value in stripped_values)
        return n_codes > len(self.all_values) / 2

    @property
    def is_repeated(self) -> bool:
        """Whether many documents have the same values, as for a type or a status."""
        return len(self.all_values) >= MIN_VALUES and len(set(self.all_values)) < len(self.all_values) / 2

    @property
    def is_prose(self) -> bool:
        """Whether the values look like sentences, not like names, numbers, or lists of names or numbers."""
        if self.median_words < MIN_PROSE_WORDS or self.is_code:
            return False
        words = [word.strip(_PUNCTUATION) for value in self.all_values for word in _split_words(value)]
        alphabetic = [word for word in words if word[:1].isalpha() and not _CODE.match(word)]
        if len(alphabetic) < MIN_ALPHABETIC_FRACTION * len(words):
            return False
        not_capitalised = [word for word in alphabetic if not _is_capitalised(word)]
        is_long = self.median_words >= LONG_PROSE_WORDS
        min_fraction = MIN_LONG_LOWER_CASE_FRACTION if is_long else MIN_LOWER_CASE_FRACTION
        return len(not_capitalised) >= min_fraction * len(alphabetic)


def _is_capitalised(word: str) -> bool:
    """Return whether a word begins with a capital, as in "Paris". Words in capitals ("NATO") do not count."""
    first = word[0]
    return first.upper() == first and first.lower() != first and not word.isupper()


def _split_words(value: str) -> list[str]:
    """Return the words at the beginning of a value, without markup. An underscore separates words."""
    return _MARKUP.sub(" ", value[:MAX_CHARACTERS]).replace("_", " ").split()[:MAX_WORDS]


def choose_fields(leaves: Sequence[Leaf], sources: Sequence[Mapping[str, Any]]) -> tuple[Leaf, ...]:
    """Return the fields with titles and prose: at most five, titles first, then from short to long.

    Fields without a value in the sample, copies, ids, addresses and tags are left out. If no field has prose, the
    field with the longest values is chosen in addition to the titles.

    Args:
        leaves: the fields to choose from.
        sources: the contents (``_source``) of the sampled documents.
    """
    fields = [SampledField(leaf, tuple(read_field_values(source, leaf) for source in sources)) for leaf in leaves]
    filled = [field for field in fields if field.all_values]
    if not filled:
        return tuple(leaves[:MAX_FIELDS])
    chosen = _drop_copies([field for field in filled if _is_text(field, filled)])
    has_prose = any(not field.is_title for field in chosen)
    if not has_prose:
        remaining = [field for field in filled if field not in chosen]
        if chosen:
            remaining = [field for field in remaining if not _is_tag(field)]
        max_words = max((field.median_words for field in remaining), default=0)
        chosen += [field for field in remaining if field.median_words == max_words]
    return tuple(field.leaf for field in _limit_fields(chosen))


def choose_field_names(sources: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of the fields with titles and prose, as `choose_fields` does, but without a mapping."""
    names = sorted({name for source in sources for name in _find_text_names(source)})
    return tuple(leaf.path for leaf in choose_fields([Leaf(name, source=name) for name in names], sources))


def _find_text_names(source: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    """Yield the dotted names of all fields of a document whose values are strings, such as ``author.name``."""
    for name, value in source.items():
        if isinstance(value, Mapping):
            yield from _find_text_names(value, f"{parent}{name}.")
        elif isinstance(value, str) or (isinstance(value, list) and all(isinstance(element, str) for element in value)):
            yield f"{parent}{name}"


def read_field_values(source: Mapping[str, Any], leaf: Leaf) -> tuple[str, ...]:
    """Return the values of a field in a document. A target of ``copy_to`` has the values of the copied fields."""
    paths = leaf.copied_from or (leaf.source,)
    return tuple(value for path in paths for value in read_texts(source, path.split(".")))


def _is_tag(field: SampledField) -> bool:
    """Return whether a field looks like a tag or a code, or belongs to an object, such as the name of an author."""
    is_list = any(len(values) > 1 for values in field.values)
    return bool(field.parent) or is_list or field.is_code or field.is_repeated


def _is_text(field: SampledField, fields: Sequence[SampledField]) -> bool:
    """Return whether a field has a title or prose of the document.

    A title in an object, such as ``book.title``, counts only if the object also has prose, or if no field outside
    objects is a title. Otherwise it is taken for the name of something else, such as an author.
    """
    if field.parent and field.is_repeated:  # such as the name of a category
        return False
    if field.is_title:
        if not field.parent:
            return True
        in_same_object = [other for other in fields if other.parent == field.parent]
        has_long_prose = any(other.is_prose and other.median_words >= LONG_PROSE_WORDS for other in in_same_object)
        has_top_level_title = any(other.is_title and not other.parent for other in fields)
        if not field.is_code and (has_long_prose or not has_top_level_title):
            return True
    return field.is_prose and (not field.is_repeated or field.median_words >= LONG_PROSE_WORDS)


def _drop_copies(fields: list[SampledField]) -> list[SampledField]:
    """Drop copies of another field, then fields that join several others, then parts of a longer field."""
    for field in sorted(fields, key=_copy_sort_key, reverse=True):  # the best of several copies comes last, and stays
        if any(_are_copies(field, other) for other in fields if other is not field):
            fields = [other for other in fields if other is not field]
    for field in sorted(fields, key=lambda field: (-field.median_words, field.leaf.path)):
        shorter = [other for other in fields if other is not field and other.median_words <= field.median_words]
        if len(shorter) > 1 and _covers(shorter, field):
            fields = [other for other in fields if other is not field]
    possible_parts = [field for field in fields if not field.is_title and field.median_words >= MIN_PROSE_WORDS]
    parts = [
        field
        for field in possible_parts
        if any(_covers([other], field) for other in fields if other.median_words > field.median_words)
    ]
    return [field for field in fields if field not in parts]


def _are_copies(field: SampledField, other: SampledField) -> bool:
    """Return whether two fields have nearly the same length and the same words."""
    shorter, longer = sorted((field.median_words, other.median_words))
    return longer <= MAX_LENGTH_RATIO * shorter and _covers([other], field) and _covers([field], other)


def _copy_sort_key(field: SampledField) -> tuple[bool, bool, bool, bool, str]:
    """Return the sort key of a field among its copies. The field with the lowest key is chosen."""
    has_markup = any(_MARKUP.search(value[:1000]) for value in field.all_values)
    is_typeahead = field.leaf.kind == "search_as_you_type"
    has_own_analyzer = bool(field.leaf.analyzer)
    return is_typeahead, has_markup, not field.is_title, has_own_analyzer, field.leaf.path


def _covers(others: Sequence[SampledField], field: SampledField) -> bool:
    """Return whether ``others`` together have nearly all words of a field, in every document with the field."""
    fractions = []
    for document_index, words in enumerate(field.vocabularies):
        if words:
            other_words: set[str] = set().union(*(other.vocabularies[document_index] for other in others))
            fractions.append(len(words & other_words) / len(words))
    if len(fractions) < MIN_COMPARED_DOCUMENTS:
        return False
    return min(fractions) >= MIN_COPIED_FRACTION and statistics.mean(fractions) >= MEAN_COPIED_FRACTION


def _limit_fields(chosen: Sequence[SampledField]) -> list[SampledField]:
    """Return at most `MAX_FIELDS` fields, with at most `MAX_TITLES` titles, in reading order."""
    ordered = sorted(chosen, key=_reading_sort_key)
    titles = [field for field in ordered if field.is_title][:MAX_TITLES]
    other_fields = [field for field in ordered if not field.is_title]
    longest = sorted(other_fields, key=lambda field: -field.median_words)[: MAX_FIELDS - len(titles)]
    return sorted([*titles, *longest], key=_reading_sort_key)


def _reading_sort_key(field: SampledField) -> tuple[bool, int, str]:
    """Return the sort key that puts titles first, then shorter fields.

    Lengths are compared by powers of two: fields of 4 and 7 words count as equally long, and are sorted by path.
    """
    return not field.is_title, int(field.median_words).bit_length(), field.leaf.path
