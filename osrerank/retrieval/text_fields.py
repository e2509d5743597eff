"""Choose the text fields that a query searches and the model reads, by the mapping and by sampled values."""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from osrerank.response import values_at
from osrerank.retrieval.mapping import TEXT_KINDS, Leaf, Leaves

TITLES = {"title", "headline", "heading", "headings", "subject", "caption", "titel", "titre", "titulo", "titolo"}
NAMES = {"name", "label"}
BODIES = {"text", "body", "content", "contents", "description", "abstract", "summary", "message", "article", "story"}
BODIES |= {"details", "overview", "review", "excerpt", "lead", "raw", "opinion", "answer", "question", "passage", "log"}
BODIES |= {"inhalt", "contenu", "contenido", "texte", "texto", "testo"}
ENTITIES = {"first", "last", "full", "middle", "user", "author", "owner", "creator", "editor", "reviewer", "customer"}
ENTITIES |= {"company", "brand", "manufacturer", "publisher", "organization", "category", "group", "tag", "city"}
ENTITIES |= {"country", "state", "region", "host", "file", "domain", "column", "class", "journal"}
"""Words that show that a field such as ``user_name`` does not hold the document's title."""
LANGUAGES = {"ar", "bg", "ca", "cs", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "he", "hi", "hr", "hu", "id"}
LANGUAGES |= {
    "it",
    "ja",
    "ko",
    "lt",
    "lv",
    "nb",
    "nl",
    "no",
    "pl",
    "pt",
    "ro",
    "ru",
    "sk",
    "sl",
    "sr",
    "sv",
    "th",
    "tr",
}
LANGUAGES |= {"uk", "vi", "zh", "cn", "tw", "br", "gb", "us", "english", "german", "french", "spanish", "italian"}
PARTIAL = re.compile(r"n_?gram|autocomplete|suggest|prefix|typeahead|phonetic|shingle|trigram|reverse", re.IGNORECASE)
"""Names of analyzers and fields that match only beginnings, sounds or parts of words."""
WHOLE = re.compile(r"^(keyword|lowercase|lower_?keyword|\w*path|\w*hashtag|\w*url)$", re.IGNORECASE)
"""Analyzers of values that are not running text."""
MOST_FIELDS, MOST_TITLES = 5, 2
"""The most fields that are chosen, and the most titles among them."""
LONG_WORDS, SHORT_WORDS = 12, 3
"""The median number of words from which a field counts as long, and below which it is too short for prose."""
TRUSTED = 5
"""The fewest values that can show whether values repeat."""
SAME = 0.9
"""If another text has this share of a text's words, the text is a copy of it, or of a part of it."""
MOST_WORDS = 300
MOST_CHARACTERS = MOST_WORDS * 20
"""The most words, and the most characters, of a value that are examined."""
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
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
    def every(self) -> list[str]:
        """The non-blank values of all documents."""
        return [value for values in self.values for value in values if value.strip()]

    @cached_property
    def words(self) -> float:
        """The median number of words of a value; two characters of a script without spaces count as one word."""
        counts = [len(_words(value)) + len(_UNSPACED.findall(value[:MOST_CHARACTERS])) / 2 for value in self.every]
        return statistics.median(counts) if counts else 0

    @cached_property
    def vocabulary(self) -> list[set[str]]:
        """The set of words in each document's values."""
        each = (" ".join(values) for values in self.values)
        sets = [{word.strip(".,;:!?'\"()[]").casefold() for word in _words(value)} for value in each]
        return [words - {""} for words in sets]

    @cached_property
    def path(self) -> list[str]:
        """The names of the field's objects and its own, without names of languages."""
        path = (self.leaf.source or self.leaf.path).split(".")
        return [name for name in path if name.lower() not in LANGUAGES] or path

    @cached_property
    def parts(self) -> list[str]:
        """The words of the field's own name, without languages."""
        found = [part.lower() for part in _PARTS.findall(self.path[-1])]
        return [part for part in found if part not in LANGUAGES] or found or [""]

    @property
    def above(self) -> str:
        """The object that the field is in; empty if it is at the top level."""
        return ".".join(self.path[:-1])

    @property
    def is_title(self) -> bool:
        return self.parts[-1] in TITLES and all(len(values) < 2 for values in self.values)

    @property
    def is_name(self) -> bool:
        return self.parts[-1] in NAMES and not ENTITIES & set(self.parts)

    @property
    def is_body(self) -> bool:
        return self.parts[-1] in BODIES

    @property
    def is_code(self) -> bool:
        """Whether most values are numbers, addresses, paths or identifiers."""
        codes = [value for value in self.every if _CODE.match(value.strip(" \n.,;:!?").replace("_", " "))]
        return len(codes) > len(self.every) / 2

    @property
    def is_repeated(self) -> bool:
        """Whether the documents share a few values, as for a type or a status."""
        return len(self.every) >= TRUSTED and len(set(self.every)) < len(self.every) / 2

    @property
    def is_prose(self) -> bool:
        """Whether the values look like sentences, not like names, numbers or lists of them."""
        if self.words < SHORT_WORDS or self.is_code:
            return False
        words = [word.strip(".,;:!?'\"()[]") for value in self.every for word in _words(value)]
        letters = [word for word in words if word and word[0].isalpha() and not _CODE.match(word)]
        if len(letters) < 0.6 * len(words):
            return False
        small = sum(word[0].upper() != word[0] or word[0].lower() == word[0] or word.isupper() for word in letters)
        return small >= (0.3 if self.words >= LONG_WORDS else 0.4) * len(letters)

    @property
    def is_partial(self) -> bool:
        """Whether the field is mapped for search as you type or for parts of words."""
        return self.leaf.kind == "search_as_you_type" or bool(PARTIAL.search(f"{self.leaf.analyzer} {self.leaf.path}"))


