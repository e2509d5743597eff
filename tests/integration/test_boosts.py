"""Boosts of the caller's query survive: where the model agrees with the text score, the order is the engine's own."""

import datetime as dt
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from opensearchpy import RequestError

from osrerank import Client
from osrerank.testing import FunctionScorer, overlap
from osrerank.types.engine import Engine
from tests.articles import filled, watched
from tests.drawn_boosts import MAPPINGS, drawn, goods
from tests.servers import ROOT

pytestmark = pytest.mark.integration

MISMATCH = "the parts do not make _score"
LACKING = "rank_feature"
"""A type of field, and its query, that the Elasticsearch of these tests does not have (its module mapper-extras)."""


@pytest.fixture(scope="module")
def text_scores() -> dict[str, float]:
    """The score that the model gives to each title."""
    return {}


@pytest.fixture(scope="module", params=["opensearch", "elasticsearch"])
def client(request: pytest.FixtureRequest, text_scores: dict[str, float]) -> Iterator[Client]:
    scorer = FunctionScorer(lambda _query, text: text_scores.get(text, 0.0))
    fields = MAPPINGS["properties"]
    if request.param == "elasticsearch":
        fields = {name: field for name, field in fields.items() if field["type"] != LACKING}
    body = {"settings": {"number_of_shards": 2, "number_of_replicas": 0}, "mappings": {"properties": fields}}
    url = request.getfixturevalue(f"{request.param}_url")
    with filled(url, "goods", goods(200), body, scorer=scorer) as client:
        yield client


def ids(response: Mapping[str, Any]) -> list[str]:
    return [hit["_id"] for hit in response["hits"]["hits"]]


def boosts(response: Mapping[str, Any]) -> dict[str, Any] | None:
    return next((stage for stage in response["rerank"]["stages"] if stage["name"] == "boosts"), None)


def outcome(client: Client, text_scores: dict[str, float], seed: int) -> str:
    """Return what came of a drawn query with a model that agrees with its text score: exact, or a reason."""
    body, text = drawn(random.Random(seed))
    if LACKING in json.dumps(body) and client.engine is Engine.ELASTICSEARCH:
        return LACKING
    try:
        response = client.search(body={**body, "size": 100}, index="goods")
    except RequestError as error:  # such as a script that cannot be compiled
        pytest.fail(f"{error}: {json.dumps(body)}")
    if not ids(response):
        return "no hits"
    options = {"query": "any", "fields": ["title"], "blend": "replace"}
    marks = client.search(body={**body, "size": 100}, index="goods", rerank=options)["hits"]["hits"]
    uncounted = {hit["_id"] for hit in marks if hit["_rerank"]["first_pass"].get("text") == 0}
    hits = client.search(body={"query": text, "size": 200}, index="goods")["hits"]["hits"]
    text_scores.clear()
    text_scores.update((hit["_source"]["title"], hit["_score"]) for hit in hits if hit["_id"] not in uncounted)
    answer = client.search(body={**body, "size": 100}, index="goods", rerank=options)
    if not ids(answer):  # a random score of each search's own may be below min_score
        return "no hits"
    boosts_report = boosts(answer)
    assert answer["rerank"]["applied"] is True, json.dumps(body)
    assert boosts_report is not None, json.dumps(body)
    if boosts_report["applied"]:
        assert ids(answer) == ids(response), f"{seed}: {json.dumps(body)}"
        return "exact"
    assert "its text score cannot be told from them: " in boosts_report["reason"]
    detail = boosts_report["reason"].split(": ", 1)[1]
    return MISMATCH if detail.startswith("the hit at rank") else detail


def test_where_the_model_agrees_with_the_text_score_the_order_is_that_of_the_engine(
    client: Client, text_scores: dict[str, float]
) -> None:
    counts = Counter(outcome(client, text_scores, seed) for seed in range(100))
    assert counts["exact"] >= (100 - counts[LACKING]) / 2, counts


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 2_100, 200))
def test_of_two_thousand_drawn_queries_each_has_the_order_of_the_engine_or_a_reason(
    client: Client, text_scores: dict[str, float], first: int
) -> None:
    counts = Counter(outcome(client, text_scores, seed) for seed in range(first, first + 200))
    assert counts["exact"] >= (200 - counts[LACKING]) / 2, counts
    assert counts[MISMATCH] <= 2, counts


