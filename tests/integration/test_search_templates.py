"""Search templates on a real OpenSearch, plain and reranked: the same answer in another order, or the same error."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opensearchpy import OpenSearch, RequestError, TransportError

from osrerank import Client, connect, wrap
from osrerank.aio import connect_async
from osrerank.testing import FunctionScorer
from tests.articles import fill

pytestmark = pytest.mark.integration

INDEX, STORED = "templates", "osrerank-test-template"
WORDS = ["blood", "pressure", "salt", "diet", "heart", "artery", "vein", "nurse"]
QUERY = {"match": {"text": "{{words}}"}}
SCORER = FunctionScorer(lambda _query, text: (len(text) * 7919) % 101 / 10)


@pytest.fixture(scope="module")
def client(opensearch_url: str) -> Iterator[Client]:
    with connect(opensearch_url, scorer=SCORER) as client:
        draw = random.Random(5)
        client.indices.delete(index=INDEX, ignore_unavailable=True)
        mapping = {"properties": {"text": {"type": "text"}, "n": {"type": "integer"}}}
        client.indices.create(index=INDEX, body={"settings": {"number_of_shards": 1}, "mappings": mapping})
        texts = [" ".join(draw.choices(WORDS, k=draw.randint(2, 12))) for _ in range(40)]
        fill(client, INDEX, [{"text": text, "n": number} for number, text in enumerate(texts)])
        script = {"lang": "mustache", "source": {"query": QUERY, "size": "{{size}}{{^size}}10{{/size}}"}}
        client.put_script(id=STORED, body={"script": script})
        yield client
        client.indices.delete(index=INDEX)
        client.delete_script(id=STORED)


def drawn_template(draw: random.Random) -> dict[str, Any]:
    """Return a request of a template; some cannot be rendered, or give a search that is refused."""
    words = " ".join(draw.sample(WORDS, draw.randint(1, 3)))
    parts: dict[str, list[Any]] = {
        "aggs": [{"most": {"max": {"field": "n"}}}],
        "explain": [True],
        "profile": [True],
        "sort": [["_score"], [{"n": "asc"}]],
        "suggest": [{"s": {"text": "bloud", "term": {"field": "text"}}}],
        "track_total_hits": [True, False, 7],
        "version": [True],
    }
    body: dict[str, Any] = {"query": QUERY, "size": 50}
    body |= {name: draw.choice(parts[name]) for name in draw.sample(list(parts), draw.randint(0, 3))}
    forms: list[dict[str, Any]] = [
        {"id": STORED, "params": {"words": words, "size": 50}},
        {"source": body, "params": {"words": words}},
        {"source": json.dumps(body), "params": {"words": words}},
        {"source": body, "params": {"words": words}},
        {"source": json.dumps(body)[:-3], "params": {"words": words}},
        {"source": {"query": {"match": {"text": "{{words}}", "n": "{{words}}"}}}, "params": {"words": words}},
        {"id": "absent", "params": {}},
    ]
    extra: list[dict[str, Any]] = [{}, {}, {"explain": True}, {"explain": "true", "profile": False}, {"profile": True}]
    return {**draw.choice(forms), **draw.choice(extra)}


def drawn_params(draw: random.Random) -> dict[str, Any]:
    """Return URL parameters; some are ignored, and ``profile`` is refused."""
    parameters = {
        "rest_total_hits_as_int": "true", "typed_keys": "true", "search_type": "dfs_query_then_fetch",
        "preference": "_local", "explain": "true", "size": "2", "from": "3", "sort": "n", "q": "text:salt",
        "_source": "false", "version": "true", "filter_path": "hits.hits._id", "track_total_hits": "false",
        "scroll": "1m", "profile": "true", "ignore_unavailable": "true",
    }  # fmt: skip
    return {name: parameters[name] for name in draw.sample(list(parameters), draw.choice([0, 0, 1, 2]))}


def essence(answer: Any) -> Any:
    """Return what reranking must not change: the hits whatever their order and scores, and all that is not a time."""
    if not isinstance(answer, dict):
        return answer
    answer = {name: value for name, value in answer.items() if name not in ("took", "rerank", "_scroll_id")}
    if "profile" in answer:
        answer["profile"] = True
    if "error" in answer or "hits" not in answer:
        return answer
    hits = [
        {name: value for name, value in hit.items() if name not in ("_score", "_rerank", "sort", "_node")}
        for hit in answer["hits"].get("hits", ())
    ]
    other_entries = {name: value for name, value in answer["hits"].items() if name not in ("max_score", "hits")}
    return {**answer, "hits": {**other_entries, "hits": sorted(hits, key=lambda hit: str(hit.get("_id")))}}


def tried(call: Callable[..., Any], **given: Any) -> Any:
    """Return the essence of an answer, or the error."""
    try:
        return essence(call(**given))
    except TransportError as error:
        return type(error), error.status_code, error.error


@pytest.mark.parametrize("seed", range(40))
def test_a_reranked_template_gives_the_plain_answer_in_another_order(client: Client, seed: int) -> None:
    draw = random.Random(seed)
    body, params = drawn_template(draw), drawn_params(draw)
    search_arguments = {"body": draw.choice([body, json.dumps(body)]), "index": INDEX, "params": params}
    assert tried(client.search_template, **search_arguments, rerank=True) == tried(
        client.search_template, **search_arguments
    )


@pytest.mark.parametrize("seed", range(20))
def test_reranked_templates_of_a_multi_search_give_the_plain_answers_line_by_line(client: Client, seed: int) -> None:
    draw = random.Random(seed)
    lines: list[Any] = []
    for _ in range(draw.randint(1, 4)):
        lines += [draw.choice([{}, {"index": INDEX}, {"index": "absent"}]), drawn_template(draw)]
    body = draw.choice([lines, "".join(f"{json.dumps(line)}\n" for line in lines)])
    params = draw.choice([{}, {"rest_total_hits_as_int": True}, {"typed_keys": True}])
    plain = tried(client.msearch_template, body=body, index=INDEX, **params)
    reranked = tried(client.msearch_template, body=body, index=INDEX, rerank=True, **params)
    for answer in (plain, reranked):
        if isinstance(answer, dict):
            answer["responses"] = [essence(response) for response in answer["responses"]]
    assert reranked == plain


def test_the_rendered_search_is_reranked(client: Client) -> None:
    template = {"id": STORED, "params": {"words": "blood salt", "size": 7}}
    rendered = {"query": {"match": {"text": "blood salt"}}, "size": 7}
    expected = client.search(body=rendered, index=INDEX, rerank=True)["hits"]
    alone = client.search_template(body=template, index=INDEX, rerank=True)
    (of_several,) = client.msearch_template(body=[{}, template], index=INDEX, rerank=True)["responses"]
    assert alone["rerank"]["applied"] is of_several["rerank"]["applied"] is True
    assert alone["hits"] == of_several["hits"] == expected


def test_a_wrapped_and_an_asynchronous_client_rerank_templates_too(client: Client, opensearch_url: str) -> None:
    template = {"id": STORED, "params": {"words": "blood salt"}}
    given: dict[str, Any] = {"body": template, "index": INDEX, "rerank": True}
    several: dict[str, Any] = {**given, "body": [{}, template, {}, {"id": "absent"}]}
    expected = client.search_template(**given)["hits"]

    async def asynchronous() -> list[Any]:
        async with connect_async(opensearch_url, scorer=SCORER) as other:
            return [await other.search_template(**given), await other.msearch_template(**several)]

    with OpenSearch(opensearch_url) as open_search:
        wrapped = wrap(open_search, scorer=SCORER)
        answers = [[wrapped.search_template(**given), wrapped.msearch_template(**several)], asyncio.run(asynchronous())]
    for alone, multi in answers:
        assert alone["hits"] == multi["responses"][0]["hits"] == expected
        assert multi["responses"][1]["status"] == 404


def test_a_template_that_the_caller_may_not_render_is_searched_and_says_so(
    client: Client, opensearch_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = {"id": STORED, "params": {"words": "blood salt"}}
    send = client.transport.perform_request

    def refusing(method: str, url: str, **rest: Any) -> Any:
        if url.startswith("/_render"):
            raise TransportError(403, "security_exception", {"error": {"type": "security_exception"}})
        return send(method, url, **rest)

    monkeypatch.setattr(client.transport, "perform_request", refusing)
    alone = client.search_template(body=template, index=INDEX, rerank=True)
    (of_several,) = client.msearch_template(body=[{}, template], index=INDEX, rerank=True)["responses"]
    for answer in (alone, of_several):
        assert answer["rerank"]["reason_code"] == "refused"
        assert "the template could not be rendered" in answer["rerank"]["reason"]
        assert len(answer["hits"]["hits"]) == 10


@pytest.mark.parametrize("method", ["search_template", "msearch_template"])
def test_the_embedded_engine_refuses_templates_by_name(method: str, tmp_path: Any) -> None:
    template = {"source": {"query": {"match_all": {}}}}
    with connect(f"embedded:{tmp_path}", scorer=SCORER) as embedded:
        body: Any = template if method == "search_template" else [{}, template]
        with pytest.raises(RequestError, match=r"the embedded engine does not support \[POST /.*search/template\]"):
            getattr(embedded, method)(body=body, rerank=True)
