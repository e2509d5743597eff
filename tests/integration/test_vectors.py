"""Vectors of an index's documents, on three engines: built beforehand, found by searches, never of an old text."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from osrerank import Client, connect
from osrerank.cli import cli
from osrerank.indexing.build import build_vectors
from osrerank.indexing.documents import document_vectors
from osrerank.indexing.prune import prune_everything
from tests.articles import fill
from tests.integration.test_side_index import order

pytest.importorskip("torch")
pytest.importorskip("onnx")

pytestmark = pytest.mark.integration

WORDS = ["blood", "pressure", "is", "low", "when", "the", "heart", "slow", "water", "wing", "flow", "heat"]
RNG = random.Random(7)
DOCUMENTS: list[dict[str, Any]] = [
    {"title": f"about {RNG.choice(WORDS)}", "text": " ".join(RNG.choices(WORDS, k=RNG.randrange(5, 60)))}
    for _ in range(150)
]
LONG = {"title": "long", "text": " ".join(RNG.choices(WORDS, k=800))}


@pytest.fixture
def client(engine_url: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client that keeps vectors in a file alone."""
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    monkeypatch.setenv("OSRERANK_VECTORS", "file")
    with connect(engine_url, model=str(model)) as made:
        yield made


def test_searches_read_vectors_that_were_built(client: Client, index_name: str, encodings: list[int]) -> None:
    fill(client, index_name, [*DOCUMENTS, LONG, {"title": "", "text": ""}, {"year": 2024}])
    seen: list[tuple[int, int]] = []
    built = build_vectors(client, index_name, report=lambda done, count: seen.append((done, count)))
    assert (built.documents, built.empty) == (153, 1)
    assert built.encoded == len(encodings)
    assert built.texts > 153  # the long one has passages
    assert seen[-1] == (153, 153)
    del encodings[:]
    order(client, index_name)
    assert len(encodings) == 1  # the query
    del encodings[:]
    again = build_vectors(client, index_name)
    assert (again.documents, again.encoded, encodings) == (0, 0, [])


def test_vectors_of_deleted_documents_are_pruned(client: Client, index_name: str) -> None:
    fill(client, index_name, DOCUMENTS)
    build_vectors(client, index_name)
    store = document_vectors(client).store
    assert store is not None
    client.delete(index=index_name, id="0", refresh=True)
    client.index(index=index_name, id="1", body={"title": "Another", "text": "text than before."}, refresh=True)
    assert store.size().records == 150
    assert prune_everything(client) == 148
    before = order(client, index_name)
    document_vectors(client).records.flush()
    assert store.size().records >= 148
    assert order(client, index_name) == before


def test_a_new_model_is_made_ready_while_the_old_one_serves(
    engine_url: str, client: Client, index_name: str, model: Path, tmp_path: Path, encodings: list[int]
) -> None:
    fill(client, index_name, DOCUMENTS)
    build_vectors(client, index_name)
    before = order(client, index_name)
    new = tmp_path / "new"
    shutil.copytree(model, new)
    card = json.loads((new / "osrerank.json").read_text("utf-8"))
    card["document_prefix"] = "another : "
    (new / "osrerank.json").write_text(json.dumps(card), "utf-8")

    def covered(share: str) -> int:
        command = ["--url", engine_url, "--model", str(new), "vectors", "status", "--index", index_name]
        return CliRunner().invoke(cli, [*command, "--at-least", share], catch_exceptions=False).exit_code

    assert (covered("0"), covered(".01")) == (0, 1)
    with connect(engine_url, model=str(new)) as another:
        build_vectors(another, index_name)
        assert covered("1") == 0
        del encodings[:]
        assert order(client, index_name) == before
        order(another, index_name)
        assert len(encodings) == 1  # the query, by the new model; the old one knows it


def test_the_index_command_computes_vectors_on_request(
    engine_url: str, client: Client, index_name: str, model: Path, tmp_path: Path, encodings: list[int]
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"id": str(index), **document}) for index, document in enumerate(DOCUMENTS)]
    corpus.write_text("\n".join(lines), "utf-8")
    arguments = ["--url", engine_url, "--model", str(model), "index", "jsonl", str(corpus), "--index", index_name]
    outcome = CliRunner().invoke(cli, [*arguments, "--vectors"], catch_exceptions=False)
    assert "vectors: 150 documents, 150 texts, 150 of them encoded now" in outcome.stdout
    del encodings[:]
    order(client, index_name)
    assert len(encodings) == 1  # the query
    again = CliRunner().invoke(cli, [*arguments, "--recreate", "--vectors", "--json"], catch_exceptions=False)
    assert json.loads(again.stdout)["vectors"] == {"documents": 150, "texts": 150, "encoded": 0, "empty": 0}


def test_the_vectors_commands_build_count_prune_and_drop(
    engine_url: str, client: Client, index_name: str, model: Path, monkeypatch: Any
) -> None:
    fill(client, index_name, DOCUMENTS)

    def said(*arguments: str) -> str:
        command = ["--url", engine_url, "--model", str(model), "vectors", *arguments]
        outcome = CliRunner().invoke(cli, command)
        return outcome.stdout + str(outcome.exception or "")

    assert "150 documents, 150 texts, 150 of them encoded now" in said("build", "--index", index_name)
    assert "file: 150 records" in said("status")
    assert "150 records remain" in said("prune", "--all")
    assert "150" in said("drop", "--yes")
    assert "file: 0 records" in said("status")
    monkeypatch.setenv("OSRERANK_VECTORS", "off")
    assert "vectors are off" in said("status")
