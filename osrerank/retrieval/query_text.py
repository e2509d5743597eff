"""Build the first pass's query from a text, and find the query text in a search body."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from osrerank.errors import ConfigError
from osrerank.retrieval.fields import SearchFields, union
from osrerank.retrieval.mapping import plain
from osrerank.retrieval.retrievers import queries_of

TIE_BREAKER = 0.5
"""Weight of the other fields' scores beside the best field's; BEIR's Elasticsearch baseline uses it for title and text.
"""
MOST_CLAUSES = 1_000
"""The most clauses of a query that is built from a text; OpenSearch's ``indices.query.bool.max_clause_count`` is 1,024.
"""
EXPANDED = 20
"""How many fields a pattern, or an index's default fields, are taken to be."""
_ALONE = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2600-\u27bf\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U0001f000-\U0003ffff"
)
_BETWEEN = r"\s!-/:-@\[-`{-~\xa0-\xbf\u2000-\u206f\u3000-\u303f\uff00-\uff0f"
_WORD = re.compile(f"[{_ALONE}]|[^{_ALONE}{_BETWEEN}]{{1,255}}")
"""What an analyzer may find as a word: a character of a script without spaces, an emoji, or a run of other letters."""

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


def within_clauses(text: str, fields: SearchFields) -> str:
    """Return the text to search for: of a text with too many words for the search engine, its first distinct words.

    The engine refuses a query of more clauses than it allows, and makes one of each word in each field.

    Args:
        text: the query text.
        fields: the fields that it searches.
    """
    groups = [part.searched for part in fields.parts] or [fields.searched]
    left = max(MOST_CLAUSES // max(map(_field_count, groups)), 1)
    if len(text) <= left or sum(max(len(_words(word)), 1) for word in text.split()) <= left:
        return text
    kept = []
    for word in dict.fromkeys(text.split()):
        ends = _words(word)
        kept.append(word if len(ends) <= left else word[: ends[left - 1]])
        left -= max(len(ends), 1)
        if left <= 0:
            break
    return " ".join(kept)


def _words(text: str) -> list[int]:
    """Return where each word that an analyzer may find ends; a character of a script without spaces is a word."""
    return [word.end() for word in _WORD.finditer(text)]


def _field_count(names: Sequence[str]) -> int:
    """Return how many fields names may stand for."""
    return sum(EXPANDED if "*" in name else 1 for name in names) or EXPANDED


def build_query(text: str, fields: SearchFields) -> dict[str, Any]:
    """Return the first pass's query for a text: it searches, in each index, the fields to be searched there."""
    if not fields.parts:
        return _clause(text, fields.searched, fields)
    first, *others = fields.parts
    elsewhere = [{"terms": {"_index": list(part.indices)}} for part in others]
    clauses = [{"bool": {"must_not": elsewhere, "must": [_clause(text, first.searched, fields)]}}]
    for index, part in zip(elsewhere, others, strict=True):
        clauses.append({"bool": {"filter": [index], "must": [_clause(text, part.searched, fields)]}})
    return {"bool": {"should": clauses}}


def _clause(text: str, searched: Sequence[str], fields: SearchFields) -> dict[str, Any]:
    """Return the query for a text in one field, in several, or in the index's default fields.

    Of several fields, the best one counts. Nested fields are searched in their nested query, and fields with vectors
    each in a clause of its own.
    """
    by_object: dict[tuple[str, str], list[str]] = {}
    for name in searched:
        path, alone = fields.nested.get(plain(name), ""), plain(name) if plain(name) in fields.semantic else ""
        for at in dict.fromkeys([path, ""] if path in fields.nested_in else [path]):
            by_object.setdefault((at, alone), []).append(name)
    lenient = {"lenient": True} if fields.is_lenient or not searched else {}
    clauses = []
    for (path, alone), names in by_object.items() or [(("", ""), [])]:
        if alone:
            _, is_boosted, boost = names[0].partition("^")
            clause: dict[str, Any] = {
                "match": {alone: {"query": text, **({"boost": float(boost)} if is_boosted else {})}}
            }
        elif len(names) == 1 and not {"^", "*"} & set(names[0]):
            clause = {"match": {names[0]: {"query": text, **lenient}}}
        else:
            named = {"fields": names} if names else {}
            options = {"type": "best_fields", "tie_breaker": TIE_BREAKER, **lenient}
            clause = {"multi_match": {"query": text, **named, **options}}
        nested = {"path": path, "query": clause, "score_mode": "max", "ignore_unmapped": True}
        if path:
            clause = {"nested": nested}
        if path in fields.nested_in:  # in another index it would be refused
            only = {"terms": {"_index": list(fields.nested_in[path])}}
            clause = {"bool": {"filter": [only], "must": [clause]}}
        clauses.append(clause)
    return clauses[0] if len(clauses) == 1 else {"dis_max": {"queries": clauses, "tie_breaker": TIE_BREAKER}}


def searched_fields(query: Any) -> tuple[str, ...]:
    """Return the fields that a query searches for texts, with patterns and boosts; none if a clause names no fields.

    Clauses that do not score are ignored.
    """
    parts = [names for _, names in parts_of(query)]
    return union(parts) if all(parts) else ()


def find_query_text(body: Mapping[str, Any], exact: Collection[str] = frozenset()) -> str:
    """Return the one query text of a search body.

    It is `ext.rerank.query_context.query_text`, or the text at its `query_text_path`, or the only text that the match,
    multi_match, query_string and neural clauses of the query have. Clauses that do not score are ignored; if others
    have a text, so are those that search exact values alone, and those that only boost what other clauses find.

    Args:
        body: the search body.
        exact: fields of exact values, such as keywords and numbers.

    Raises:
        ConfigError: there is no such text, or there are several.
    """
    context = _context(body)
    if isinstance(text := context.get("query_text"), str):
        return text
    if isinstance(path := context.get("query_text_path"), str):
        return _at_path(body, path)
    query = queries_of(body)
    texts = list(dict.fromkeys(_texts(query, exact) or (text for text, _ in parts_of(query))))
    if len(texts) == 1:
        return texts[0]
    found = "asks for several texts" if texts else "has no text to rerank by"
    raise ConfigError(
        f"the query {found}; give the one that matters as rerank={{'query': ...}}, as "
        "ext.rerank.query_context.query_text in the body, or in a single match, multi_match or query_string clause",
        setting="rerank.query",
        source="argument",
    )


def as_you_type(body: Mapping[str, Any]) -> str:
    """Return which clause shows that the query is still being typed (search as you type); "" if none does.

    A body that names its text in `ext.rerank.query_context` counts as complete.
    """
    if _context(body):
        return ""
    found = next((what for leaf in _leaves(queries_of(body)) if (what := _prefix_search(*leaf))), "")
    suggesters = body.get("suggest")
    for suggester in suggesters.values() if isinstance(suggesters, Mapping) else ():
        is_completion = isinstance(suggester, Mapping) and "completion" in suggester
        found = found or ("a completion suggester" if is_completion else "")
    fix = "to rerank all the same, name a text with rerank={'query': ...}"
    return f"the query is still being typed ({found}): {fix}" if found else ""


def _prefix_search(name: str, content: Mapping[str, Any]) -> str:
    """Return which part of a clause searches for the beginning of a word; "" if none does."""
    if name in _PREFIX_CLAUSES:
        return name
    if name in _TEXT_CLAUSES and content.get("type") in _PREFIX_TYPES:
        return f"{name} of type {content['type']}"
    fields = [field for _, names in _leaf_parts(name, content) for field in names]
    return next((f"the field {field}" for field in fields if _PREFIX_FIELD.search(field)), "")


def _context(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body's `ext.rerank.query_context`; empty if it has none."""
    context: Any = body
    for key in ("ext", "rerank", "query_context"):  # OpenSearch says what is wrong where one is no object
        context = (context.get(key) if isinstance(context, Mapping) else None) or {}
    return context if isinstance(context, Mapping) else {}


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


def parts_of(clause: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each text that a query searches for, with the fields that it searches; neural clauses have none."""
    for leaf in _leaves(clause):
        yield from ((text, fields) for text, fields in _leaf_parts(*leaf) if isinstance(text, str))


def _texts(clause: Any, exact: Collection[str]) -> list[str]:
    """Return the texts of a query's full-text clauses, without those of clauses that only boost what others find."""
    texts: list[str] = []
    for name, content in _clauses(clause):
        if name not in COMPOUND_CLAUSES:
            parts = [(text, fields) for text, fields in _leaf_parts(name, content) if isinstance(text, str)]
            texts += [text for text, fields in parts if not fields or any(plain(one) not in exact for one in fields)]
            continue
        inside = [_texts(content.get(key), exact) for key in COMPOUND_CLAUSES[name]]
        if name == "bool" and inside[0] and str(content.get("minimum_should_match", 0)) == "0":
            inside = inside[:1]  # its should clauses only boost
        texts += chain.from_iterable(inside)
    return texts


def _leaves(clause: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and content of each scoring clause that is not a compound one."""
    for name, content in _clauses(clause):
        if name in COMPOUND_CLAUSES:
            for key in COMPOUND_CLAUSES[name]:
                yield from _leaves(content.get(key))
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


def _leaf_parts(name: str, content: Mapping[str, Any]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    if name in _TEXT_CLAUSES:
        yield content.get("query"), _fields_of(name, content)
    elif name in _FIELD_CLAUSES:
        for field, value in content.items():
            yield (value.get("query") if isinstance(value, Mapping) else value), (field,)
    elif name == "semantic":  # of Elasticsearch
        yield content.get("query"), (str(content.get("field")),)
    elif name in _NEURAL_CLAUSES:
        yield from ((value.get("query_text"), ()) for value in content.values() if isinstance(value, Mapping))


def _fields_of(name: str, content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a clause over several fields: those listed, then those named inside a query string."""
    given = content.get("fields") or content.get("default_field") or ()
    fields = [given] if isinstance(given, str) else [str(name) for name in given]
    if name == "query_string" and isinstance(content.get("query"), str):
        fields += [field.replace("\\", "") for field in _INLINE_FIELD.findall(content["query"])]
    return tuple(dict.fromkeys(fields))
