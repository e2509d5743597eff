"""Long documents through the search call of three engines, judged by their passages."""

import random

import pytest

from osrerank.testing import FunctionScorer
from tests.articles import filled

pytestmark = pytest.mark.integration

INDEX = "long-documents"
LENGTHS = (200, 800, 3_000, 9_000, 20_000)
SCORER = FunctionScorer(lambda query, text: float(sum(text.count(word) for word in query.split())))
MAPPING = {
    "settings": {"number_of_shards": 1, "number_of_replicas": 0},
    "mappings": {"properties": {"title": {"type": "text"}, "text": {"type": "text"}, "pages": {"type": "text"}}},
}


def document(place, length):
    """A document that names the pump once at its beginning, and next to its failure at a place of its own."""
    rng = random.Random(place)
    words = [f"word{rng.randint(0, 500)}" for _ in range(length)]
    words[0] = "pump"
    at = min(length - 10, 700 + 150 * place)
    words[at : at + 3] = ["pump", "failure", "pump"][: 1 + place % 3]
    return {"title": f"manual {place}", "text": " ".join(words), "pages": ["a pump", f"pump {place}\nfailure pump", ""]}


@pytest.fixture(scope="module")
def client(engine_url):
    documents = {f"d{index}": document(index, LENGTHS[index % 5]) for index in range(15)}
    with filled(engine_url, INDEX, documents, MAPPING, scorer=SCORER) as made:
        yield made


def test_list_values_are_passages(client):
    options = {"passages": {"aggregation": "kmaxavgp"}, "fields": ["title", "pages"]}
    response = client.search("pump failure", index=INDEX, rerank=options)
    for hit in response["hits"]["hits"]:
        span = hit["_rerank"]["mono"]["passage"]
        value = hit["_source"]["pages"][span["value"]]
        assert (span["field"], span["value"]) == ("pages", 1)
        assert value[span["start"] : span["end"]] == value


def test_highlight_fragments_are_passages(client):
    body = {"query": {"match": {"text": "failure"}}, "highlight": {"fields": {"text": {"number_of_fragments": 3}}}}
    options = {"passages": "maxp", "fields": ["title", "highlight:text"]}
    response = client.search(index=INDEX, body=body, rerank=options)
    assert response["rerank"]["applied"] is True
    for hit in response["hits"]["hits"]:
        span = hit["_rerank"]["mono"]["passage"]
        fragment = hit["highlight"]["text"][span.get("value", 0)]
        assert "failure" in fragment[span["start"] : span["end"]]
