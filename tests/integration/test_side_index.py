"""Vectors in a side index, on three engines: every client finds what one computed, and whatever fails costs time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import REGISTRY

from osrerank import Client, connect
from osrerank.cli import cli
from osrerank.errors import ConfigError
from osrerank.indexing.build import build_vectors
from osrerank.indexing.documents import document_vectors
from osrerank.indexing.prune import prune_everything, prune_indices
from osrerank.indexing.side_index import IndexStore, find_orphans, find_side_indices
from osrerank.search.coverage import Coverage, measure_coverage
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.types import NEVER
from osrerank.vectors.index import side_index
from tests.articles import fill

pytest.importorskip("torch")
pytest.importorskip("onnx")

pytestmark = pytest.mark.integration

COUNT = 60
DOCUMENTS = [
    {"title": f"about {place}", "text": f"blood pressure is low when {place} hearts are slow"} for place in range(COUNT)
]
LONG = {"title": "long", "text": "blood pressure is low when hearts are slow " * 100}
QUERY = "blood pressure is low"


@pytest.fixture
def client(engine_url: str, model: Path, no_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client that keeps vectors in side indices alone, because its file cannot be written."""
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(no_folder))
    monkeypatch.setenv("OSRERANK_VECTORS", "index")  # which the embedded engine needs
    with connect(engine_url, model=str(model)) as made:
        yield made


