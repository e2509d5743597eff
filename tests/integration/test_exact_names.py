"""Hits whose whole name is the query stay where the first pass has them, on every engine."""

from collections.abc import Iterator
from typing import Any

import pytest

from osrerank import Client, connect
from osrerank.testing import FunctionScorer
from tests.articles import fill

TOOLS = {
    "gimp": {"name": "gimp", "summary": "gimp edits images"},
    "data": {"name": "gimp-data", "summary": "files that gimp, the image editor, reads when it starts on a machine"},
    "help": {"name": "gimp-help-en", "summary": "the manual of gimp in English, with pictures of all menus and tools"},
}
NAME = {"type": "keyword", "fields": {"text": {"type": "text"}}}
FIELDS = {"name": NAME, "summary": {"type": "text"}}


@pytest.fixture
def client(engine_url: str, index_name: str) -> Iterator[Client]:
    """A client whose model prefers long texts."""
    with connect(engine_url, scorer=FunctionScorer(lambda _query, text: len(text))) as made:
        made.indices.create(index=index_name, body={"mappings": {"properties": FIELDS}})
        fill(made, index_name, TOOLS)
        yield made


@pytest.mark.parametrize("shown", [{}, {"_source": False}, {"_source": ["summary"]}])
@pytest.mark.parametrize("size", [1, 3])
def test_whoever_types_a_name_gets_it(client: Client, index_name: str, shown: dict[str, Any], size: int) -> None:
    options = {"blend": "replace", "fields": ["name", "summary"]}
    first, *_ = client.search("GIMP", index=index_name, body=shown, size=size, rerank=options)["hits"]["hits"]
    assert (first["_id"], first["_rerank"]["first_pass"]["exact_name"]) == ("gimp", True)
    assert "fields" not in first  # those that were asked for to read the name


def test_a_name_that_is_only_a_part_moves_nothing(client: Client, index_name: str) -> None:
    answer = client.search("gimp image", index=index_name, rerank={"blend": "replace"})
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == ["help", "data", "gimp"]
