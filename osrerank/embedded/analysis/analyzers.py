"""Analyzers by name: OpenSearch's own, and those that an index's settings compose of known parts."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from osrerank.embedded.analysis import tokens
from osrerank.embedded.analysis.stems import SNOWBALL
from osrerank.embedded.errors import Json, illegal, only

Filter = Callable[[str], str]

TOKENIZERS: Mapping[str, Callable[[str], list[str]]] = {
    "standard": tokens.standard_words,
    "whitespace": tokens.whitespace_words,
    "letter": tokens.letter_words,
    "keyword": tokens.whole_text,
}
FILTERS: Mapping[str, Filter] = {
    "lowercase": tokens.lowercase,
    "stop": tokens.stop_filter(tokens.STOP_WORDS),
    "porter_stem": tokens.porter,
    "stemmer": tokens.porter,
    "snowball": SNOWBALL["English"],
    "asciifolding": tokens.ascii_folding,
}
STEMMERS: Mapping[str, Filter] = {
    "english": tokens.porter,
    "porter": tokens.porter,
    "possessive_english": tokens.possessive,
}
BUILT_IN: Mapping[str, tuple[str, tuple[Filter, ...]]] = {
    "standard": ("standard", (tokens.lowercase,)),
    "simple": ("letter", (tokens.lowercase,)),
    "whitespace": ("whitespace", ()),
    "keyword": ("keyword", ()),
    "stop": ("letter", (tokens.lowercase, FILTERS["stop"])),
    "english": ("standard", (tokens.possessive, tokens.lowercase, FILTERS["stop"], tokens.porter)),
}


@lru_cache(maxsize=len(BUILT_IN))
def built_in(name: str) -> tokens.Analyzer:
    """Return one of OpenSearch's own analyzers; its memory of terms is shared by all indices."""
    tokenizer, filters = BUILT_IN[name]
    return tokens.chain(TOKENIZERS[tokenizer], filters)


class Analyzers:
    """The analyzers of one index.

    Args:
        settings: the ``analysis`` object of the index's settings.

    Raises:
        Fault: the engine does not have a part; the reason names it.
    """

    def __init__(self, settings: Json | None = None) -> None:
        analysis = settings or {}
        only("analysis", analysis, frozenset({"analyzer", "filter", "tokenizer"}))
        self._filters = {name: _filter(name, body) for name, body in analysis.get("filter", {}).items()}
        self._tokenizers = {name: _tokenizer(name, body) for name, body in analysis.get("tokenizer", {}).items()}
        self._custom = {name: self._analyzer(name, body) for name, body in analysis.get("analyzer", {}).items()}

    def get(self, name: str) -> tokens.Analyzer:
        """Return an analyzer by name."""
        if name in self._custom:
            return self._custom[name]
        if name in BUILT_IN:
            return built_in(name)
        known = sorted({*BUILT_IN, *self._custom})
        raise illegal(f"analyzer [{name}] has not been configured in mappings; the embedded engine knows {known}")

    @property
    def default(self) -> str:
        """The analyzer of text fields that name none."""
        return "default" if "default" in self._custom else "standard"

    def composed(self, tokenizer: str, filters: list[str | Json]) -> tokens.Analyzer:
        """Return the analyzer of the parts named, for ``_analyze``."""
        return tokens.chain(self._find_tokenizer(tokenizer), [self._find_filter(part) for part in filters])

    def _analyzer(self, name: str, body: Json) -> tokens.Analyzer:
        kind = body.get("type", "custom")
        if kind == "custom":
            only(f"analyzer {name}", body, frozenset({"type", "tokenizer", "filter", "position_increment_gap"}))
            if "tokenizer" not in body:
                raise illegal(f"analyzer [{name}] must specify either an analyzer type, or a tokenizer")
            filters = body.get("filter", [])
            return self.composed(body["tokenizer"], [filters] if isinstance(filters, str) else filters)
        return _configured(name, kind, body)

    def _find_tokenizer(self, name: str) -> Callable[[str], list[str]]:
        found = self._tokenizers.get(name) or TOKENIZERS.get(name)
        if found is None:
            raise illegal(f"the embedded engine has no tokenizer [{name}]; it has {sorted(TOKENIZERS)}")
        return found

    def _find_filter(self, part: str | Json) -> Filter:
        if isinstance(part, dict):
            return _filter("of the request", part)
        found = self._filters.get(part) or FILTERS.get(part)
        if found is None:
            raise illegal(f"the embedded engine has no filter [{part}]; it has {sorted(FILTERS)}")
        return found


def _configured(name: str, kind: str, body: Json) -> tokens.Analyzer:
    """Return a built-in analyzer with the configured stop words, if it has any."""
    if kind not in BUILT_IN:
        raise illegal(f"analyzer [{name}] has the type [{kind}]; the embedded engine knows {sorted(BUILT_IN)}")
    if kind not in {"standard", "english", "stop"}:
        only(f"analyzer {name}", body, frozenset({"type"}))
        return built_in(kind)
    only(f"analyzer {name}", body, frozenset({"type", "stopwords"}))
    if "stopwords" not in body:
        return built_in(kind)
    tokenizer, filters = BUILT_IN[kind]
    stop = tokens.stop_filter(_stop_words(name, body["stopwords"]))
    parts = [part for part in filters if part is not FILTERS["stop"]]
    parts.insert(parts.index(tokens.lowercase) + 1, stop)
    return tokens.chain(TOKENIZERS[tokenizer], parts)


def _stop_words(name: str, words: Any) -> frozenset[str]:
    if words == "_english_":
        return tokens.STOP_WORDS
    if words == "_none_":
        return frozenset()
    if isinstance(words, list) and not any(str(word).startswith("_") for word in words):
        return frozenset(map(str, words))
    raise illegal(
        f"[{name}] has the stop words {words!r}; the embedded engine knows _english_, _none_ and lists of words"
    )


def _filter(name: str, body: Json) -> Filter:
    kind = body.get("type", name)
    if kind == "stop":
        only(f"filter {name}", body, frozenset({"type", "stopwords"}))
        return tokens.stop_filter(_stop_words(name, body.get("stopwords", "_english_")))
    if kind == "stemmer":
        only(f"filter {name}", body, frozenset({"type", "language", "name"}))
        language = str(body.get("language", body.get("name", "porter")))
        if language not in STEMMERS:
            raise illegal(
                f"filter [{name}] has the language [{language}]; the embedded engine knows {sorted(STEMMERS)}"
            )
        return STEMMERS[language]
    if kind == "snowball":
        only(f"filter {name}", body, frozenset({"type", "language"}))
        language = str(body.get("language", "English"))
        if language not in SNOWBALL:
            raise illegal(
                f"filter [{name}] has the language [{language}]; the embedded engine knows {sorted(SNOWBALL)}"
            )
        return SNOWBALL[language]
    only(f"filter {name}", body, frozenset({"type"}))
    if kind not in FILTERS:
        raise illegal(f"filter [{name}] has the type [{kind}]; the embedded engine knows {sorted(FILTERS)}")
    return FILTERS[kind]


def _tokenizer(name: str, body: Json) -> Callable[[str], list[str]]:
    only(f"tokenizer {name}", body, frozenset({"type"}))
    if body.get("type") not in TOKENIZERS:
        raise illegal(
            f"tokenizer [{name}] has the type [{body.get('type')}]; the embedded engine knows {sorted(TOKENIZERS)}"
        )
    return TOKENIZERS[body["type"]]
