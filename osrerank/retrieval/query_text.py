"""Build the first pass's query from a query string, and find the query text in a caller's search body."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from osrerank.errors import ConfigError
from osrerank.retrieval.fields import SearchFields, union
from osrerank.retrieval.mapping import without_boost
from osrerank.retrieval.retrievers import read_queries
from osrerank.types.values import is_blank

TIE_BREAKER = 0.5
"""The weight of the scores of all fields except the best one, as in BEIR's Elasticsearch baseline."""
MAX_CLAUSES = 1_000
"""The maximum number of clauses of a query that is built from a string. OpenSearch's default limit is 1,024."""
ASSUMED_FIELD_COUNT = 20
"""The assumed number of fields that match a pattern, and of an index's default fields."""
_UNSPACED_CHARACTERS = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2600-\u27bf\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U0001f000-\U0003ffff"
)
"""Characters of scripts without spaces between words, such as Thai and Chinese, and emoji, for a regex."""
_SEPARATORS = r"\s!-/:-@\[-`{-~\xa0-\xbf\u2000-\u206f\u3000-\u303f\uff00-\uff0f"
"""White space and punctuation, for a regex."""
_WORD = re.compile(f"[{_UNSPACED_CHARACTERS}]|[^{_UNSPACED_CHARACTERS}{_SEPARATORS}]{{1,255}}")
"""Matches what an analyzer takes for a word: a run of characters between separators, or one unspaced character."""

_FIELD_CLAUSES = ("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix")
"""Clauses with the content ``{field: text}`` or ``{field: {"query": text}}``."""
_TEXT_CLAUSES = ("multi_match", "query_string", "simple_query_string", "combined_fields")
"""Clauses with the content ``{"query": text, "fields": [...]}``."""
_NEURAL_CLAUSES = ("neural", "neural_sparse")
"""Clauses with the content ``{field: {"query_text": text}}``."""
_PREFIX_CLAUSES = ("match_phrase_prefix", "match_bool_prefix")
"""Clauses that search for a text whose last word is incomplete."""
_PREFIX_TYPES = ("bool_prefix", "phrase_prefix")
"""Values of ``type`` in `_TEXT_CLAUSES` that search for a text whose last word is incomplete."""
_PREFIX_FIELD = re.compile(r"\.(_[234]gram|_index_prefix)(\^.*)?$")
"""Matches the subfields of a ``search_as_you_type`` field, such as ``title._2gram``."""
_INLINE_FIELD = re.compile(r"(?<![\w.\\:])([A-Za-z@][\w@.\-]*(?:\\?\*)?):(?=[^\s/])")
"""Matches a field inside the text of a ``query_string`` clause, as in ``title:low``."""
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
"""For each compound clause, the keys of its scoring clauses. Clauses under other keys (``filter``) do not score."""


