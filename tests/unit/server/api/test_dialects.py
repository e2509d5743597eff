import json

import pytest

QUERY = "low blood pressure"
TEXTS = ["salt and water", "low blood pressure", "blood", "low salt diets"]
ORDER = [1, 2, 3, 0]  # by the share of the query's words; ties in the order given


def probabilities(client):
    answer = client.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS}).json()
    return {item["index"]: item["relevance_score"] for item in answer["results"]}


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank", "/invocations"])
def test_cohere(client, path):
    body = {"query": QUERY, "documents": TEXTS, "model": "rerank-v3.5", "max_tokens_per_doc": 512, "top_n": 3}
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    assert [item["index"] for item in content["results"]] == ORDER[:3]
    assert all(set(item) == {"index", "relevance_score"} for item in content["results"])
    assert content["model"] == "osrerank/e5-small"
    assert content["meta"] == {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    assert set(content["usage"]) == {"prompt_tokens", "total_tokens"}


def test_coheres_documents_may_be_objects_with_fields(client):
    documents = [{"text": TEXTS[0]}, TEXTS[1], {"text": TEXTS[2], "more": 1}, {"text": TEXTS[3]}]
    content = client.post("/rerank", json={"query": QUERY, "documents": documents, "return_documents": True}).json()
    assert [item["index"] for item in content["results"]] == ORDER
    assert [item["document"] for item in content["results"]] == [{"text": TEXTS[place]} for place in ORDER]
    documents = [{"title": "low blood", "body": "pressure", "text": ""}, {"title": "low", "body": "salt"}]
    body = {"query": QUERY, "documents": documents, "rank_fields": ["title", "body"], "return_documents": True}
    results = client.post("/v2/rerank", json=body).json()["results"]
    assert [item["document"]["text"] for item in results] == ["low blood pressure", "low salt"]
    body["rank_fields"] = ["abstract"]
    answer = client.post("/v2/rerank", json=body)
    assert (answer.status_code, "documents[0] has no text in 'abstract'" in answer.json()["message"]) == (422, True)


def test_voyage(client):
    """As https://docs.voyageai.com/reference/reranker-api has it."""
    expected = probabilities(client)
    body = {"query": QUERY, "documents": TEXTS, "model": "rerank-2.5", "truncation": True}
    content = client.post("/voyage/v1/rerank", json=body).json()
    assert content["data"] == [{"index": place, "relevance_score": expected[place]} for place in ORDER]
    said = (content["object"], content["model"], set(content["usage"]))
    assert said == ("list", "osrerank/e5-small", {"total_tokens"})
    content = client.post("/voyage/v1/rerank", json={**body, "top_k": 2, "return_documents": True}).json()
    assert [item["document"] for item in content["data"]] == [TEXTS[place] for place in ORDER[:2]]
    assert client.post("/voyage/v1/rerank", json={**body, "documents": []}).status_code == 422


@pytest.mark.parametrize("path", ["/rerank", "/", "/invocations"])
def test_tei(client, path):
    expected = probabilities(client)
    body = {"query": QUERY, "texts": TEXTS, "truncate": True, "truncation_direction": "Right"}
    content = client.post(path, json=body).json()
    assert content == [{"index": place, "score": expected[place]} for place in ORDER]
    content = client.post(path, json={**body, "return_text": True, "raw_scores": True}).json()
    assert [item["text"] for item in content] == [TEXTS[place] for place in ORDER]
    assert [item["score"] for item in content] == [1.0, 0.3333333, 0.3333333, 0.0]


@pytest.mark.parametrize("asked", [{"truncation_direction": "Left"}, {"truncation_side": "left"}])
@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("/rerank", {"texts": TEXTS}),
        ("/v1/rerank", {"documents": TEXTS}),
        ("/score", {"text_1": QUERY, "text_2": TEXTS}),
    ],
)
def test_texts_cannot_lose_their_beginnings(client, path, texts, asked):
    answer = client.post(path, json={"query": QUERY, **texts, **asked})
    assert answer.status_code == 422
    assert next(iter(asked)) in answer.json()["error"]


