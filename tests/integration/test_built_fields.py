"""Searches that name no fields read those that the last build of the index's vectors read, until the next build."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osrerank import Client, connect
from osrerank.indexing.build import build_vectors
from osrerank.indexing.prune import prune_everything, prune_indices
from tests.articles import fill, watched
from tests.letters import Letters

pytestmark = pytest.mark.integration

INDEX = "kept-fields"
NOTES = [{"title": f"Note {number}", "text": f"note {number} on the pressure of air"} for number in range(20)]
ADDED = [{**note, "summary": f"a summary of {note['title']}"} for note in NOTES]
BEFORE, AFTER = ["title", "text"], ["title", "summary", "text"]


@pytest.fixture(params=["embedded", "file", "side index", "side index of Elasticsearch"])
def url(request: pytest.FixtureRequest, tmp_path: Path, no_folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The embedded engine, or a server with the vectors in this machine's file or on the cluster alone."""
    kind = request.param
    folder = no_folder if kind.startswith("side index") else tmp_path / "vectors"
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(folder))
    if kind == "file":
        monkeypatch.setenv("OSRERANK_VECTORS", "file")
    if kind == "embedded":
        return f"embedded:{tmp_path / 'engine'}"
    return str(request.getfixturevalue("elasticsearch_url" if "Elasticsearch" in kind else "opensearch_url"))


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    """A client of an index that was built, and whose mapping and documents then got one more text field."""
    with connect(url, scorer=Letters()) as client:
        client.indices.delete(index=INDEX, ignore=[404])
        client.indices.delete(index=f"osrerank-vectors-{INDEX}", ignore=[404])
        fill(client, INDEX, NOTES)
        build_vectors(client, INDEX)
        client.indices.put_mapping(index=INDEX, body={"properties": {"summary": {"type": "text"}}})
        for number, document in enumerate(ADDED):
            client.index(index=INDEX, id=str(number), body=document)
        client.indices.refresh(index=INDEX)
        yield client
        client.indices.delete(index=INDEX)
        client.indices.delete(index=f"osrerank-vectors-{INDEX}", ignore=[404])


def read(url: str, query: Any = "pressure of air", **options: Any) -> tuple[list[str], int]:
    """Search as a newly started process does; return the fields that were read, and how many vectors were known."""
    with connect(url, scorer=Letters()) as another:
        marks = another.search(query, index=INDEX, rerank=options or True, size=20)["rerank"]
        assert (marks["applied"], marks["stages"][0]["candidates"]) == (True, 20), marks
        return marks["fields"], marks["stages"][0]["known"]


def test_a_new_text_field_is_read_from_the_next_build_on(client: Client, url: str) -> None:
    assert read(url) == (BEFORE, 20)
    build_vectors(client, INDEX)
    assert read(url) == (AFTER, 20)
    answer = client.search("pressure of air", index=INDEX, rerank=True)
    assert answer["rerank"]["fields"] == AFTER  # the client that built does not wait a minute


def test_a_search_that_names_fields_reads_the_named_fields(client: Client, url: str) -> None:
    del client
    assert read(url, fields=["summary"])[0] == ["summary"]
    assert read(url, query_fields=["text"])[0] == ["text"]
    assert read(url, {"match": {"text": "pressure of air"}})[0] == ["text"]


def test_coverage_reads_what_searches_read(client: Client, url: str) -> None:
    with connect(url, scorer=Letters()) as another:
        coverage = another.coverage(INDEX)
        assert (coverage.documents, coverage.lacks) == (20, 0)
    build_vectors(client, INDEX)
    with connect(url, scorer=Letters()) as another:
        coverage = another.coverage(INDEX)
        assert (coverage.documents, coverage.built, coverage.lacks) == (20, 20, 0)


def test_the_log_says_once_that_a_build_read_other_fields_than_the_mapping_gives(
    client: Client, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    del client
    with caplog.at_level(logging.WARNING), connect(url, scorer=Letters()) as another:
        for query in ("air", "pressure"):
            another.search(query, index=INDEX, rerank=True)
    (line,) = [line for line in caplog.messages if "[fields-as-built]" in line]
    assert line == (
        f"[fields-as-built] the vectors of {INDEX} were built from title, text; searches that name no fields use these "
        f"fields, although the mapping now has title, summary, text: to use the latter, "
        f"run osrerank vectors build --index {INDEX}"
    )


def test_the_fields_are_looked_up_with_the_mapping_and_not_again(client: Client, url: str) -> None:
    del client
    with connect(url, scorer=Letters()) as another:
        another.search("air", index=INDEX, rerank=True)
        with watched(another) as requests:
            another.search("pressure", index=INDEX, rerank=True)
        assert requests
        assert not [path for path, body in requests if "_mapping" in path or "position-" in str(body)]


def test_pruning_keeps_the_vectors_that_searches_read(client: Client, url: str) -> None:
    if client.searcher.vectors is None:
        prune_everything(client)
    else:
        prune_indices(client, [INDEX])
    assert read(url) == (BEFORE, 20)


def test_fields_that_the_mapping_lacks_are_not_kept(client: Client, url: str) -> None:
    client.indices.delete(index=INDEX)
    fill(client, INDEX, [{"title": note["title"], "body": note["text"]} for note in NOTES])
    assert read(url)[0] == ["title", "body"]