def shorten_text(text: str, fields: SearchFields) -> str:
    """Keep only the first distinct words of a query text with too many words.

    The engine searches each word in each field with one clause, and refuses a query with more than `MAX_CLAUSES`.
    """
    field_lists = [group.query_fields for group in fields.groups] or [fields.query_fields]
    n_fields = max(map(_count_fields, field_lists))
    max_words = max(MAX_CLAUSES // n_fields, 1)
    if len(text) <= max_words:  # fast, because a word has at least one character
        return text
    n_words = sum(max(len(_find_word_ends(part)), 1) for part in text.split())  # a part without a word counts as one
    if n_words <= max_words:
        return text
    shortened = []
    n_words_left = max_words
    for part in dict.fromkeys(text.split()):
        word_ends = _find_word_ends(part)  # several words if the part has punctuation or is Thai or Chinese
        fits = len(word_ends) <= n_words_left
        shortened.append(part if fits else part[: word_ends[n_words_left - 1]])
        n_words_left -= max(len(word_ends), 1)
        if n_words_left <= 0:
            break
    return " ".join(shortened)


def _find_word_ends(text: str) -> list[int]:
    """Return the index after the last character of each word: ``[3, 7]`` for ``low-fat``."""
    return [word.end() for word in _WORD.finditer(text)]


def _count_fields(names: Sequence[str]) -> int:
    """Return about how many fields names and patterns stand for. No names stand for an index's default fields."""
    return sum(ASSUMED_FIELD_COUNT if "*" in name else 1 for name in names) or ASSUMED_FIELD_COUNT


def build_query(text: str, fields: SearchFields) -> dict[str, Any]:
    """Return the first pass's query for a query text. It searches each group of indices in the fields of this group."""
    if not fields.groups:
        return _build_text_query(text, fields.query_fields, fields)
    first_group, *other_groups = fields.groups
    index_filters = [{"terms": {"_index": list(group.indices)}} for group in other_groups]
    # the first clause applies to all indices outside the other groups
    text_query = _build_text_query(text, first_group.query_fields, fields)
    clauses = [{"bool": {"must_not": index_filters, "must": [text_query]}}]
    for index_filter, group in zip(index_filters, other_groups, strict=True):
        text_query = _build_text_query(text, group.query_fields, fields)
        clauses.append({"bool": {"filter": [index_filter], "must": [text_query]}})
    return {"bool": {"should": clauses}}


def _build_text_query(text: str, field_names: Sequence[str], fields: SearchFields) -> dict[str, Any]:
    """Return the query that searches for a query text in these fields, or in the index's default fields if none.

    The best field counts most (`TIE_BREAKER`). Nested fields are searched by a nested query, and each ``semantic_text``
    field by a separate ``match`` clause.
    """
    # the fields of each clause, by nested object and semantic_text field ("" for none)
    names_by_clause: dict[tuple[str, str], list[str]] = {}
    for name in field_names:
        unboosted = without_boost(name)
        nested_object = fields.traits.nested.get(unboosted, "")
        semantic_field = unboosted if unboosted in fields.traits.semantic else ""
        names_by_clause.setdefault((nested_object, semantic_field), []).append(name)
        if nested_object in fields.traits.nested_indices:  # in other indices, it is an ordinary object
            names_by_clause.setdefault(("", semantic_field), []).append(name)
    if not field_names:
        names_by_clause["", ""] = []  # the clause searches the index's default fields
    # a field of numbers or dates refuses other texts, unless the clause is lenient
    lenient = {"lenient": True} if fields.traits.needs_lenient or not field_names else {}
    clauses = []
    for (nested_object, semantic_field), names in names_by_clause.items():
        clause = _build_semantic_clause(text, names[0]) if semantic_field else _build_match_clause(text, names, lenient)
        if nested_object:
            clause = {"nested": {"path": nested_object, "query": clause, "score_mode": "max", "ignore_unmapped": True}}
        if nested_object in fields.traits.nested_indices:  # the other indices would refuse a nested query
            index_filter = {"terms": {"_index": list(fields.traits.nested_indices[nested_object])}}
            clause = {"bool": {"filter": [index_filter], "must": [clause]}}
        clauses.append(clause)
    return clauses[0] if len(clauses) == 1 else {"dis_max": {"queries": clauses, "tie_breaker": TIE_BREAKER}}


def _build_semantic_clause(text: str, name: str) -> dict[str, Any]:
    field, caret, boost = name.partition("^")
    options = {"boost": float(boost)} if caret else {}
    return {"match": {field: {"query": text, **options}}}


def _build_match_clause(text: str, names: Sequence[str], lenient: Mapping[str, Any]) -> dict[str, Any]:
    if len(names) == 1 and "^" not in names[0] and "*" not in names[0]:
        return {"match": {names[0]: {"query": text, **lenient}}}
    field_list = {"fields": names} if names else {}
    best_fields = {"type": "best_fields", "tie_breaker": TIE_BREAKER, **lenient}
    return {"multi_match": {"query": text, **field_list, **best_fields}}


def find_searched_fields(query: Any) -> tuple[str, ...]:
    """Return the names of the fields in which a query's scoring clauses search for texts, such as ``("title^2",)``.

    The result is empty if a clause names no fields, because this clause searches the index's default fields.
    """
    field_lists = [names for _, names in find_texts_with_fields(query)]
    return union(field_lists) if all(field_lists) else ()


def find_query_text(body: Mapping[str, Any], non_text_fields: Collection[str] = frozenset()) -> str:
    """Return the one query text of a search body.

    It is the first of these texts that exists:

    - ``ext.rerank.query_context.query_text``.
    - The text at the path ``ext.rerank.query_context.query_text_path``.
    - The one text of the query's scoring clauses, such as ``match`` and ``neural``. Texts without a letter or digit,
      such as ``*``, do not count. Texts that only boost, or are searched only in ``non_text_fields``, count only if
      the query has no other text.

    Raises:
        ConfigError: the body has no query text, or several.
    """
    context = _read_query_context(body)
    text = context.get("query_text")
    if isinstance(text, str):
        return text
    path = context.get("query_text_path")
    if isinstance(path, str):
        return _read_text_at_path(body, path)
    query = read_queries(body)
    ranking_texts = _list_ranking_texts(query, non_text_fields)
    all_texts = ranking_texts or [text for text, _ in find_texts_with_fields(query)]
    texts = [text for text in dict.fromkeys(all_texts) if not is_blank(text)]
    if len(texts) == 1:
        return texts[0]
    problem = "searches for several texts" if texts else "has no text to rerank by"
    raise ConfigError(
        f"the query {problem}; give the one that matters as rerank={{'query': ...}}, as "
        "ext.rerank.query_context.query_text in the body, or in a single match, multi_match or query_string clause",
        setting="rerank.query",
        source="argument",
    )


def explain_unfinished_query(body: Mapping[str, Any]) -> str:
    """Return why a query seems to be unfinished, as in search as you type. Return "" if it seems to be complete.

    A query whose text is given in ``ext.rerank.query_context`` is complete.
    """
    if _read_query_context(body):
        return ""
    signs = [_describe_prefix_search(name, content) for name, content in _walk_leaf_clauses(read_queries(body))]
    suggest = body.get("suggest")
    suggesters = suggest.values() if isinstance(suggest, Mapping) else ()
    if any(isinstance(suggester, Mapping) and "completion" in suggester for suggester in suggesters):
        signs.append("a completion suggester")
    first_sign = next(filter(None, signs), "")
    if not first_sign:
        return ""
    fix = "to rerank it anyway, pass the query text with rerank={'query': ...}"
    return f"the query is still being typed ({first_sign}): {fix}"


def _describe_prefix_search(name: str, content: Mapping[str, Any]) -> str:
    """Return what makes a clause search for the beginning of a word, such as "match_bool_prefix", or "" if nothing."""
    if name in _PREFIX_CLAUSES:
        return name
    if name in _TEXT_CLAUSES and content.get("type") in _PREFIX_TYPES:
        return f"{name} of type {content['type']}"
    fields = [field for _, names in _read_clause_values(name, content) for field in names]
    return next((f"the field {field}" for field in fields if _PREFIX_FIELD.search(field)), "")


def _read_query_context(body: Mapping[str, Any]) -> Mapping[str, Any]:
    context: Mapping[str, Any] = body
    for key in ("ext", "rerank", "query_context"):
        value = context.get(key) or {}
        if not isinstance(value, Mapping):  # the engine will report the value
            return {}
        context = value
    return context


def _read_text_at_path(body: Mapping[str, Any], path: str) -> str:
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


def find_texts_with_fields(clause: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each text that a query searches for, and the searched fields: ``("low pressure", ("title", "body"))``.

    For a neural clause, the fields are empty.
    """
    for name, content in _walk_leaf_clauses(clause):
        yield from _read_clause_texts(name, content)


def _list_ranking_texts(clause: Any, non_text_fields: Collection[str]) -> list[str]:
    """Return the texts of a query's clauses. Those that only boost, or search only non-text fields, are left out."""
    texts: list[str] = []
    for name, content in _walk_outer_clauses(clause):
        if name in COMPOUND_CLAUSES:
            keys = COMPOUND_CLAUSES[name]
            texts_by_key = {key: _list_ranking_texts(content.get(key), non_text_fields) for key in keys}
            if name == "bool" and texts_by_key["must"] and str(content.get("minimum_should_match", 0)) == "0":
                del texts_by_key["should"]  # with a must clause, should clauses only boost
            texts += chain.from_iterable(texts_by_key.values())
        else:
            for text, fields in _read_clause_texts(name, content):
                # a clause without fields is neural, or searches the index's default fields
                if not fields or any(without_boost(field) not in non_text_fields for field in fields):
                    texts.append(text)
    return texts


def _walk_leaf_clauses(clause: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and content of each scoring clause that contains no other clauses."""
    for name, content in _walk_outer_clauses(clause):
        if name in COMPOUND_CLAUSES:
            for key in COMPOUND_CLAUSES[name]:
                yield from _walk_leaf_clauses(content.get(key))
        else:
            yield name, content


def _walk_outer_clauses(clause: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and content of a clause, ``"match", {"title": "low"}``, or of each clause in a list."""
    if isinstance(clause, list):
        for item in clause:
            yield from _walk_outer_clauses(item)
        return
    clause = clause.to_dict() if hasattr(clause, "to_dict") else clause  # a query object of opensearch-py
    if isinstance(clause, Mapping):
        yield from ((name, content) for name, content in clause.items() if isinstance(content, Mapping))


def _read_clause_texts(name: str, content: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each text that a leaf clause searches for, and the fields in which it does."""
    yield from ((text, fields) for text, fields in _read_clause_values(name, content) if isinstance(text, str))


def _read_clause_values(name: str, content: Mapping[str, Any]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield each value that a leaf clause searches for, such as a text or a number, and the fields in which it does."""
    if name in _TEXT_CLAUSES:
        yield content.get("query"), _list_clause_fields(name, content)
    elif name in _FIELD_CLAUSES:
        for field, value in content.items():
            yield (value.get("query") if isinstance(value, Mapping) else value), (field,)
    elif name == "semantic":  # of Elasticsearch
        yield content.get("query"), (str(content.get("field")),)
    elif name in _NEURAL_CLAUSES:
        yield from ((value.get("query_text"), ()) for value in content.values() if isinstance(value, Mapping))


def _list_clause_fields(name: str, content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields that one of the `_TEXT_CLAUSES` lists, then those in the text of a ``query_string`` clause."""
    listed = content.get("fields") or content.get("default_field") or ()
    fields = [listed] if isinstance(listed, str) else [str(field) for field in listed]
    if name == "query_string" and isinstance(content.get("query"), str):
        fields += [field.replace("\\", "") for field in _INLINE_FIELD.findall(content["query"])]
    return tuple(dict.fromkeys(fields))