RECENT = {"gauss": {"added": {"origin": "2025-12-31", "scale": "60d"}}}
QUERY = {
    "function_score": {
        "query": {"match": {"title": {"query": "red lamp", "_name": "mine"}}},
        "functions": [RECENT, {"filter": {"range": {"stock": {"gte": 1}}}, "weight": 3}],
    }
}


def test_the_models_order_gets_the_text_scores_and_boosts_count_again(
    client: Client, text_scores: dict[str, float]
) -> None:
    text_scores.clear()
    text_scores.update((source["title"], float(len(source["title"]))) for source in goods(200).values())
    hits = client.search(body={"query": QUERY, "size": 100}, index="goods", rerank=True)["hits"]["hits"]
    marks = [hit["_rerank"] for hit in hits]
    by_model = sorted(marks, key=lambda mark: mark["mono"]["rank"])
    texts = sorted((mark["first_pass"]["text"] for mark in marks), reverse=True)
    assert [mark["boosts"]["text"] for mark in by_model] == texts
    scores = [mark["boosts"]["score"] for mark in marks]
    assert scores == sorted(scores, reverse=True)
    products = [mark["boosts"]["text"] * mark["first_pass"]["boost"] for mark in marks]
    assert scores == pytest.approx(products, rel=1e-6)
    assert [hit["_score"] for hit in hits] == sorted((hit["_score"] for hit in hits), reverse=True)


def test_boosts_that_are_ignored_leave_the_models_order(client: Client, text_scores: dict[str, float]) -> None:
    text_scores.clear()
    text_scores.update((source["title"], float(len(source["title"]))) for source in goods(200).values())
    answer = client.search(body={"query": QUERY}, index="goods", rerank={"boosts": "ignore"})
    assert boosts(answer) is None
    lengths = [len(hit["_source"]["title"]) for hit in answer["hits"]["hits"]]
    assert lengths == sorted(lengths, reverse=True)


def test_a_query_without_boosts_is_sent_unchanged(client: Client) -> None:
    with watched(client) as requests:
        answer = client.search(body={"query": {"match": {"title": "red lamp"}}}, index="goods", rerank=True)
    assert boosts(answer) is None
    assert [body["query"] for path, body in requests if "_search" in path] == [{"match": {"title": "red lamp"}}]


def test_pages_of_a_query_with_boosts_join(client: Client) -> None:
    all_ids = ids(client.search(body={"query": QUERY, "size": 40}, index="goods", rerank=True))
    bodies = [{"query": QUERY, "from": start, "size": 10} for start in range(0, 40, 10)]
    pages = [client.search(body=body, index="goods", rerank=True) for body in bodies]
    assert [doc_id for page in pages for doc_id in ids(page)] == all_ids


@pytest.mark.parametrize("params", [{}, {"include_named_queries_score": "true"}])
def test_the_callers_named_queries_come_back_as_without_reranking(client: Client, params: dict[str, str]) -> None:
    aggregation = {"best": {"top_hits": {"size": 3}}}
    groups = {"field": "shop", "inner_hits": {"name": "group", "size": 2}}
    body = {"query": QUERY, "size": 3, "aggs": aggregation, "collapse": groups}
    response = client.search(body=body, index="goods", params=params)
    answer = client.search(body=body, index="goods", params=params, rerank=True)
    assert boosts(answer) is not None
    assert [hit["matched_queries"] for hit in answer["hits"]["hits"]] != []
    assert "osrerank-" not in json.dumps(answer)
    by_id = {hit["_id"]: hit for hit in response["hits"]["hits"]}
    for hit in answer["hits"]["hits"]:
        assert hit["matched_queries"] == by_id[hit["_id"]]["matched_queries"]
        assert hit["inner_hits"] == by_id[hit["_id"]]["inner_hits"]
    assert answer["aggregations"] == response["aggregations"]


def test_thresholds_cut_a_boosted_query_by_the_models_probabilities(
    client: Client, text_scores: dict[str, float]
) -> None:
    text_scores.clear()
    text_scores.update((source["title"], len(source["title"]) / 10 - 3) for source in goods(200).values())
    hits = client.search(body={"query": QUERY, "size": 100}, index="goods", rerank={"min_score": 0.5})["hits"]["hits"]
    assert 0 < len(hits) < 100
    assert min(hit["_rerank"]["mono"]["probability"] for hit in hits) >= 0.5
    assert [hit["_score"] for hit in hits] == sorted((hit["_score"] for hit in hits), reverse=True)


