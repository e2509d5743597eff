"""Real responses of OpenSearch 3.6, merged: what came out when they were recorded comes out today.

The Elasticsearch response is not recorded: it is written after the shape that Elasticsearch 8's reference documents.
"""

import json
from typing import ClassVar

import pytest

from osrerank import connect
from osrerank.testing import CannedTransport, FunctionScorer
from tests.servers import ROOT

FOLDER = ROOT / "tests" / "golden" / "responses"
SCORER = FunctionScorer(lambda query, text: sum(word in text.lower() for word in query.lower().split()) / 10)
NAMES = sorted(file.stem for file in FOLDER.glob("*.json"))


def expected_of(response):
    """What stays the same from run to run: ids, scores, marks, but no times."""
    merged = reranked(response)
    for stage in merged["rerank"]["stages"]:
        stage["took_ms"] = 0
    return {
        "max_score": merged["hits"]["max_score"],
        "hits": [{name: hit.get(name) for name in ("_id", "_score", "_rerank")} for hit in merged["hits"]["hits"]],
        "rerank": {**merged["rerank"], "first_pass_took_ms": 0},
    }


def reranked(response):
    client = connect("http://localhost:9", scorer=SCORER, transport_class=CannedTransport)
    return client.rerank_response(response, "how did the black death reach europe")


def test_there_are_recordings():
    assert len(NAMES) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_recorded_response(name):
    record = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    assert expected_of(record["response"]) == record["expected"]
    merged = reranked(record["response"])
    before = {hit["_id"]: hit for hit in record["response"]["hits"]["hits"]}
    for hit in merged["hits"]["hits"]:
        assert {**hit, "_score": 0, "_rerank": 0} == {**before[hit["_id"]], "_score": 0, "_rerank": 0}
    assert merged.get("aggregations") == record["response"].get("aggregations")
    assert merged["hits"].get("total") == record["response"]["hits"].get("total")


def test_elasticsearch_response():
    hits = [
        {"_index": "articles", "_id": "1", "_score": 1.3, "_source": {"text": "death"}, "_ignored": ["url.keyword"]},
        {"_index": "articles", "_id": "2", "_score": 1.2, "_source": {"text": "the black death"}},
    ]
    response = {
        "took": 5,
        "timed_out": False,
        "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
        "hits": {"total": {"value": 2, "relation": "eq"}, "max_score": 1.3, "hits": hits},
    }
    merged = reranked(response)
    assert [hit["_id"] for hit in merged["hits"]["hits"]] == ["2", "1"]
    assert merged["hits"]["hits"][1]["_ignored"] == ["url.keyword"]


def test_elasticsearch_py_wraps_its_dicts():
    class Answer:
        """As elasticsearch-py's ObjectApiResponse: no mapping, with the dict in `body`."""

        body: ClassVar = {"hits": {"hits": [{"_id": "1", "_score": 1.0, "_source": {"text": "a"}}]}}

    assert reranked(Answer())["rerank"]["applied"] is True
