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
"""The weight of the scores of all fields but the best one; BEIR's Elasticsearch baseline uses it for title and text."""
MAX_CLAUSES = 1_000
"""The maximum number of clauses of a query built from a text. OpenSearch's default limit is 1,024."""
EXPANDED = 20
"""The assumed number of fields that match a pattern, or that are an index's default fields."""
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2600-\u27bf\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U0001f000-\U0003ffff"
)
_SEPARATORS = r"\s!-/:-@\[-`{-~\xa0-\xbf\u2000-\u206f\u3000-\u303f\uff00-\uff0f"
_WORD = re.compile(f"[{_UNSPACED}]|[^{_UNSPACED}{_SEPARATORS}]{{1,255}}")
"""A word to an analyzer: a character of a script without spaces, an emoji, or a run of other letters."""

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
    """Return the text to search for; a text with too many words is cut to its first distinct words.

    The engine makes a clause of each word in each field, and refuses a query with too many clauses.

    Args:
        text: the query text.
        fields: the fields that it searches.
    """
    groups = [group.searched for group in fields.groups] or [fields.searched]
    budget = max(MAX_CLAUSES // max(map(_field_count, groups)), 1)
    if len(text) <= budget or sum(max(len(_word_ends(word)), 1) for word in text.split()) <= budget:
        return text
    kept_words = []
    for word in dict.fromkeys(text.split()):
        ends = _word_ends(word)
        kept_words.append(word if len(ends) <= budget else word[: ends[budget - 1]])
        budget -= max(len(ends), 1)
        if budget <= 0:
            break
    return " ".join(kept_words)


def _word_ends(text: str) -> list[int]:
    """Return the end offset of each word; a character of a script without spaces is a word."""
    return [word.end() for word in _WORD.finditer(text)]


def _field_count(names: Sequence[str]) -> int:
    """Return the number of fields that the names may stand for."""
    return sum(EXPANDED if "*" in name else 1 for name in names) or EXPANDED


def build_query(text: str, fields: SearchFields) -> dict[str, Any]:
    """Return the first pass's query for a text; it searches the fields of each index in that index."""
    if not fields.groups:
        return _clause(text, fields.searched, fields)
    first, *others = fields.groups
    index_filters = [{"terms": {"_index": list(group.indices)}} for group in others]
    clauses = [{"bool": {"must_not": index_filters, "must": [_clause(text, first.searched, fields)]}}]
    for index_filter, group in zip(index_filters, others, strict=True):
        clauses.append({"bool": {"filter": [index_filter], "must": [_clause(text, group.searched, fields)]}})
    return {"bool": {"should": clauses}}


def _clause(text: str, searched: Sequence[str], fields: SearchFields) -> dict[str, Any]:
    """Return the query for a text in one field, in several, or in the index's default fields.

    Of several fields, the best one counts most. Nested fields are searched by a nested query, and each
    ``semantic_text`` field by its own ``match`` clause.
    """
    names_by_clause: dict[tuple[str, str], list[str]] = {}  # nested path, semantic field -> field names
    for name in searched:
        unboosted = plain(name)
        path = fields.nested.get(unboosted, "")
        semantic_field = unboosted if unboosted in fields.semantic else ""
        for object_path in dict.fromkeys([path, ""] if path in fields.nested_in else [path]):
            names_by_clause.setdefault((object_path, semantic_field), []).append(name)
    lenient = {"lenient": True} if fields.is_lenient or not searched else {}
    clauses = []
    for (path, semantic_field), names in names_by_clause.items() or [(("", ""), [])]:
        if semantic_field:
            _, is_boosted, boost = names[0].partition("^")
            clause: dict[str, Any] = {
                "match": {semantic_field: {"query": text, **({"boost": float(boost)} if is_boosted else {})}}
            }
        elif len(names) == 1 and not {"^", "*"} & set(names[0]):
            clause = {"match": {names[0]: {"query": text, **lenient}}}
        else:
            field_list = {"fields": names} if names else {}
            options = {"type": "best_fields", "tie_breaker": TIE_BREAKER, **lenient}
            clause = {"multi_match": {"query": text, **field_list, **options}}
        nested = {"path": path, "query": clause, "score_mode": "max", "ignore_unmapped": True}
        if path:
            clause = {"nested": nested}
        if path in fields.nested_in:  # an index where it is not nested would refuse the clause
            index_filter = {"terms": {"_index": list(fields.nested_in[path])}}
            clause = {"bool": {"filter": [index_filter], "must": [clause]}}
        clauses.append(clause)
    return clauses[0] if len(clauses) == 1 else {"dis_max": {"queries": clauses, "tie_breaker": TIE_BREAKER}}


def searched_fields(query: Any) -> tuple[str, ...]:
    """Return the fields that a query searches for texts, with patterns and boosts; none if a clause names no fields.

    Clauses that do not score are ignored.
    """
    field_lists = [names for _, names in texts_with_fields(query)]
    return union(field_lists) if all(field_lists) else ()


def find_query_text(body: Mapping[str, Any], exact: Collection[str] = frozenset()) -> str:
    """Return the one query text of a search body.

    It is `ext.rerank.query_context.query_text`, or the text at its `query_text_path`, or the only text of the match,
    multi_match, query_string and neural clauses of the query. Clauses that do not score are ignored. If other clauses
    have a text, clauses that search only exact values are ignored, too, and so are clauses that only boost.

    Args:
        body: the search body.
        exact: fields of exact values, such as keywords and numbers.

    Raises:
        ConfigError: the body has no text, or several.
    """
    context = _context(body)
    if isinstance(text := context.get("query_text"), str):
        return text
    if isinstance(path := context.get("query_text_path"), str):
        return _at_path(body, path)
    query = queries_of(body)
    texts = list(dict.fromkeys(_texts(query, exact) or (text for text, _ in texts_with_fields(query))))
    if len(texts) == 1:
        return texts[0]
    problem = "asks for several texts" if texts else "has no text to rerank by"
    raise ConfigError(
        f"the query {problem}; give the one that matters as rerank={{'query': ...}}, as "
        "ext.rerank.query_context.query_text in the body, or in a single match, multi_match or query_string clause",
        setting="rerank.query",
        source="argument",
    )


def as_you_type(body: Mapping[str, Any]) -> str:
    """Return the reason why the query counts as still being typed (search as you type); "" if it counts as complete.

    A body that names its text in `ext.rerank.query_context` counts as complete.
    """
    if _context(body):
        return ""
    prefix_clause = next(filter(None, (_prefix_search(*leaf) for leaf in _leaves(queries_of(body)))), "")
    suggesters = body.get("suggest")
    for suggester in suggesters.values() if isinstance(suggesters, Mapping) else ():
        is_completion = isinstance(suggester, Mapping) and "completion" in suggester
        prefix_clause = prefix_clause or ("a completion suggester" if is_completion else "")
    fix = "to rerank all the same, name a text with rerank={'query': ...}"
    return f"the query is still being typed ({prefix_clause}): {fix}" if prefix_clause else ""


def _prefix_search(name: str, content: Mapping[str, Any]) -> str:
    """Return the part of a clause that searches for the beginning of a word, for a message; "" if there is none."""
    if name in _PREFIX_CLAUSES:
        return name
    if name in _TEXT_CLAUSES and content.get("type") in _PREFIX_TYPES:
        return f"{name} of type {content['type']}"
    fields = [field for _, names in _leaf_parts(name, content) for field in names]
    return next((f"the field {field}" for field in fields if _PREFIX_FIELD.search(field)), "")


def _context(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body's `ext.rerank.query_context`; empty if it has none."""
    context: Any = body
    for key in ("ext", "rerank", "query_context"):  # OpenSearch reports a value that is not an object
        context = (context.get(key) if isinstance(context, Mapping) else None) or {}
    return context if isinstance(context, Mapping) else {}


def _at_path(body: Mapping[str, Any], path: str) -> str:
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
    """Yield each text that a query searches for, with the fields that it searches; neural clauses yield no fields."""
    for leaf in _leaves(clause):
        yield from ((text, fields) for text, fields in _leaf_parts(*leaf) if isinstance(text, str))


def _texts(clause: Any, exact: Collection[str]) -> list[str]:
    """Return the texts of a query's full-text clauses, except those that only boost what other clauses find."""
    texts: list[str] = []
    for name, content in _clauses(clause):
        if name not in COMPOUND_CLAUSES:
            pairs = [(text, fields) for text, fields in _leaf_parts(name, content) if isinstance(text, str)]
            texts += [
                text for text, fields in pairs if not fields or any(plain(field) not in exact for field in fields)
            ]
            continue
        inside = [_texts(content.get(key), exact) for key in COMPOUND_CLAUSES[name]]
        if name == "bool" and inside[0] and str(content.get("minimum_should_match", 0)) == "0":
            inside = inside[:1]  # with a must clause, should clauses only boost
        texts += chain.from_iterable(inside)
    return texts


def _leaves(clause: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and content of each scoring clause that contains no other clauses."""
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
    listed = content.get("fields") or content.get("default_field") or ()
    fields = [listed] if isinstance(listed, str) else [str(name) for name in listed]
    if name == "query_string" and isinstance(content.get("query"), str):
        fields += [field.replace("\\", "") for field in _INLINE_FIELD.findall(content["query"])]
    return tuple(dict.fromkeys(fields))
