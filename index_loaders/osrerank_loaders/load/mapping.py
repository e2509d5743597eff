"""The index of a collection: analysis and similarity equal to Anserini's, and the settings while loading."""

from dataclasses import dataclass
from typing import Any

from osrerank_loaders.collections.base import CONTENTS, Loader

ENGLISH = "english"
SNOWBALL = (
    "arabic", "basque", "catalan", "danish", "dutch", "estonian", "finnish", "french", "german", "greek", "hungarian",
    "indonesian", "italian", "norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "turkish",
)  # fmt: skip
"""Languages with a stemmer that is Lucene's in the embedded engine too."""
LANGUAGES = tuple(sorted((ENGLISH, "cjk", *SNOWBALL)))
_LOADING = {"refresh_interval": "-1", "number_of_replicas": 0}


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """How the index is made.

    Attributes:
        k1: BM25's k1; the loader's when None.
        b: BM25's b; the loader's when None.
        shards: with more than one, term statistics and so scores differ per shard.
        replicas: copies once loaded; as many as the nodes allow, at most one, when None.
        contents: whether there is a field ``contents`` too, with all that Anserini indexes of a document.
        language: the language of the texts, one of `LANGUAGES`.
    """

    k1: float | None = None
    b: float | None = None
    shards: int = 1
    replicas: int | None = None
    contents: bool = False
    language: str = ENGLISH


def index_body(
    loader: Loader, options: IndexOptions, meta: dict[str, Any], *, fixed_similarity: bool = False
) -> dict[str, Any]:
    """Return the body that creates the index, in its settings for loading.

    The built-in ``english`` analyzer is Anserini's chain: standard tokenizer, possessives, lower case, Lucene's 33
    stop words, Porter. Other languages have the standard tokenizer, lower case and their Snowball stemmer; Chinese,
    Japanese and Korean the built-in ``cjk``, which OpenSearch has and the embedded engine lacks.

    Args:
        loader: the loader of the collection.
        options: how the index is made.
        meta: what the mapping keeps of the load.
        fixed_similarity: whether the engine has one similarity only; it is then named where someone asked for another.
    """
    text = {"type": "text", "analyzer": _analyzer(options.language)}
    fields = {name: text if field.get("analyzer") == ENGLISH else field for name, field in loader.fields.items()}
    mappings: dict[str, Any] = {
        "_meta": meta,
        "dynamic": loader.open_fields,
        "properties": {"title": text, "text": text, **({CONTENTS: text} if options.contents else {}), **fields},
    }
    settings: dict[str, Any] = {"number_of_shards": options.shards, **_LOADING}
    if not (fixed_similarity and loader.is_users and options.k1 is None and options.b is None):
        settings["similarity"] = {"default": _similarity(loader, options)}
    if options.language in SNOWBALL:
        settings["analysis"] = _analysis(options.language)
    return {"settings": {"index": settings}, "mappings": mappings}


def fixed_options(loader: Loader, options: IndexOptions) -> tuple[str, ...]:
    """Return the options that are fixed once the index exists, so that a load resumes only with the same."""
    similarity = _similarity(loader, options)
    constants = (f"k1={similarity['k1']:g}", f"b={similarity['b']:g}", f"shards={options.shards}")
    contents = (CONTENTS,) if options.contents else ()
    return (*constants, *contents, *(() if options.language == ENGLISH else (f"language={options.language}",)))


def _analyzer(language: str) -> str:
    return f"snowball_{language}" if language in SNOWBALL else language


def _analysis(language: str) -> dict[str, Any]:
    """Return the analyzer of a language with a Snowball stemmer, which both engines have."""
    name = _analyzer(language)
    return {
        "filter": {name: {"type": "snowball", "language": language.capitalize()}},
        "analyzer": {name: {"type": "custom", "tokenizer": "standard", "filter": ["lowercase", name]}},
    }


def _similarity(loader: Loader, options: IndexOptions) -> dict[str, Any]:
    return {
        "type": "BM25",
        "k1": loader.k1 if options.k1 is None else options.k1,
        "b": loader.b if options.b is None else options.b,
    }


def settings_when_loaded(options: IndexOptions) -> dict[str, Any]:
    """Return the settings that end the loading: refresh every second, the default, and replicas."""
    if options.replicas is None:
        return {"index": {"refresh_interval": "1s", "auto_expand_replicas": "0-1"}}
    return {"index": {"refresh_interval": "1s", "number_of_replicas": options.replicas}}
