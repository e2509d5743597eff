"""Choose the fields that hold text by sampled values, for `osrerank init` and for hits without a known mapping."""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from osrerank.response import values_at
from osrerank.retrieval.mapping import Leaf
from osrerank.retrieval.text_fields import MAX_FIELDS, is_title

MAX_TITLES = 2
"""The maximum number of titles among the fields that are chosen."""
LONG_WORDS, SHORT_WORDS = 12, 3
"""A field whose values have at least 12 words (median) counts as long; with fewer than 3, it cannot be prose."""
TRUSTED = 5
"""The fewest values that can show whether values repeat."""
SAME = 0.9
"""A text is a copy of another text, or of a part of it, if the other text has this share of its words."""
MAX_WORDS = 300
MAX_CHARACTERS = MAX_WORDS * 20
"""The maximum numbers of words and of characters of a value that are examined."""
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u3040-\u30ff\u3400-\u9fff]")
_CODE = re.compile(r"^\S*[\d/:@#<>\\.,{}+=-]\S*$")
_MARKUP = re.compile(r"<[^<>]{1,200}>")


@dataclass(frozen=True)
class SampledField:
    """A field that may hold text, with its values in the sampled documents.

    Attributes:
        leaf: the field.
        values: the field's values in each document.
    """

    leaf: Leaf
    values: tuple[tuple[str, ...], ...]

    @cached_property
    def all_values(self) -> list[str]:
        """The non-blank values of all documents."""
        return [value for values in self.values for value in values if value.strip()]

    @cached_property
    def words(self) -> float:
        """The median number of words of a value; two characters of a script without spaces count as one word."""
        counts = [len(_words(value)) + len(_UNSPACED.findall(value[:MAX_CHARACTERS])) / 2 for value in self.all_values]
        return statistics.median(counts) if counts else 0

    @cached_property
    def vocabulary(self) -> list[set[str]]:
        """The set of words in each document's values."""
        texts = (" ".join(values) for values in self.values)
        sets = [{word.strip(".,;:!?'\"()[]").casefold() for word in _words(value)} for value in texts]
        return [words - {""} for words in sets]

    @property
    def parent(self) -> str:
        """The object that the field is in; empty if it is at the top level."""
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
        return len(self.all_values) >= TRUSTED and len(set(self.all_values)) < len(self.all_values) / 2

    @property
    def is_prose(self) -> bool:
        """Whether the values look like sentences, not like names, numbers or lists of them."""
        if self.words < SHORT_WORDS or self.is_code:
            return False
        words = [word.strip(".,;:!?'\"()[]") for value in self.all_values for word in _words(value)]
        letters = [word for word in words if word and word[0].isalpha() and not _CODE.match(word)]
        if len(letters) < 0.6 * len(words):
            return False
        small = sum(word[0].upper() != word[0] or word[0].lower() == word[0] or word.isupper() for word in letters)
        return small >= (0.3 if self.words >= LONG_WORDS else 0.4) * len(letters)


def _words(value: str) -> list[str]:
    return _MARKUP.sub(" ", value[:MAX_CHARACTERS]).replace("_", " ").split()[:MAX_WORDS]


def choose(leaves: Sequence[Leaf], sources: Sequence[Mapping[str, Any]]) -> tuple[Leaf, ...]:
    """Return the fields that hold titles and prose: at most five, titles first, then from short to long.

    Fields without a value in the sample, copies, ids, addresses and tags are left out. If that leaves no
    prose, the longest of the other fields joins the titles.

    Args:
        leaves: text fields.
        sources: the sampled documents.
    """
    fields = [SampledField(leaf, tuple(values_of(source, leaf) for source in sources)) for leaf in leaves]
    filled = [field for field in fields if field.all_values]
    if not filled:
        return tuple(leaves[:MAX_FIELDS])
    chosen = _without_copies([field for field in filled if _is_text(field, filled)])
    if all(field.is_title for field in chosen):
        remaining = [field for field in filled if field not in chosen and not (chosen and _is_tag(field))]
        chosen += [field for field in remaining if field.words == max(other.words for other in remaining)]
    return tuple(field.leaf for field in _limit(chosen))


