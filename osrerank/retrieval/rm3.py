"""Expand the first pass's query by RM3: add terms from the documents that the unexpanded query finds.

Lavrenko, Croft: Relevance-based language models, SIGIR 2001; Abdul-Jaleel et al.: UMass at TREC 2004, section 3.1
(RM3). The details follow Anserini's RM3, the usual baseline in IR research. `expand_query` yields its requests instead
of sending them, so that both the synchronous and the asynchronous client can call it.
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
"""Matches a term that can be added to a query."""
FEEDBACK_PARAMS = ("routing", "preference", "search_type")
"""URL parameters of the caller's search that also apply to the search for feedback documents."""


@dataclass(frozen=True, slots=True)
class FeedbackDocument:
    """A document that the unexpanded query found, and whose terms are added to the query.

    Attributes:
        score: the document's score for the unexpanded query.
        frequencies: how often each term occurs in the document, such as ``{"pressure": 3}``.
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
    """Return a query for the terms of a query text and of the documents that match it. None if no document matches.

    This takes up to three requests: a search, the term vectors of its hits, and the analysis of the text.

    Args:
        text: the query text.
        index: the indices as the search names them.
        rm3: the options.
        params: the URL parameters of the caller's search.
        field_name: the field that is searched, and that the terms come from.
        pipeline: the search pipeline of the caller's search.
    """
    query = build_query(text, SearchFields((field_name,)))
    search_params = {param: params[param] for param in FEEDBACK_PARAMS if param in params}
    body = {"query": query, "size": rm3.documents, "_source": False}
    body_to_send, params_to_send = add_pipeline(pipeline, body, search_params)
    response = yield SideRequest("POST", build_path(index, "_search"), body_to_send, params_to_send)
    hits = response["hits"]["hits"]
    if not hits:
        return None
    term_vectors = yield SideRequest(
        "POST", "/_mtermvectors", {"docs": [_build_term_vector_request(hit, field_name) for hit in hits]}
    )
    path = build_path(hits[0]["_index"], "_analyze")
    analysis = yield SideRequest("POST", path, {"field": field_name, "text": text})
    feedback = []
    for hit, document in zip(hits, term_vectors["docs"], strict=True):
        term_vector = document.get("term_vectors", {}).get(field_name, {})
        feedback.append(FeedbackDocument(hit["_score"], _select_usable_terms(term_vector, rm3)))
    weights = expand_terms([token["token"] for token in analysis["tokens"]], feedback, rm3)
    # term clauses, because the terms come from the index, and another analysis would change some terms
    heaviest = _select_heaviest(weights, MAX_CLAUSES)
    clauses = [{"term": {field_name: {"value": term, "boost": weight}}} for term, weight in heaviest.items()]
    return {"bool": {"should": clauses}}


def expand_terms(query_terms: Sequence[str], feedback: Sequence[FeedbackDocument], rm3: Rm3) -> dict[str, float]:
    """Return the terms of the expanded query, heaviest first, with weights that sum to 1.

    weight(t) = w q(t) + (1 - w) r(t). Here w is ``rm3.weight``, q(t) is the frequency of the term t in the query, and r
    is the relevance model: r(t) is the sum of score(d) p(t | d) over the feedback documents d. Of each document, only
    the most frequent terms count, and p(t | d) is the frequency of t divided by the sum of their frequencies. Only the
    terms with the highest r(t) are added. q and r are normalised to sum to 1.
    """
    model: defaultdict[str, float] = defaultdict(float)
    for document in feedback:
        heaviest = _select_heaviest(document.frequencies, rm3.terms)
        total = sum(heaviest.values())
        for term, frequency in heaviest.items():
            model[term] += frequency / total * document.score
    r = _normalise(_select_heaviest(model, rm3.terms))
    q = _normalise(Counter(query_terms))
    w = rm3.weight if r else 1.0
    weights = {term: w * q.get(term, 0.0) + (1 - w) * r.get(term, 0.0) for term in q | r}
    all_heaviest_first = _select_heaviest(weights, len(weights))
    return {term: weight for term, weight in all_heaviest_first.items() if weight > 0}


def _select_usable_terms(term_vector: Mapping[str, Any], rm3: Rm3) -> dict[str, int]:
    """Return the terms of a document's term vector that can be added to a query, with their frequencies."""
    n_documents = (term_vector.get("field_statistics") or {}).get("doc_count", 0)
    return {
        term: counts["term_freq"]
        for term, counts in term_vector.get("terms", {}).items()
        if rm3.min_length <= len(term) <= rm3.max_length
        and TERM.fullmatch(term)
        and counts.get("doc_freq", 0) <= rm3.max_document_share * n_documents
    }


def _build_term_vector_request(hit: Mapping[str, Any], field_name: str) -> dict[str, Any]:
    """Return the entry of an ``_mtermvectors`` request for the terms of one field of a hit."""
    request = {"_index": hit["_index"], "_id": hit["_id"], "fields": [field_name], "term_statistics": True}
    request |= {"positions": False, "offsets": False, "payloads": False}
    return {**request, "routing": hit["_routing"]} if "_routing" in hit else request


def _select_heaviest(weights: Mapping[str, float], count: int) -> dict[str, float]:
    """Return the ``count`` terms with the highest weights. Terms of equal weight are in alphabetical order."""
    return dict(sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:count])


def _normalise(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights divided by their sum. The result is empty if the sum is 0."""
    total = sum(weights.values())
    return {term: weight / total for term, weight in weights.items()} if total > 0 else {}
