"""Build the mapping and settings of a collection's index, with Anserini's text analysis and BM25 parameters."""

from dataclasses import dataclass
from typing import Any

from osrerank_loaders.collections.base import CONTENTS, Loader

ENGLISH = "english"
SNOWBALL = (
    "arabic", "basque", "catalan", "danish", "dutch", "estonian", "finnish", "french", "german", "greek", "hungarian",
    "indonesian", "italian", "norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "turkish",
)  # fmt: skip
"""The languages for which both Lucene and the embedded engine have a Snowball stemmer."""
LANGUAGES = tuple(sorted((ENGLISH, "cjk", *SNOWBALL)))
_LOADING_SETTINGS = {"refresh_interval": "-1", "number_of_replicas": 0}
"""The index's settings during a load, which make the load faster. `build_search_settings` replaces them afterwards."""


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """How the index is created.

    Attributes:
        k1: BM25's k1. If None, the loader's value is used.
        b: BM25's b. If None, the loader's value is used.
        shards: the number of shards. With several shards, each computes scores from its own term statistics.
        replicas: the number of replicas after the load. If None, it is 1 on clusters of several nodes, else 0.
        contents: whether to add a field ``contents`` with the whole text of a document, as Anserini indexes it.
        language: the language of the texts, one of `LANGUAGES`.
    """

    k1: float | None = None
    b: float | None = None
    shards: int = 1
    replicas: int | None = None
    contents: bool = False
    language: str = ENGLISH


def build_index_body(
    loader: Loader, options: IndexOptions, meta: dict[str, Any], *, has_one_similarity: bool = False
) -> dict[str, Any]:
    """Return the body of the request that creates the index, with its settings during the load.

    The built-in ``english`` analyzer is Anserini's: standard tokenizer, possessives, lower case, Lucene's 33 stop
    words, Porter stemmer. Other languages get the standard tokenizer, lower case and their Snowball stemmer. Chinese,
    Japanese and Korean get the built-in ``cjk``, which the embedded engine does not support.

    Args:
        loader: the loader of the collection.
        options: the options of the index.
        meta: the mapping's ``_meta``, with the state of the load.
        has_one_similarity: whether the engine supports only one k1 and b, and warns about others, as the embedded
            engine does. They are then sent only if the user or the collection's publisher chose them.
    """
    text_field = {"type": "text", "analyzer": _analyzer_name(options.language)}
    properties: dict[str, Any] = {"title": text_field, "text": text_field}
    if options.contents:
        properties[CONTENTS] = text_field
    for name, field in loader.fields.items():  # English fields also get the language of the options
        properties[name] = text_field if field.get("analyzer") == ENGLISH else field
    mappings = {"_meta": meta, "dynamic": loader.allows_other_fields, "properties": properties}
    settings: dict[str, Any] = {"number_of_shards": options.shards, **_LOADING_SETTINGS}
    nobody_chose_bm25 = loader.is_generic and options.k1 is None and options.b is None
    if not (has_one_similarity and nobody_chose_bm25):
        settings["similarity"] = {"default": _build_similarity(loader, options)}
    if options.language in SNOWBALL:
        settings["analysis"] = _build_analysis(options.language)
    return {"settings": {"index": settings}, "mappings": mappings}


def list_permanent_options(loader: Loader, options: IndexOptions) -> tuple[str, ...]:
    """Return the options that cannot change once the index exists, such as ``k1=0.9``."""
    similarity = _build_similarity(loader, options)
    permanent = [f"k1={similarity['k1']:g}", f"b={similarity['b']:g}", f"shards={options.shards}"]
    if options.contents:
        permanent.append(CONTENTS)
    if options.language != ENGLISH:
        permanent.append(f"language={options.language}")
    return tuple(permanent)


def _analyzer_name(language: str) -> str:
    """Return the name of a language's analyzer, such as ``english`` or ``snowball_german``."""
    return f"snowball_{language}" if language in SNOWBALL else language


def _build_analysis(language: str) -> dict[str, Any]:
    name = _analyzer_name(language)
    return {
        "filter": {name: {"type": "snowball", "language": language.capitalize()}},
        "analyzer": {name: {"type": "custom", "tokenizer": "standard", "filter": ["lowercase", name]}},
    }


def _build_similarity(loader: Loader, options: IndexOptions) -> dict[str, Any]:
    return {
        "type": "BM25",
        "k1": loader.k1 if options.k1 is None else options.k1,
        "b": loader.b if options.b is None else options.b,
    }


def build_search_settings(options: IndexOptions) -> dict[str, Any]:
    """Return the settings after the load: the default refresh interval, and the replicas."""
    if options.replicas is None:
        return {"index": {"refresh_interval": "1s", "auto_expand_replicas": "0-1"}}
    return {"index": {"refresh_interval": "1s", "number_of_replicas": options.replicas}}
