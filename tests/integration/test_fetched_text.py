"""Text that is fetched only to be read meets nothing that the caller asked for: drawn requests on a real OpenSearch."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from opensearchpy import TransportError

from osrerank import Client, connect
from osrerank.testing import FunctionScorer

READ: list[str] = []
INDEX = "fetched-text"


def scored(_query: str, text: str) -> float:
    READ.append(text)
    return float(len(text) % 17)


@pytest.fixture(scope="module")
def client(opensearch_url: str) -> Iterator[Client]:
    properties = {
        "text": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
        "secret": {"type": "text", "store": True},
        "k": {"type": "keyword", "store": True},
        "d": {"type": "date"},
        "n": {"type": "integer"},
        "sug": {"type": "completion"},
        "all": {"type": "text"},
        "body": {"type": "text", "copy_to": "all"},
        "other": {"type": "alias", "path": "body"},
        "parts": {"type": "nested", "properties": {"text": {"type": "text"}}},
    }
    with connect(opensearch_url, scorer=FunctionScorer(scored)) as client:
        client.indices.delete(index=f"{INDEX}*")
        for index in range(2):
            settings = {"number_of_replicas": 0}
            client.indices.create(
                index=f"{INDEX}-{index}", body={"settings": settings, "mappings": {"properties": properties}}
            )
            lines: list[Any] = []
            for number in range(12):
                document = {
                    "text": f"blood pressure {number} " + "low " * number,
                    "secret": f"of patient {index}{number}",
                }
                document |= {"k": f"k{number}", "d": f"2024-03-{number + 1:02}", "n": number, "sug": f"blood {number}"}
                document |= {"body": f"body {number}", "parts": [{"text": f"part {number}"}, {"text": "blood"}]}
                lines += [{"index": {"_index": f"{INDEX}-{index}", "_id": str(number + 6 * index)}}, document]
            client.bulk(body=lines, refresh=True)
        yield client
        client.indices.delete(index=f"{INDEX}*")


SHOWS: dict[str, Sequence[Any]] = {
    "_source": [False, ["n"], {"excludes": ["text"]}, "te*", True, ["text", "secret", "d", "body", "all"]],
    "docvalue_fields": [["k"], [{"field": "d", "format": "yyyy"}], ["n", "text.raw"]],
    "stored_fields": [["*"], ["k"], ["secret", "_source"], "text"],
    "script_fields": [
        {"text": {"script": "params._source.text.substring(0, 5)"}}, {"secret": {"script": "'none'"}},
        {"x": {"script": "1"}},
    ],
    "fields": [["text"], ["t*", "n"], [{"field": "d", "format": "yyyy"}], ["parts.text"], ["other"]],
    "suggest": [{"s": {"prefix": "blo", "completion": {"field": "sug"}}}],
    "derived": [{"sum": {"type": "long", "script": {"source": "emit(doc['n'].value + 1)"}}}],
    "collapse": [{"field": "k"}, {"field": "text.raw"}],
    "highlight": [{"fields": {"text": {}}}],
    "search_pipeline": [
        {"response_processors": [{"rename_field": {"field": "d", "target_field": "day", "ignore_failure": True}}]},
        {"response_processors": [{"rename_field": {"field": "text", "target_field": "t", "ignore_failure": True}}]},
        {"response_processors": [{"truncate_hits": {"target_size": 100}}]},
    ],
}  # fmt: skip
FIELDS = [["text"], ["text", "secret"], ["secret", "d"], ["all"], ["other", "text"], ["text.raw"], None]


def drawn(draw: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    body = {name: draw.choice(SHOWS[name]) for name in draw.sample(list(SHOWS), draw.randint(1, 3))}
    params = draw.choice([{}, {}, {"_source_includes": "n"}, {"docvalue_fields": "k"}, {"stored_fields": "k"}])
    return {"query": {"match": {"text": "blood"}}, "size": 50, **body}, params


def kept(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return all but what reranking may change: the order, scores, times and marks."""
    hits = [
        {name: value for name, value in hit.items() if name not in ("_score", "_rerank")}
        for hit in answer["hits"]["hits"]
    ]
    rest = {name: value for name, value in answer.items() if name not in ("took", "hits", "rerank", "profile")}
    return {
        **rest,
        "hits": sorted(hits, key=lambda hit: (hit["_index"], hit["_id"])),
        "total": answer["hits"].get("total"),
    }


