"""The command `osrerank calibrate`: the file that it writes, and how searches use the file."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from osrerank import Client, connect
from osrerank.cli import cli
from osrerank.decision.calibrate import CalibrationFit, calibrate
from osrerank.errors import ConfigError, EvaluationError
from osrerank.testing import FunctionScorer
from osrerank.thresholds.calibration import write_calibration
from osrerank.types import Advice, Qrels
from tests.letters import Letters
from tests.unit.decision.conftest import INDEX, Collection

SETTINGS = "[rerank]\ndepth = 20\n"
QUESTION = "When did Armenia become part of the Transcaucasian SFSR?"


def command(collection: Collection, *arguments: str) -> Result:
    Path("osrerank.toml").write_text(SETTINGS)
    files = ["--index", INDEX, "--queries", collection.queries_file, "--qrels", collection.qrels_file]
    return CliRunner().invoke(cli, ["--url", collection.url, "calibrate", *files, *arguments], catch_exceptions=False)


@pytest.fixture(scope="session")
def fitted(collection: Collection) -> CalibrationFit:
    with connect(collection.url, rerank={"depth": 20}) as client:
        return calibrate(client, INDEX, collection.queries, collection.qrels)


@pytest.fixture
def calibrated_client(client: Client, fitted: CalibrationFit) -> Client:
    write_calibration(client.searcher.calibrations.file, INDEX, fitted.calibration)
    return client


@pytest.mark.long
def test_calibrate_writes_a_file_beside_the_settings(client: Client, collection: Collection) -> None:
    result = command(collection, "--plot", "reliability.svg")
    assert result.exit_code == 0, result.output
    content = json.loads(Path("osrerank.calibration.json").read_text("utf-8"))["indexes"][INDEX]
    assert content["stage"] == "blend"
    evidence = content["evidence"]
    assert evidence["queries"] == 80
    assert evidence["ece_after"] < evidence["ece_before"]
    assert "precision 0.5: hits with a probability of at least" in result.output
    assert "calibrated, on held-out queries" in Path("reliability.svg").read_text("utf-8")
    with connect(collection.url) as other:  # finds the settings file and with it the calibration
        response = other.search(QUESTION, index=INDEX, rerank={"min_probability": 0.5})
    assert response["rerank"]["cuts"][0]["applied"] is True


def test_calibrate_refuses_an_unknown_plot_format_before_any_search(client: Client, collection: Collection) -> None:
    with pytest.raises(ConfigError, match=r"end its name in \.svg, \.png, \.pdf"):
        command(collection, "--plot", "r.html")


@pytest.mark.long
def test_calibrate_prints_its_evidence_as_json(fitted: CalibrationFit) -> None:
    content = json.loads(json.dumps(fitted.as_json()))
    assert set(content["log_loss"]) == {"platt", "isotonic"}
    assert sum(bin_["hits"] for bin_ in content["after"]) == content["hits"]


def test_hits_are_cut_and_counted_unless_the_precision_is_not_reached(calibrated_client: Client) -> None:
    whole = calibrated_client.search(QUESTION, index=INDEX, size=20, rerank=True)
    assert "cuts" not in whole["rerank"]
    response = calibrated_client.search(QUESTION, index=INDEX, size=20, rerank={"min_probability": 0.5})
    (cut,) = response["rerank"]["cuts"]
    hits = response["hits"]["hits"]
    assert (cut["by"], cut["value"], cut["applied"]) == ("min_probability", 0.5, True)
    assert cut["hits"] == len(whole["hits"]["hits"]) - len(hits)
    assert [hit["_id"] for hit in hits] == [hit["_id"] for hit in whole["hits"]["hits"]][: len(hits)]
    assert all(hit["_rerank"]["probability"] >= 0.5 for hit in hits)
    assert 1 <= len(hits) < 5
    second = calibrated_client.search(QUESTION, index=INDEX, size=19, from_=1, rerank={"min_probability": 0.5})
    assert second["rerank"]["cuts"] == response["rerank"]["cuts"]
    assert second["hits"]["hits"] == hits[1:]
    response = calibrated_client.search(QUESTION, index=INDEX, rerank={"cutoff": {"precision": 0.999}})
    (cut,) = response["rerank"]["cuts"]
    assert (cut["by"], cut["hits"], cut["applied"]) == ("precision", 0, False)
    assert "no threshold reaches this precision" in cut["reason"]
    response = calibrated_client.search(QUESTION, index=INDEX, rerank={"cutoff": {"precision": 0.5}})
    assert response["rerank"]["cuts"][0]["applied"] is True


@pytest.mark.long
@pytest.mark.parametrize("change", ["model", "options", "mapping", "index"])
def test_a_calibration_for_another_model_option_or_mapping_is_refused(calibrated_client, collection, change, caplog):
    search_options = {"min_probability": 0.5, "cutoff": {"precision": 0.5}, "depth": 20}
    scorer = FunctionScorer() if change == "model" else None
    index = "*" if change == "index" else INDEX
    if change == "options":
        search_options |= {"blend": "replace"}
    if change == "mapping":
        content = json.loads(calibrated_client.searcher.calibrations.file.read_text("utf-8"))
        content["indexes"][INDEX]["mapping"] = "0" * 16
        calibrated_client.searcher.calibrations.file.write_text(json.dumps(content))
    with connect(collection.url, scorer=scorer) as client:
        response = client.search(QUESTION, index=index, size=20, rerank=search_options)
        reasons = {"mapping": "another mapping of its fields", "index": r"no calibration of \*"}
        with pytest.raises(ConfigError, match=reasons.get(change, "another model or other options")):
            client.search(QUESTION, index=index, rerank={**search_options, "on_failure": "raise"})
        assert (
            response["hits"]["hits"]
            == client.search(QUESTION, index=index, size=20, rerank=_plain(search_options))["hits"]["hits"]
        )
    assert [(cut["applied"], cut["hits"]) for cut in response["rerank"]["cuts"]] == [(False, 0)] * 2
    assert all(cut["reason"] for cut in response["rerank"]["cuts"])
    assert "no hits were removed by probability" in caplog.text


def _plain(asked: dict) -> dict:
    return {name: value for name, value in asked.items() if name in ("depth", "blend")}


@pytest.mark.long
@pytest.mark.parametrize(("weight", "stage"), [(0.0, "mono"), (0.5, "vectors_blend")])
def test_the_last_stage_of_vectors_mono_is_calibrated(collection, weight, stage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rerank: Any = {"pipeline": "vectors-mono", "depth": 20, "mono_depth": 5}
    scorer = type("Advised", (FunctionScorer,), {"advice": Advice(vectors_weight=weight)})()
    with connect(collection.url, scorer=scorer, encoder=Letters(), rerank=rerank) as client:
        fitted = calibrate(client, INDEX, collection.queries, collection.qrels)
        assert fitted.calibration.stage == stage
        assert fitted.calibration.evidence["hits"] <= 5 * len(collection.queries)
        write_calibration(client.searcher.calibrations.file, INDEX, fitted.calibration)
        (cut,) = client.search(QUESTION, index=INDEX, rerank={"min_probability": 0.0})["rerank"]["cuts"]
        assert (cut["applied"], cut["hits"]) == (True, 15)
        other: Any = {"min_probability": 0.0, "blend": "linear", "blend_weight": 2}
        (cut,) = client.search(QUESTION, index=INDEX, rerank=other)["rerank"]["cuts"]
        assert "another model or other options" in cut["reason"]


def test_calibrate_refuses_too_few_judgments_and_an_index_without_reranking(
    client: Client, collection: Collection
) -> None:
    few = collection.queries[:5]
    with pytest.raises(EvaluationError, match="too few to fit probabilities"):
        calibrate(client, INDEX, few, collection.qrels)
    with pytest.raises(EvaluationError, match="pass queries and judgments that are meant for this index"):
        calibrate(client, INDEX, few, Qrels({}))
    with (
        connect(collection.url, rerank={"pipeline": "none"}) as other,
        pytest.raises(ConfigError, match="which cannot be calibrated"),
    ):
        calibrate(other, INDEX, collection.queries, collection.qrels)


def test_a_damaged_calibration_file_is_named(calibrated_client: Client) -> None:
    calibrated_client.searcher.calibrations.file.write_text("{")
    response = calibrated_client.search(QUESTION, index=INDEX, rerank={"min_probability": 0.5})
    assert "osrerank.calibration.json is damaged" in response["rerank"]["cuts"][0]["reason"]
