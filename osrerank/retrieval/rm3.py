"""Expand the first pass's query by RM3: add terms from the documents that the plain query finds.

Lavrenko, Croft: Relevance-based language models, SIGIR 2001; Abdul-Jaleel et al.: UMass at TREC 2004, section 3.1
(RM3). The details follow Anserini's RM3, the usual baseline in IR research. `expand_query` yields its
requests instead of sending them, so that the synchronous and the asynchronous client can share it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osrerank.options.rm3 import Rm3
from osrerank.retrieval.fields import SearchFields
from osrerank.retrieval.query_text import MAX_CLAUSES, build_query
from osrerank.retrieval.requests import SideRequest, build_path
from osrerank.retrieval.search_pipelines import add_pipeline

TERM = re.compile(r"[a-z0-9]+")
FEEDBACK_PARAMS = ("routing", "preference", "search_type")
"""URL parameters that the feedback search takes from the caller's search, because they decide what it finds."""


@dataclass(frozen=True, slots=True)
class FeedbackDocument:
    """A document that the plain query found, from which terms are taken.

    Attributes:
        score: the document's score for the plain query.
        frequencies: how often each term occurs in the document.
    """

    score: float
    frequencies: Mapping[str, int]


def expand_query(
    text: str,
    index: Any,
    rm3: Rm3,
    params: Mapping[str, Any],
    field_name: str,
    pipeline: str | Mapping[str, Any] | None = None,
) -> Generator[SideRequest, Any, dict[str, Any] | None]:
    """Expand a query text with terms from the documents that match it.

    This takes up to three requests: a search, the term vectors of its hits, and the analysis of the text.

    The field ``field_name`` is searched, and the terms are taken from it. ``params`` and ``pipeline`` are those of the
    caller's search. Returns None if no document matches the text.
    """
    query = build_query(text, SearchFields((field_name,)))
    search_params = {param: params[param] for param in FEEDBACK_PARAMS if param in params}
    body = {"query": query, "size": rm3.documents, "_source": False}
    response = yield SideRequest("POST", build_path(index, "_search"), *add_pipeline(pipeline, body, search_params))
    hits = response["hits"]["hits"]
    if not hits:
        return None
    term_vectors = yield SideRequest(
        "POST", "/_mtermvectors", {"docs": [_build_term_vector_request(hit, field_name) for hit in hits]}
    )
    path = build_path(hits[0]["_index"], "_analyze")
    analysis = yield SideRequest("POST", path, {"field": field_name, "text": text})
    feedback = [
        FeedbackDocument(hit["_score"], _select_usable_terms(document.get("term_vectors", {}).get(field_name, {}), rm3))
        for hit, document in zip(hits, term_vectors["docs"], strict=True)
    ]
    weights = expand_terms([token["token"] for token in analysis["tokens"]], feedback, rm3)
    # term clauses, because analysing the index terms again would change some of them
    heaviest = _select_heaviest(weights, MAX_CLAUSES)
    clauses = [{"term": {field_name: {"value": term, "boost": weight}}} for term, weight in heaviest.items()]
    return {"bool": {"should": clauses}}


def expand_terms(query_terms: Sequence[str], feedback: Sequence[FeedbackDocument], rm3: Rm3) -> dict[str, float]:
    """Return the terms of the expanded query, heaviest first, with weights that sum to 1.

    weight(t) = w q(t) + (1 - w) r(t). Here w is ``rm3.weight``, q are the query's term counts, and r is the relevance
    model; q and r are normalised to sum to 1. r(t) is proportional to the sum of score(d) share(t, d) over the feedback
    documents d, where share(t, d) is t's share in the occurrences of d's heaviest terms. The expanded query has the
    heaviest terms of r and all terms of the query.
    """
    model: defaultdict[str, float] = defaultdict(float)
    for document in feedback:
        heaviest = _select_heaviest(document.frequencies, rm3.terms)
        total = sum(heaviest.values())
        for term, frequency in heaviest.items():
            model[term] += frequency / total * document.score
    relevance = _normalise(_select_heaviest(model, rm3.terms))
    query = _normalise(Counter(query_terms))
    w = rm3.weight if relevance else 1.0
    mixed = {term: w * query.get(term, 0.0) + (1 - w) * relevance.get(term, 0.0) for term in query | relevance}
    return {term: weight for term, weight in _select_heaviest(mixed, len(mixed)).items() if weight > 0}


def _select_usable_terms(term_vector: Mapping[str, Any], rm3: Rm3) -> dict[str, int]:
    """Return the terms of a term vector that can expand a query, with their frequencies."""
    document_count = (term_vector.get("field_statistics") or {}).get("doc_count", 0)
    return {
        term: counts["term_freq"]
        for term, counts in term_vector.get("terms", {}).items()
        if rm3.min_length <= len(term) <= rm3.max_length
        and TERM.fullmatch(term)
        and counts.get("doc_freq", 0) <= rm3.max_document_share * document_count
    }


def _build_term_vector_request(hit: Mapping[str, Any], field_name: str) -> dict[str, Any]:
    """Return the entry of an ``_mtermvectors`` request for a hit's term vector of a field."""
    request = {"_index": hit["_index"], "_id": hit["_id"], "fields": [field_name], "term_statistics": True}
    request |= {"positions": False, "offsets": False, "payloads": False}
    return {**request, "routing": hit["_routing"]} if "_routing" in hit else request


def _select_heaviest(weights: Mapping[str, float], count: int) -> dict[str, float]:
    """Return the ``count`` terms with the highest weights. Terms of equal weight are in alphabetical order."""
    return dict(sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:count])


def _normalise(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {term: weight / total for term, weight in weights.items()} if total > 0 else {}
