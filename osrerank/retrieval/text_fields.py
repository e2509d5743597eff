"""Choose the text fields that a query searches and the model reads, by the mapping alone."""

import re
from collections.abc import Iterable, Sequence

from osrerank.retrieval.mapping import TEXT_KINDS, Leaf, Leaves

TITLE_WORDS = frozenset({"title", "headline", "heading", "headings", "subject", "caption", "name", "label"})
TITLE_WORDS |= {"titel", "titre", "titulo", "titolo"}
"""Words in the names of fields that hold a document's title."""
MAX_FIELDS = 5
"""The maximum number of fields that are searched and read if the caller names none."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def is_title(path: str) -> bool:
    """Return whether a word of a field's name is in `TITLE_WORDS`."""
    return not TITLE_WORDS.isdisjoint(word.lower() for word in _WORDS.findall(path))


def titles_first(paths: Iterable[str]) -> list[str]:
    """Return the paths with title-like names, then the others; both in their original order."""
    return sorted(paths, key=lambda path: not is_title(path))


def text_fields(leaves: Leaves) -> list[Leaf]:
    """Return the text fields of a mapping: title-like names first, then in alphabetical order, nested ones last.

    Text fields have the type ``text`` or one like it. They can be subfields of others, such as ``name.text`` of the
    keyword ``name``. Of fields with the same text, only one is returned: no other subfield, no alias, and no target of
    its ``copy_to``.
    """
    texts = [leaf for leaf in leaves.values() if leaf.kind in TEXT_KINDS and leaf.is_indexed and leaf.source]
    # Aliases are dropped: unlike a subfield's path, an alias's path does not begin with that of its field.
    texts = [leaf for leaf in texts if not leaf.is_alias_or_subfield or leaf.path.startswith(f"{leaf.source}.")]
    uncopied_sources = {leaf.source for leaf in texts if not leaf.copied_from}
    by_source: dict[str, Leaf] = {}
    # The field itself is preferred to its subfields, and a subfield without an analyzer to others.
    for leaf in sorted(texts, key=lambda leaf: (leaf.is_alias_or_subfield, bool(leaf.analyzer))):
        if not uncopied_sources.intersection(leaf.copied_from):
            by_source.setdefault(leaf.source, leaf)
    return sorted(
        by_source.values(), key=lambda leaf: (bool(leaf.nested), not is_title(leaf.source), leaf.path.split("."))
    )


def whole_fields(texts: Sequence[Leaf]) -> list[Leaf]:
    """Return the text fields outside nested objects; all text fields if all are nested."""
    return [leaf for leaf in texts if not leaf.nested] or list(texts)
