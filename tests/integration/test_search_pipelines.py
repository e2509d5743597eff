"""Searches under search pipelines on a real OpenSearch: reranking shows what the plain search shows, in another order.

A default pipeline may be an access rule, so no drawn pipeline may give a reranked search another hit, total or field.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from opensearchpy import OpenSearch, TransportError

from osrerank import Client, connect
from osrerank.doctor import examine
from osrerank.indexing.build import build_vectors
from osrerank.retrieval.search_pipelines import OSRERANK_DESCRIPTION
from osrerank.settings import Settings
from osrerank.testing import ArithmeticEncoder, FunctionScorer
from tests.engine_facts import holds, needs_processors

WORDS = ["harbour", "pilot", "ship", "lamp", "rope", "tide", "crane", "wharf"]
DRAWN = range(60)
BY_TEXT = FunctionScorer(lambda _query, text: (len(text) * 7919) % 101 / 10)
HIDING = {"filter_query": {"query": {"term": {"access": "open"}}}}
RERANK = {
    "rerank": {
        "ml_opensearch": {"model_id": "none"},
        "context": {"document_fields": ["text"]},
        "ignore_failure": True,
    }
}
REQUEST_STEPS: list[dict[str, Any]] = [
    HIDING,
    {"filter_query": {"query": {"range": {"n": {"lt": 70}}}}},
    {"oversample": {"sample_factor": 1.5}},
    {"script": {"source": "ctx._source['min_score'] = 0.05f"}},
    {"script": {"source": "ctx._source['size'] = 7"}},
    {"script": {"source": "ctx._source['explain'] = true"}},
]
RESPONSE_STEPS: list[dict[str, Any]] = [
    {"rename_field": {"field": "text", "target_field": "body"}},
    {"rename_field": {"field": "group", "target_field": "text2"}},
    {"truncate_hits": {"target_size": 6}},
    {"truncate_hits": {"target_size": 40}},
    {"collapse": {"field": "group"}},
    {"sort": {"field": "tags", "order": "desc", "ignore_failure": True}},
    {"split": {"field": "words", "separator": " ", "target_field": "parts", "ignore_failure": True}},
    RERANK,
]


def put(client: OpenSearch, name: str, definition: Mapping[str, Any]) -> None:
    client.transport.perform_request("PUT", f"/_search/pipeline/{name}", body=definition)


def create(client: OpenSearch, name: str, pipeline: str = "", documents: int = 90) -> None:
    """Create an index of documents of which a third is closed."""
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    if pipeline:
        settings |= {"index.search.default_pipeline": pipeline}
    kinds = {"access": "keyword", "group": "keyword", "text": "text", "n": "integer", "words": "keyword"}
    properties = {field: {"type": kind} for field, kind in kinds.items()}
    client.indices.delete(index=name, ignore_unavailable=True)
    client.indices.create(index=name, body={"settings": settings, "mappings": {"properties": properties}})
    draw, lines = random.Random(name), list[Any]()
    for number in range(documents):
        text = " ".join(["harbour", *draw.choices(WORDS, k=draw.randint(1, 9)), f"unique{number}"])
        access = "closed" if number % 3 == 0 else "open"
        text += " zyzzyva zyzzyva" if access == "closed" else ""
        document = {"access": access, "group": f"g{number % 11}", "text": text, "n": number}
        document |= {"words": "a b", "tags": draw.sample(WORDS, 2)}
        lines += [{"index": {"_index": name, "_id": str(number)}}, document]
    client.bulk(body=lines, refresh=True)


@pytest.fixture(scope="module")
def client(opensearch_url: str) -> Iterator[Client]:
    with connect(opensearch_url, scorer=BY_TEXT) as client:
        needs_processors(client, *{kind for step in (*REQUEST_STEPS, *RESPONSE_STEPS) for kind in step} - {"rerank"})
        put(client, "p-hiding", {"request_processors": [HIDING]})
        create(client, "p-free")
        create(client, "p-hidden", "p-hiding")
        create(client, "p-hidden-more", "p-hiding")
        yield client
        client.indices.delete(index="p-*")


def shown(hits: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the hits without what reranking changes, in an order of their own."""
    plain_hits = [
        {name: value for name, value in hit.items() if name not in ("_score", "_rerank", "sort")} for hit in hits
    ]
    return sorted(map(repr, plain_hits))


