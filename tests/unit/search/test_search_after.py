"""Pages by `search_after` join, although reranking changes the order of the hits whose sort values they continue."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.search.orders import MAY_OVERLAP
from osrerank.search.perform import AMBIGUOUS_SEARCH_AFTER, BELOW_DEPTH
from osrerank.testing import CannedTransport, FunctionScorer
from osrerank.types.reasons import ReasonCode
from tests.rankings import client_for, ids, response_of

MATCH = {"match": {"text": "x"}}
TIE_BREAKER = ["_score", {"n": "asc"}]
SCORER = FunctionScorer(lambda _query, text: float(len(text)))


class Sorted(CannedTransport):
    """Answers a search with the page of a fixed list that `from`, `size` and `search_after` ask for."""

    def perform_request(self, method, url, params=None, body=None, **options):
        answer = super().perform_request(method, url, params, body, **options)
        if not url.endswith("/_search") or "query" not in (body or {}):
            return answer
        hits, after = answer["hits"]["hits"], body.get("search_after")
        if after is not None:
            hits = [hit for hit in hits if (-hit["sort"][0], *hit["sort"][1:]) > (-after[0], *after[1:])]
        start = body.get("from", 0)
        return {**answer, "hits": {**answer["hits"], "hits": hits[start : start + body.get("size", 10)]}}


def index_of(texts, seed, *, unique=True, scorer=SCORER):
    """A client of an index whose hits have many equal scores."""
    draw = random.Random(seed)
    answer = response_of(texts)
    scores = sorted((float(draw.randint(1, 6)) for _ in texts), reverse=True)
    for n, (hit, score) in enumerate(zip(answer["hits"]["hits"], scores, strict=True)):
        hit |= {"_score": score, "sort": [score, n] if unique else [score]}
    return client_for(answer, scorer, transport_class=Sorted)


def pages_of(client, size, rerank, sort=TIE_BREAKER):
    """Each page up to the last, continued by the sort values of the last hit."""
    body, pages = {"query": MATCH, "sort": sort, "size": size}, []
    while not pages or ids(pages[-1]):
        pages.append(client.search(index="test", body=body, rerank=rerank))
        if hits := pages[-1]["hits"]["hits"]:
            body = {**body, "search_after": hits[-1]["sort"]}
    return pages


@given(
    st.lists(st.text("ab", max_size=8), min_size=1, max_size=40),
    st.integers(0, 9),
    st.integers(1, 30),
    st.integers(1, 12),
    st.sampled_from([None, 0.6]),
)
def test_search_after_pages_are_those_of_the_reranked_list(texts, seed, depth, size, min_score):
    client = index_of(["b", *texts], seed)
    rerank = {"depth": depth, "deadline_ms": None, "min_score": min_score}
    response = client.search(index="test", body={"query": MATCH, "sort": TIE_BREAKER, "size": 100}, rerank=rerank)
    pages = pages_of(client, size, rerank)
    assert [hit for page in pages for hit in ids(page)] == ids(response)


def test_search_after_below_the_depth_continues_the_first_pass():
    pages = pages_of(index_of(["a" * n for n in range(20)], 1), 5, {"depth": 8})
    assert [page["rerank"]["applied"] for page in pages] == [True, True, False, False, False]
    for page in pages[2:]:
        assert (page["rerank"]["reason"], page["rerank"]["reason_code"]) == (str(BELOW_DEPTH), ReasonCode.PAGING)
        assert page["rerank"]["warnings"] == []


def test_a_missing_hit_of_the_previous_page_is_named():
    client = index_of(["a" * n for n in range(20)], 1)
    body = {"query": MATCH, "sort": TIE_BREAKER, "search_after": [5.5, 3]}
    report = client.search(index="test", body=body, rerank={"depth": 15})["rerank"]
    assert (report["applied"], report["warnings"]) == (False, [MAY_OVERLAP])


def test_a_sort_without_a_unique_field_is_warned_of():
    pages = pages_of(index_of(["a" * n for n in range(20)], 1, unique=False), 3, {"depth": 20}, ["_score"])
    assert [page["rerank"]["warnings"] for page in pages][:2] == [[], [AMBIGUOUS_SEARCH_AFTER]]
    every = [doc_id for page in pages for doc_id in ids(page)]
    assert len(every) == len(set(every))


def test_search_after_pages_join_although_a_hit_could_not_be_scored():
    broken = FunctionScorer(lambda _query, text: float(len(text)), unscorable=frozenset({"aaa"}))
    client = index_of(["a" * n for n in range(20)], 1, scorer=broken)
    pages = pages_of(client, 4, {"depth": 20})
    assert pages[0]["rerank"]["applied"] == "partial"
    every = [doc_id for page in pages for doc_id in ids(page)]
    assert len(every) == len(set(every)) == 20


@pytest.mark.parametrize(
    "body",
    [
        {"search_after": [1.0]},
        {"sort": [], "search_after": [1.0]},
        {"sort": TIE_BREAKER, "search_after": [1.0, 1], "from": 3},
        {"pit": {"id": "x"}},
    ],
)
def test_search_after_pages_that_do_not_continue_a_list_are_not_reranked(body):
    client = index_of(["a", "b"], 1)
    response = client.search(index="test", body={"query": MATCH, **body}, rerank=True)
    assert response["rerank"]["reason_code"] == ReasonCode.PAGING
    assert client.transport.requests[-1]["body"] == {"query": MATCH, **body}
