"""Indices whose text is in fields of other names, on both engines: what is searched and read is found."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

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
        made.found_fields = FoundFields(itertools.count().__next__)  # each look at the clock is a second later
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
    missing = "the mapping has no body, text; its text fields are summary"
    assert marks["reason"] == f"there are no hits; {missing}"


def test_aliases_and_patterns(client: Client, index_name: str) -> None:
    fill(client, index_name, ARTICLES)
    client.indices.put_alias(index=index_name, name=f"{index_name}-alias")
    for name in (f"{index_name}-alias", f"{index_name[:-2]}*", f"{index_name},{index_name}-alias"):
        assert read(client, name) == (2, ["headline", "body"])


def test_nested_texts_are_left_out(client: Client, engine_url: str, index_name: str) -> None:
    if engine_url.startswith("embedded"):
        pytest.skip("the embedded engine has no nested fields")
    properties = {"parts": PARTS, "body": {"type": "text"}}
    client.indices.create(index=index_name, body={"mappings": {"properties": properties}})
    words = "low blood pressure in parts of words"
    fill(client, index_name, [{"parts": [{"words": words}], "body": f"{words} and more"}])
    assert read(client, index_name) == (1, ["body"])


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
