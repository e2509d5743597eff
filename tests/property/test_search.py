"""What holds for every ranking and every page."""

from hypothesis import given
from hypothesis import strategies as st

from osrerank import MonoStage, connect
from osrerank.response import Page, make_candidates, parse_hits
from osrerank.testing import CannedTransport, FunctionScorer
from osrerank.types import Query, Ranking
from tests.rankings import answer_of, response_of

TEXTS = st.lists(st.text("abc ", max_size=6), max_size=30)
DEPTHS = st.integers(1, 40)
SCORER = FunctionScorer(lambda _query, text: text.count("a") - text.count("b"), unscorable=frozenset({"cc"}))


@given(TEXTS, DEPTHS, st.integers(0, 35), st.integers(0, 35))
def test_merge_keeps_every_hit_and_field(texts, depth, offset, size):
    response = response_of(["a", *texts], aggregations={"x": 1}, _scroll_id="s")
    response["hits"]["hits"][0]["highlight"] = {"text": ["h"]}
    ranking = MonoStage(SCORER, depth=depth).rerank(
        Ranking(Query("q", "x"), make_candidates(parse_hits(response), ["text"]))
    )
    all_hits = answer_of(response, ranking, Page(size=1_000), rerank_ms=1)
    by_id = {hit["_id"]: hit for hit in response["hits"]["hits"]}
    assert len(all_hits["hits"]["hits"]) == len(by_id)
    for hit in all_hits["hits"]["hits"]:
        assert {**hit, "_score": None, "_rerank": None} == {**by_id[hit["_id"]], "_score": None, "_rerank": None}
    without_hits = {"hits": None, "took": None, "rerank": None}
    assert {**all_hits, **without_hits} == {**response, **without_hits}
    scores = [hit["_score"] for hit in all_hits["hits"]["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert min(scores) >= 0
    assert all_hits["hits"]["max_score"] == scores[0]
    page = answer_of(response, ranking, Page(offset=offset, size=size), rerank_ms=1)
    assert page["hits"]["hits"] == all_hits["hits"]["hits"][offset : offset + size]


class Index(CannedTransport):
    """Answers a search with its own window of a fixed list."""

    def perform_request(self, method, url, params=None, body=None, **options):
        answer = super().perform_request(method, url, params, body, **options)
        if not url.endswith("/_search") or "from" not in body:
            return answer
        hits = answer["hits"]["hits"][body["from"] : body["from"] + body["size"]]
        return {**answer, "hits": {**answer["hits"], "hits": hits}}


@given(st.lists(st.text("ab", max_size=5), min_size=1, max_size=40), DEPTHS, st.integers(1, 12))
def test_drawn_pages_join_without_gap_or_repeat(texts, depth, size):
    client = connect("http://localhost:9", scorer=SCORER, transport_class=Index, answer=response_of(["a", *texts]))
    total = len(texts) + 1
    options = {"index": "i", "rerank": {"depth": depth}}
    hits = client.search("x", size=total, **options)["hits"]["hits"]
    pages = [client.search("x", size=size, from_=start, **options)["hits"]["hits"] for start in range(0, total, size)]
    assert [hit for page in pages for hit in page] == hits


@given(st.lists(st.text("ab", max_size=5), min_size=1, max_size=40), DEPTHS, st.integers(1, 12), st.floats(0, 1))
def test_counts_of_the_reranked_list_are_the_same_on_all_pages(texts, depth, size, least):
    client = connect("http://localhost:9", scorer=SCORER, transport_class=Index, answer=response_of(["a", *texts]))
    options = {"index": "i", "size": size, "rerank": {"depth": depth, "min_score": least}}
    pages = [client.search("x", from_=start, **options) for start in range(0, len(texts) + 1, size)]
    assert len({page["hits"]["max_score"] for page in pages}) == 1
    assert len({page["rerank"]["below_min_score"] for page in pages}) == 1
    shown = sum(len(page["hits"]["hits"]) for page in pages)
    assert shown + pages[0]["rerank"]["below_min_score"] == min(depth, len(texts) + 1)
