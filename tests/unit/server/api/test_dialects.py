"""The dialects of the HTTP server, request by request."""

import json

import pytest

from osrerank.testing import FunctionScorer

QUERY = "low blood pressure"
TEXTS = ["salt and water", "low blood pressure", "blood", "low salt diets"]
ORDER = [1, 2, 3, 0]  # by the share of the query's words; ties in the order given


def probabilities(client):
    answer = client.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS}).json()
    return {item["index"]: item["relevance_score"] for item in answer["results"]}


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank", "/invocations"])
def test_coheres_dialect_is_answered(client, path):
    body = {"query": QUERY, "documents": TEXTS, "model": "rerank-v3.5", "max_tokens_per_doc": 512, "top_n": 3}
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    assert [item["index"] for item in content["results"]] == ORDER[:3]
    assert all(set(item) == {"index", "relevance_score"} for item in content["results"])
    assert content["model"] == "osrerank/e5-small"
    assert content["meta"] == {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    assert content["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def test_documents_may_be_objects_whose_fields_are_ranked_in_the_order_named(client):
    documents = [{"text": TEXTS[0]}, TEXTS[1], {"text": TEXTS[2], "more": 1}, {"text": TEXTS[3]}]
    for rank_fields in (None, [], ["text"]):
        body = {"query": QUERY, "documents": documents, "rank_fields": rank_fields}
        content = client.post("/rerank", json=body).json()
        assert [item["index"] for item in content["results"]] == ORDER
    documents = [{"body": "pressure", "title": "low blood"}, {"title": "low blood pressure", "text": "salt"}]
    body = {"query": QUERY, "documents": documents, "rank_fields": ["title", "body"]}
    results = client.post("/v2/rerank", json=body).json()["results"]
    assert results[0]["relevance_score"] == results[1]["relevance_score"]


@pytest.mark.parametrize(
    ("document", "fields", "text"),
    [
        ({"text": "low", "title": None}, ["title", "text"], "low"),
        ({"text": "blood", "year": 1864}, ["text", "year"], "blood 1864"),
        ({"text": "blood", "ph": 7.4, "is_low": True}, ["is_low", "ph", "text"], "true 7.4 blood"),
        ({"text": "", "title": "low"}, ["text", "title"], " low"),
    ],
    ids=["null", "number", "float and boolean", "empty"],
)
def test_a_null_field_counts_as_missing_and_a_number_or_boolean_as_its_text(serve, document, fields, text):
    requests_seen = []
    client = serve(FunctionScorer(lambda _query, text: requests_seen.append(text) or 0.5))
    body = {"query": QUERY, "documents": [document], "rank_fields": fields}
    assert client.post("/v1/rerank", json=body).status_code == 200
    assert requests_seen == [text]


@pytest.mark.parametrize(
    ("document", "words"),
    [({"title": "low"}, "its fields 'text', 'tags' are missing"), ({"tags": ["low"]}, "[0].'tags' is a list")],
)
def test_a_document_object_without_text_is_refused(client, document, words):
    body = {"query": QUERY, "documents": [document], "rank_fields": ["text", "tags"]}
    for path, name in (("/v2/rerank", "documents"), ("/v1/reranking", "input")):
        answer = client.post(path, json={**body, name: body["documents"]})
        assert (answer.status_code, words in answer.json()["message"]) == (422, True), answer.text
        assert f"{name}[0]" in answer.json()["message"]


@pytest.mark.parametrize(
    ("path", "given", "wanted", "listed", "returned"),
    [
        ("/v1/rerank", "documents", "return_documents", "results", "document"),
        ("/rerank", "documents", "return_documents", "results", "document"),
        ("/infinity/rerank", "documents", "return_documents", "results", "document"),
        ("/v1/reranking", "input", "return_input", "data", "input"),
    ],
)
def test_documents_that_are_objects_are_returned_unchanged(client, path, given, wanted, listed, returned):
    document = {
        "title": "é \U0001f600", "text": "low", "ph": 7.123456789012, "n": 10**20, "none": None, "on": True,
        "more": {"list": [0.123456789, {"deep": [[]]}, "]"], "é": None},
    }  # fmt: skip
    answer = client.post(path, json={"query": QUERY, given: [document], wanted: True})
    answer.content.decode("ascii")
    assert answer.json()[listed][0][returned] == document


def test_voyages_dialect_is_answered(client):
    """As https://docs.voyageai.com/reference/reranker-api has it."""
    expected = probabilities(client)
    body = {"query": QUERY, "documents": TEXTS, "model": "rerank-2.5", "truncation": True}
    content = client.post("/voyage/v1/rerank", json=body).json()
    assert content["data"] == [{"index": index, "relevance_score": expected[index]} for index in ORDER]
    envelope = (content["object"], content["model"], set(content["usage"]))
    assert envelope == ("list", "osrerank/e5-small", {"total_tokens"})
    content = client.post("/voyage/v1/rerank", json={**body, "top_k": 2, "return_documents": True}).json()
    assert [item["document"] for item in content["data"]] == [TEXTS[index] for index in ORDER[:2]]
    assert client.post("/voyage/v1/rerank", json={**body, "documents": []}).status_code == 422


def test_mixedbreads_dialect_is_answered(client):
    """As https://www.mixedbread.com/api-reference/endpoints/reranking/rerank-documents has it."""
    expected = probabilities(client)
    body = {"query": QUERY, "input": TEXTS, "model": "mixedbread-ai/mxbai-rerank-large-v2"}
    content = client.post("/v1/reranking", json=body).json()
    assert [(item["index"], item["score"]) for item in content["data"]] == [(index, expected[index]) for index in ORDER]
    assert all(set(item) == {"index", "score", "object"} for item in content["data"])
    envelope = {"object": "list", "model": "osrerank/e5-small", "top_k": 4, "return_input": False}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    assert {name: content[name] for name in content if name != "data"} == {**envelope, "usage": usage}
    content = client.post("/v1/reranking", json={**body, "top_k": 2, "return_input": True}).json()
    assert [item["input"] for item in content["data"]] == [TEXTS[index] for index in ORDER[:2]]
    assert len(client.post("/v1/reranking", json={**body, "top_k": -1}).json()["data"]) == 4


# the least number of results that may be asked for, and whether 0 asks for all, as the dialect's documentation has it
@pytest.mark.parametrize(
    ("path", "given", "name", "is_all"),
    [
        ("/v1/rerank", "documents", "top_n", False),
        ("/v2/rerank", "documents", "top_n", False),
        ("/infinity/rerank", "documents", "top_n", False),
        ("/voyage/v1/rerank", "documents", "top_k", False),
        ("/v1/reranking", "input", "top_k", False),
        ("/rerank", "documents", "top_n", True),
        ("/invocations", "documents", "top_n", True),
        ("/rerank", "texts", "top_n", True),
        ("/hf/rerank", "texts", "top_n", True),
    ],
)
def test_a_request_for_no_results_is_refused(client, path, given, name, is_all):
    for number in (0, -2):
        answer = client.post(path, json={"query": QUERY, given: TEXTS, name: number})
        if is_all and number == 0:
            content = answer.json()
            assert len(content if isinstance(content, list) else content["results"]) == len(TEXTS)
        else:
            assert (answer.status_code, name in answer.json()["message"]) == (422, True), answer.text


@pytest.mark.parametrize("path", ["/rerank", "/", "/invocations", "/hf/rerank"])
def test_a_body_with_names_of_two_dialects_keeps_all_its_options(client, path):
    body = {"query": QUERY, "texts": TEXTS, "documents": TEXTS, "return_text": True, "top_n": 2}
    content = client.post(path, json=body).json()
    assert [item["text"] for item in content] == [TEXTS[index] for index in ORDER[:2]]
    assert client.post(path, json={**body, "documents": None}).json() == content
    answer = client.post(path, json={**body, "documents": TEXTS[:2]})
    assert (answer.status_code, "differ" in answer.json()["message"]) == (422, True), answer.text


@pytest.mark.parametrize("path", ["/rerank", "/", "/invocations"])
def test_text_embeddings_inferences_dialect_is_answered(client, path):
    expected = probabilities(client)
    body = {"query": QUERY, "texts": TEXTS, "truncate": True, "truncation_direction": "Right"}
    content = client.post(path, json=body).json()
    assert content == [{"index": index, "score": expected[index]} for index in ORDER]
    content = client.post(path, json={**body, "return_text": True, "raw_scores": True}).json()
    assert [item["text"] for item in content] == [TEXTS[index] for index in ORDER]
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
def test_truncation_on_the_left_is_refused(client, path, texts, asked):
    answer = client.post(path, json={"query": QUERY, **texts, **asked})
    assert answer.status_code == 422
    assert next(iter(asked)) in answer.json()["error"]


@pytest.mark.parametrize("path", ["/infinity/rerank", "/infinity/v1/rerank"])
def test_infinitys_dialect_is_answered(client, path):
    body = {"model": "m", "query": QUERY, "documents": TEXTS}
    content = client.post(path, json={**body, "return_documents": True}).json()
    assert [item["document"] for item in content["results"]] == [TEXTS[index] for index in ORDER]
    assert "document" not in client.post(path, json=body).json()["results"][0]


@pytest.mark.parametrize("names", [("documents", "return_documents"), ("texts", "return_text")])
def test_the_dialect_of_hugging_face_services_is_answered(client, names):
    expected = probabilities(client)
    content = client.post("/hf/rerank", json={"query": QUERY, names[0]: TEXTS, names[1]: True, "top_n": 2}).json()
    assert content == [{"index": index, "score": expected[index], "text": TEXTS[index]} for index in ORDER[:2]]


@pytest.mark.parametrize("path", ["/invocations", "/predict"])
def test_pairs_are_classified_in_teis_dialect(client, path):
    expected = probabilities(client)
    pairs = [{"text": QUERY, "text_pair": text} for text in TEXTS]
    content = client.post(path, json={"inputs": pairs}).json()
    assert content == [{"label": "LABEL_0", "score": expected[index]} for index in range(4)]
    assert client.post(path, json={"inputs": pairs[2]}).json() == [{"label": "LABEL_0", "score": expected[2]}]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")])
def test_vllms_score_route_is_answered(client, path, names):
    expected = probabilities(client)
    content = client.post(path, json={names[0]: QUERY, names[1]: TEXTS}).json()
    assert [item["score"] for item in content["data"]] == [expected[index] for index in range(4)]
    assert [(item["index"], item["object"]) for item in content["data"]] == [(index, "score") for index in range(4)]
    assert (content["object"], content["model"]) == ("list", "osrerank/e5-small")
    single = client.post(path, json={names[0]: QUERY, names[1]: TEXTS[1]}).json()
    assert [item["score"] for item in single["data"]] == [expected[1]]


def test_vllms_score_route_scores_pairs_of_several_queries(client):
    queries = [QUERY, "salt", QUERY, "salt"]
    content = client.post("/score", json={"text_1": queries, "text_2": TEXTS}).json()
    alone = [
        client.post("/score", json={"text_1": query, "text_2": text}).json()["data"][0]["score"]
        for query, text in zip(queries, TEXTS, strict=True)
    ]
    assert [item["score"] for item in content["data"]] == alone
    assert client.post("/score", json={"text_1": queries[:3], "text_2": TEXTS}).status_code == 422


def test_weaviates_dialect_is_answered(client):
    expected = probabilities(client)
    content = client.post("/rerank", json={"query": QUERY, "documents": TEXTS, "property": ""}).json()
    scores = [{"document": text, "score": expected[index]} for index, text in enumerate(TEXTS)]
    assert content == {"query": QUERY, "scores": scores}


def test_answers_are_ascii_json_with_decimal_points(client):
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
def test_jinas_dialect_returns_documents_by_default(client, model):
    body = {"query": QUERY, "documents": TEXTS, "model": model}
    for return_documents, returns in ((None, model is not None and "jina" in model), (False, False), (True, True)):
        results = client.post("/v1/rerank", json={**body, "return_documents": return_documents}).json()["results"]
        texts = [item["document"]["text"] if "document" in item else None for item in results]
        assert texts == [TEXTS[item["index"]] if returns else None for item in results]