def visible(client: Client, index: str, body: Mapping[str, Any], params: Mapping[str, Any]) -> set[str]:
    """Return all hits that plain pages show."""
    pages = [
        client.search(index=index, body={**body, "from": start}, **params) for start in range(0, 100, body["size"])
    ]
    return {hit for page in pages for hit in shown(page["hits"]["hits"])}


def assert_same(plain: Any, ours: Any) -> None:
    assert shown(ours["hits"]["hits"]) == shown(plain["hits"]["hits"])
    assert ours["hits"].get("total") == plain["hits"].get("total")


def drawn_pipeline(draw: random.Random) -> dict[str, Any]:
    return {
        "request_processors": draw.sample(REQUEST_STEPS, draw.randint(0, 2)),
        "response_processors": draw.sample(RESPONSE_STEPS, draw.randint(0, 2)),
    }


def is_ranked(pipeline: Mapping[str, Any]) -> bool:
    return RERANK not in pipeline["response_processors"]


@pytest.mark.parametrize("seed", [seed if seed < 15 else pytest.param(seed, marks=pytest.mark.slow) for seed in DRAWN])
def test_under_a_drawn_pipeline_only_order_and_scores_differ(client: Client, seed: int) -> None:
    draw = random.Random(seed)
    pipeline = drawn_pipeline(draw)
    put(client, f"p-drawn-{seed}", pipeline)
    create(client, f"p-drawn-{seed}", f"p-drawn-{seed}", draw.choice([4, 30, 90]))
    body: dict[str, Any] = {"query": {"match": {"text": "harbour pilot"}}, "size": draw.choice([20, 50, 100])}
    body |= draw.choice([{}, {"_source": ["n"]}, {"_source": False, "fields": ["n"]}, {"track_total_hits": False}])
    ways: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        (f"p-drawn-{seed}", body, {}),
        ("p-free", body, {"search_pipeline": f"p-drawn-{seed}"}),
        ("p-free", {**body, "search_pipeline": pipeline}, {}),
    ]
    index, body, params = draw.choice(ways)
    try:
        plain = client.search(index=index, body=body, **params)
    except TransportError as error:  # no search passes through this one
        with pytest.raises(type(error)):
            client.search(index=index, body=body, rerank=True, **params)
        return
    ours = client.search(index=index, body=body, rerank={"depth": 60}, **params)
    hits = shown(ours["hits"]["hits"])
    assert len(hits) == len(plain["hits"]["hits"])
    assert set(hits) <= visible(client, index, body, params)
    assert ours["hits"].get("total") == plain["hits"].get("total")
    marks = ours["rerank"]
    if plain["hits"]["hits"] and is_ranked(pipeline):
        assert marks["applied"] is True, marks["reason"]
    elif not is_ranked(pipeline):
        assert marks["reason_code"] == "search_pipeline"
    assert all("first_pass" in hit["_rerank"] for hit in ours["hits"]["hits"])
    if params and not holds(client, "a search pipeline named in a body"):
        return
    [many] = client.msearch(body=[{"index": index}, {**body, **params}], rerank={"depth": 60})["responses"]
    assert shown(many["hits"]["hits"]) == hits
    assert many["rerank"]["reason_code"] == marks["reason_code"]


@pytest.mark.parametrize("steps", [[step] for step in (*RESPONSE_STEPS[2:5], *REQUEST_STEPS[2:5])], ids=str)
def test_pages_join_whatever_number_of_hits_a_pipeline_returns(client: Client, steps: list[dict[str, Any]]) -> None:
    kind = "response_processors" if steps[0] in RESPONSE_STEPS else "request_processors"
    body = {"query": {"match": {"text": "harbour pilot"}}, "search_pipeline": {kind: steps}, "size": 10}
    plain, ours = list[Any](), list[Any]()
    for start in range(0, 60, 10):
        plain.append(client.search(index="p-free", body={**body, "from": start}))
        ours.append(client.search(index="p-free", body={**body, "from": start}, rerank={"depth": 60}))
    ids = [[hit["_id"] for page in pages for hit in page["hits"]["hits"]] for pages in (plain, ours)]
    assert sorted(ids[1]) == sorted(ids[0])
    reason_codes = {page["rerank"]["reason_code"] for page in ours}
    assert reason_codes <= {None, "shortened"}


