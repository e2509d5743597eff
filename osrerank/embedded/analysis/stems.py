"""Stem words of many languages with PyStemmer, and adapt the results to those of Lucene's ``snowball`` filter.

Lucene and PyStemmer both contain the algorithms of the Snowball project (Porter, https://snowballstem.org), but from
different releases. PyStemmer 3 has another Dutch algorithm than Lucene 10. It also removes the ending -et from German
and Swedish words, and parts before or after an apostrophe, such as the l' of l'homme. Lucene 10 does not.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType

import Stemmer

_APOSTROPHE = "\x01"
"""Replaces an apostrophe in a word while it is stemmed, so that no rule applies to it."""
_UMLAUTS = str.maketrans({"ä": "a", "ö": "o", "ü": "u", "ß": "ss"})
_GERMAN_ENDINGS = frozenset({"", "e", "en", "em", "ern", "er", "es", "s", "est", "st"})
"""The endings that both stemmers remove after -et."""


@cache
def _stemmer(algorithm: str) -> Stemmer.Stemmer:
    return Stemmer.Stemmer(algorithm, 0)  # without a cache of stems


def _stem(algorithm: str, word: str) -> str:
    if "'" not in word or algorithm == "catalan":  # Lucene's Catalan stemmer has rules for apostrophes, too
        return str(_stemmer(algorithm).stemWord(word))
    masked_word = word.replace("'", _APOSTROPHE)
    return str(_stemmer(algorithm).stemWord(masked_word)).replace(_APOSTROPHE, "'")


def stem_german(word: str) -> str:
    """Stem a German word, but keep its ending -et."""
    stem = _stem("german", word)  # without umlauts
    stem_with_et = f"{stem}et"
    without_umlauts = word.translate(_UMLAUTS)
    if without_umlauts.startswith(stem_with_et) and without_umlauts.removeprefix(stem_with_et) in _GERMAN_ENDINGS:
        return stem_with_et
    return stem


def stem_swedish(word: str) -> str:
    """Stem a Swedish word, but keep its ending -et, except in -andet and -het."""
    without_s = word.removesuffix("s") if word.endswith("ets") else word
    if without_s.endswith("et") and not without_s.endswith(("andet", "het")):
        return without_s
    return _stem("swedish", word)


def stem_dutch(word: str) -> str:
    """Stem a Dutch word by Porter's algorithm, which PyStemmer before version 3 calls ``dutch``."""
    return _stem("dutch_porter" if "dutch_porter" in Stemmer.algorithms() else "dutch", word)


_IDENTICAL_LANGUAGES = (
    "Arabic Basque Catalan Danish Estonian Finnish French Greek Hungarian Indonesian Italian Norwegian Portuguese"
    " Romanian Russian Spanish Turkish"
)
"""The languages for which PyStemmer and Lucene return the same stems."""
STEMMERS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        **{language: partial(_stem, language.lower()) for language in _IDENTICAL_LANGUAGES.split()},
        "Dutch": stem_dutch,
        "German": stem_german,
        "Swedish": stem_swedish,
    }
)
"""The function that stems a language's words, by the language's name in Lucene's filter."""