def _words(value: str) -> list[str]:
    return _MARKUP.sub(" ", value[:MOST_CHARACTERS]).replace("_", " ").split()[:MOST_WORDS]


def candidates_of(leaves: Leaves) -> list[Leaf]:
    """Return the fields of a mapping that a query for words can search, without copies of other fields.

    Fields of nested objects are returned only if there are no others.
    """
    able = [leaf for leaf in leaves.values() if leaf.kind in TEXT_KINDS and leaf.is_indexed and leaf.source]
    able = [leaf for leaf in able if not WHOLE.match(leaf.analyzer)]
    own = {leaf.source for leaf in able if leaf.path == leaf.source and not leaf.copied_from}
    kept: dict[str, Leaf] = {}
    for leaf in sorted(able, key=lambda leaf: (bool(PARTIAL.search(f"{leaf.analyzer} {leaf.path}")), leaf.path)):
        is_alias = leaf.is_other_name and not leaf.path.startswith(f"{leaf.source}.")
        if is_alias or (leaf.path != leaf.source and leaf.source in own) or own.intersection(leaf.copied_from):
            continue
        kept.setdefault(leaf.source, leaf)
    found = sorted(kept.values(), key=lambda leaf: leaf.path)
    return [leaf for leaf in found if not leaf.nested] or found


def choose(leaves: Sequence[Leaf], sources: Sequence[Mapping[str, Any]]) -> tuple[Leaf, ...]:
    """Return the fields to search and to read: at most five, titles first, then from short to long.

    A field that exists in several languages counts once. Fields without a value in the sample, copies of others, ids,
    addresses, tags, and names of people and things are left out; if that leaves none, the longest fields are kept.

    Args:
        leaves: the fields that `candidates_of` returns.
        sources: the sampled documents.
    """
    every = [SampledField(leaf, tuple(values_of(source, leaf) for source in sources)) for leaf in leaves]
    filled = [field for field in every if field.every]
    if not filled:
        return tuple(field.leaf for field in _limited([field for field in every if _is_named(field, every)] or every))
    kept = _without_copies([field for field in filled if _is_text(field, filled)])
    if not kept:
        longest = max(field.words for field in filled)
        kept = [field for field in filled if field.words == longest]
    return tuple(field.leaf for field in _limited(kept))


def is_title(name: str) -> bool:
    """Return whether a field's name is a usual name of a title."""
    field = SampledField(Leaf(name, source=name), ())
    return field.is_title or field.is_name


