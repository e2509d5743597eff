"""Handle ``_mtermvectors``, which lists the terms of documents, and ``_analyze``, which lists the tokens of a text."""

import json
import re
from collections import Counter

from osrerank.embedded.analysis.analyzers import Analyzers
from osrerank.embedded.analysis.tokens import GAP, Analyzer
from osrerank.embedded.errors import (
    ApiError,
    Json,
    argument_error,
    reject_unknown_keys,
    require_list,
    require_object,
    require_string,
    unsupported_error,
)
from osrerank.embedded.storage.engine import Engine
from osrerank.embedded.storage.index import Snapshot

_OCCURRENCE_DETAILS = ("positions", "offsets", "payloads")
"""The details of each occurrence of a term that OpenSearch lists unless the request turns them off."""
_SCRIPT_TYPES = (
    (
        re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\uaa80-\uaadf]+"),
        "SOUTHEAST_ASIAN",
    ),
    (
        re.compile(r"[\u2e80-\u2fdf\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff].*"),
        "IDEOGRAPHIC",
    ),
    (re.compile(r"[\u3041-\u309f].*"), "HIRAGANA"),
    (re.compile(r"[\u30a0-\u30ff\u31f0-\u31ff\uff66-\uff9f]+"), "KATAKANA"),
    (re.compile(r"[\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff]+"), "HANGUL"),
)
"""Pairs of a pattern for words in a script, and the type that Lucene's standard tokenizer gives to these words.

An ideographic or hiragana word is a single character, which combining marks can follow.
"""


def read_term_vectors(engine: Engine, body: Json) -> Json:
    """Return the response to ``_mtermvectors``, which lists the terms of each document's text fields."""
    reject_unknown_keys("mtermvectors", body, frozenset({"docs"}))
    requests = [require_object(entry, "docs") for entry in require_list(body.get("docs"), "docs")]
    for request in requests:
        allowed = frozenset({"_index", "_id", "fields", "term_statistics", *_OCCURRENCE_DETAILS})
        reject_unknown_keys("mtermvectors docs", request, allowed)
        for key in _OCCURRENCE_DETAILS:
            if request.get(key, True) is not False:
                raise unsupported_error(f"[{key}] in [mtermvectors]", f"set {key} to false")
        if not isinstance(request.get("term_statistics", False), bool):
            raise argument_error(f"[term_statistics] must be true or false, found [{request['term_statistics']}]")
    return {"docs": [_document_vectors(engine, request) for request in requests]}


def _document_vectors(engine: Engine, request: Json) -> Json:
    name, doc_id = require_string(request.get("_index"), "_index"), require_string(request.get("_id"), "_id")
    try:
        (live_index,) = engine.searchable_indices(engine.resolve_single(name))
        snapshot = live_index.snapshot()
    except ApiError as error:
        return {"_index": name, "_id": doc_id, "error": error.response_body()["error"]}
    row = engine.store.get(engine.open_index(snapshot.name).row, doc_id)
    identity: Json = {"_index": snapshot.name, "_id": doc_id, "_version": row.version if row else 0, "took": 0}
    if row is None or row.source is None:  # never written, or deleted
        return {**identity, "found": False}
    texts_by_path = snapshot.fields.extract(json.loads(row.source))
    vectors = {}
    for path in require_list(request.get("fields"), "fields"):
        field = snapshot.fields.by_path.get(path)
        if field is None:
            continue
        if field.column != "text":
            raise unsupported_error(f"the field [{path}] in [mtermvectors]", "use text fields")
        analyzer = snapshot.analyzers.get(field.analyzer_name)
        counts = Counter(term for text in texts_by_path.get(path, ()) for term in analyzer.terms(text) if term != GAP)
        if counts:
            needs_statistics = request.get("term_statistics", False)
            vectors[path] = _field_vector(snapshot, path, counts, needs_statistics=needs_statistics)
    return {**identity, "found": True, "term_vectors": vectors}


def _field_vector(snapshot: Snapshot, path: str, counts: Counter[str], *, needs_statistics: bool) -> Json:
    """Return the term vector of a document's field, in which each term occurs ``counts[term]`` times."""
    terms: dict[str, Json] = {}
    for term, count in sorted(counts.items()):
        terms[term] = {"term_freq": count}
        if needs_statistics:
            entries = snapshot.term_frequencies(path, term)
            n_occurrences = sum(entry.frequency * entry.n_documents for entry in entries)
            terms[term] |= {"doc_freq": snapshot.document_frequency(path, term), "ttf": n_occurrences}
    totals = snapshot.searcher.totals(path)
    return {
        "field_statistics": {
            "sum_doc_freq": totals.n_distinct_terms,
            "doc_count": totals.n_documents,
            "sum_ttf": totals.n_terms,
        },
        "terms": terms,
    }


def analyze(engine: Engine, name: str | None, body: Json) -> Json:
    """Return the response to ``_analyze``, which lists the tokens of a text with their types and offsets."""
    reject_unknown_keys("analyze", body, frozenset({"text", "field", "tokenizer", "filter"}))
    text = require_string(body.get("text"), "text")
    tokens = _request_analyzer(engine, name, body).tokens(text)
    is_standard = body.get("tokenizer", "standard") == "standard"  # other tokenizers have one type, "word"
    return {
        "tokens": [
            {
                "token": token.term,
                "start_offset": _utf16_offset(text, token.start),
                "end_offset": _utf16_offset(text, token.end),
                "type": _token_type(text[token.start : token.end]) if is_standard else "word",
                "position": token.position,
            }
            for token in tokens
        ]
    }


def _utf16_offset(text: str, offset: int) -> int:
    """Convert an offset in characters to UTF-16 code units, in which OpenSearch counts. An emoji takes two."""
    return len(text[:offset].encode("utf-16-le", "surrogatepass")) // 2


def _token_type(word: str) -> str:
    """Return the type that Lucene's standard tokenizer gives to a word."""
    for pattern, name in _SCRIPT_TYPES:
        if pattern.fullmatch(word):
            return f"<{name}>"
    if not any(letter.isalnum() for letter in word) or "\u20e3" in word:  # a keycap
        return "<EMOJI>"
    return "<NUM>" if all(letter.isdecimal() for letter in word if letter.isalnum()) else "<ALPHANUM>"


def _request_analyzer(engine: Engine, name: str | None, body: Json) -> Analyzer:
    """Return the analyzer of the field that a request names, or the analyzer of its tokenizer and filters."""
    if "field" not in body:
        analyzers = engine.open_index(engine.resolve_single(name)).analyzers if name else Analyzers()
        return analyzers.compose(body.get("tokenizer"), body.get("filter", []))
    if name is None or {"tokenizer", "filter"} & body.keys():
        raise argument_error("[field] in [analyze] needs an index, and cannot be combined with [tokenizer] or [filter]")
    live_index = engine.open_index(engine.resolve_single(name))
    field = live_index.fields.by_path.get(require_string(body["field"], "field"))
    if field is None or field.column != "text":
        raise unsupported_error(f"[field: {body['field']}] in [analyze]", "use a text field of the index")
    return live_index.analyzers.get(field.analyzer_name)
