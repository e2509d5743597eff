"""Loads into three engines: exact counts, resume, refusals, duplicates."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opensearchpy import OpenSearch

from osrerank.errors import BulkIndexError, CorpusFormatError, LoaderError
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.load.bulk import BulkOptions
from osrerank_loaders.load.job import LoadOptions, Summary, load
from osrerank_loaders.load.mapping import IndexOptions
from osrerank_loaders.load.retry import RetryBudget
from tests.unit.osrerank_loaders.collections.test_readers import GOLDEN

pytestmark = pytest.mark.integration

SMALL = BulkOptions(max_documents=7, retry_budget=RetryBudget(give_up_s=20))


def collection(folder: Path, count: int, *, bad: bool = False) -> Path:
    path = folder / "collection.tsv"
    lines = [f"{number}\tpassage number {number} about topic{number % 7}\n" for number in range(count)]
    path.write_text("".join([*lines, "bad\n"] if bad else lines))
    return path


def load_passages(engine: OpenSearch, index: str, path: Path, **options: object) -> Summary:
    options.setdefault("bulk", SMALL)
    return load(engine, index, LOADERS["msmarco-passage"], [str(path)], options=LoadOptions(**options))


def indexed_ids(engine: OpenSearch, index: str) -> list[str]:
    engine.indices.refresh(index=index)
    body = {"query": {"match_all": {}}, "size": 10_000, "_source": False}
    return sorted((hit["_id"] for hit in engine.search(index=index, body=body)["hits"]["hits"]), key=int)


def test_every_document_is_indexed_and_found(engine: OpenSearch, index_name: str, tmp_path: Path) -> None:
    summary = load_passages(engine, index_name, collection(tmp_path, 100))
    assert (summary.read, summary.indexed, summary.skipped, summary.failed) == (100, 100, 0, 0)
    assert indexed_ids(engine, index_name) == [str(number) for number in range(100)]
    assert engine.get(index=index_name, id="99")["_source"] == {"title": "", "text": "passage number 99 about topic1"}
    hits = engine.search(index=index_name, body={"query": {"match": {"text": "topic3 numbers"}}, "size": 100})
    assert hits["hits"]["total"]["value"] == 100  # "numbers" is stemmed
    assert hits["hits"]["hits"][0]["_source"]["text"].endswith("topic3")


def test_loading_the_same_collection_again_changes_nothing(engine: OpenSearch, index_name: str, tmp_path: Path) -> None:
    path = collection(tmp_path, 20)
    load_passages(engine, index_name, path)
    again = load_passages(engine, index_name, path)
    assert (again.read, again.indexed, again.resumed_from) == (20, 20, 20)
    with pytest.raises(LoaderError, match=r"contains another load .*k1=0.82, b=0.68, shards=1"):
        load(
            engine, index_name, LOADERS["msmarco-passage"], [str(path)], options=LoadOptions(index=IndexOptions(k1=1.2))
        )
    engine.delete(index=index_name, id="7", refresh=True)
    with pytest.raises(
        LoaderError, match="was loaded with 20 documents and now contains 19: something else changed it"
    ):
        load_passages(engine, index_name, path)


def test_a_load_stopped_by_a_bad_record_continues(engine: OpenSearch, index_name: str, tmp_path: Path) -> None:
    path = collection(tmp_path, 50)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:30], "no tab here\n", *lines[30:]]))
    with pytest.raises(CorpusFormatError, match=r"collection.tsv, line 31: expected pid TAB passage, found 1 fields"):
        load_passages(engine, index_name, path)
    assert len(indexed_ids(engine, index_name)) == 30
    summary = load_passages(engine, index_name, path, skip_bad=1)
    assert (summary.read, summary.indexed, summary.skipped, summary.resumed_from) == (51, 50, 1, 30)
    assert any("line 31" in note for note in summary.notes)
    again = load_passages(engine, index_name, path)
    assert (again.read, again.indexed, again.skipped) == (51, 50, 1)


def test_duplicate_ids_are_named(engine: OpenSearch, index_name: str, tmp_path: Path) -> None:
    path = collection(tmp_path, 30)
    with path.open("a") as file:
        file.write("4\tanother text\n17\tanother text\n")
    with pytest.raises(CorpusFormatError, match=r"2 documents have.*'4' \(records 5 and 31\), '17' \(records 18"):
        load_passages(engine, index_name, path)
    summary = load_passages(engine, index_name, path, skip_bad=2)
    assert (summary.read, summary.indexed, summary.duplicates) == (32, 30, 2)


def test_an_index_of_another_program_is_not_touched(engine: OpenSearch, index_name: str, tmp_path: Path) -> None:
    engine.indices.create(index=index_name, body={"mappings": {"properties": {"text": {"type": "text"}}}})
    with pytest.raises(
        LoaderError, match=r"exists, and was not created by `osrerank index`; choose another --index, or pass --rec"
    ):
        load_passages(engine, index_name, collection(tmp_path, 5))
    assert load_passages(engine, index_name, collection(tmp_path, 5), recreate=True).indexed == 5


def test_a_foreign_document_is_noticed(engine: OpenSearch, index_name: str, tmp_path: Path) -> None:
    path = collection(tmp_path, 5, bad=True)
    with pytest.raises(CorpusFormatError):
        load_passages(engine, index_name, path)
    engine.index(index=index_name, id="foreign", body={"text": "not of this collection"})
    with pytest.raises(LoaderError, match="contains 1 documents more than the collection"):
        load_passages(engine, index_name, path, skip_bad=1)


@pytest.mark.parametrize("loader", sorted(LOADERS))
def test_every_loaders_index_can_be_made(engine: OpenSearch, index_name: str, tmp_path: Path, loader: str) -> None:
    path = tmp_path / "corpus"
    _loader, content, documents = GOLDEN[next(case for case in GOLDEN if GOLDEN[case][0] == loader)]
    path.write_bytes(content)
    assert load(engine, index_name, LOADERS[loader], [str(path)]).indexed == len(documents)
    last = documents[-1]
    source = engine.get(index=index_name, id=last.doc_id)["_source"]
    assert source == {"title": last.title, "text": last.text, **last.metadata}


@pytest.fixture
def server(opensearch_url: str) -> Iterator[OpenSearch]:
    with OpenSearch([opensearch_url]) as client:
        yield client
        client.indices.delete(index="loaded", ignore_unavailable=True)


def test_refused_documents_are_reported(server: OpenSearch, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": str(number), "text": "text", "year": number} for number in range(20)]
    rows[11]["year"] = {"not": "a number"}
    rows[13]["id"] = "x" * 600  # ids may have 512 bytes
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BulkIndexError, match="rejected 2 documents; the first is '11'") as caught:
        load(server, "loaded", LOADERS["jsonl"], [str(path)], options=LoadOptions(bulk=SMALL))
    assert (caught.value.ok, caught.value.failed) == (18, 2)
    assert [refusal["_id"] for refusal in caught.value.first] == ["11", "x" * 600]
    summary = load(server, "loaded", LOADERS["jsonl"], [str(path)], options=LoadOptions(bulk=SMALL, skip_bad=2))
    assert (summary.read, summary.indexed, summary.failed, summary.resumed_from) == (20, 18, 2, 7)


def test_refresh_is_off_while_loading_and_on_afterwards(server: OpenSearch, tmp_path: Path) -> None:
    def settings() -> dict[str, Any]:
        found: dict[str, Any] = server.indices.get_settings(index="loaded")["loaded"]["settings"]["index"]
        return found

    path = collection(tmp_path, 5, bad=True)
    with pytest.raises(CorpusFormatError):
        load_passages(server, "loaded", path)
    assert (settings()["refresh_interval"], settings()["number_of_replicas"]) == ("-1", "0")
    assert settings()["similarity"] == {"default": {"type": "BM25", "k1": "0.82", "b": "0.68"}}
    load_passages(server, "loaded", path, skip_bad=1, force_merge=True)
    assert settings()["refresh_interval"] == "1s"
    assert server.cluster.health(index="loaded")["status"] == "green"
    assert len(server.cat.segments(index="loaded", format="json", h="segment")) == 1


def given(monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    """Make the bytes standard input, as a pipe: they can be read once."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    class Input:
        buffer = Pipe(content.encode())

    monkeypatch.setattr("sys.stdin", Input)


