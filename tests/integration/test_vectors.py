"""Vectors in an index, on both engines: made while loading or afterwards, and never those of an older text."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from osrerank.scoring.vectors.texts import TextVectors

from osrerank import Client, connect
from osrerank.cli import cli
from osrerank.errors import ConfigError, InferenceError, LoaderError, VectorsError
from osrerank.retrieval.requests import is_embedded
from osrerank.retrieval.vector_field import VectorField
from osrerank.vectors import VectorCounts, build_vectors, count_vectors
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.load.bulk import BulkOptions
from osrerank_loaders.load.job import LoadOptions, Summary, load

pytest.importorskip("torch")
pytest.importorskip("onnx")

pytestmark = pytest.mark.integration

WORDS = ["blood", "pressure", "is", "low", "when", "the", "heart", "slow", "water", "wing", "flow", "heat"]
RNG = random.Random(11)
TEXTS = [" ".join(RNG.choices(WORDS, k=RNG.randrange(4, 30))) for _ in range(20)]
QUERY = "blood pressure is low"


@pytest.fixture
def client(engine_url: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("OSRERANK_STATES_FOLDER", str(tmp_path / "states"))
    with connect(engine_url, model=str(model)) as made:
        yield made


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    path = tmp_path / "collection.jsonl"
    lines = [{"id": f"d{number}", "title": f"about {number % 5}", "text": text} for number, text in enumerate(TEXTS)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, {"id": "blank", "title": "", "text": " "}]))
    return path


def loaded(client: Client, index: str, path: Path, **options: Any) -> Summary:
    chosen = LoadOptions(**{"vector_field": "osrerank_vector", "bulk": BulkOptions(max_documents=7), **options})
    return load(client, index, LOADERS["jsonl"], [str(path)], options=chosen)


def made_for_vectors(client: Client, index: str, **properties: Any) -> None:
    """Make an index that may have vectors, with three documents and one without text."""
    mapped = {"title": {"type": "text"}, "text": {"type": "text"}, **properties}
    client.indices.create(index=index, body={"settings": {"knn": True}, "mappings": {"properties": mapped}})
    lines: list[Any] = []
    for number, text in enumerate(TEXTS[:3]):
        lines += [{"index": {"_id": str(number)}}, {"title": "about", "text": text}]
    client.bulk(index=index, body=[*lines, {"index": {"_id": "empty"}}, {"year": 2024}], refresh=True)


def nearest(client: Client, index: str, k: int = 100, name: str | None = None) -> list[dict[str, Any]]:
    field = VectorField.of(client.indices.get_mapping(index=index), name)
    query = field.query(client.reranker.text_vectors().query(QUERY), k)
    body = {"query": query, "size": k, "docvalue_fields": [field.digest_field]}
    return list(client.search(body=body, index=index)["hits"]["hits"])


def current(client: Client, index: str) -> list[str]:
    """Return the ids of the hits that a search may use."""
    field = VectorField.of(client.indices.get_mapping(index=index))
    hits = nearest(client, index)
    texts = [field.separator.join(hit["_source"][name] for name in field.fields) for hit in hits]
    return [hit["_id"] for hit, text in zip(hits, texts, strict=True) if field.is_current(hit, text)]


def test_a_loaded_collection_is_found_by_its_vectors(
    client: Client, index_name: str, collection: Path, encodings: list[int]
) -> None:
    summary = loaded(client, index_name, collection)
    assert (summary.indexed, summary.vectors) == (21, 20)
    assert "20 with a vector" in str(summary)
    assert len(encodings) == len(set(TEXTS))
    assert count_vectors(client, index_name) == VectorCounts(21, current=20, empty=1)
    vectors = client.reranker.text_vectors()
    texts = {f"d{number}": f"about {number % 5} {text}" for number, text in enumerate(TEXTS)}
    cosines = vectors.documents(list(texts.values())) @ vectors.query(QUERY)
    hits = nearest(client, index_name, 30)
    scores = dict(zip(texts, (1 + cosines) / 2, strict=True))
    assert {hit["_id"]: hit["_score"] for hit in hits} == pytest.approx(scores, abs=0.01)
    assert "osrerank_vector" not in hits[0]["_source"]
    assert len(current(client, index_name)) == 20
    again = loaded(client, index_name, collection)
    assert (again.resumed_from, again.vectors) == (21, 20)
    assert VectorField.of(client.indices.get_mapping(index=index_name)).model == vectors.model


def test_states_made_while_loading_are_those_of_searches(
    client: Client, index_name: str, collection: Path, encodings: list[int]
) -> None:
    loaded(client, index_name, collection)
    del encodings[:]
    answer = client.search(QUERY, index=index_name, rerank=True)
    assert answer["rerank"]["applied"] is True
    assert len(encodings) == 1  # the query


def test_an_interrupted_load_goes_on(
    client: Client, index_name: str, collection: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, calls = TextVectors.documents, iter([True] * 2)

    def failing(self: TextVectors, *arguments: Any) -> Any:
        if not next(calls, False):
            raise InferenceError("out of memory")
        return made(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TextVectors, "documents", failing)
        with pytest.raises(InferenceError):
            loaded(client, index_name, collection, checkpoint_s=0)
    summary = loaded(client, index_name, collection)
    assert (summary.indexed, summary.vectors) == (21, 20)
    with pytest.raises(LoaderError, match="holds another load"):
        loaded(client, index_name, collection, vector_field=None)
    client.delete(index=index_name, id="d3", refresh=True)
    with pytest.raises(LoaderError, match="something else changed it"):
        loaded(client, index_name, collection)


def test_vectors_are_built_afterwards_and_only_where_texts_changed(
    client: Client, index_name: str, encodings: list[int]
) -> None:
    made_for_vectors(client, index_name)
    client.indices.put_mapping(index=index_name, body={"_meta": {"owner": "me"}})
    seen: list[tuple[int, int]] = []
    built = build_vectors(client, index_name, report=lambda done, count: seen.append((done, count)))
    assert (built.made, built.conflicts, built.counts) == (3, 0, VectorCounts(4, current=3, empty=1))
    assert seen[-1] == (4, 4)
    assert client.indices.get_mapping(index=index_name)[index_name]["mappings"]["_meta"]["owner"] == "me"
    del encodings[:]
    assert build_vectors(client, index_name).made == 0
    assert encodings == []

    lines = [{"update": {"_id": "0"}}, {"doc": {"text": "water flow"}}]
    lines += [{"index": {"_id": "1"}}, {"title": "new", "text": "heat"}, {"index": {"_id": "4"}}, {"text": "wing"}]
    client.bulk(index=index_name, body=lines, refresh=True)
    assert count_vectors(client, index_name) == VectorCounts(5, current=1, stale=1, missing=2, empty=1)
    assert {hit["_id"] for hit in nearest(client, index_name)} == {"0", "2"}
    built = build_vectors(client, index_name)
    assert (built.made, built.counts) == (3, VectorCounts(5, current=4, empty=1))
    assert len(encodings) == 4  # with the query


def test_updates_of_a_loaded_index_drop_the_vector(client: Client, index_name: str, collection: Path) -> None:
    loaded(client, index_name, collection)
    lines = [{"update": {"_id": "d0"}}, {"doc": {"text": "water flow"}}, {"index": {"_id": "d1"}}, {"text": "heat"}]
    client.bulk(index=index_name, body=lines, refresh=True)
    assert count_vectors(client, index_name) == VectorCounts(21, current=18, missing=2, empty=1)
    built = build_vectors(client, index_name)
    assert (built.made, built.counts.share) == (2, 1.0)
    mapping = client.indices.get_mapping(index=index_name)[index_name]["mappings"]
    assert "osrerank_load" in mapping["_meta"]


def test_documents_changed_while_their_vectors_are_made_are_left(
    client: Client, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_for_vectors(client, index_name)
    made = TextVectors.documents

    def slow(self: TextVectors, *arguments: Any) -> Any:
        client.index(index=index_name, id="1", body={"title": "", "text": "water"}, refresh=True)
        return made(self, *arguments)

    monkeypatch.setattr(TextVectors, "documents", slow)
    built = build_vectors(client, index_name)
    if is_embedded(client):  # it has no conditional writes; the digest tells
        assert built.counts == VectorCounts(4, current=2, stale=1, empty=1)
    else:
        assert (built.made, built.conflicts) == (2, 1)
        assert built.counts == VectorCounts(4, current=2, missing=1, empty=1)
    monkeypatch.undo()


def test_another_model_replaces_all_vectors(
    client: Client, index_name: str, engine_url: str, model: Path, tmp_path: Path
) -> None:
    from tests.bi_encoders import plain

    made_for_vectors(client, index_name)
    build_vectors(client, index_name)
    adapt(plain(tmp_path / "plain"), tmp_path / "other", AdaptOptions(pooling="mean", layers=0, precision="fp32"))
    with connect(engine_url, model=str(tmp_path / "other")) as other:
        with pytest.raises(VectorsError, match="another model") as raised:
            count_vectors(other, index_name)
        assert raised.value.kind == "model"
        assert build_vectors(other, index_name).made == 3
    with pytest.raises(VectorsError, match="another model"):
        count_vectors(client, index_name)


def test_a_field_that_the_user_mapped_is_filled_and_one_in_use_is_not(client: Client, index_name: str) -> None:
    vectors = client.reranker.text_vectors()
    method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil", "parameters": {"m": 8}}
    knn = {"type": "knn_vector", "dimension": vectors.dimension}
    far = {"own": {**knn, "method": {**method, "space_type": "l2"}}, "small": {**knn, "dimension": 2, "method": method}}
    made_for_vectors(client, index_name, mine={**knn, "method": method}, **far, tag={"type": "keyword"})
    assert build_vectors(client, index_name, name="mine").counts.current == 3
    assert VectorField.of(client.indices.get_mapping(index=index_name)).name == "mine"
    for name, reason in (("own", "by l2"), ("small", "vectors of 2 numbers"), ("tag", "of the type keyword")):
        with pytest.raises(VectorsError, match=reason):
            build_vectors(client, index_name, name=name)
    client.indices.put_mapping(index=index_name, body={"properties": {"theirs": {**knn, "method": method}}})
    client.index(index=index_name, id="0", body={"theirs": [1.0] * vectors.dimension}, refresh=True)
    with pytest.raises(VectorsError, match="1 vectors of an application's own"):
        build_vectors(client, index_name, name="theirs")
    with pytest.raises(VectorsError, match="an application's own: nothing says"):
        count_vectors(client, index_name, name="theirs")
    with pytest.raises(ConfigError, match="without dots"):
        build_vectors(client, index_name, name="a.b")


def test_an_index_that_cannot_have_vectors_says_how(client: Client, index_name: str, tmp_path: Path) -> None:
    client.index(index=index_name, id="1", body={"text": "words"}, refresh=True)
    with pytest.raises(VectorsError, match=r"was not made with index.knn: true.*_reindex"):
        build_vectors(client, index_name)
    with pytest.raises(VectorsError, match="osrerank_vector is not there"):
        count_vectors(client, index_name)


def test_the_commands_load_build_and_tell(
    engine_url: str, index_name: str, model: Path, collection: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OSRERANK_STATES_FOLDER", str(tmp_path / "states"))
    run = CliRunner()
    at = ["--url", engine_url, "--model", str(model), "--json"]
    named = ["--index", index_name]
    answer = run.invoke(cli, [*at, "index", "jsonl", str(collection), *named, "--vectors", "--vector-field", "v"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout)["vectors"] == 20
    alone = run.invoke(cli, [*at, "index", "jsonl", str(collection), *named, "--vector-field", "v"])
    assert alone.exit_code == 2
    answer = run.invoke(cli, [*at, "vectors", "status", *named])
    assert json.loads(answer.stdout)["share"] == 1.0
    with connect(engine_url) as client:
        client.update(index=index_name, id="d0", body={"doc": {"text": "water"}}, refresh=True)
    assert run.invoke(cli, [*at, "vectors", "status", *named, "--at-least", "1"]).exit_code == 1
    answer = run.invoke(cli, [*at, "vectors", "build", *named])
    assert json.loads(answer.stdout) == {
        "made": 1, "conflicts": 0, "documents": 21, "current": 20, "stale": 0, "missing": 0, "empty": 1, "share": 1.0
    }  # fmt: skip
    answer = run.invoke(cli, [*at[:-1], "vectors", "build", *named])
    assert "0 vectors made; 21 documents: 20 with the vector of their text" in answer.stdout
