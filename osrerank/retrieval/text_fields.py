"""Choose the text fields that a query searches and the model reads: the mapping alone decides, never values."""

import re
from collections.abc import Iterable, Sequence

from osrerank.retrieval.mapping import TEXT_KINDS, Leaf, Leaves

TITLES = frozenset({"title", "headline", "heading", "headings", "subject", "caption", "name", "label"})
TITLES |= {"titel", "titre", "titulo", "titolo"}
"""Words that show that a field holds what its document is called."""
MOST_FIELDS = 5
"""The most fields that are chosen."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def is_title(path: str) -> bool:
    """Return whether a field's name is like a title's: one of its words is a word for titles."""
    return not TITLES.isdisjoint(word.lower() for word in _WORDS.findall(path))


def titles_first(paths: Iterable[str]) -> list[str]:
    """Return fields with title-like names first, otherwise in their order."""
    return sorted(paths, key=lambda path: not is_title(path))


def text_fields(leaves: Leaves) -> list[Leaf]:
    """Return the text fields of a mapping: title-like names first, then by the alphabet, nested ones last.

    The alphabet is the mapping's order: OpenSearch and Elasticsearch sort what they answer.

    They are the fields of type ``text`` and its kinds, and the text subfields of other fields, such as ``name.text`` of
    the keyword ``name``. Each text counts once, without its subfields, aliases and the fields that it is copied to.
    """
    able = [leaf for leaf in leaves.values() if leaf.kind in TEXT_KINDS and leaf.is_indexed and leaf.source]
    able = [leaf for leaf in able if not leaf.is_other_name or leaf.path.startswith(f"{leaf.source}.")]  # no aliases
    written = {leaf.source for leaf in able if not leaf.copied_from}
    kept: dict[str, Leaf] = {}
    for leaf in sorted(able, key=lambda leaf: (leaf.is_other_name, bool(leaf.analyzer))):  # the plainest of subfields
        if not written.intersection(leaf.copied_from):
            kept.setdefault(leaf.source, leaf)
    return sorted(kept.values(), key=lambda leaf: (bool(leaf.nested), not is_title(leaf.source), leaf.path.split(".")))


def whole_fields(texts: Sequence[Leaf]) -> list[Leaf]:
    """Return the text fields that are not in nested objects; all of them if there are no others."""
    return [leaf for leaf in texts if not leaf.nested] or list(texts)