def fields_of(sources: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of the fields that `choose` picks in documents without a known mapping."""
    names = sorted({name for source in sources for name in _names(source)})
    return tuple(leaf.path for leaf in choose([Leaf(name, source=name) for name in names], sources))


def _names(source: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    """Yield the dotted names of a document's texts and lists of texts."""
    for name, value in source.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{parent}{name}.")
        elif isinstance(value, str) or (isinstance(value, list) and all(isinstance(element, str) for element in value)):
            yield f"{parent}{name}"


def values_of(source: Mapping[str, Any], leaf: Leaf) -> tuple[str, ...]:
    """Return the values of a field in a document."""
    paths = leaf.copied_from or (leaf.source,)
    return tuple(value for path in paths for value in values_at(source, path.split(".")))


def _is_tag(field: SampledField) -> bool:
    is_list = any(len(values) > 1 for values in field.values)
    return bool(field.parent) or is_list or field.is_code or field.is_repeated


def _is_text(field: SampledField, fields: Sequence[SampledField]) -> bool:
    """Return whether a field holds a title or prose of the document.

    A title in an object counts if the object has prose, too, or if no field outside objects is a title. Otherwise it
    names something else, such as an author.
    """
    if field.parent and field.is_repeated:
        return False
    has_prose = any(other.is_prose and other.parent == field.parent and other.words >= LONG_WORDS for other in fields)
    has_title = any(other.is_title and not other.parent for other in fields)
    if field.is_title and (not field.parent or (not field.is_code and (has_prose or not has_title))):
        return True
    return field.is_prose and (not field.is_repeated or field.words >= LONG_WORDS)


def _without_copies(kept: list[SampledField]) -> list[SampledField]:
    """Drop fields that repeat words: copies, parts of a longer field, and fields that join several others."""
    for field in sorted(kept, key=_worth, reverse=True):
        if any(_are_twins(field, other) for other in kept if other is not field):
            kept = [other for other in kept if other is not field]
    for field in sorted(kept, key=lambda field: (-field.words, field.leaf.path)):
        shorter = [other for other in kept if other is not field and other.words <= field.words]
        if len(shorter) > 1 and _covers(shorter, field):
            kept = [other for other in kept if other is not field]
    parts = [field for field in kept if not field.is_title and field.words >= SHORT_WORDS]
    parts = [field for field in parts if any(_covers([other], field) for other in kept if other.words > field.words)]
    return [field for field in kept if field not in parts]


def _are_twins(field: SampledField, other: SampledField) -> bool:
    is_as_long = 1.2 * min(field.words, other.words) >= max(field.words, other.words)
    return is_as_long and _covers([other], field) and _covers([field], other)


def _worth(field: SampledField) -> tuple[bool, bool, bool, bool, str]:
    """Return a sort key by which the better of two copies comes first, to keep it."""
    has_markup = any(_MARKUP.search(value[:1000]) for value in field.all_values)
    is_typeahead = field.leaf.kind == "search_as_you_type"
    return is_typeahead, has_markup, not field.is_title, bool(field.leaf.analyzer), field.leaf.path


def _covers(others: Sequence[SampledField], field: SampledField) -> bool:
    """Return whether ``others`` together have nearly all words of a field, in each of at least three documents."""
    shares = []
    for document, words in enumerate(field.vocabulary):
        if words:
            covered_words: set[str] = set().union(*(other.vocabulary[document] for other in others))
            shares.append(len(words & covered_words) / len(words))
    return len(shares) >= SHORT_WORDS and min(shares) >= SAME - 0.1 and statistics.mean(shares) >= SAME


def _limit(chosen: Sequence[SampledField]) -> list[SampledField]:
    """Return at most five fields, at most two of them titles, in the order in which the model reads them."""
    ordered = sorted(chosen, key=_order)
    titles = [field for field in ordered if field.is_title][:MAX_TITLES]
    texts = [field for field in ordered if not field.is_title]
    longest = sorted(texts, key=lambda field: -field.words)[: MAX_FIELDS - len(titles)]
    return sorted([*titles, *longest], key=_order)


def _order(field: SampledField) -> tuple[bool, int, str]:
    """Return the sort key of the order in which fields are read: titles first, then by length in coarse steps."""
    return not field.is_title, int(field.words).bit_length(), field.leaf.path
