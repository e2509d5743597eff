"""`osrerank adapt` on checkpoints that sentence-transformers saved: parity, choice, files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from osrerank.cli import cli
from osrerank.errors import ConfigError, EvaluationError
from osrerank.scoring.card import Pooling
from osrerank.scoring.model_files import read_card
from osrerank.scoring.registry import load_scorer
from tests.bi_encoders import saved
from tests.hub import files_of, osrerank_at, running_hub

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")
pytest.importorskip("onnx")

from osrerank.adapt.adapt import AdaptOptions, adapt  # noqa: E402 - imports torch

QUERY = "what causes low blood pressure"
DOCUMENTS = ["blood pressure is low when the heart is slow", "", "wing flow " * 12, "water & heat: 1,000!"]
PROMPTS = {"query": "search : ", "document": "this is : "}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return saved(tmp_path / "saved", "cls", **PROMPTS)


def judged_files(folder: Path, queries: int = 8) -> tuple[Path, Path]:
    """Write candidates and judgments: the second document answers each query."""
    lines, judgments = [], []
    for number in range(queries):
        candidates = [
            {"doc_id": f"d{place}", "text": text, "score": 10.0 - place} for place, text in enumerate(DOCUMENTS)
        ]
        lines.append(json.dumps({"query_id": f"q{number}", "query": f"{QUERY} {number}", "candidates": candidates}))
        judgments.append(f"q{number} 0 d1 1")
    (folder / "candidates.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "judgments").write_text("\n".join(judgments) + "\n", "utf-8")
    return folder / "candidates.jsonl", folder / "judgments"


@pytest.mark.parametrize("backend", ["onnx", "torch"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_bi_encoder_part_equals_sentence_transformers(pooling: Pooling, backend: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", pooling, **PROMPTS)
    adapt(folder, tmp_path / "made", AdaptOptions(layers=0, precision="fp32", keep_weights=True))
    scorer = load_scorer(str(tmp_path / "made"), backend=backend)
    logits = scorer.score(QUERY, DOCUMENTS, [(place,) for place in range(4)]).values
    raw = (logits - scorer.card.calibration.offset) / scorer.card.calibration.scale
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    expected = theirs.encode(DOCUMENTS, prompt_name="document") @ theirs.encode(QUERY, prompt_name="query")
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(raw, expected, atol=1e-5)


def test_without_judgments_the_defaults_are_those_documented(checkpoint: Path, tmp_path: Path) -> None:
    made = adapt(checkpoint, tmp_path / "made")
    card = read_card(tmp_path / "made")
    joining = card.joining
    assert (joining.layers, joining.bias, joining.rows, joining.pooling) == (1, -3.0, "cls", "cls")
    assert (joining.query_prefix, joining.document_prefix) == (PROMPTS["query"], PROMPTS["document"])
    assert card.first_pass_weight == pytest.approx(0.1 * card.calibration.scale)
    assert (card.max_tokens, card.max_query_tokens, made.rows) == (24, 24, 1)
    assert set(card.onnx) == {"int8", "int8-queries", "int8-contexts", "int8-scores"}
    assert "Its licence is the bi-encoder's" in (tmp_path / "made" / "README.md").read_text("utf-8")


def test_judgments_choose_and_calibrate(checkpoint: Path, tmp_path: Path) -> None:
    made = adapt(checkpoint, tmp_path / "made", judged=judged_files(tmp_path), report=lambda _: None)
    assert made.choice is not None
    settings = {(one.joining.layers, one.joining.bias, one.joining.cosine_share) for one in made.choice.tried}
    assert {(0, -3.0, 0.0), (1, -2.0, 0.0), (2, -5.0, 0.75)} <= settings
    assert made.choice.chosen.mean == max(one.mean for one in made.choice.tried)  # all queries are alike
    scorer = load_scorer(str(tmp_path / "made"))
    scores = scorer.score(f"{QUERY} 0", DOCUMENTS, [(place,) for place in range(4)]).values
    probabilities = scorer.probabilities(scores)
    assert 0 < probabilities.min() < probabilities.max() < 1
    assert made.card.first_pass_weight == pytest.approx(made.choice.chosen.weight * made.card.calibration.scale)


def test_given_layers_are_only_compared_with_the_bi_encoder(checkpoint: Path, tmp_path: Path) -> None:
    options = AdaptOptions(layers=2, bias=-1.0)
    made = adapt(checkpoint, tmp_path / "made", options, judged=judged_files(tmp_path), report=lambda _: None)
    assert made.choice is not None
    assert {(one.joining.layers, one.joining.bias) for one in made.choice.tried} <= {(2, -1.0), (0, -3.0)}


def test_a_model_of_one_layer_is_tried_with_one(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}), "utf-8")
    made = adapt(folder, tmp_path / "made", judged=judged_files(tmp_path), report=lambda _: None)
    assert made.choice is not None
    assert {one.joining.layers for one in made.choice.tried} == {0, 1}


def test_too_few_judged_queries_are_an_error(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"has 3 queries with a relevant document in .*judgments; 5 are needed"):
        adapt(checkpoint, tmp_path / "made", judged=judged_files(tmp_path, 3))
    assert not (tmp_path / "made").exists()


def test_more_layers_than_there_are_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="layers is 9; the model has 2"):
        adapt(checkpoint, tmp_path / "made", AdaptOptions(layers=9))


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


def test_the_command_prints_what_it_tried(checkpoint: Path, tmp_path: Path) -> None:
    candidates, qrels = judged_files(tmp_path)
    result = invoke("adapt", checkpoint, "-o", tmp_path / "made", "--candidates", candidates, "--qrels", qrels)
    assert result.exit_code == 0, result.output
    assert "layers  bias  share of cosine  first pass  nDCG@10" in result.output
    assert "by cross-validation" in result.output
    assert "rows of the query per candidate" in result.output


def test_the_command_gives_json(checkpoint: Path, tmp_path: Path) -> None:
    result = invoke("--json", "adapt", checkpoint, "-o", tmp_path / "made", "--precision", "fp32")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["joining"]["layers"] == 1
    assert summary["rows_per_candidate"] == 1


def test_candidates_need_judgments(checkpoint: Path, tmp_path: Path) -> None:
    candidates, _ = judged_files(tmp_path)
    result = invoke("adapt", checkpoint, "-o", tmp_path / "made", "--candidates", candidates)
    assert result.exit_code != 0
    assert "--candidates and --qrels go together" in result.output


@pytest.mark.long
def test_a_model_of_the_hub_is_fetched_with_what_says_how_it_pools(checkpoint: Path, tmp_path: Path) -> None:
    with running_hub("somebody/encoder", files_of(checkpoint)) as hub:
        done = osrerank_at(hub.url, tmp_path, "adapt", "somebody/encoder", "-o", str(tmp_path / "made"))
    assert done.returncode == 0, done.stderr
    assert {"modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"} <= set(hub.fetched)
    assert read_card(tmp_path / "made").joining.query_prefix == PROMPTS["query"]