@pytest.mark.parametrize("path", ["/infinity/rerank", "/infinity/v1/rerank"])
def test_infinity(client, path):
    body = {"model": "m", "query": QUERY, "documents": TEXTS}
    content = client.post(path, json={**body, "return_documents": True}).json()
    assert [item["document"] for item in content["results"]] == [TEXTS[place] for place in ORDER]
    assert "document" not in client.post(path, json=body).json()["results"][0]


@pytest.mark.parametrize("names", [("documents", "return_documents"), ("texts", "return_text")])
def test_hugging_face_service(client, names):
    expected = probabilities(client)
    content = client.post("/hf/rerank", json={"query": QUERY, names[0]: TEXTS, names[1]: True, "top_n": 2}).json()
    assert content == [{"index": place, "score": expected[place], "text": TEXTS[place]} for place in ORDER[:2]]


@pytest.mark.parametrize("path", ["/invocations", "/predict"])
def test_classification_of_pairs(client, path):
    expected = probabilities(client)
    pairs = [{"text": QUERY, "text_pair": text} for text in TEXTS]
    content = client.post(path, json={"inputs": pairs}).json()
    assert content == [{"label": "LABEL_0", "score": expected[place]} for place in range(4)]
    assert client.post(path, json={"inputs": pairs[2]}).json() == [{"label": "LABEL_0", "score": expected[2]}]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")])
def test_score(client, path, names):
    expected = probabilities(client)
    content = client.post(path, json={names[0]: QUERY, names[1]: TEXTS}).json()
    assert [item["score"] for item in content["data"]] == [expected[place] for place in range(4)]
    assert [(item["index"], item["object"]) for item in content["data"]] == [(place, "score") for place in range(4)]
    assert (content["object"], content["model"]) == ("list", "osrerank/e5-small")
    one = client.post(path, json={names[0]: QUERY, names[1]: TEXTS[1]}).json()
    assert [item["score"] for item in one["data"]] == [expected[1]]


def test_score_of_pairs_of_several_queries(client):
    queries = [QUERY, "salt", QUERY, "salt"]
    content = client.post("/score", json={"text_1": queries, "text_2": TEXTS}).json()
    alone = [
        client.post("/score", json={"text_1": query, "text_2": text}).json()["data"][0]["score"]
        for query, text in zip(queries, TEXTS, strict=True)
    ]
    assert [item["score"] for item in content["data"]] == alone
    assert client.post("/score", json={"text_1": queries[:3], "text_2": TEXTS}).status_code == 422


def test_weaviate(client):
    expected = probabilities(client)
    content = client.post("/rerank", json={"query": QUERY, "documents": TEXTS, "property": ""}).json()
    scores = [{"document": text, "score": expected[place]} for place, text in enumerate(TEXTS)]
    assert content == {"query": QUERY, "scores": scores}


def test_bodies_are_ascii_numbers_have_points(client):
    body = {"query": "ä", "documents": ["ä", "\U0001f600 b"], "return_documents": True}
    answer = client.post("/v1/rerank", json=body)
    answer.content.decode("ascii")
    assert [item["document"]["text"] for item in answer.json()["results"]] == body["documents"]
    numbers = []
    json.loads(answer.content, parse_float=numbers.append)
    assert len(numbers) == 2
    assert all("e" not in number and len(number.partition(".")[2]) <= 7 for number in numbers)


@pytest.mark.parametrize(
    "model", ["jina-reranker-v2-base-multilingual", "jinaai/jina-reranker-v3", "rerank-v3.5", None]
)
def test_jinas_models_return_documents_unless_told_otherwise(client, model):
    body = {"query": QUERY, "documents": TEXTS, "model": model}
    for asked, given in ((None, model is not None and "jina" in model), (False, False), (True, True)):
        results = client.post("/v1/rerank", json={**body, "return_documents": asked}).json()["results"]
        texts = [item["document"]["text"] if "document" in item else None for item in results]
        assert texts == [TEXTS[item["index"]] if given else None for item in results]
