"""Choose the text fields that a query searches and the model reads, by the mapping alone."""

import re
from collections.abc import Iterable, Sequence

from osrerank.retrieval.mapping import TEXT_KINDS, Leaf, Leaves

TITLES = frozenset({"title", "headline", "heading", "headings", "subject", "caption", "name", "label"})
TITLES |= {"titel", "titre", "titulo", "titolo"}
"""Words in the names of fields that hold a document's title."""
MAX_FIELDS = 5
"""The most fields that are chosen."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def is_title(path: str) -> bool:
    """Return whether one of the words of a field's name is in `TITLES`."""
    return not TITLES.isdisjoint(word.lower() for word in _WORDS.findall(path))


def titles_first(paths: Iterable[str]) -> list[str]:
    """Return fields with title-like names first, otherwise in their order."""
    return sorted(paths, key=lambda path: not is_title(path))


def text_fields(leaves: Leaves) -> list[Leaf]:
    """Return the text fields of a mapping: title-like names first, then in alphabetical order, nested ones last.

    They are the fields of type ``text`` and its relatives, and the text subfields of other fields, such as
    ``name.text`` of the keyword ``name``. Each text counts once, without its subfields, aliases and the fields that it
    is copied to.
    """
    texts = [leaf for leaf in leaves.values() if leaf.kind in TEXT_KINDS and leaf.is_indexed and leaf.source]
    texts = [leaf for leaf in texts if not leaf.is_other_name or leaf.path.startswith(f"{leaf.source}.")]  # no aliases
    written = {leaf.source for leaf in texts if not leaf.copied_from}
    by_source: dict[str, Leaf] = {}
    for leaf in sorted(texts, key=lambda leaf: (leaf.is_other_name, bool(leaf.analyzer))):  # prefers plain subfields
        if not written.intersection(leaf.copied_from):
            by_source.setdefault(leaf.source, leaf)
    return sorted(
        by_source.values(), key=lambda leaf: (bool(leaf.nested), not is_title(leaf.source), leaf.path.split("."))
    )


def whole_fields(texts: Sequence[Leaf]) -> list[Leaf]:
    """Return the text fields outside nested objects; all text fields if every one is nested."""
    return [leaf for leaf in texts if not leaf.nested] or list(texts)
