"""Choose the text fields that a query searches and the model scores, by the mapping alone."""

import re
from collections.abc import Iterable, Sequence

from osrerank.retrieval.mapping import TEXT_KINDS, Leaf, Leaves

TITLE_WORDS = frozenset({"title", "headline", "heading", "headings", "subject", "caption", "name", "label"})
TITLE_WORDS |= {"titel", "titre", "titulo", "titolo"}
"""Words in the names of fields that hold a document's title."""
MAX_FIELDS = 5
"""If the caller names no fields, at most this many are searched, and the model scores their text."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def is_title(path: str) -> bool:
    """Return whether a word of a field's name is in `TITLE_WORDS`."""
    return not TITLE_WORDS.isdisjoint(word.lower() for word in _WORDS.findall(path))


def sort_titles_first(paths: Iterable[str]) -> list[str]:
    """Return the paths with title-like names before the others. Otherwise, the order stays."""
    return sorted(paths, key=lambda path: not is_title(path))


def find_text_fields(leaves: Leaves) -> list[Leaf]:
    """Return the text fields of a mapping: title-like names first, then in alphabetical order, nested ones last.

    Text fields have the type ``text`` or a similar one. They can be subfields of others, such as ``name.text`` of the
    keyword ``name``. Each text is returned once: other subfields, aliases and targets of ``copy_to`` are left out.
    """
    candidates = [leaf for leaf in leaves.values() if leaf.kind in TEXT_KINDS and leaf.is_indexed and leaf.source]
    # Aliases are dropped: unlike a subfield's path, an alias's path does not begin with that of its field.
    text_leaves = [
        leaf for leaf in candidates if not leaf.is_alias_or_subfield or leaf.path.startswith(f"{leaf.source}.")
    ]
    uncopied_sources = {leaf.source for leaf in text_leaves if not leaf.copied_from}
    leaf_by_source: dict[str, Leaf] = {}
    # The field itself is preferred to its subfields, and a subfield without an analyzer to others.
    for leaf in sorted(text_leaves, key=lambda leaf: (leaf.is_alias_or_subfield, bool(leaf.analyzer))):
        if not uncopied_sources.intersection(leaf.copied_from):
            leaf_by_source.setdefault(leaf.source, leaf)
    return sorted(
        leaf_by_source.values(), key=lambda leaf: (bool(leaf.nested), not is_title(leaf.source), leaf.path.split("."))
    )


def prefer_unnested(text_leaves: Sequence[Leaf]) -> list[Leaf]:
    """Return the text fields outside nested objects, or all text fields if all are nested."""
    return [leaf for leaf in text_leaves if not leaf.nested] or list(text_leaves)
