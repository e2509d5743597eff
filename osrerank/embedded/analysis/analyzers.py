"""Find analyzers by name: OpenSearch's own, and those that an index's settings compose for a language."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from osrerank.embedded.analysis import tokens
from osrerank.embedded.analysis.stems import SNOWBALL
from osrerank.embedded.errors import Json, as_list, as_object, illegal, reject_unknown_keys

Filter = Callable[[str], str]

TOKENIZERS: Mapping[str, Callable[[str], list[str]]] = {
    "standard": tokens.standard_words,
    "whitespace": tokens.whitespace_words,
}
BUILT_IN: Mapping[str, tuple[Filter, ...]] = {
    "standard": (tokens.lowercase,),
    "english": (
        tokens.possessive,
        tokens.lowercase,
        lambda word: tokens.GAP if word in tokens.STOP_WORDS else word,
        tokens.porter,
    ),
}


@lru_cache(maxsize=len(BUILT_IN))
def built_in(name: str) -> tokens.Analyzer:
    """Return one of OpenSearch's own analyzers; all indices share it, and so its cache of terms."""
    return tokens.chain(tokens.standard_words, BUILT_IN[name])


class Analyzers:
    """The analyzers of one index.

    Args:
        settings: the ``analysis`` object of the index's settings.

    Raises:
        Fault: the engine lacks a tokenizer, filter or option; the reason names it.
    """

    def __init__(self, settings: Json | None = None) -> None:
        analysis = as_object({} if settings is None else settings, "analysis")
        reject_unknown_keys("analysis", analysis, frozenset({"analyzer", "filter"}))
        filters = as_object(analysis.get("filter", {}), "analysis.filter")
        self._filters = {name: _filter(name, body) for name, body in filters.items()}
        analyzers = as_object(analysis.get("analyzer", {}), "analysis.analyzer")
        self._custom = {name: self._analyzer(name, body) for name, body in analyzers.items()}

    def get(self, name: Any) -> tokens.Analyzer:
        """Return an analyzer by name, or raise a 400 with the known names."""
        if isinstance(name, str) and name in self._custom:
            return self._custom[name]
        if isinstance(name, str) and name in BUILT_IN:
            return built_in(name)
        available = sorted({*BUILT_IN, *self._custom})
        raise illegal(f"analyzer [{name}] has not been configured in mappings; the embedded engine knows {available}")

    def composed(self, tokenizer: Any, filters: Any) -> tokens.Analyzer:
        """Return the analyzer with this tokenizer and these filters, in order."""
        if tokenizer not in list(TOKENIZERS):
            raise illegal(f"the embedded engine has no tokenizer [{tokenizer}]; it has {sorted(TOKENIZERS)}")
        chosen_filters = [self._find_filter(choice) for choice in as_list(filters, "filter")]
        return tokens.chain(TOKENIZERS[tokenizer], chosen_filters)

    def _analyzer(self, name: str, body: Any) -> tokens.Analyzer:
        reject_unknown_keys(
            f"analyzer {name}", as_object(body, f"analyzer {name}"), frozenset({"type", "tokenizer", "filter"})
        )
        if name in ("default", "default_search"):
            raise illegal(f"the embedded engine has no analyzer [{name}] for all fields: name one in each field")
        if body.get("type", "custom") != "custom":
            raise illegal(f"analyzer [{name}] has the type [{body['type']}]; the embedded engine knows [custom]")
        return self.composed(body.get("tokenizer"), body.get("filter", []))

    def _find_filter(self, choice: Any) -> Filter:
        if isinstance(choice, dict):
            return _filter("of the request", choice)
        if choice == "lowercase":
            return tokens.lowercase
        if choice not in self._filters:
            raise illegal(
                f"the embedded engine has no filter [{choice}]; it has [lowercase], and [snowball] with a language"
            )
        return self._filters[choice]


def _filter(name: str, body: Any) -> Filter:
    """Return a configured filter; ``snowball`` is the only type."""
    reject_unknown_keys(f"filter {name}", as_object(body, f"filter {name}"), frozenset({"type", "language"}))
    if body.get("type") != "snowball":
        raise illegal(f"filter [{name}] has the type [{body.get('type')}]; the embedded engine knows [snowball]")
    language = str(body.get("language"))
    if language not in SNOWBALL:
        raise illegal(f"filter [{name}] has the language [{language}]; the embedded engine knows {sorted(SNOWBALL)}")
    return SNOWBALL[language]
