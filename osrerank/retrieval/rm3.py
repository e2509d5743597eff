"""Expand the first pass's query by RM3: add terms of the documents that the plain query finds.

Lavrenko, Croft: Relevance-based language models, SIGIR 2001; Abdul-Jaleel et al.: UMass at TREC 2004, section 3.1
(RM3). The details follow ``RM3`` in Anserini, whose results are the field's baselines. The generator yields requests,
so that the synchronous and the asynchronous client send the same ones.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osrerank.options.rm3 import Rm3
from osrerank.retrieval.fields import SearchFields
from osrerank.retrieval.query_text import MAX_CLAUSES, build_query
from osrerank.retrieval.requests import SideRequest, path_of
from osrerank.retrieval.search_pipelines import under_pipeline

TERM = re.compile(r"[a-z0-9]+")
KEPT_PARAMS = ("routing", "preference", "search_type")
"""URL parameters of the caller's search that decide which documents it finds; the feedback search has them, too."""


@dataclass(frozen=True, slots=True)
class FeedbackDocument:
    """A feedback document.

    Attributes:
        score: its score in the first search.
        frequencies: term -> occurrences in the document.
    """

    score: float
    frequencies: Mapping[str, int]


def expand(
    text: str,
    index: Any,
    rm3: Rm3,
    params: Mapping[str, Any],
    name: str,
    pipeline: str | Mapping[str, Any] | None = None,
) -> Generator[SideRequest, Any, dict[str, Any] | None]:
    """Yield the requests for the feedback terms, and return the expanded query; None if the search finds nothing.

    It yields at most three requests: a search, the term vectors of its hits, and the analysis of the query.

    Args:
        text: the query's text.
        index: the index searched: a name, several, a pattern, or None for all.
        rm3: how the query is expanded.
        params: URL parameters of the caller's search.
        name: the field that is searched and gives the terms.
        pipeline: the ``search_pipeline`` of the caller's search; None for the index's default.
    """
    query = build_query(text, SearchFields((name,)))
    search_params = {param: params[param] for param in KEPT_PARAMS if param in params}
    body = {"query": query, "size": rm3.documents, "_source": False}
    response = yield SideRequest("POST", path_of(index, "_search"), *under_pipeline(pipeline, body, search_params))
    hits = response["hits"]["hits"]
    if not hits:
        return None
    vectors = yield SideRequest("POST", "/_mtermvectors", {"docs": [_vector_of(hit, name) for hit in hits]})
    path = path_of(hits[0]["_index"], "_analyze")
    analysed = yield SideRequest("POST", path, {"field": name, "text": text})
    feedback = [
        FeedbackDocument(hit["_score"], _usable_terms(vector.get("term_vectors", {}).get(name, {}), rm3))
        for hit, vector in zip(hits, vectors["docs"], strict=True)
    ]
    weights = expand_terms([token["token"] for token in analysed["tokens"]], feedback, rm3)
    # term clauses, because analysing the index terms again would change some of them
    heaviest = _heaviest(weights, MAX_CLAUSES)
    clauses = [{"term": {name: {"value": term, "boost": weight}}} for term, weight in heaviest.items()]
    return {"bool": {"should": clauses}}


def expand_terms(query_terms: Sequence[str], feedback: Sequence[FeedbackDocument], rm3: Rm3) -> dict[str, float]:
    """Return the terms of the expanded query with their weights, heaviest first; the weights sum to 1.

    weight(t) = w q(t) + (1 - w) r(t). Here q are the query's term counts and r is the relevance model; each is
    normalised to sum to 1. r(t) is proportional to the sum of score(d) share(t, d) over the feedback documents d, where
    share(t, d) is t's share in the occurrences of d's heaviest terms. Only the heaviest terms of r are kept, and all
    terms of the query.

    Args:
        query_terms: the analysed query, repetitions included.
        feedback: feedback documents with their usable terms.
        rm3: the number of terms to keep, and w.
    """
    model: defaultdict[str, float] = defaultdict(float)
    for document in feedback:
        heaviest = _heaviest(document.frequencies, rm3.terms)
        total = sum(heaviest.values())
        for term, frequency in heaviest.items():
            model[term] += frequency / total * document.score
    relevance = _normalise(_heaviest(model, rm3.terms))
    query = _normalise(Counter(query_terms))
    share = rm3.weight if relevance else 1.0
    mixed = {term: share * query.get(term, 0.0) + (1 - share) * relevance.get(term, 0.0) for term in query | relevance}
    return {term: weight for term, weight in _heaviest(mixed, len(mixed)).items() if weight > 0}


def _usable_terms(vector: Mapping[str, Any], rm3: Rm3) -> dict[str, int]:
    """Return the terms of a term vector that may expand a query, with their frequencies."""
    documents = (vector.get("field_statistics") or {}).get("doc_count", 0)
    return {
        term: counts["term_freq"]
        for term, counts in vector.get("terms", {}).items()
        if rm3.min_length <= len(term) <= rm3.max_length
        and TERM.fullmatch(term)
        and counts.get("doc_freq", 0) <= rm3.max_document_share * documents
    }


def _vector_of(hit: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the entry that asks ``_mtermvectors`` for a hit's term vector."""
    request = {"_index": hit["_index"], "_id": hit["_id"], "fields": [name], "term_statistics": True}
    request |= {"positions": False, "offsets": False, "payloads": False}
    return {**request, "routing": hit["_routing"]} if "_routing" in hit else request


def _heaviest(weights: Mapping[str, float], count: int) -> dict[str, float]:
    """Return the ``count`` terms with the highest weights; ties in alphabetical order."""
    return dict(sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:count])


def _normalise(weights: Mapping[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {term: weight / total for term, weight in weights.items()} if total > 0 else {}
