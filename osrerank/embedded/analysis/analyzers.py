"""Look up analyzers by name: those built into OpenSearch, and those that an index's settings define."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from osrerank.embedded.analysis import tokens
from osrerank.embedded.analysis.stems import STEMMERS
from osrerank.embedded.errors import Json, argument_error, reject_unknown_keys, require_list, require_object

Filter = Callable[[str], str]

TOKENIZERS: Mapping[str, Callable[[str], list[str]]] = {
    "standard": tokens.split_standard,
    "whitespace": tokens.split_whitespace,
}
"""For each tokenizer, the function that splits a text into words."""
BUILT_IN_FILTERS: Mapping[str, tuple[Filter, ...]] = {
    "standard": (tokens.lowercase,),
    "english": (
        tokens.strip_possessive,
        tokens.lowercase,
        tokens.replace_stop_word,
        tokens.stem_porter,
    ),
}
"""The filters of OpenSearch's built-in analyzers, in order. Their tokenizer is ``standard``."""


@lru_cache(maxsize=len(BUILT_IN_FILTERS))
def get_built_in(name: str) -> tokens.Analyzer:
    """Return an analyzer that is built into OpenSearch. All indices share it and its cache of terms."""
    return tokens.build_analyzer(tokens.split_standard, BUILT_IN_FILTERS[name])


class Analyzers:
    """The analyzers that an index's fields can use.

    Args:
        settings: the ``analysis`` object of the index's settings.

    Raises:
        ApiError: the settings name a tokenizer, filter or option that the engine does not have.
    """

    def __init__(self, settings: Json | None = None) -> None:
        analysis = require_object({} if settings is None else settings, "analysis")
        reject_unknown_keys("analysis", analysis, frozenset({"analyzer", "filter"}))
        filters = require_object(analysis.get("filter", {}), "analysis.filter")
        self._filters = {name: _build_filter(name, body) for name, body in filters.items()}
        analyzers = require_object(analysis.get("analyzer", {}), "analysis.analyzer")
        self._custom = {name: self._build_analyzer(name, body) for name, body in analyzers.items()}

    def get(self, name: Any) -> tokens.Analyzer:
        """Return the analyzer of this name, or raise an `ApiError` 400 that lists the names of all analyzers."""
        if isinstance(name, str) and name in self._custom:
            return self._custom[name]
        if isinstance(name, str) and name in BUILT_IN_FILTERS:
            return get_built_in(name)
        available = sorted({*BUILT_IN_FILTERS, *self._custom})
        raise argument_error(
            f"analyzer [{name}] has not been configured in mappings; the embedded engine supports {available}"
        )

    def compose(self, tokenizer: Any, filters: Any) -> tokens.Analyzer:
        """Return the analyzer that consists of a tokenizer and filters.

        Args:
            tokenizer: a tokenizer's name, such as "standard".
            filters: a list of filters, each a name such as "lowercase" or an object such as
                ``{"type": "snowball", "language": "German"}``.
        """
        if tokenizer not in list(TOKENIZERS):  # a list, because the value of a request might not be hashable
            raise argument_error(f"the embedded engine has no tokenizer [{tokenizer}]; it has {sorted(TOKENIZERS)}")
        filter_functions = [self._find_filter(filter_) for filter_ in require_list(filters, "filter")]
        return tokens.build_analyzer(TOKENIZERS[tokenizer], filter_functions)

    def _build_analyzer(self, name: str, body: Any) -> tokens.Analyzer:
        reject_unknown_keys(
            f"analyzer {name}", require_object(body, f"analyzer {name}"), frozenset({"type", "tokenizer", "filter"})
        )
        if name in ("default", "default_search"):
            raise argument_error(
                f"the embedded engine has no analyzer [{name}] for the whole index: set the analyzer of each field"
            )
        if body.get("type", "custom") != "custom":
            raise argument_error(
                f"analyzer [{name}] has the type [{body['type']}]; the embedded engine supports [custom]"
            )
        return self.compose(body.get("tokenizer"), body.get("filter", []))

    def _find_filter(self, name_or_definition: Any) -> Filter:
        if isinstance(name_or_definition, dict):
            return _build_filter("inline", name_or_definition)  # a definition has no name for messages
        name = name_or_definition
        if name == "lowercase":
            return tokens.lowercase
        if name not in self._filters:
            raise argument_error(
                f"the embedded engine has no filter [{name}]; it has [lowercase], and [snowball] with a language"
            )
        return self._filters[name]


def _build_filter(name: str, body: Any) -> Filter:
    """Return the filter of a definition such as ``{"type": "snowball", "language": "German"}``."""
    reject_unknown_keys(f"filter {name}", require_object(body, f"filter {name}"), frozenset({"type", "language"}))
    if body.get("type") != "snowball":
        raise argument_error(
            f"filter [{name}] has the type [{body.get('type')}]; the embedded engine supports [snowball]"
        )
    language = str(body.get("language"))
    if language not in STEMMERS:
        raise argument_error(
            f"filter [{name}] has the language [{language}]; the embedded engine supports {sorted(STEMMERS)}"
        )
    return STEMMERS[language]
