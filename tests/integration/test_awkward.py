"""Awkward input through the whole path, with the shipped model, on both engines."""

import time

import opensearchpy
import pytest

from tests.articles import filled

pytestmark = [pytest.mark.integration, pytest.mark.slow]

INDEX = "awkward"
DOCUMENTS = {
    "plain": "Dehydration is a common cause of low blood pressure.",
    "markup": "[CLS] low blood pressure [SEP] [MASK] <b>low</b> \x00 blood 🩸 pressure [PAD]",
    "huge": "low blood pressure " + "lorem ipsum dolor " * 560_000,
    "empty": "",
    "list": ["low blood", "pressure"],
}


@pytest.fixture(scope="module")
def client(engine_url):
    mapping = {"properties": {"text": {"type": "text", "analyzer": "english"}, "tag": {"type": "keyword"}}}
    documents = {doc_id: {"text": text, "tag": "x"} for doc_id, text in DOCUMENTS.items()}
    with filled(engine_url, INDEX, {**documents, "without": {"tag": "x"}}, {"mappings": mapping}) as made:
        yield made


def by_id(response):
    return {hit["_id"]: hit for hit in response["hits"]["hits"]}


def test_ten_megabytes_are_cut_and_counted(client):
    assert len(DOCUMENTS["huge"]) > 10_000_000
    started = time.perf_counter()
    response = client.search("low blood pressure", index=INDEX, rerank={"deadline_ms": None})
    assert time.perf_counter() - started < 30
    assert response["rerank"]["applied"] is True
    assert response["rerank"]["stages"][0]["truncated"] == 1
    assert set(by_id(response)) == {"plain", "markup", "huge", "list"}


def test_documents_without_text_stay_below_and_say_why(client):
    response = client.search({"term": {"tag": "x"}}, index=INDEX, rerank={"query": "low blood pressure"})
    hits = by_id(response)
    assert response["hits"]["hits"][-1]["_id"] == "without"
    assert "no text" in hits["without"]["_rerank"]["failure"]
    assert hits["without"]["_score"] < 1
    assert "blank" in hits["empty"]["_rerank"]["failure"]
    assert response["rerank"]["applied"] == "partial"
    assert response["rerank"]["reason"] == "vectors: 2 candidates could not be scored"


def test_query_of_ten_thousand_words(client, engine_url):
    words = " ".join(f"word{number}" for number in range(10_000))
    match = {"match": {"text": "low blood pressure"}}
    response = client.search(match, index=INDEX, rerank={"query": f"low blood pressure {words}"})
    assert response["rerank"]["applied"] is True
    assert response["rerank"]["stages"][0]["query_truncated"] is True
    if engine_url.startswith("embedded:"):
        response = client.search(f"low blood pressure {words}", index=INDEX, rerank={"cache": False})
        assert response["rerank"]["stages"][0]["query_truncated"] is True
    else:
        with pytest.raises(opensearchpy.RequestError, match="maxClauseCount"):
            client.search(f"low blood pressure {words}", index=INDEX, rerank=True)