@pytest.mark.parametrize(
    "index", ["p-hidden", "p-hid*", "p-hidden,p-hidden-more", ["p-hidden", "p-hidden-more"], "p-hidden,p-free"], ids=str
)
def test_a_search_of_several_indices_applies_the_pipelines_of_the_plain_search(client: Client, index: Any) -> None:
    body = {"query": {"match": {"text": "harbour pilot"}}, "size": 300}
    plain, ours = client.search(index=index, body=body), client.search(index=index, body=body, rerank=True)
    assert_same(plain, ours)
    assert ours["rerank"]["applied"] is True


def test_feedback_of_rm3_has_no_term_of_a_hidden_document(client: Client) -> None:
    sent: list[Any] = []
    perform = client.transport.perform_request

    def watched(method: str, url: str, **options: Any) -> Any:
        sent.append((url, options.get("body")))
        return perform(method, url, **options)

    rm3 = {"max_document_share": 1.0, "terms": 50, "weight": 0.1}
    for index, params in (("p-hidden", {}), ("p-free", {"search_pipeline": "p-hiding"})):
        sent.clear()
        client.transport.perform_request = watched  # type: ignore[method-assign]
        try:
            client.search("harbour pilot", index=index, rerank={"rm3": rm3, "deadline_ms": None}, **params)
        finally:
            client.transport.perform_request = perform  # type: ignore[method-assign]
        assert any("boost" in str(body) for url, body in sent if url.endswith("_search"))
        assert "zyzzyva" not in str(sent)


def test_a_pipeline_that_osrerank_made_is_left_out_where_it_is_the_default(client: Client) -> None:
    old_pipeline = {"description": f"{OSRERANK_DESCRIPTION} Made by osrerank.", "response_processors": [RERANK]}
    for name, definition in (
        ("p-own", old_pipeline),
        ("p-own-hiding", {**old_pipeline, "request_processors": [HIDING]}),
    ):
        put(client, name, definition)
        create(client, name, name)
        body = {"query": {"match": {"text": "harbour pilot"}}, "size": 90}
        answer = client.search(index=name, body=body, rerank=True)
        assert answer["rerank"]["applied"] is True
        hits = answer["hits"]["hits"]
        assert len(hits) == (60 if name == "p-own-hiding" else 90)
        report = client.search(index="p-free", body=body, search_pipeline=name, rerank=True)["rerank"]
        assert report["reason_code"] == "search_pipeline"  # whoever names it wants it


def test_a_search_refused_by_its_default_pipeline_is_refused_with_reranking(client: Client) -> None:
    steps = [HIDING, {"script": {"source": "throw new Exception('closed today')"}}]
    put(client, "p-closed", {"request_processors": steps})
    create(client, "p-closed", "p-closed")
    with pytest.raises(TransportError):
        client.search(index="p-closed", body={"query": {"match_all": {}}}, rerank={"query": "harbour"})


def test_doctor_names_a_default_pipeline_that_ranks(client: Client, opensearch_url: str) -> None:
    put(client, "p-ranking", {"response_processors": [RERANK]})
    create(client, "p-ranking", "p-ranking")
    reason_codes = {}
    for index in ("p-free", "p-hidden", "p-ranking"):
        findings = examine(Settings.load(url=opensearch_url), index=index)
        reason_codes[index] = [finding for finding in findings if finding.part == "search pipeline"]
    assert reason_codes["p-free"] == []
    assert [(finding.status, finding.found) for finding in reason_codes["p-hidden"]] == [
        ("ok", "p-hidden: searches use the search pipeline p-hiding")
    ]
    (ranking,) = reason_codes["p-ranking"]
    assert (ranking.status, "ranks the hits itself" in ranking.found) == ("failed", True)


def test_a_default_pipeline_neither_hides_documents_from_a_build_nor_refuses_it(
    client: Client, opensearch_url: str
) -> None:
    put(client, "p-closed", {"request_processors": [{"script": {"source": "throw new Exception('closed today')"}}]})
    for name in ("p-hiding", "p-closed"):
        create(client, name, name, documents=30)
        with connect(opensearch_url, encoder=ArithmeticEncoder()) as builder:
            build_vectors(builder, name)
            coverage = builder.coverage(name)
        assert (coverage.documents, coverage.built) == (30, 30)
