"""What a multi-search's lines say of search pipelines: OpenSearch before 2.18 refuses a name in a body."""

import json

import pytest
from opensearchpy import ConnectionTimeout

from osrerank import connect
from osrerank.retrieval.search_pipelines import OSRERANK_DESCRIPTION
from osrerank.testing import CannedTransport, FunctionScorer
from tests.rankings import client_for, response_of
from tests.recording_engine import MAPPING
from tests.rerank_server import Reply, answering

OWN = {"description": f"{OSRERANK_DESCRIPTION} Made by ...", "response_processors": [{"rerank": {}}]}
RENAMING = {"response_processors": [{"rename_field": {"field": "text", "target_field": "body"}}]}


def answer_with(definition):
    def answer(received):
        if received.method == "GET":
            content = MAPPING
            if "/_settings/" in received.path:
                content = {"articles": {"settings": {"index.search.default_pipeline": "p"}}}
            elif "/_search/pipeline/" in received.path:
                content = {"p": definition}
        else:
            content = response_of(["a", "bbb", "cc"])
            if "/_msearch" in received.path:
                content = {"took": 1, "responses": [content, content]}
        return Reply(content, headers=(("Content-Type", "application/json"),))

    return answer


@pytest.mark.parametrize("definition", [OWN, RENAMING], ids=["own", "fields renamed"])
def test_a_multi_search_turns_a_default_pipeline_off_by_an_empty_definition(definition):
    search = {"query": {"match": {"text": "bbb"}}}
    lines = [{"index": "articles"}, search, {"index": "articles"}, search]
    with (
        answering(answer_with(definition), bytes.decode) as server,
        connect(server.url, scorer=FunctionScorer()) as client,
    ):
        client.msearch(body=lines, rerank=True)
        msearches = [received for received in server.received if "/_msearch" in received.path]
    sent = [json.loads(line) for received in msearches for line in received.body.splitlines()]
    pipelines = [line["search_pipeline"] for line in sent if "search_pipeline" in line]
    assert pipelines
    assert all(pipeline == {} for pipeline in pipelines)


class WithoutMapping(CannedTransport):
    """Answers everything but requests for a mapping."""

    def perform_request(self, method, url, *arguments, **options):
        if url.endswith("/_mapping"):
            raise ConnectionTimeout("TIMEOUT", "read timed out", {})
        return super().perform_request(method, url, *arguments, **options)


@pytest.mark.parametrize(("engine", "expected"), [("opensearch", {}), ("elasticsearch", None)])
def test_where_settings_are_unread_only_opensearch_is_told_to_use_no_default_pipeline(engine, expected):
    client = client_for(["a", "bbb", "cc"], transport_class=WithoutMapping, engine=engine)
    body = {"query": {"match": {"text": "bbb"}}, "stored_fields": ["text"]}
    response = client.search(index="notes", body=body, rerank={"fields": ["text"]})
    assert response["rerank"]["applied"] is True
    first, *_, texts = client.transport.requests
    assert "search_pipeline" not in first["body"]
    assert texts["body"].get("search_pipeline") == expected
