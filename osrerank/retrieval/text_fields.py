"""Find the text fields of a mapping: the fields that a query can search, and whose text a model can score."""

import re
from collections.abc import Iterable, Sequence

from osrerank.retrieval.mapping import TEXT_KINDS, Leaf, Leaves

TITLE_WORDS = frozenset(
    {"title", "headline", "heading", "headings", "subject", "caption", "name", "label",
     "titel", "titre", "titulo", "titolo"}
)  # fmt: skip
"""Words in the names of fields that have a document's title."""
MAX_FIELDS = 5
"""The maximum number of fields that are searched, and whose text the model scores, if the caller names none."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""Matches the words of a field's name, such as ``page`` and ``Title`` in ``pageTitle``, or ``DOC`` in ``DOC_id``."""


def is_title(path: str) -> bool:
    """Return whether a field's name contains a word for a title, as ``pageTitle`` does."""
    return not TITLE_WORDS.isdisjoint(word.lower() for word in _WORDS.findall(path))


def sort_titles_first(paths: Iterable[str]) -> list[str]:
    """Return the paths of titles, then the other paths, both in their previous order."""
    return sorted(paths, key=lambda path: not is_title(path))


def find_text_fields(leaves: Leaves) -> list[Leaf]:
    """Return the text fields of a mapping: titles first, then others in alphabetical order, nested fields last.

    Text fields have the type ``text`` or a similar one. A text field can be a subfield, such as ``name.text`` of the
    keyword field ``name``. Of several fields with the same text, only one is returned: aliases and other subfields are
    left out, and so is a target of ``copy_to`` if a text field is copied to it.
    """
    candidates = [leaf for leaf in leaves.values() if leaf.kind in TEXT_KINDS and leaf.is_indexed and leaf.source]
    # Aliases are dropped: unlike a subfield's path, an alias's path does not begin with that of its field.
    text_leaves = [
        leaf for leaf in candidates if not leaf.is_alias_or_subfield or leaf.path.startswith(f"{leaf.source}.")
    ]
    original_sources = {leaf.source for leaf in text_leaves if not leaf.copied_from}
    leaf_by_source: dict[str, Leaf] = {}
    # A field is preferred to its subfields, and a subfield with the default analyzer to the others.
    for leaf in sorted(text_leaves, key=lambda leaf: (leaf.is_alias_or_subfield, bool(leaf.analyzer))):
        is_copy = not original_sources.isdisjoint(leaf.copied_from)
        if not is_copy:
            leaf_by_source.setdefault(leaf.source, leaf)
    # split paths sort ``author.name`` before ``author-id``, so the fields of an object stay together
    return sorted(
        leaf_by_source.values(), key=lambda leaf: (bool(leaf.nested), not is_title(leaf.source), leaf.path.split("."))
    )


def prefer_unnested(text_leaves: Sequence[Leaf]) -> list[Leaf]:
    """Return the text fields outside nested objects, or all text fields if all are nested."""
    return [leaf for leaf in text_leaves if not leaf.nested] or list(text_leaves)