SEEDS = [seed if seed < 40 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(400)]


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_requests_for_fields_are_answered_as_without_reranking(client: Client, seed: int) -> None:
    draw = random.Random(seed)
    body, params = drawn(draw)
    index, fields = draw.choice([f"{INDEX}-0", f"{INDEX}-*"]), draw.choice(FIELDS)
    options = {"query": "blood pressure", "deadline_ms": None, **({"fields": fields} if fields else {})}
    try:
        plain = client.search(index=index, body=body, **params)
    except TransportError as error:
        with pytest.raises(type(error)):
            client.search(index=index, body=body, rerank=options, **params)
        return
    READ.clear()
    ours = client.search(index=index, body=body, rerank=options, **params)
    assert kept(ours) == kept(plain)
    assert ours["rerank"]["applied"] is True, ours["rerank"]["reason"]
    texts = set(READ)
    READ.clear()
    client.search(index=index, body={"query": body["query"], "size": 50}, rerank=options)
    assert texts == set(READ) or "collapse" in body or "derived" in body  # the model reads the same, whatever is shown


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_drawn_multi_searches_are_answered_as_without_reranking(client: Client, seed: int) -> None:
    draw = random.Random(seed)
    lines: list[Any] = []
    for index in (f"{INDEX}-0", f"{INDEX}-*", f"{INDEX}-1"):
        lines += [{"index": index}, drawn(draw)[0]]
    options = {"query": "blood pressure", "fields": ["text", "secret"], "deadline_ms": None}
    plain, ours = client.msearch(body=lines), client.msearch(body=lines, rerank=options)
    for response, other in zip(plain["responses"], ours["responses"], strict=True):
        assert ("error" in other) == ("error" in response)
        if "error" not in response:
            assert kept(other) == kept(response)
            assert other["rerank"]["applied"] is True, other["rerank"]["reason"]


def test_a_text_that_cannot_be_fetched_leaves_the_first_pass_and_says_so(client: Client) -> None:
    perform = client.transport.perform_request

    def refusing(method: str, url: str, **options: Any) -> Any:
        if "ids" in str((options.get("body") or {}).get("query")):
            raise TransportError(503, "unavailable", {})
        return perform(method, url, **options)

    body = {"query": {"match": {"text": "blood"}}, "docvalue_fields": ["k"], "_source": False}
    client.transport.perform_request = refusing  # type: ignore[method-assign]
    try:
        answer = client.search(index=f"{INDEX}-0", body=body, rerank={"query": "blood", "fields": ["text"]})
    finally:
        client.transport.perform_request = perform  # type: ignore[method-assign]
    assert (answer["rerank"]["applied"], answer["rerank"]["reason_code"]) == (False, "refused")
    assert kept(answer) == kept(client.search(index=f"{INDEX}-0", body=body))


def test_a_multi_search_whose_texts_cannot_be_fetched_keeps_its_first_passes(client: Client) -> None:
    perform = client.transport.perform_request

    def refusing(method: str, url: str, **options: Any) -> Any:
        if '"ids"' in str(options.get("body")):
            error = {"error": {"type": "circuit_breaking_exception", "root_cause": []}, "status": 429}
            return {"took": 1, "responses": [error, error]}
        return perform(method, url, **options)

    body = {"query": {"match": {"text": "blood"}}, "docvalue_fields": ["k"], "_source": False}
    lines = [{"index": f"{INDEX}-0"}, body, {"index": f"{INDEX}-1"}, body]
    client.transport.perform_request = refusing  # type: ignore[method-assign]
    try:
        answers = client.msearch(body=lines, rerank={"query": "blood", "fields": ["text"]})["responses"]
    finally:
        client.transport.perform_request = perform  # type: ignore[method-assign]
    assert [answer["rerank"]["reason_code"] for answer in answers] == ["refused", "refused"]
    assert [kept(answer) for answer in answers] == [
        kept(response) for response in client.msearch(body=lines)["responses"]
    ]
