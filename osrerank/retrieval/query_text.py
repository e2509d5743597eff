"""From a query text to the first pass's query, and from a query back to its text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from osrerank.errors import ConfigError

TIE_BREAKER = 0.5
"""What the BEIR benchmark's Elasticsearch baseline uses over title and text."""

# clause -> key of its text, when the clause is {field: text} or {field: {"query": text}}
_FIELD_CLAUSES = ("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix")
# clause -> the text is its "query" (or, for neural clauses, "query_text" under the field)
_TEXT_CLAUSES = ("multi_match", "query_string", "simple_query_string", "combined_fields")
_NEURAL_CLAUSES = ("neural", "neural_sparse")
# clause -> keys of its scoring queries; filter and must_not do not score, so their texts are not the query
_COMPOUND_CLAUSES = {
    "bool": ("must", "should"),
    "dis_max": ("queries",),
    "hybrid": ("queries",),
    "function_score": ("query",),
    "script_score": ("query",),
    "nested": ("query",),
    "has_child": ("query",),
    "has_parent": ("query",),
    "boosting": ("positive",),
}


def build_query(text: str, fields: Sequence[str]) -> dict[str, Any]:
    """Return the first pass's query for a text: BM25 over one field, or the best of several fields."""
    if len(fields) == 1 and "^" not in fields[0] and "*" not in fields[0]:
        return {"match": {fields[0]: {"query": text}}}
    return {"multi_match": {"query": text, "fields": list(fields), "type": "best_fields", "tie_breaker": TIE_BREAKER}}


def find_query_text(body: Mapping[str, Any]) -> str:
    """Return the one query text of a search body.

    It is `ext.rerank.query_context.query_text`, the same's `query_text_path`, or the text of the match, multi_match,
    query_string or neural clauses of the query, when they agree on one. Clauses that do not score are ignored.

    Raises:
        ConfigError: there is no such text, or there are several.
    """
    context: Any = body
    for key in ("ext", "rerank", "query_context"):  # OpenSearch says what is wrong where one is no object
        context = (context.get(key) if isinstance(context, Mapping) else None) or {}
    if not isinstance(context, Mapping):
        context = {}
    if isinstance(text := context.get("query_text"), str):
        return text
    if isinstance(path := context.get("query_text_path"), str):
        return _at_path(body, path)
    texts = list(dict.fromkeys(_texts(body.get("query"))))
    if len(texts) == 1:
        return texts[0]
    found = "asks for several texts" if texts else "has no text to rerank by"
    raise ConfigError(
        f"the query {found}; give the one that matters as rerank={{'query': ...}}, as "
        "ext.rerank.query_context.query_text in the body, or in a single match, multi_match or query_string clause",
        setting="rerank.query",
        source="argument",
    )


def _at_path(body: Mapping[str, Any], path: str) -> str:
    value: Any = body
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(value, str):
        raise ConfigError(
            f"ext.rerank.query_context.query_text_path {path!r} leads to no text in the body",
            setting="rerank.query",
            source="body",
        )
    return value


def _texts(clause: Any) -> Iterator[str]:
    if isinstance(clause, list):
        for item in clause:
            yield from _texts(item)
        return
    if not isinstance(clause, Mapping):
        return
    for name, content in clause.items():
        if not isinstance(content, Mapping):
            continue
        if name in _COMPOUND_CLAUSES:
            for key in _COMPOUND_CLAUSES[name]:
                yield from _texts(content.get(key))
        else:
            yield from _leaf_texts(name, content)


def _leaf_texts(name: str, content: Mapping[str, Any]) -> Iterator[str]:
    if name in _TEXT_CLAUSES:
        candidates = [content.get("query")]
    elif name in _FIELD_CLAUSES:
        candidates = [value.get("query") if isinstance(value, Mapping) else value for value in content.values()]
    elif name in _NEURAL_CLAUSES:
        candidates = [value.get("query_text") for value in content.values() if isinstance(value, Mapping)]
    else:
        return
    yield from (text for text in candidates if isinstance(text, str))
