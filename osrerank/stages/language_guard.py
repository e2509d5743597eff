"""Recognise a query that a model cannot read: one whose letters are mostly of scripts that its languages do not use."""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

SHARE = 0.5
"""A query is refused where more than this share of its letters is of other scripts."""
LATIN = "LATIN"
SCRIPTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("be", "bg", "kk", "ky", "mk", "mn", "ru", "tg", "uk"), ("CYRILLIC",)),
    **dict.fromkeys(("ar", "fa", "ps", "ur"), ("ARABIC",)),
    **dict.fromkeys(("he", "yi"), ("HEBREW",)),
    **dict.fromkeys(("hi", "mr", "ne"), ("DEVANAGARI",)),
    "sr": ("CYRILLIC", LATIN),
    "am": ("ETHIOPIC",),
    "bn": ("BENGALI",),
    "el": ("GREEK",),
    "gu": ("GUJARATI",),
    "hy": ("ARMENIAN",),
    "ja": ("CJK", "HIRAGANA", "KATAKANA"),
    "ka": ("GEORGIAN",),
    "km": ("KHMER",),
    "kn": ("KANNADA",),
    "ko": ("HANGUL", "CJK"),
    "lo": ("LAO",),
    "ml": ("MALAYALAM",),
    "my": ("MYANMAR",),
    "pa": ("GURMUKHI",),
    "si": ("SINHALA",),
    "ta": ("TAMIL",),
    "te": ("TELUGU",),
    "th": ("THAI",),
    "zh": ("CJK", "BOPOMOFO"),
}
"""The scripts of languages, by ISO 639-1 code, as Unicode's character names begin; of all others it is Latin's."""
_KNOWN = frozenset({LATIN, *(script for scripts in SCRIPTS.values() for script in scripts)})


def unreadable(query: str, languages: Sequence[str]) -> str:
    """Return the script that most of a query's letters have and none of these languages; "" where there is none.

    Args:
        query: its text.
        languages: that the model reads, by ISO 639-1 code; where there are none, it reads everything.
    """
    if not languages:
        return ""
    read = {script for language in languages for script in SCRIPTS.get(language, (LATIN,))}
    scripts = Counter(script_of(character) for character in query if character.isalpha())
    foreign = {script: count for script, count in scripts.items() if script in _KNOWN - read}
    if sum(foreign.values()) <= SHARE * scripts.total():
        return ""
    return max(foreign, key=foreign.__getitem__).title().replace("Cjk", "Chinese characters")


@lru_cache(maxsize=10_000)
def script_of(letter: str) -> str:
    """Return a letter's script, as its Unicode name begins; full and half width forms and marks aside."""
    name = unicodedata.name(letter, "")
    for prefix in ("FULLWIDTH ", "HALFWIDTH ", "MODIFIER LETTER "):
        name = name.removeprefix(prefix)
    return name.partition(" ")[0].partition("-")[0]
