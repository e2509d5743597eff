"""Drawn requests on real engines, each plain and reranked: never fewer hits, another total, or an error more."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from elasticsearch import ApiError, Elasticsearch
from opensearchpy import TransportError

import osrerank
from osrerank import connect
from osrerank.testing import FunctionScorer

DEPTH = 100
INDICES = ("never-less-plain", "never-less-narrow", "never-less-strict")
"""The second has a result window of 50, and the third a long document that cannot be highlighted."""
WORDS = ["blood", "pressure", "salt", "diet", "heart", "artery", "vein", "nurse", "doctor", "patient"]
ODD: list[dict[str, Any]] = [
    {"text": "blood ..."}, {"text": ["blood salt", "", "vein"]}, {"text": None, "title": "blood"}, {"title": "salt"},
    {}, {"text": "<p>blood &amp; salt</p> \u0000\U0001fa78"}, {"text": "", "title": "blood pressure"},
    {"text": "blood " * 900},
]  # fmt: skip
MAPPING = {
    "title": {"type": "text"},
    "text": {"type": "text", "fields": {"raw": {"type": "keyword", "ignore_above": 20}}},
    "n": {"type": "integer"},
    "group": {"type": "keyword"},
    "parts": {"type": "nested", "properties": {"text": {"type": "text"}}},
}
LIMITS: list[dict[str, Any]] = [{}, {"max_result_window": 50}, {"highlight.max_analyzed_offset": 3000}]


BY_LENGTH = FunctionScorer(lambda _query, text: (len(text) * 7919) % 101 / 10)
REFUSED = (TransportError, ApiError)


@pytest.fixture(scope="module", params=["opensearch", "elasticsearch", "elasticsearch-py"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of each engine, and Elasticsearch's own."""
    url = request.getfixturevalue("opensearch_url" if request.param == "opensearch" else "elasticsearch_url")
    with connect(url, scorer=BY_LENGTH) as client:
        draw = random.Random(1)
        for at, index in enumerate(INDICES):
            settings = {"number_of_shards": 2, "number_of_replicas": 0, **LIMITS[at]}
            client.indices.delete(index=index, ignore_unavailable=True)
            client.indices.create(index=index, body={"settings": settings, "mappings": {"properties": MAPPING}})
            lines: list[Any] = []
            for number in range(150):
                text = " ".join(draw.choices(WORDS, k=draw.randint(1, 12)))
                document = {"title": draw.choice(WORDS), "text": text, "n": number, "group": f"g{number % 23}"}
                document |= {"parts": [{"text": draw.choice(WORDS)}]}
                document = ODD[number // 18] if number % 18 == 7 else document
                lines += [{"index": {"_index": index, "_id": f"{at}-{number}"}}, document]
            client.bulk(body=lines, refresh=True)
        if request.param == "elasticsearch-py":
            with Elasticsearch(url) as elasticsearch, osrerank.wrap(elasticsearch, scorer=BY_LENGTH) as wrapped:
                yield wrapped
        else:
            yield client
        client.indices.delete(index=",".join(INDICES))


def drawn(draw: random.Random) -> dict[str, Any]:
    """Return a search body; most of it is what applications ask for, and some is refused."""
    text = " ".join(draw.sample(WORDS, draw.randint(1, 3)))
    match = {"match": {"text": text}}
    queries: list[Any] = [
        match, match, match, {"match_all": {}}, {"query_string": {"query": text, "default_field": "text"}},
        {"multi_match": {"query": text, "fields": ["title^2", "text"]}},
        {"bool": {"must": [match], "filter": [{"range": {"n": {"gte": draw.randint(0, 120)}}}]}},
        {"bool": {"should": [match, {"term": {"group": "g3"}}], "must_not": [{"term": {"n": 5}}]}},
        {"function_score": {"query": match, "field_value_factor": {"field": "n", "missing": 1}}},
        {"nested": {"path": "parts", "query": {"match": {"parts.text": text}}, "inner_hits": {}}},
    ]  # fmt: skip
    body: dict[str, Any] = {"query": draw.choice(queries)}
    parts: dict[str, list[Any]] = {
        "from": [1, 10, 40, 95, 200],
        "size": [0, 1, 3, 20, 60, None],
        "sort": [["_score"], [{"_score": {"order": "DESC"}}, {"n": "asc"}], [{"n": "desc"}], "n"],
        "_source": [False, ["title"], {"excludes": ["text"]}, "t*"],
        "highlight": [{"fields": {"text": {}}}, {"fields": {"*": {"type": "plain"}}}],
        "script_fields": [{"x": {"script": "doc['n'].value"}}, {"x": {"script": "doc['n'].size()"}}],
        "aggs": [{"groups": {"terms": {"field": "group"}}}, {"mean": {"avg": {"field": "n"}}}],
        "collapse": [{"field": "group"}, {"field": "group", "inner_hits": {"name": "more", "size": 2}}],
        "rescore": [{"window_size": 30, "query": {"rescore_query": {"match_phrase": {"text": text}}}}],
        "track_total_hits": [True, False, 7],
        "post_filter": [{"range": {"n": {"lt": 60}}}],
        "min_score": [0.5],
        "fields": [["text"], ["t*", "n"]],
        "docvalue_fields": [["n"]],
        "stored_fields": [["text"], "_none_"],
        "explain": [True],
        "version": [True],
        "suggest": [{"s": {"text": "bloud", "term": {"field": "text"}}}],
        "terminate_after": [20],
        "search_after": [[1.0]],
        "timeout": ["5s"],
    }
    for name in draw.sample(list(parts), draw.randint(0, 4)):
        body[name] = draw.choice(parts[name])
    return body


def answered(client: Any, index: str, body: dict[str, Any], *, rerank: bool) -> Any:
    """Return the response, or the engine's error."""
    try:
        return client.search(index=index, body=body, rerank=rerank)
    except REFUSED as error:
        return error


def ids(response: Any) -> list[str]:
    return [
        hit.get("_id", str(index)) for index, hit in enumerate(response["hits"]["hits"])
    ]  # `stored_fields` may hide it


def check(client: Any, seed: int) -> bool:
    """Compare a drawn search with itself reranked; return whether it was reranked."""
    draw = random.Random(seed)
    body = drawn(draw)
    index = draw.choice([*INDICES, ",".join(INDICES)])
    plain, reranked = (answered(client, index, body, rerank=rerank) for rerank in (False, True))
    if isinstance(plain, REFUSED):
        assert isinstance(reranked, REFUSED), body
        return False
    assert not isinstance(reranked, REFUSED), (body, reranked)
    assert len(ids(reranked)) == len(ids(plain)) == len(set(ids(reranked))), body
    assert reranked["hits"].get("total") == plain["hits"].get("total"), body
    assert reranked.get("aggregations") == plain.get("aggregations"), body
    assert reranked["_shards"] == plain["_shards"], body
    if not reranked["rerank"]["applied"]:
        assert ids(reranked) == ids(plain), body
        assert reranked["rerank"]["reason"]
        return False
    window = max(DEPTH, body.get("from", 0) + body.get("size", 10))
    wide = {**body, "from": 0, "size": window}
    everything, ordered = (answered(client, index, wide, rerank=rerank) for rerank in (False, True))
    assert sorted(ids(ordered)) == sorted(ids(everything)), body
    start = body.get("from", 0)
    assert ids(reranked) == ids(ordered)[start : start + body.get("size", 10)], body
    return True


def test_fifty_drawn_searches_lose_no_hit_by_reranking(client: Any) -> None:
    assert sum(check(client, seed) for seed in range(50)) > 15


@pytest.mark.parametrize("seed", [605, 925])
def test_failed_shards_give_the_failures_and_hits_of_the_plain_search(client: Any, seed: int) -> None:
    check(client, seed)


@pytest.mark.slow
def test_a_thousand_drawn_searches(client: Any) -> None:
    assert sum(check(client, seed) for seed in range(1_000)) > 300


def test_twenty_drawn_multi_searches_lose_no_hit_by_reranking(client: Any) -> None:
    compared = 0
    for seed in range(20):
        draw = random.Random(seed)
        lines: list[Any] = []
        while len(lines) < 12:
            body, index = drawn(draw), draw.choice(INDICES)
            if not isinstance(answered(client, index, {**body, "size": 1}, rerank=False), REFUSED):
                lines += [{"index": index}, {**body, "size": body.get("size") or 10}]  # one that is no search fails all
        plain, reranked = (client.msearch(body=lines, rerank=rerank)["responses"] for rerank in (False, True))
        for body, before, after in zip(lines[1::2], plain, reranked, strict=True):
            assert ("error" in after) == ("error" in before), (body, after)
            if "error" not in before:
                assert len(ids(after)) == len(ids(before)), (body, after["rerank"])
                assert after["hits"].get("total") == before["hits"].get("total"), body
                compared += 1
    assert compared > 80