@pytest.fixture
def file_client(engine_url: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client that keeps vectors in a file, too, in the folder ``vectors``."""
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    monkeypatch.setenv("OSRERANK_VECTORS", "index")
    with connect(engine_url, model=str(model)) as made:
        yield made


@pytest.fixture
def index_name(engine: Any, index_name: str) -> Iterator[str]:
    yield index_name
    engine.indices.delete(index=side_index(index_name), ignore_unavailable=True)


def order(client: Client, index: str, query: str = QUERY, **options: Any) -> list[tuple[str, float]]:
    response = client.search(query, index=index, rerank={"depth": 100, **options}, size=100)
    assert response["rerank"]["applied"] is True, response["rerank"]
    return [(hit["_id"], hit["_score"]) for hit in response["hits"]["hits"]]


def refresh(client: Client, index: str) -> None:
    """Wait for what searches left to be written, and make it visible."""
    client._background.close()
    client.indices.refresh(index=side_index(index))


def begin(client: Client, index: str) -> None:
    """Create an empty side index, which searches fill."""
    (side,) = find_side_indices(client, [index])
    side.create()


def errors() -> float:
    return REGISTRY.get_sample_value("osrerank_vectors_errors_total", {"store": "index"}) or 0.0


def test_a_server_reads_vectors_built_for_its_index(client: Client, model: Path, index_name: str) -> None:
    fill(client, index_name, DOCUMENTS)
    build_vectors(client, index_name)
    refresh(client, index_name)
    service = RerankService(Settings.load(model=str(model)))
    service.set_side_index_stores(find_side_indices(client, [index_name]))
    texts = [f"{document['title']} {document['text']}" for document in DOCUMENTS]
    scores = service.score(QUERY, [*texts, "a text that no index has"], NEVER)
    service.close()
    assert (scores.known, scores.encoded) == (COUNT, 1)


def test_vectors_built_by_one_client_are_used_by_all_clients(
    client: Client, engine_url: str, model: Path, index_name: str, encodings: list[int]
) -> None:
    fill(client, index_name, [*DOCUMENTS, LONG])
    built = build_vectors(client, index_name)
    assert built.encoded == built.texts - 1 > COUNT  # two passages of the long one are equal
    refresh(client, index_name)
    assert client.coverage(index_name).built == COUNT + 1
    assert client.count(index=f"{index_name}*")["count"] == COUNT + 1  # patterns do not find the side index
    with connect(engine_url, model=str(model)) as another:
        del encodings[:]
        new_order = order(another, index_name)
        assert len(encodings) == 1  # the query
        stage = another.search(QUERY, index=index_name, rerank=True)["rerank"]["stages"][0]
        assert "encoded" not in stage or stage["encoded"] == 0
        two_fields = {"multi_match": {"query": f"{QUERY} today", "fields": ["title", "text"]}}
        lines = [{"index": index_name}, {"query": two_fields, "size": 5}] * 2
        del encodings[:]
        answers = another.msearch(body=lines, rerank={"query": f"{QUERY} today"})["responses"]
        assert [len(answer["hits"]["hits"]) for answer in answers] == [5, 5]
        assert len(encodings) == 1
    assert order(client, index_name) == new_order


def test_coverage_before_a_build_is_estimated_over_the_whole_index(client: Client, index_name: str) -> None:
    fill(client, index_name, DOCUMENTS)

    def looked() -> Coverage:
        found: Coverage = client.perform_steps(measure_coverage(client.searcher, index_name, 40), index_name)
        return found

    found = looked()
    assert (found.documents, found.built, found.examined, found.lacks) == (COUNT, 0, 40, COUNT)
    (side,) = find_side_indices(client, [index_name], document_vectors(client).label)
    document_vectors(client).build(
        [f"{document['title']} {document['text']}" for document in DOCUMENTS[: COUNT // 2]], side
    )
    side.refresh()
    client.searcher.vectors._get_state.cache_clear()  # type: ignore[union-attr]  # or its absence counts for a minute
    assert looked().share == pytest.approx(0.5, abs=0.2)
    build_vectors(client, index_name)
    assert (looked().share, looked().is_sample, client.is_warm(index_name, at_least=1)) == (1, False, True)


def test_a_search_writes_computed_vectors_to_an_existing_side_index(
    client: Client, engine_url: str, model: Path, index_name: str, encodings: list[int]
) -> None:
    fill(client, index_name, DOCUMENTS)
    begin(client, index_name)
    ids = [str(index) for index in range(COUNT)]
    before = client.mget(index=index_name, body={"ids": ids})
    first = order(client, index_name)
    refresh(client, index_name)
    assert IndexStore(client, [index_name]).size().records == COUNT
    with connect(engine_url, model=str(model)) as another:
        del encodings[:]
        assert order(another, index_name) == first
        assert len(encodings) == 1
    assert client.mget(index=index_name, body={"ids": ids}) == before  # no document of the application's was written


def test_damaged_and_foreign_records_are_misses(client: Client, index_name: str, encodings: list[int]) -> None:
    fill(client, index_name, DOCUMENTS)
    begin(client, index_name)
    first = order(client, index_name)
    refresh(client, index_name)
    hits = client.search(index=side_index(index_name), body={"size": 100, "_source": False})["hits"]["hits"]
    for index, hit in enumerate(hits):
        record = ["AAAA", "bm90IGEgcmVjb3Jk"][index % 2]
        client.index(index=side_index(index_name), id=hit["_id"], body={"record": record}, refresh=True)
    del encodings[:]
    with connect(client_url(client), model=client.searcher.service.settings.model) as another:
        assert order(another, index_name) == first
    assert len(encodings) == COUNT + 1


def client_url(client: Client) -> str:
    return client.searcher.service.settings.url.get_secret_value()


def test_a_cluster_that_refuses_writes_only_slows_searches(
    client: Client, index_name: str, engine_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    if engine_url.startswith("embedded"):
        pytest.skip("the embedded engine has no blocks")
    fill(client, index_name, DOCUMENTS)
    begin(client, index_name)
    client.indices.put_settings(index=side_index(index_name), body={"index.blocks.write": True})
    before = errors()
    first = order(client, index_name)
    client._background.close()
    assert errors() == before + 1
    assert "writes of document vectors pause for 10 s" in caplog.text
    assert order(client, index_name, f"{QUERY} now") != []
    client._background.close()
    assert errors() == before + 1  # it is left alone for a while
    assert first[0][1] > 0
    client.indices.put_settings(index=side_index(index_name), body={"index.blocks.write": False})


def test_a_build_by_a_date_field_reads_what_has_changed(
    client: Client, engine_url: str, index_name: str, encodings: list[int]
) -> None:
    if engine_url.startswith("embedded"):
        fill(client, index_name, DOCUMENTS)
        with pytest.raises(ConfigError, match="the embedded engine needs no date field"):
            build_vectors(client, index_name, date_field="changed")
        return
    day = "2026-01-{:02}T00:00:00Z"
    dated = [{**document, "changed": day.format(index % 20 + 1)} for index, document in enumerate(DOCUMENTS)]
    fill(client, index_name, dated)
    assert build_vectors(client, index_name, date_field="changed").documents == COUNT
    newer = {"title": "new", "text": "what has changed since", "changed": day.format(25)}
    client.index(index=index_name, id="new", body=newer, refresh=True)
    client.index(index=index_name, id="without", body={"text": "without a date"}, refresh=True)
    refresh(client, index_name)
    del encodings[:]
    built = build_vectors(client, index_name, date_field="changed")
    assert (built.documents, built.encoded) == (2 + COUNT // 20, 2)  # the last day's once more, and those without one
    assert build_vectors(client, index_name, date_field="changed").documents == 2
    with pytest.raises(ConfigError, match="has no date or number field 'title'"):
        build_vectors(client, index_name, date_field="title")


def test_the_option_to_decides_where_a_build_stores_vectors(
    file_client: Client, engine_url: str, model: Path, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(file_client, index_name, DOCUMENTS)
    assert build_vectors(file_client, index_name, to="index").encoded == COUNT
    built = build_vectors(file_client, index_name, to="file")
    assert (built.documents, built.encoded) == (COUNT, 0)  # this machine's file has what it encoded
    monkeypatch.setenv("OSRERANK_VECTORS", "off")
    with (
        connect(engine_url, model=str(model)) as other,
        pytest.raises(ConfigError, match="vectors are not stored there"),
    ):
        build_vectors(other, index_name, to="file")


def test_a_side_index_without_its_index_is_named_and_pruned(
    file_client: Client, index_name: str, engine_url: str, model: Path
) -> None:
    if engine_url.startswith("embedded"):
        pytest.skip("the embedded engine lists no hidden indices")
    client = file_client
    gone_index = f"{index_name}-gone"
    fill(client, index_name, DOCUMENTS)
    fill(client, gone_index, DOCUMENTS[:3])
    for name in (index_name, gone_index):
        build_vectors(client, name)
    client.indices.delete(index=gone_index)
    assert side_index(gone_index) in find_orphans(client)  # other tests may leave some, too
    command = ["--url", engine_url, "--model", str(model), "doctor", "--index", index_name]
    output = CliRunner().invoke(cli, command, catch_exceptions=False).stdout
    assert f"{index_name}: none of {COUNT} documents lacks vectors" in output
    assert side_index(gone_index) in output.partition("the indices of these side indices were deleted: ")[2]
    refresh(client, index_name)
    assert prune_everything(client) >= 2 * COUNT  # in the side index, and in the file; other tests may leave some, too
    assert find_orphans(client) == []


def test_pruning_everything_keeps_the_vectors_of_a_closed_index(
    file_client: Client, index_name: str, engine_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    if engine_url.startswith("embedded"):
        pytest.skip("the embedded engine closes no indices")
    client = file_client
    other_index = f"{index_name}-open"
    try:
        for name in (index_name, other_index):
            fill(client, name, DOCUMENTS)
            build_vectors(client, name)
        client.indices.close(index=index_name)
        prune_everything(client)
        assert f"the vectors of {index_name} are not pruned" in caplog.text
        client.indices.open(index=index_name)
        client.cluster.health(index=index_name, wait_for_status="yellow")
        assert prune_indices(client, [index_name]) == COUNT
    finally:
        client.indices.delete(index=other_index)


def test_pruning_everything_keeps_the_vectors_of_an_index_that_got_a_cross_encoder(
    file_client: Client,
    index_name: str,
    engine_url: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if engine_url.startswith("embedded"):
        pytest.skip("the embedded engine lists no hidden indices")
    fill(file_client, index_name, DOCUMENTS)
    build_vectors(file_client, index_name)
    settings_file = tmp_path / "osrerank.toml"
    settings_file.write_text(f'[index.{index_name}]\nmodel = "osrerank/monobert-l6"\n', encoding="utf-8")
    monkeypatch.setenv("OSRERANK_SETTINGS_FILE", str(settings_file))
    monkeypatch.setenv("OSRERANK_MODEL", str(model))
    with connect(engine_url) as client:
        prune_everything(client)
    assert f"osrerank vectors drop --index {index_name} deletes them" in caplog.text
    assert prune_indices(file_client, [index_name]) == COUNT


def test_an_index_whose_data_stream_is_absent_has_a_side_index_that_pruning_keeps(
    client: Client, index_name: str, encodings: list[int]
) -> None:
    restored = f"restored-.ds-{index_name}-2026.11.28-000001"
    fill(client, restored, DOCUMENTS)
    try:
        build_vectors(client, restored)
        assert client.indices.exists(index=side_index(index_name))
        assert side_index(index_name) not in find_orphans(client)
        del encodings[:]
        order(client, restored)
        assert len(encodings) == 1  # the query
    finally:
        client.indices.delete(index=restored)


def test_the_vectors_commands_use_the_side_index(
    file_client: Client, engine_url: str, index_name: str, model: Path
) -> None:
    client = file_client
    fill(client, index_name, DOCUMENTS)

    def answer(*arguments: str) -> dict[str, Any]:
        shared = ["--url", engine_url, "--model", str(model), "--json", "vectors"]
        outcome = CliRunner().invoke(cli, [*shared, *arguments], catch_exceptions=False)
        assert outcome.exit_code == 0, outcome.output
        content: dict[str, Any] = json.loads(outcome.stdout)
        return content

    built = answer("build", "--index", index_name)
    assert (built["encoded"], built["store"], built["records"]) == (COUNT, "index", COUNT)
    client.delete(index=index_name, id="0", refresh=True)
    assert prune_indices(client, [index_name]) == COUNT - 1
    status = answer("status", "--index", index_name)
    assert (status["records"], list(status["models"].values())) == (COUNT - 1, [COUNT - 1])
    assert answer("drop", "--yes", "--index", index_name) == {"dropped": COUNT - 1}
    left = answer("status", "--index", index_name)
    assert (left["store"], left["records"], left["models"]) == ("index", 0, {})
    assert (left["documents"], left["lacking"], left["share"]) == (COUNT - 1, 0, 1)  # this machine's file has them
    assert not client.indices.exists(index=side_index(index_name))
