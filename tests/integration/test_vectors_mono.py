"""Stored vectors of the shipped model, then a cross-encoder on the best, through the embedded engine."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from osrerank.cli import cli
from osrerank.evaluation.side_file import read_options, read_records
from osrerank.indexing.build import build_vectors
from tests.articles import filled

pytestmark = pytest.mark.integration

MONO = str(Path(__file__).parents[1] / "data" / "tiny-bert-one-label")
INDEX = "vectors-mono"
QUERY = "what lowers blood pressure"
TOPICS = ("salt and blood pressure", "the lift of wings", "heat in boundary layers", "search engines", "old recipes")
TEXTS = [f"note {number} on {TOPICS[number % len(TOPICS)]}: what is known" for number in range(30)]
OPTIONS = {"pipeline": "vectors-mono", "mono_depth": 5}


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    monkeypatch.setenv("OSRERANK_CACHE_LOCAL_MB", "0")
    documents = {f"d{index}": {"text": text} for index, text in enumerate(TEXTS)}
    with filled(f"embedded:{tmp_path / 'engine'}", INDEX, documents, model=MONO, rerank=OPTIONS) as made:
        yield made


def test_vectors_are_built_with_the_vector_model_and_read(client):
    assert client.coverage(INDEX).share == 0
    assert build_vectors(client, INDEX).encoded == len(TEXTS)
    assert client.coverage(INDEX).share == 1.0
    vectors, blend, mono = client.search(QUERY, index=INDEX, size=30, rerank=True)["rerank"]["stages"]
    assert (vectors["model"], vectors["kind"], blend["name"]) == ("osrerank/e5-small", "bi-encoder", "blend")
    assert (vectors["known"], vectors["encoded"]) == (vectors["candidates"], 0)
    assert (mono["model"], mono["kind"], mono["inferences"]) == ("tiny-bert-one-label", "cross-encoder", 5)


@pytest.mark.long
@pytest.mark.usefixtures("client")
def test_the_commands_take_a_vector_model_and_a_cross_encoder(tmp_path):
    (tmp_path / "queries.tsv").write_text(f"1\t{QUERY}\n2\tlift of wings\n")
    url, run = f"embedded:{tmp_path / 'engine'}", tmp_path / "both.run"
    names = ["--url", url, "--model", MONO, "--vector-model", "osrerank/e5-small"]
    files = ["--queries", str(tmp_path / "queries.tsv"), "--index", INDEX, "--output", str(run), "--hits", "30"]
    rerank_arguments = [
        "--pipeline",
        "vectors-mono",
        "--mono-depth",
        "10",
        "--blend",
        "linear",
        "--blend-weight",
        "0.5",
    ]
    outcome = CliRunner().invoke(cli, [*names, "run", *files, *rerank_arguments], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    saved_options = read_options(Path(f"{run}.jsonl"))
    assert (saved_options["rerank.mono_depth"], saved_options["blend"], saved_options["vectors_weight"]) == (
        10,
        ["linear", 0.5],
        0.0,
    )
    assert {"scorer", "mono"} <= saved_options.keys()
    assert next(len(record.fields["candidates"]) for record in read_records(Path(f"{run}.jsonl"))) > 5
    (tmp_path / "qrels").write_text("1 0 d0 1\n2 0 d1 1\n")
    drawn = CliRunner().invoke(cli, ["--json", "tradeoff", str(tmp_path / "qrels"), f"{run}.jsonl"])
    assert {point["k0"] for point in json.loads(drawn.output)["points"]} == {0, 10}
    status = CliRunner().invoke(cli, [*names, "--json", "vectors", "status", "--index", INDEX])
    assert "has no document vectors" in status.stderr  # the pipeline is the settings file's, and there is none