def test_search_after_pages_of_a_query_with_boosts_join(client: Client) -> None:
    body: dict[str, Any] = {"query": QUERY, "size": 20, "sort": ["_score", {"added": "desc"}]}
    all_ids = ids(client.search(body={**body, "size": 40}, index="goods", rerank=True))
    page = client.search(body=body, index="goods", rerank=True)
    after = page["hits"]["hits"][-1]["sort"]
    assert ids(page) + ids(client.search(body={**body, "search_after": after}, index="goods", rerank=True)) == all_ids


def test_boosts_count_in_one_team_of_an_interleaved_list(client: Client) -> None:
    interleave = {"with": {"pipeline": "none"}, "key": "reader"}
    answer = client.search(body={"query": QUERY}, index="goods", rerank={"interleave": interleave})
    assert answer["rerank"]["interleave"]["applied"] is True
    boosts_report = boosts(answer)
    assert boosts_report is not None
    assert boosts_report["applied"] is True


def test_a_multi_search_counts_boosts_on_elasticsearch_and_says_on_opensearch_that_they_do_not(client: Client) -> None:
    plain = {"query": QUERY["function_score"]["query"]}
    lines = [{"index": "goods"}, {"query": QUERY}, {"index": "goods"}, plain, {"index": "absent"}, plain]
    boosted, unboosted, failed = client.msearch(body=lines, rerank=True)["responses"]
    assert failed["status"] == 404
    assert unboosted["hits"]["hits"][0]["matched_queries"] == ["mine"]
    assert boosted["rerank"]["applied"] is unboosted["rerank"]["applied"] is True
    boosts_report = boosts(boosted)
    assert boosts_report is not None
    if client.engine is Engine.ELASTICSEARCH:
        assert boosts_report["applied"] is True
        assert boosted["hits"] == client.search(body={"query": QUERY}, index="goods", rerank=True)["hits"]
    else:
        assert (boosts_report["applied"], boosts_report["reason_code"]) == (False, "boosts")
        assert "multi-search" in boosts_report["reason"]


def test_a_multi_search_returns_the_scores_of_the_callers_named_queries(client: Client) -> None:
    if client.engine is not Engine.ELASTICSEARCH:
        pytest.skip("OpenSearch refuses include_named_queries_score in a multi-search")
    lines, params = [{"index": "goods"}, {"query": QUERY}], {"include_named_queries_score": "true"}
    plain_answer, answer = (client.msearch(body=lines, params=params, rerank=rerank) for rerank in (False, True))
    by_id = {hit["_id"]: hit["matched_queries"] for hit in plain_answer["responses"][0]["hits"]["hits"]}
    for hit in answer["responses"][0]["hits"]["hits"]:
        assert by_id.get(hit["_id"], hit["matched_queries"]) == hit["matched_queries"]
        assert list(hit["matched_queries"]) == ["mine"]


def test_the_shop_in_the_documentation_keeps_its_rules(opensearch_url: str) -> None:
    page = (ROOT / "docs" / "concepts.md").read_text("utf-8")
    example = re.search(r"## Boosts\n.*?```python\n(.*?)```", page, re.DOTALL)
    assert example is not None
    today = dt.datetime.now(dt.UTC).date()
    shop: dict[str, dict[str, Any]] = {
        "sold out": {
            "title": "Waterproof hiking boots",
            "text": "Keeps your feet dry on every trail.",
            "in_stock": False,
        },
        "old": {"title": "Waterproof hiking boots", "text": "Keeps your feet dry on a long walk.", "in_stock": True},
        "new": {"title": "Hiking boots", "text": "Leather, for wet trails and long walks.", "in_stock": True},
        "wax": {"title": "Wax for boots", "text": "Makes leather boots waterproof.", "in_stock": True},
    }
    for name, article in shop.items():
        article["added"] = (today - dt.timedelta(days=900 if name == "old" else 3)).isoformat()
    with filled(opensearch_url, "shop", shop, scorer=FunctionScorer(overlap)) as client:
        names: dict[str, Any] = {"client": client}
        exec(compile(example[1], "concepts.md", "exec"), names)
        boosts_report = boosts(names["response"])
        assert boosts_report is not None
        assert boosts_report["applied"] is True
        assert ids(names["response"])[0] == "new"
        ignored = client.search(body={"query": names["query"]}, index="shop", rerank={"boosts": "ignore"})
        assert set(ids(ignored)[:2]) == {"sold out", "old"}
