"""Which fields of an index hold text that a query is to search and a model to read."""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from osrerank.errors import ResponseFormatError

USUAL = ("title", "text")
"""Searched and read wherever a mapping has either."""
TEXT_TYPES = {"text", "match_only_text", "search_as_you_type", "semantic"}
TITLES = re.compile(r"(^|[._-])(title|headline|heading|subject|caption|name)([._-]|$)", re.IGNORECASE)
MOST_FIELDS = 5
LEAST_WORDS, LEAST_OF_TITLES = 3, 2
"""A field whose values usually have fewer words is an id, a URL or a tag; titles are short."""


def text_fields(properties: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the names of a mapping's text fields, those of objects with dots.

    Fields of nested objects are left out, because only a nested query finds them; so are multi-fields, which hold what
    their field holds.
    """
    for name, field in properties.items():
        if field.get("type") == "nested":
            continue
        if "properties" in field:
            yield from text_fields(field["properties"], f"{above}{name}.")
        elif field.get("type") in TEXT_TYPES:
            yield f"{above}{name}"


def fields_in(mappings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the text fields in the answer to ``GET INDEX/_mapping``, of any of its indices, in order.

    Raises:
        ResponseFormatError: it is no such answer.
    """
    try:
        shown = [one["mappings"].get("properties", {}) for name, one in mappings.items() if not name.startswith(".")]
        return tuple(dict.fromkeys(name for properties in shown for name in text_fields(properties)))
    except (AttributeError, KeyError, TypeError):
        raise ResponseFormatError("the answer to GET _mapping is not one of mappings", path="$") from None


def choose_fields(fields: Sequence[str], sources: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the fields to search and to read: at most five, title-like names first, then the shorter ones.

    Fields without a value in the sample, or with fewer than three words in most of their values, title-like ones with
    fewer than two, are left out; where that leaves none, the longest ones stay.

    Args:
        fields: the text fields of the mapping.
        sources: a sample of documents.
    """
    words = {name: [len(value.split()) for source in sources for value in _values(source, name)] for name in fields}
    usual = {name: statistics.median(counts) for name, counts in words.items() if counts}
    titles = {name for name in usual if TITLES.search(name)}
    kept = [name for name in usual if usual[name] >= (LEAST_OF_TITLES if name in titles else LEAST_WORDS)]
    if not kept:
        kept = [name for name in usual if usual[name] == max(usual.values())] or list(fields)
    kept.sort(key=lambda name: (name not in titles, usual.get(name, 0)))
    return tuple(kept[:MOST_FIELDS])


def fields_of(sources: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the fields to read in documents of which no mapping is known, as `choose_fields` does.

    Args:
        sources: the documents.
    """
    names = tuple(dict.fromkeys(name for source in sources for name in _names(source)))
    return USUAL if set(USUAL) & set(names) else choose_fields(names, sources) or USUAL


def _names(source: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the dotted names of a document's texts and lists of texts."""
    for name, value in source.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{above}{name}.")
        elif isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            yield f"{above}{name}"


def _values(source: Any, path: str) -> Iterator[str]:
    """Yield the texts at a dotted path of a document."""
    if isinstance(source, list):
        for one in source:
            yield from _values(one, path)
    elif not path:
        if isinstance(source, str):
            yield source
    elif isinstance(source, Mapping):
        if path in source:
            yield from _values(source[path], "")
            return
        first, _, rest = path.partition(".")
        yield from _values(source.get(first), rest)
