"""Real responses of OpenSearch 3.6 and of several Elasticsearches, merged: what came out once comes out today."""

import copy
import json

import pytest
from elastic_transport import ApiResponseMeta, BaseNode, HttpHeaders, TransportApiResponse
from elasticsearch import Elasticsearch

from osrerank import connect
from osrerank.testing import CannedTransport, FunctionScorer
from tests.rankings import unmarked
from tests.servers import ROOT

FOLDER = ROOT / "tests" / "golden" / "responses"
SCORER = FunctionScorer(lambda query, text: sum(word in text.lower() for word in query.lower().split()) / 10)
QUERY = "how did the black death reach europe"
NAMES = sorted(str(file.relative_to(FOLDER).with_suffix("")) for file in FOLDER.rglob("*.json"))
ELASTIC = [name for name in NAMES if name.startswith("elasticsearch/")]
SORTED = "elasticsearch/v7_point_in_time_sorted"


def record(name):
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


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


def reranked(response, **options):
    client = connect("http://localhost:9", scorer=SCORER, transport_class=CannedTransport)
    return client.rerank_response(response, QUERY, options=options or True)


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_response_is_merged_as_before(name):
    recorded = record(name)
    assert expected_of(recorded["response"]) == recorded["expected"]


@pytest.mark.parametrize("name", NAMES)
def test_merging_changes_only_order_and_marks(name):
    response = record(name)["response"]
    merged = reranked(response)
    assert response == record(name)["response"]
    assert list(merged) == [*response, "rerank"]
    assert {**merged, "took": 0, "hits": 0, "rerank": 0} == {**response, "took": 0, "hits": 0, "rerank": 0}
    assert {**merged["hits"], "max_score": 0, "hits": 0} == {**response["hits"], "max_score": 0, "hits": 0}
    before = {hit["_id"]: hit for hit in response["hits"]["hits"]}
    assert sorted(hit["_id"] for hit in merged["hits"]["hits"]) == sorted(before)
    for hit in merged["hits"]["hits"]:
        assert {**hit, "_score": 0, "_rerank": 0} == {**before[hit["_id"]], "_score": 0, "_rerank": 0}


def test_a_sorted_response_is_not_reranked():
    response = record(SORTED)["response"]
    merged = reranked(response)
    assert merged["rerank"]["applied"] is False
    assert merged["rerank"]["reason"] == "the search is sorted by something other than score"
    assert unmarked(merged) == response["hits"]
    assert merged["hits"]["hits"][1]["_rerank"] == {"first_pass": {"score": None, "rank": 2}}


def test_hits_without_scores_but_unsorted_are_reranked():
    """Elasticsearch's first rank fusion gave ranks and no scores."""
    merged = reranked(record("elasticsearch/v8_rank_fusion_null_scores")["response"])
    assert merged["rerank"]["applied"] is True
    assert [hit["_rank"] for hit in merged["hits"]["hits"]] == [2, 3, 1]
    assert {hit["_rerank"]["first_pass"]["score"] for hit in merged["hits"]["hits"]} == {0.0}


@pytest.mark.parametrize("options", [{"blend": "linear", "blend_weight": 7.0}, {"blend": "rrf"}])
def test_a_blend_without_first_pass_scores_uses_the_model_alone(options):
    response = record("elasticsearch/v8_rank_fusion_null_scores")["response"]
    merged = reranked(response, **options)
    assert [stage["name"] for stage in merged["rerank"]["stages"]] == ["mono", "blend"]
    assert merged["hits"]["hits"][0]["_rank"] == 2


def test_the_text_of_grouped_nested_fields_is_read():
    """Elasticsearch puts a nested field's values inside an object: `fields: {passage: [{words: [...]}]}`."""
    response = record("elasticsearch/v8_inner_hits_of_fields")["response"]
    merged = reranked(response, fields=["inner_hits:passage.passage.words"])
    assert [hit["_id"] for hit in merged["hits"]["hits"]] == ["2", "1"]
    assert merged["hits"]["hits"][0]["_rerank"]["mono"]["logit"] == pytest.approx(0.6)
    assert "the hits have text, written" in reranked(response, fields=["body"])["rerank"]["reason"]


class CannedNode(BaseNode):
    """A connection of elasticsearch-py that answers every request with one body."""

    body = b""

    def perform_request(self, *_target, **_options):
        headers = HttpHeaders({"content-type": "application/json", "x-elastic-product": "Elasticsearch"})
        return TransportApiResponse(ApiResponseMeta(200, "1.1", headers, 0.001, self.config), self.body)

    def close(self):
        """Do nothing: there is no connection."""


@pytest.mark.parametrize("name", ELASTIC)
def test_responses_of_elasticsearch_py_are_merged(name, monkeypatch):
    response = record(name)["response"]
    monkeypatch.setattr(CannedNode, "body", json.dumps(response).encode())
    answer = Elasticsearch("http://localhost:9", node_class=CannedNode).search(index="plague")
    before = copy.deepcopy(answer.body)
    assert expected_of(answer) == record(name)["expected"]
    assert answer.body == before == response
