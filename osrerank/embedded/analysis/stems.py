"""Stem words of many languages as Lucene's ``snowball`` filter does, with PyStemmer.

Both are generated from the Snowball project's algorithms (Porter, https://snowballstem.org), but from different
releases. PyStemmer 3 has another Dutch algorithm, and removes -et from German and Swedish words; Lucene 10 keeps it.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType

import Stemmer

_UNMARKED = str.maketrans({"ä": "a", "ö": "o", "ü": "u", "ß": "ss"})
_GERMAN_ENDS = frozenset({"", "e", "en", "em", "ern", "er", "es", "s", "est", "st"})


@cache
def _stemmer(algorithm: str) -> Stemmer.Stemmer:
    return Stemmer.Stemmer(algorithm, 0)


def _stem(algorithm: str, word: str) -> str:
    return str(_stemmer(algorithm).stemWord(word))


def german(word: str) -> str:
    """Stem a German word, but keep its ending -et."""
    stem = _stem("german", word)
    unmarked = word.translate(_UNMARKED)
    if unmarked.startswith(f"{stem}et") and unmarked[len(stem) + 2 :] in _GERMAN_ENDS:
        return f"{stem}et"
    return stem


def swedish(word: str) -> str:
    """Stem a Swedish word, but keep its ending -et, except in -andet and -het."""
    bare = word.removesuffix("s") if word.endswith("ets") else word
    if bare.endswith("et") and not bare.endswith(("andet", "het")):
        return bare
    return _stem("swedish", word)


def dutch(word: str) -> str:
    """Stem a Dutch word by Porter's algorithm, which older releases call ``dutch``."""
    return _stem("dutch_porter" if "dutch_porter" in Stemmer.algorithms() else "dutch", word)


_SAME = (
    "Arabic",
    "Basque",
    "Catalan",
    "Danish",
    "Estonian",
    "Finnish",
    "French",
    "Greek",
    "Hungarian",
    "Indonesian",
    "Italian",
    "Norwegian",
    "Portuguese",
    "Romanian",
    "Russian",
    "Spanish",
    "Turkish",
)
SNOWBALL: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        **{language: partial(_stem, language.lower()) for language in _SAME},
        "Dutch": dutch,
        "German": german,
        "Swedish": swedish,
    }
)
"""Stemming functions by the language names that Lucene's filter uses."""
