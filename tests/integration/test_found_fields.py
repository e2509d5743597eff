"""Indices whose text is in fields of other names, on both engines: what is searched and read is found."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osrerank import Client, connect
from osrerank.cli import main
from osrerank.retrieval.found_fields import FoundFields
from osrerank.testing import FunctionScorer
from tests.articles import ARTICLES, fill
from tests.servers import ROOT

pytestmark = pytest.mark.integration

SCORER = FunctionScorer(lambda _query, text: float(len(text)))
PARTS = {"type": "nested", "properties": {"words": {"type": "text"}}}


@pytest.fixture
def client(engine_url: str) -> Iterator[Client]:
    with connect(engine_url, scorer=SCORER) as made:
        made.searcher.fields = FoundFields(itertools.count().__next__)  # each look at the clock is a second later
        yield made


def read(client: Client, index: str, **options: Any) -> tuple[int, list[str]]:
    response = client.search("low blood pressure", index=index, rerank=options or True)
    assert response["rerank"]["applied"] is True, response["rerank"]
    return len(response["hits"]["hits"]), response["rerank"]["fields"]


def test_fields_are_found_and_found_again_when_the_mapping_changes(client: Client, index_name: str) -> None:
    fill(client, index_name, ARTICLES)
    assert read(client, index_name) == (2, ["headline", "body"])
    assert len(client.search("low blood pressure", index=index_name)["hits"]["hits"]) == 2
    client.indices.delete(index=index_name)
    fill(client, index_name, [{"summary": "How the blood came under low pressure"}])
    assert read(client, index_name) == (1, ["summary"])
    marks = client.search("low", index=index_name, rerank={"query_fields": ["body", "text"]})["rerank"]
    missing = [f"the mapping has no {name}; the nearest name is summary" for name in ("body", "text")]
    assert (marks["reason"], marks["warnings"]) == ("there are no hits", missing)


def test_aliases_and_patterns(client: Client, index_name: str) -> None:
    fill(client, index_name, ARTICLES)
    client.indices.put_alias(index=index_name, name=f"{index_name}-alias")
    for name in (f"{index_name}-alias", f"{index_name[:-2]}*", f"{index_name},{index_name}-alias"):
        assert read(client, name) == (2, ["headline", "body"])


DOCUMENTS = [
    {
        "title": "Notes",
        "body": "Low blood pressure is caused by too little salt.",
        "author": {"name": "Ann", "age": 40},
        "year": 1999,
        "weight": 3,
        "day": "2026-01-02",
        "parts": [{"words": "about blood"}, {"words": "about salt"}],
    },
    {"title": "Cuffs", "body": "Batteries.", "author": {"name": "Bo", "age": 50}, "year": 2001, "parts": []},
]
PROPERTIES: dict[str, Any] = {
    "title": {"type": "text"},
    "body": {"type": "text", "fields": {"english": {"type": "text", "analyzer": "english"}}},
    "author": {"properties": {"name": {"type": "text"}, "age": {"type": "integer"}}},
    "year": {"type": "integer"},
    "weight": {"type": "float"},
    "day": {"type": "date"},
}
BEYOND: dict[str, Any] = {
    "content": {"type": "alias", "path": "body"},
    "parts": {"type": "nested", "properties": {"words": {"type": "text"}}},
    "all": {"type": "text"},
}
"""What the embedded engine does not have."""
BODY = "Low blood pressure is caused by too little salt."
READ = {
    "body.english": BODY,
    "bod*": BODY,
    "body^2": BODY,
    "author": "Ann",
    "author.*": "Ann",
    "year": "1999",
    "highlight:body": None,
    "parts.words": "about blood about salt",
}
READ_BEYOND = {
    "content": BODY, "weight": "3.0", "day": "2026-01-02T00:00:00.000Z", "all": f"Notes {BODY}",
    "derived_title": "Notes", "parts": "about blood about salt", "author.age": "40",
}  # fmt: skip


@pytest.mark.parametrize("name", [*READ, *READ_BEYOND])
@pytest.mark.parametrize("source", [True, False, ["title"]])
def test_what_is_named_is_read_whatever_source_shows(
    client: Client, engine_url: str, index_name: str, name: str, source: Any
) -> None:
    is_embedded = engine_url.startswith("embedded")
    if is_embedded and name in READ_BEYOND:
        pytest.skip("the embedded engine has no such field")
    mappings: dict[str, Any] = {"properties": PROPERTIES if is_embedded else {**PROPERTIES, **BEYOND}}
    if not is_embedded:
        for copied in ("title", "body"):
            mappings["properties"] = {
                **mappings["properties"], copied: {**mappings["properties"][copied], "copy_to": "all"},
            }  # fmt: skip
        script = {"source": "emit(params._source['title'])"}
        mappings["derived"] = {"derived_title": {"type": "text", "script": script}}
    client.indices.create(index=index_name, body={"mappings": mappings})
    fill(client, index_name, DOCUMENTS)
    texts: list[str] = []
    scorer = FunctionScorer(lambda _query, text: float(texts.append(text) or len(text)))  # type: ignore[func-returns-value]
    body: dict[str, Any] = {"query": {"match": {"body": "salt"}}, "_source": source}
    with connect(engine_url, scorer=scorer) as reading:
        answer = reading.search(index=index_name, body=body, rerank={"fields": name})
    expected = {**READ, **READ_BEYOND}[name]
    if expected is None:
        assert len(answer["rerank"]["warnings"]) == 1
        return
    assert (texts, answer["rerank"]["warnings"]) == ([expected], []), answer["rerank"]
    (hit,) = answer["hits"]["hits"]
    assert "fields" not in hit


@pytest.mark.parametrize("name", ["body.english", "content", "bod*", "parts.words", "parts", "author", "derived_title"])
def test_what_is_named_is_searched(client: Client, engine_url: str, index_name: str, name: str) -> None:
    if engine_url.startswith("embedded") and name not in ("body.english", "bod*", "author"):
        pytest.skip("the embedded engine has no such field")
    script = {"source": "emit(params._source['title'])"}
    mappings: dict[str, Any] = {"properties": PROPERTIES}
    if not engine_url.startswith("embedded"):
        derived = {"derived_title": {"type": "text", "script": script}}
        mappings = {"properties": {**PROPERTIES, **BEYOND}, "derived": derived}
    client.indices.create(index=index_name, body={"mappings": mappings})
    fill(client, index_name, DOCUMENTS)
    query = {"author": "ann", "derived_title": "notes"}.get(name, "salt")
    for named in ([name], [f"{name}^2", "title"]):
        answer = client.search(query, index=index_name, rerank={"query_fields": named})
        assert [hit["_id"] for hit in answer["hits"]["hits"]] == ["0"], named
        assert (answer["rerank"]["applied"], answer["rerank"]["warnings"]) == (True, []), answer["rerank"]


def test_nested_texts_are_searched_where_there_are_no_others(client: Client, engine_url: str, index_name: str) -> None:
    if engine_url.startswith("embedded"):
        pytest.skip("the embedded engine has no nested fields")
    words = "low blood pressure in parts of words"
    for properties, fields in (
        ({"parts": PARTS, "body": {"type": "text"}}, ["body"]),
        ({"parts": PARTS}, ["parts.words"]),
    ):
        client.indices.create(index=index_name, body={"mappings": {"properties": properties}})
        fill(
            client,
            index_name,
            [{"parts": [{"words": words}], **({"body": f"{words} and more"} if "body" in fields else {})}],
        )
        assert read(client, index_name) == (1, fields)
        client.indices.delete(index=index_name)


def test_an_index_whose_fields_differ_is_searched_and_read_by_its_own(client: Client, index_name: str) -> None:
    fill(client, index_name, ARTICLES)
    other = f"{index_name}-other"
    fill(client, other, [{"body": f"B{n}", "story": f"Nothing of that kind in {n}"} for n in range(9)])
    fill(client, other, [{"body": "low", "story": "On pressure and blood in old houses"}])
    marks = client.search("low blood pressure", index=f"{index_name},{other}", rerank=True)
    assert marks["rerank"]["fields_by_index"] == {index_name: ["headline", "body"], other: ["story"]}
    assert {hit["_index"] for hit in marks["hits"]["hits"]} == {index_name, other}
    client.indices.delete(index=other)


NAMES = st.sampled_from(
    ["title", "body", "text", "name", "note", "tag", "url", "author_name", "meta.story", "title_de"]
)
VALUES = st.sampled_from(
    [
        "Low",
        "two words",
        "a sentence of some words that says nothing",
        "http://a.b/c",
        "x-1",
        "Ann Lee",
        ["a", "b c"],
        None,
    ]
)
KINDS: list[dict[str, Any]] = [
    {"type": "text"}, {"type": "text", "fields": {"raw": {"type": "keyword"}}}, {"type": "keyword"},
    {"type": "keyword", "fields": {"words": {"type": "text"}}}, {"type": "text", "index": False},
]  # fmt: skip


@given(
    st.dictionaries(NAMES, st.sampled_from(KINDS), min_size=1),
    st.lists(st.dictionaries(NAMES, VALUES), min_size=1, max_size=8),
)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_both_engines_give_the_same_fields(
    opensearch_url: str,
    tmp_path_factory: pytest.TempPathFactory,
    mapped: dict[str, Any],
    documents: list[dict[str, Any]],
) -> None:
    properties: dict[str, Any] = {}
    for name, kind in mapped.items():
        above, _, own = name.rpartition(".")
        place = properties.setdefault(above, {"properties": {}})["properties"] if above else properties
        place[own] = kind
    found = []
    for url in (opensearch_url, f"embedded:{tmp_path_factory.mktemp('engine')}"):
        with connect(url, scorer=SCORER) as client:
            client.indices.delete(index="drawn", ignore=[404])  # type: ignore[call-arg]
            client.indices.create(index="drawn", body={"mappings": {"properties": properties}})
            fill(client, "drawn", documents)
            fields = client.fields_of("drawn")
            found.append((fields.searched, fields.read, fields.warnings))
    assert found[0] == found[1]


def test_the_asynchronous_client_and_the_command_line(
    client: Client,
    engine_url: str,
    index_name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from osrerank.aio import connect_async

    monkeypatch.setenv("COLUMNS", "250")
    fill(client, index_name, ARTICLES)
    client.close()

    async def search() -> Any:
        async with connect_async(engine_url, scorer=SCORER) as made:
            return await made.search("low blood pressure", index=index_name, rerank=True)

    marks = asyncio.run(search())["rerank"]
    assert (marks["applied"], marks["fields"]) == (True, ["headline", "body"])
    model = str(ROOT / "tests" / "data" / "tiny-bert-one-label")
    options = ["--url", engine_url, "--model", model, "search", "low blood pressure", "--index", index_name]
    main(options)
    assert "Low blood pressure at noon It falls when the heart is slow" in capsys.readouterr().out
    main([*options, "--query-fields", "body^2", "--separator", " | ", "--min-score", "1"])
    shown = capsys.readouterr().out
    assert "1 hits in" in shown
    assert "; 1 of them below --min-score; mono" in shown
    main([*options, "--fields", "body,bdy"])
    assert "warning: the mapping has no bdy; the nearest name is body" in capsys.readouterr().out
