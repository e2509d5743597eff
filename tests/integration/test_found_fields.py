"""Indices whose text is in fields of other names, on three engines: what is searched and read is found."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osrerank import Client, connect
from osrerank.cli import main
from osrerank.testing import FunctionScorer
from osrerank.types.engine import Engine
from tests.articles import ARTICLES, fill, filled
from tests.engine_facts import holds
from tests.servers import ROOT

pytestmark = pytest.mark.integration

SCORER = FunctionScorer(lambda _query, text: float(len(text)))
BODY = "Low blood pressure is caused by too little salt."
DOCUMENTS = [
    {
        "title": "Notes",
        "body": BODY,
        "author": {"name": "Ann", "age": 40},
        "year": 1999,
        "weight": 3,
        "day": "2026-01-02",
        "parts": [{"words": "about blood"}, {"words": "about salt"}],
    },
    {"title": "Cuffs", "body": "Batteries.", "author": {"name": "Bo", "age": 50}, "year": 2001, "parts": []},
]
TEXT: dict[str, Any] = {"type": "text"}
PARTS: dict[str, Any] = {"type": "nested", "properties": {"words": TEXT}}
ENGLISH = {"english": {"type": "text", "analyzer": "english"}}
PROPERTIES: dict[str, Any] = {
    "title": TEXT,
    "body": {**TEXT, "fields": ENGLISH},
    "author": {"properties": {"name": TEXT, "age": {"type": "integer"}}},
    "year": {"type": "integer"},
    "weight": {"type": "float"},
    "day": {"type": "date"},
}
BEYOND: dict[str, Any] = {
    "properties": {
        **PROPERTIES,
        "title": {**TEXT, "copy_to": "all"},
        "body": {**TEXT, "fields": ENGLISH, "copy_to": "all"},
        "content": {"type": "alias", "path": "body"},
        "parts": PARTS,
        "all": TEXT,
    },
    "derived": {"derived_title": {"type": "text", "script": {"source": "emit(params._source['title'])"}}},
}
"""What the embedded engine does not have."""
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
    "content": BODY,
    "weight": "3.0",
    "day": "2026-01-02T00:00:00.000Z",
    "all": f"Notes {BODY}",
    "derived_title": "Notes",
    "parts": "about blood about salt",
    "author.age": "40",
}
SEARCHED = {
    "body.english": "salt",
    "bod*": "salt",
    "author": "ann",
    "content": "salt",
    "parts.words": "salt",
    "parts": "salt",
    "derived_title": "notes",
}


@pytest.fixture
def client(engine_url: str) -> Iterator[Client]:
    with connect(engine_url, scorer=SCORER) as made:
        yield made


@pytest.fixture(scope="module")
def notes(engine_url: str) -> Iterator[str]:
    """An index of all kinds of fields that the engine has."""
    with connect(engine_url) as made:
        mappings = {"properties": PROPERTIES} if engine_url.startswith("embedded") else {**BEYOND}
        if made.engine is Engine.ELASTICSEARCH:
            mappings["runtime"] = {
                name: {**field, "type": "keyword"} for name, field in mappings.pop("derived").items()
            }
        elif not engine_url.startswith("embedded") and not holds(made, "derived fields"):
            del mappings["derived"]
        made.indices.delete(index="notes", ignore_unavailable=True)
        made.indices.create(index="notes", body={"mappings": mappings})
        fill(made, "notes", DOCUMENTS)
        yield "notes"
        made.indices.delete(index="notes")


def test_fields_are_found_behind_names_aliases_and_patterns(client: Client, index_name: str) -> None:
    fill(client, index_name, ARTICLES)
    client.indices.put_alias(index=index_name, name=f"{index_name}-alias")
    for name in (index_name, f"{index_name}-alias", f"{index_name[:-2]}*", f"{index_name},{index_name}-alias"):
        response = client.search("low blood pressure", index=name, rerank=True)
        assert response["rerank"]["applied"] is True, response["rerank"]
        assert (len(response["hits"]["hits"]), response["rerank"]["fields"]) == (2, ["headline", "body", "url"])


def marked(names: Iterable[str]) -> list[Any]:
    """Return parameters; those of derived fields need them."""
    mark = pytest.mark.needs("derived fields")
    return [pytest.param(name, marks=mark) if name.startswith("derived") else name for name in names]


@pytest.mark.parametrize("name", marked((*READ, *READ_BEYOND)))
def test_named_fields_are_read_whatever_source_shows(engine_url: str, notes: str, name: str) -> None:
    if engine_url.startswith("embedded") and name in READ_BEYOND:
        pytest.skip("the embedded engine has no such field")
    for source in (True, False, ["title"]):
        texts: list[str] = []
        scorer = FunctionScorer(lambda _query, text, seen=texts: float(seen.append(text) or len(text)))  # type: ignore[misc]
        body: dict[str, Any] = {"query": {"match": {"body": "salt"}}, "_source": source}
        with connect(engine_url, scorer=scorer) as reading:
            answer = reading.search(index=notes, body=body, rerank={"fields": name})
        expected = {**READ, **READ_BEYOND}[name]
        if expected is None:
            assert len(answer["rerank"]["warnings"]) == 1
        else:
            assert (texts, answer["rerank"]["warnings"]) == ([expected], []), answer["rerank"]
            (hit,) = answer["hits"]["hits"]
            assert "fields" not in hit


@pytest.mark.parametrize("name", marked(SEARCHED))
def test_named_query_fields_are_searched(client: Client, engine_url: str, notes: str, name: str) -> None:
    if engine_url.startswith("embedded") and name not in ("body.english", "bod*", "author"):
        pytest.skip("the embedded engine has no such field")
    if client.engine is Engine.ELASTICSEARCH and name == "derived_title":
        pytest.skip("Elasticsearch's runtime fields are no text")
    for named in ([name], [f"{name}^2", "title"]):
        answer = client.search(SEARCHED[name], index=notes, rerank={"query_fields": named})
        assert [hit["_id"] for hit in answer["hits"]["hits"]] == ["0"], named
        assert (answer["rerank"]["applied"], answer["rerank"]["warnings"]) == (True, []), answer["rerank"]


@pytest.mark.parametrize("others", [{"body": TEXT}, {}])
def test_nested_texts_are_searched_in_an_index_without_other_texts(opensearch_url: str, others: dict[str, Any]) -> None:
    words = "low blood pressure in parts of words"
    documents = {"0": {"parts": [{"words": words}], **dict.fromkeys(others, words)}}
    mapping = {"mappings": {"properties": {"parts": PARTS, **others}}}
    with filled(opensearch_url, "nested-words", documents, mapping, scorer=SCORER) as client:
        response = client.search("low blood pressure", index="nested-words", rerank=True)
    fields = list(others) or ["parts.words"]
    assert (len(response["hits"]["hits"]), response["rerank"]["fields"]) == (1, fields)


TOOLS = ["gimp", "gimp-data", "libgimp2.0-dev", "libgimp2.0", "r-cran-magick", "c++-annotations", "x11vnc", "7zip"]


@pytest.mark.parametrize("query", [*TOOLS, "GIMP", "gim", "libgimp", "libgimp2", "cran magick", "c++"])
def test_short_names_codes_and_beginnings_are_searched_alike_on_both_engines(
    opensearch_url: str, tmp_path: Path, query: str
) -> None:
    name = {"type": "keyword", "fields": {"text": TEXT}}
    mapping = {"mappings": {"properties": {"name": name, "summary": TEXT}}}
    documents = {tool: {"name": tool, "summary": f"number {index} of the tools"} for index, tool in enumerate(TOOLS)}
    responses = []
    for url in (opensearch_url, f"embedded:{tmp_path}"):
        with filled(url, "short-names", documents, mapping, scorer=SCORER) as client:
            orders = [client.search(query, index="short-names", rerank=rerank) for rerank in (False, True)]
        responses.append([[hit["_id"] for hit in order["hits"]["hits"]] for order in orders])
    assert responses[0] == responses[1]
    if query.lower() in documents:
        assert {plain_or_not[0] for plain_or_not in responses[0]} == {query.lower()}


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
def test_both_engines_give_the_same_text_fields(
    opensearch_url: str,
    tmp_path_factory: pytest.TempPathFactory,
    mapped: dict[str, Any],
    documents: list[dict[str, Any]],
) -> None:
    properties: dict[str, Any] = {}
    for name, kind in mapped.items():
        above, _, leaf = name.rpartition(".")
        place = properties.setdefault(above, {"properties": {}})["properties"] if above else properties
        place[leaf] = kind
    responses = []
    for url in (opensearch_url, f"embedded:{tmp_path_factory.mktemp('engine')}"):
        with connect(url, scorer=SCORER) as client:
            client.indices.delete(index="drawn", ignore=[404])  # type: ignore[call-arg]
            client.indices.create(index="drawn", body={"mappings": {"properties": properties}})
            fill(client, "drawn", documents)
            fields = client.fields_of("drawn")
            responses.append((fields.query_fields, fields.model_fields, fields.warnings))
    assert responses[0] == responses[1]


def test_the_command_line_searches_fields_of_the_mapping(
    client: Client,
    engine_url: str,
    index_name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    fill(client, index_name, ARTICLES)
    client.close()
    model = str(ROOT / "tests" / "data" / "tiny-bert-one-label")
    options = ["--url", engine_url, "--model", model, "search", "low blood pressure", "--index", index_name]
    main(options)
    assert "Low blood pressure at noon It falls when the heart is slow" in capsys.readouterr().out
    main([*options, "--query-fields", "body^2", "--separator", " | ", "--min-score", "1"])
    shown = capsys.readouterr().out
    assert "1 hits in" in shown
    assert "; 1 of them below --min-score; mono" in shown
    main([*options, "--fields", "body,bdy"])
    assert "warning: the mapping has no field 'bdy'; the nearest name is 'body'" in capsys.readouterr().out
