"""Answer ``_termvectors``, ``_mtermvectors`` and ``_analyze``: the terms of texts."""

import json

from osrerank.embedded.analysis.analyzers import Analyzers
from osrerank.embedded.analysis.tokens import Analyzer
from osrerank.embedded.errors import Json, illegal, only
from osrerank.embedded.storage.engine import Engine
from osrerank.embedded.storage.index import Snapshot, field_analyzer


def term_vectors(engine: Engine, name: str, doc_id: str, fields: list[str] | None, *, statistics: bool) -> Json:
    """Answer ``_termvectors``: the terms of a document's text fields with their frequencies.

    With ``statistics`` the response has document frequencies and the number of documents. tantivy has no totals of
    occurrences, so ``ttf`` is absent and the sums of ``field_statistics`` are -1, OpenSearch's value for unknown.
    """
    (snapshot,) = [live.snapshot() for live in engine.searchable(name)][:1]
    row = engine.store.get(engine.live(snapshot.name).row, doc_id)
    head: Json = {"_index": snapshot.name, "_id": doc_id, "_version": row.version if row else 0, "took": 0}
    if row is None or row.source is None:
        return {**head, "found": False}
    vectors = {
        path: _vector(snapshot, path, texts, statistics=statistics)
        for path, texts in snapshot.fields.extract(json.loads(row.source)).items()
        if snapshot.fields.by_path[path].column == "text" and (fields is None or path in fields)
    }
    return {**head, "found": True, "term_vectors": vectors}


def _vector(snapshot: Snapshot, path: str, texts: list[str], *, statistics: bool) -> Json:
    analyzer = snapshot.analyzer(snapshot.fields.by_path[path], searching=False)
    terms: dict[str, Json] = {}
    for token in (token for text in texts for token in analyzer.tokens(text)):
        terms.setdefault(token.term, {"term_freq": 0})["term_freq"] += 1
    if statistics:
        for term, body in terms.items():
            body["doc_freq"] = snapshot.frequency(path, term)
    return {
        "field_statistics": {"sum_doc_freq": -1, "doc_count": snapshot.having_terms(path), "sum_ttf": -1},
        "terms": dict(sorted(terms.items())),
    }


def many_term_vectors(
    engine: Engine, name: str | None, body: Json, fields: list[str] | None, *, statistics: bool
) -> Json:
    """Answer ``_mtermvectors``."""
    only("mtermvectors", body, frozenset({"docs", "ids", "parameters"}))
    common = body.get("parameters", {})
    wanted = body.get("docs") or [{"_id": one} for one in body.get("ids", [])]
    answers = []
    for one in wanted:
        options = {**common, **one}
        index = options.get("_index", name)
        if index is None:
            raise illegal("[_index] is missing in [mtermvectors]")
        wants = bool(options.get("term_statistics", statistics))
        answers.append(
            term_vectors(engine, index, str(options["_id"]), options.get("fields", fields), statistics=wants)
        )
    return {"docs": answers}


def analyze(engine: Engine, name: str | None, body: Json) -> Json:
    """Answer ``_analyze``; offsets count code points."""
    only("analyze", body, frozenset({"analyzer", "text", "field", "tokenizer", "filter"}))
    analyzer = _chosen(engine, name, body)
    texts = body.get("text")
    if texts is None:
        raise illegal("text is missing")
    tokens: list[Json] = []
    position = offset = 0
    for text in texts if isinstance(texts, list) else [texts]:
        found = analyzer.tokens(str(text))
        tokens += [
            {
                "token": token.term,
                "start_offset": offset + token.start,
                "end_offset": offset + token.end,
                "type": "<ALPHANUM>",
                "position": position + token.position,
            }
            for token in found
        ]
        position += 100 + (found[-1].position + 1 if found else 0)
        offset += len(str(text)) + 1
    return {"tokens": tokens}


def _chosen(engine: Engine, name: str | None, body: Json) -> Analyzer:
    live = engine.live(engine.names(name)[0]) if name else None
    analyzers = live.analyzers if live else Analyzers()
    if "field" in body:
        field = live.fields.by_path.get(body["field"]) if live else None
        if field is not None and field.column == "text":
            return field_analyzer(analyzers, field, searching=False)
        return analyzers.get("keyword" if field is not None else analyzers.default)
    if "tokenizer" in body or "filter" in body:
        filters = body.get("filter", [])
        return analyzers.composed(body.get("tokenizer", "keyword"), filters if isinstance(filters, list) else [filters])
    return analyzers.get(body.get("analyzer", analyzers.default))