def lines(count: int, word: str = "word") -> str:
    return "".join(f"{number}\t{word} number {number}\n" for number in range(count))


def test_continuing_a_load_from_other_standard_input_is_refused(
    engine: OpenSearch, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, lines(9000))  # more than is looked at
    assert load_passages(engine, index_name, Path("-"), bulk=BulkOptions()).indexed == 9000
    given(monkeypatch, lines(9000))
    assert load_passages(engine, index_name, Path("-")).resumed_from == 9000
    given(monkeypatch, lines(3, "other"))
    with pytest.raises(LoaderError, match=r"standard input has changed; choose another --index.*--recreate"):
        load_passages(engine, index_name, Path("-"))
    given(monkeypatch, lines(9001))
    with pytest.raises(LoaderError, match="standard input now contains 9001 records instead of 9000; choose"):
        load_passages(engine, index_name, Path("-"))


def test_an_interrupted_load_is_not_continued_with_other_bytes(
    engine: OpenSearch, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, lines(20) + "no tab here\n")
    with pytest.raises(CorpusFormatError, match="standard input, line 21"):
        load_passages(engine, index_name, Path("-"))
    given(monkeypatch, lines(40, "other"))
    with pytest.raises(LoaderError, match="standard input has changed"):
        load_passages(engine, index_name, Path("-"))
    given(monkeypatch, lines(20) + "no tab here\n")
    assert load_passages(engine, index_name, Path("-"), skip_bad=1).resumed_from == 20


def test_a_changed_file_of_equal_size_is_refused(engine: OpenSearch, index_name: str, tmp_path: Path) -> None:
    path = collection(tmp_path, 20)
    load_passages(engine, index_name, path)
    path.write_text(path.read_text().replace("passage", "another"))
    with pytest.raises(LoaderError, match=r"collection.tsv has changed; choose another --index"):
        load_passages(engine, index_name, path)
