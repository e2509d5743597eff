"""Build the first pass's query from a text, and the reverse: find the query text in a search body."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from osrerank.errors import ConfigError
from osrerank.retrieval.fields import SearchFields, union
from osrerank.retrieval.mapping import without_boost
from osrerank.retrieval.retrievers import read_queries

TIE_BREAKER = 0.5
"""The weight of all fields' scores except the best one's; BEIR's Elasticsearch baseline uses it for title and text."""
MAX_CLAUSES = 1_000
"""The maximum number of clauses of a query built from a text. OpenSearch's default limit is 1,024."""
ASSUMED_FIELD_COUNT = 20
"""The assumed number of fields that match a pattern, or that are an index's default fields."""
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2600-\u27bf\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U0001f000-\U0003ffff"
)
_SEPARATORS = r"\s!-/:-@\[-`{-~\xa0-\xbf\u2000-\u206f\u3000-\u303f\uff00-\uff0f"
_WORD = re.compile(f"[{_UNSPACED}]|[^{_UNSPACED}{_SEPARATORS}]{{1,255}}")
"""Matches what an analyzer takes for a word: a character of a script without spaces, an emoji, or a run of others."""

# clauses of the form {field: text} or {field: {"query": text}}
_FIELD_CLAUSES = ("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix")
# clauses whose text is their "query"; neural clauses have it as "query_text" under the field
_TEXT_CLAUSES = ("multi_match", "query_string", "simple_query_string", "combined_fields")
_NEURAL_CLAUSES = ("neural", "neural_sparse")
# clauses, types of clauses and subfields that search for a text whose last word is still being typed
_PREFIX_CLAUSES = ("match_phrase_prefix", "match_bool_prefix")
_PREFIX_TYPES = ("bool_prefix", "phrase_prefix")
_PREFIX_FIELD = re.compile(r"\.(_[234]gram|_index_prefix)(\^.*)?$")
_INLINE_FIELD = re.compile(r"(?<![\w.\\:])([A-Za-z@][\w@.\-]*(?:\\?\*)?):(?=[^\s/])")
# clause -> keys of its scoring queries; filter and must_not do not score, so their texts are not the query
COMPOUND_CLAUSES = {
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


def shorten_to_clauses(text: str, fields: SearchFields) -> str:
    """Return the text to search for; a text with too many words is truncated to its first distinct words.

    The engine searches each word in each field with a clause, and refuses a query with too many clauses.
    """
    groups = [group.searched for group in fields.groups] or [fields.searched]
    max_words = max(MAX_CLAUSES // max(map(_count_fields, groups)), 1)
    if len(text) <= max_words or sum(max(len(_word_ends(part)), 1) for part in text.split()) <= max_words:
        return text
    shortened, word_budget = [], max_words
    for part in dict.fromkeys(text.split()):
        ends = _word_ends(part)
        shortened.append(part if len(ends) <= word_budget else part[: ends[word_budget - 1]])
        word_budget -= max(len(ends), 1)
        if word_budget <= 0:
            break
    return " ".join(shortened)


def _word_ends(text: str) -> list[int]:
    return [word.end() for word in _WORD.finditer(text)]


def _count_fields(names: Sequence[str]) -> int:
    """Return the number of fields that the names can stand for."""
    return sum(ASSUMED_FIELD_COUNT if "*" in name else 1 for name in names) or ASSUMED_FIELD_COUNT


def build_query(text: str, fields: SearchFields) -> dict[str, Any]:
    """Return the first pass's query for a text; each index is searched in its own fields."""
    if not fields.groups:
        return _text_query(text, fields.searched, fields)
    first, *others = fields.groups
    index_filters = [{"terms": {"_index": list(group.indices)}} for group in others]
    clauses = [{"bool": {"must_not": index_filters, "must": [_text_query(text, first.searched, fields)]}}]
    for index_filter, group in zip(index_filters, others, strict=True):
        clauses.append({"bool": {"filter": [index_filter], "must": [_text_query(text, group.searched, fields)]}})
    return {"bool": {"should": clauses}}


def _text_query(text: str, searched: Sequence[str], fields: SearchFields) -> dict[str, Any]:
    """Return the query for a text in these fields; without names, in the index's default fields.

    Of several fields, the best one counts most. Nested fields are searched by a nested query, and each
    ``semantic_text`` field by its own ``match`` clause.
    """
    names_by_clause: dict[tuple[str, str], list[str]] = {}  # nested path, semantic field -> field names
    for name in searched:
        unboosted = without_boost(name)
        path = fields.nested.get(unboosted, "")
        semantic_field = unboosted if unboosted in fields.semantic else ""
        for object_path in dict.fromkeys([path, ""] if path in fields.nested_indices else [path]):
            names_by_clause.setdefault((object_path, semantic_field), []).append(name)
    lenient = {"lenient": True} if fields.is_lenient or not searched else {}
    clauses = []
    for (path, semantic_field), names in names_by_clause.items() or [(("", ""), [])]:
        clause: dict[str, Any]
        if semantic_field:
            _, is_boosted, boost = names[0].partition("^")
            options = {"boost": float(boost)} if is_boosted else {}
            clause = {"match": {semantic_field: {"query": text, **options}}}
        elif len(names) == 1 and not {"^", "*"} & set(names[0]):
            clause = {"match": {names[0]: {"query": text, **lenient}}}
        else:
            field_list = {"fields": names} if names else {}
            best_fields = {"type": "best_fields", "tie_breaker": TIE_BREAKER, **lenient}
            clause = {"multi_match": {"query": text, **field_list, **best_fields}}
        if path:
            clause = {"nested": {"path": path, "query": clause, "score_mode": "max", "ignore_unmapped": True}}
        if path in fields.nested_indices:  # an index where it is not nested would refuse the clause
            index_filter = {"terms": {"_index": list(fields.nested_indices[path])}}
            clause = {"bool": {"filter": [index_filter], "must": [clause]}}
        clauses.append(clause)
    return clauses[0] if len(clauses) == 1 else {"dis_max": {"queries": clauses, "tie_breaker": TIE_BREAKER}}


def searched_fields(query: Any) -> tuple[str, ...]:
    """Return the fields that a query searches for texts, with patterns and boosts; () if a clause names no fields.

    Clauses that do not score are ignored.
    """
    field_lists = [names for _, names in texts_with_fields(query)]
    return union(field_lists) if all(field_lists) else ()


def find_query_text(body: Mapping[str, Any], exact: Collection[str] = frozenset()) -> str:
    """Return the one query text of a search body.

    It is `ext.rerank.query_context.query_text`, or the text at its `query_text_path`, or the only text of the match,
    multi_match, query_string and neural clauses of the query. Clauses that do not score are ignored. Clauses that only
    boost, or search only exact values, are ignored if other clauses have a text.

    Raises:
        ConfigError: the body has no text, or several.
    """
    context = _query_context(body)
    text = context.get("query_text")
    if isinstance(text, str):
        return text
    path = context.get("query_text_path")
    if isinstance(path, str):
        return _text_at_path(body, path)
    query = read_queries(body)
    texts = list(dict.fromkeys(_ranking_texts(query, exact) or (text for text, _ in texts_with_fields(query))))
    if len(texts) == 1:
        return texts[0]
    problem = "asks for several texts" if texts else "has no text to rerank by"
    raise ConfigError(
        f"the query {problem}; give the one that matters as rerank={{'query': ...}}, as "
        "ext.rerank.query_context.query_text in the body, or in a single match, multi_match or query_string clause",
        setting="rerank.query",
        source="argument",
    )


def unfinished_query_reason(body: Mapping[str, Any]) -> str:
    """Return the reason why the query counts as still being typed (search as you type); "" if it counts as complete.

    A body that names its text in `ext.rerank.query_context` counts as complete.
    """
    if _query_context(body):
        return ""
    parts = (_prefix_search(name, content) for name, content in _leaf_clauses(read_queries(body)))
    evidence = next(filter(None, parts), "")
    suggest = body.get("suggest")
    suggesters = suggest.values() if isinstance(suggest, Mapping) else ()
    if not evidence and any(isinstance(suggester, Mapping) and "completion" in suggester for suggester in suggesters):
        evidence = "a completion suggester"
    fix = "to rerank it anyway, pass the query text with rerank={'query': ...}"
    return f"the query is still being typed ({evidence}): {fix}" if evidence else ""


def _prefix_search(name: str, content: Mapping[str, Any]) -> str:
    """Return, for a message, the part of a clause that searches for the beginning of a word; "" for other clauses."""
    if name in _PREFIX_CLAUSES:
        return name
    if name in _TEXT_CLAUSES and content.get("type") in _PREFIX_TYPES:
        return f"{name} of type {content['type']}"
    fields = [field for _, names in _clause_values(name, content) for field in names]
    return next((f"the field {field}" for field in fields if _PREFIX_FIELD.search(field)), "")


def _query_context(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body's `ext.rerank.query_context`. Empty if it has none."""
    context: Any = body
    for key in ("ext", "rerank", "query_context"):  # OpenSearch reports a value that is not an object
        context = (context.get(key) if isinstance(context, Mapping) else None) or {}
    return context if isinstance(context, Mapping) else {}


def _text_at_path(body: Mapping[str, Any], path: str) -> str:
    value: Any = body
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(value, str):
        raise ConfigError(
            f"ext.rerank.query_context.query_text_path is {path!r}, but the body has no text at that path",
            setting="rerank.query",
            source="body",
        )
    return value


def texts_with_fields(clause: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each text that a query searches for, with the fields that it searches; () for a neural clause."""
    for name, content in _leaf_clauses(clause):
        yield from _clause_texts(name, content)


def _ranking_texts(clause: Any, exact: Collection[str]) -> list[str]:
    """Return the texts of a query's clauses, without those that only boost or search only exact values."""
    texts: list[str] = []
    for name, content in _clauses(clause):
        if name in COMPOUND_CLAUSES:
            inner = [_ranking_texts(content.get(key), exact) for key in COMPOUND_CLAUSES[name]]
            if name == "bool" and inner[0] and str(content.get("minimum_should_match", 0)) == "0":
                inner = inner[:1]  # with a must clause, should clauses only boost
            texts += chain.from_iterable(inner)
        else:
            for text, fields in _clause_texts(name, content):
                if not fields or any(without_boost(field) not in exact for field in fields):
                    texts.append(text)
    return texts


def _leaf_clauses(clause: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and content of each scoring clause that contains no other clauses."""
    for name, content in _clauses(clause):
        if name in COMPOUND_CLAUSES:
            for key in COMPOUND_CLAUSES[name]:
                yield from _leaf_clauses(content.get(key))
        else:
            yield name, content


def _clauses(clause: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and content of a clause, or of each clause in a list."""
    if isinstance(clause, list):
        for item in clause:
            yield from _clauses(item)
        return
    clause = clause.to_dict() if hasattr(clause, "to_dict") else clause
    if isinstance(clause, Mapping):
        yield from ((name, content) for name, content in clause.items() if isinstance(content, Mapping))


def _clause_texts(name: str, content: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each text of a leaf clause with the fields that are searched for it."""
    yield from ((text, fields) for text, fields in _clause_values(name, content) if isinstance(text, str))


def _clause_values(name: str, content: Mapping[str, Any]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield each value that a leaf clause searches for, with the fields that are searched for it."""
    if name in _TEXT_CLAUSES:
        yield content.get("query"), _listed_fields(name, content)
    elif name in _FIELD_CLAUSES:
        for field, value in content.items():
            yield (value.get("query") if isinstance(value, Mapping) else value), (field,)
    elif name == "semantic":  # of Elasticsearch
        yield content.get("query"), (str(content.get("field")),)
    elif name in _NEURAL_CLAUSES:
        yield from ((value.get("query_text"), ()) for value in content.values() if isinstance(value, Mapping))


def _listed_fields(name: str, content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a clause over several fields: those listed, then those named inside a query string."""
    listed = content.get("fields") or content.get("default_field") or ()
    fields = [listed] if isinstance(listed, str) else [str(name) for name in listed]
    if name == "query_string" and isinstance(content.get("query"), str):
        fields += [field.replace("\\", "") for field in _INLINE_FIELD.findall(content["query"])]
    return tuple(dict.fromkeys(fields))