def fields_of(sources: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the fields to read in documents without a known mapping, as `choose` does.

    Args:
        sources: the documents.
    """
    names = sorted({name for source in sources for name in _names(source)})
    return tuple(leaf.path for leaf in choose([Leaf(name, source=name) for name in names], sources))


def _names(source: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the dotted names of a document's texts and lists of texts."""
    for name, value in source.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{above}{name}.")
        elif isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            yield f"{above}{name}"


def values_of(source: Mapping[str, Any], leaf: Leaf) -> tuple[str, ...]:
    """Return the values of a field in a document."""
    paths = leaf.copied_from or (leaf.source,)
    return tuple(value for path in paths for value in values_at(source, path.split(".")))


def _is_named(field: SampledField, every: Sequence[SampledField]) -> bool:
    return not field.above and (field.is_title or field.is_body or (field.is_name and _has_no_title(every)))


def _has_no_title(every: Sequence[SampledField]) -> bool:
    """Return whether no top-level field is named as a title."""
    return not any(other.is_title and not other.above for other in every)


def _is_text(field: SampledField, every: Sequence[SampledField]) -> bool:
    """Return whether a field holds a title or prose of the document."""
    if field.above and field.is_repeated:
        return False
    has_prose = any(other.is_prose and other.above == field.above and other.words >= LONG_WORDS for other in every)
    if field.is_title and (not field.above or (not field.is_code and (has_prose or _has_no_title(every)))):
        return True
    if field.is_name and not field.is_code and _has_no_title(every) and (not field.above or has_prose):
        return True
    if field.is_body and not field.is_code and (not field.above or field.words >= SHORT_WORDS):
        return True
    return field.is_prose and (not field.is_repeated or field.words >= LONG_WORDS)


def _without_copies(kept: list[SampledField]) -> list[SampledField]:
    """Drop fields whose words other fields have: twins, parts of a longer field, and fields that join several."""
    for field in sorted(kept, key=_worth, reverse=True):
        if any(_are_twins(field, other) for other in kept if other is not field):
            kept = [other for other in kept if other is not field]
    for field in sorted(kept, key=lambda each: (-each.words, each.leaf.path)):
        shorter = [other for other in kept if other is not field and other.words <= field.words]
        if len(shorter) > 1 and _covers(shorter, field):
            kept = [other for other in kept if other is not field]
    parts = [field for field in kept if not field.is_title and field.words >= SHORT_WORDS]
    parts = [field for field in parts if any(_covers([other], field) for other in kept if other.words > field.words)]
    return [field for field in kept if field not in parts]


def _are_twins(field: SampledField, other: SampledField) -> bool:
    is_as_long = 1.2 * min(field.words, other.words) >= max(field.words, other.words)
    return is_as_long and _covers([other], field) and _covers([field], other)


def _worth(field: SampledField) -> tuple[bool, bool, bool, str]:
    """Return a sort key by which the better of two copies comes first."""
    has_markup = any(_MARKUP.search(value[:1000]) for value in field.every)
    return field.is_partial, has_markup, not (field.is_title or field.is_body), field.leaf.path


def _covers(others: Sequence[SampledField], field: SampledField) -> bool:
    """Return whether fields have nearly all words of another field in each document; three documents must have it."""
    shares = []
    for document, words in enumerate(field.vocabulary):
        if words:
            theirs: set[str] = set().union(*(other.vocabulary[document] for other in others))
            shares.append(len(words & theirs) / len(words))
    return len(shares) >= SHORT_WORDS and min(shares) >= SAME - 0.1 and statistics.mean(shares) >= SAME


def _limited(kept: Sequence[SampledField]) -> list[SampledField]:
    """Return at most five fields, at most two of them titles, in the order in which the model reads them."""
    groups: dict[str, list[SampledField]] = {}
    for field in sorted(kept, key=_order):
        groups.setdefault(f"{field.above}.{' '.join(field.parts)}", []).append(field)
    is_title = {name: _order(group[0])[0] == 0 for name, group in groups.items()}
    titles = [name for name in groups if is_title[name]][:MOST_TITLES]
    others = [name for name in groups if not is_title[name]]
    preferred = sorted(others, key=lambda name: (not groups[name][0].is_body, -_order(groups[name][0])[1]))
    chosen = {*titles, *preferred[: MOST_FIELDS - len(titles)]}
    return sorted((field for name in chosen for field in groups[name]), key=_order)


def _order(field: SampledField) -> tuple[int, int, str]:
    """Return the sort key of the order in which fields are read: titles first, then by length in coarse steps."""
    return int(not (field.is_title or field.is_name)), int(field.words).bit_length(), field.leaf.path
