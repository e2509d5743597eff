"""The training loop: learning, resuming, development sets, and checkpoints."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from osrerank.errors import ConfigError, EvaluationError, FormatError, ModelLoadError
from osrerank.scoring.card_file import read_card
from osrerank.scoring.registry import load_scorer
from osrerank.testing import ManualClock
from osrerank.training.curve import read_curve
from osrerank.training.examples.sources import open_source
from osrerank.training.fit import TrainingRequest, distill, train
from osrerank.training.recipes import Recipe
from tests.bi_encoders import carded, plain
from tests.servers import ROOT

pytestmark = pytest.mark.long

DATA = ROOT / "tests" / "data"
CLASSIFIER = DATA / "tiny-bert-two-labels"
SMALL = Recipe(
    steps=10, batch=8, negatives=3, rate=1e-3, mine_at=0.5, evaluate_every=2, max_tokens=64, max_query_tokens=16
)


def request(examples: Path, output: Path, recipe: Recipe = SMALL, **changes: object) -> TrainingRequest:
    source = open_source({"examples": str(examples)})
    options = {"source": CLASSIFIER, "data": [source], "development": source, **changes}
    return TrainingRequest(output=output, recipe=recipe, **options)


def minutes(steps: int) -> dict[str, object]:
    """Return the options of a call whose time is over after so many steps, of a minute each."""
    clock = ManualClock()

    def pass_by(line: str) -> None:
        clock.sleep(60.0 * line.startswith("step "))

    return {"max_minutes": steps - 0.5, "clock": clock, "report": pass_by}


def curve(folder: Path) -> list[dict[str, str]]:
    return read_curve(folder / "curve.csv")


POINTWISE = replace(SMALL, loss="pointwise", draw="balanced", mine_at=0.0)


@pytest.mark.parametrize("recipe", [SMALL, pytest.param(POINTWISE, marks=pytest.mark.slow)])
def test_a_trained_model_scores_the_same_after_saving(examples, tmp_path, recipe):
    progress: list[str] = []
    recipe = replace(recipe, steps=40, evaluate_every=10)
    trained = train(request(examples, tmp_path / "made", recipe, report=progress.append))
    assert trained == tmp_path / "made"
    rows = curve(trained)
    assert [int(row["step"]) for row in rows] == list(range(1, 41))
    losses = [float(row["loss"]) for row in rows]
    assert np.mean(losses[-8:]) < 0.7 * np.mean(losses[:8])
    measures = [float(row["measure"]) for row in rows if row["measure"]]
    card = json.loads((trained / "osrerank.json").read_text())
    measured = card["provenance"]["measures"]
    assert measured["nDCG@10"] == pytest.approx(max(measures), abs=1e-4)
    assert measured["chosen"] == f"the best of {len(measures)} measurements on this set, so it is optimistic"
    assert card["provenance"]["data"][0]["examples"] == 24
    assert card["provenance"]["seed"] == 1
    text = (trained / "README.md").read_text()
    assert str(examples) in text
    assert '"batch": 8' in text
    assert not (tmp_path / "made.training").exists()
    scorer = load_scorer(str(trained), backend="torch")
    lines = [json.loads(line) for line in examples.read_text().splitlines()]
    best_documents = [
        scorer.score(line["query"], line["documents"], [(number,) for number in range(4)]).values.argmax()
        for line in lines
    ]
    assert np.mean([number == 3 for number in best_documents]) > 0.8


def with_scores(examples: Path, output: Path) -> Path:
    """Give the labelled document 0 and the others more, so that scores and labels disagree."""
    lines = [json.loads(line) for line in examples.read_text().splitlines()]
    scores = [[0.0 if grade else 4.0 + number % 2 for grade in line["relevance"]] for number, line in enumerate(lines)]
    output.write_text("".join(f"{json.dumps({**a, 'scores': b})}\n" for a, b in zip(lines, scores, strict=True)))
    return output


@pytest.mark.parametrize("start", ["cross-encoder", pytest.param("bi-encoder", marks=pytest.mark.slow)])
def test_training_on_teacher_scores_ignores_labels(examples, tmp_path, start):
    scored = with_scores(examples, tmp_path / "scored.jsonl")
    source = CLASSIFIER if start == "cross-encoder" else carded(tmp_path / "start")
    recipe = replace(SMALL, soft=True, hard=False, draw="all", mine_at=0.0, steps=40)
    trained = train(request(scored, tmp_path / "made", recipe, source=source, development=None))
    assert trained is not None
    losses = [float(row["loss"]) for row in curve(trained)]
    assert np.mean(losses[-8:]) < 0.7 * np.mean(losses[:8])
    relabelled = tmp_path / "turned.jsonl"
    relabelled.write_text(scored.read_text().replace("[0, 0, 0, 1]", "[0, 1, 1, 0]"))
    trained_on_relabelled = train(request(relabelled, tmp_path / "other", recipe, source=source, development=None))
    assert trained_on_relabelled is not None
    assert curve(trained_on_relabelled) == curve(trained)


def test_training_combines_scores_and_labels_and_names_examples_without_scores(examples, tmp_path):
    with pytest.raises(EvaluationError, match=r"examples\.jsonl, line 1: soft=true learns from scores"):
        train(request(examples, tmp_path / "made", replace(SMALL, soft=True)))
    assert not (tmp_path / "made.training").exists()
    scored = with_scores(examples, tmp_path / "scored.jsonl")
    trained = train(request(scored, tmp_path / "made", replace(SMALL, soft=True), development=None))
    assert trained is not None
    row = curve(trained)[0]
    assert float(row["loss"]) == pytest.approx(float(row["soft"]) + float(row["hard"]), rel=1e-4)


@pytest.mark.parametrize("kind", ["cross-encoder", pytest.param("bi-encoder", marks=pytest.mark.slow)])
def test_a_stopped_training_resumes_bitwise(examples: Path, tmp_path: Path, kind: str) -> None:
    start = CLASSIFIER if kind == "cross-encoder" else carded(tmp_path / "start")
    train(request(examples, tmp_path / "whole", source=start))
    for steps in (1, 3, 1, 1, 3):
        assert train(request(examples, tmp_path / "parts", source=start, **minutes(steps))) is None
    assert train(request(examples, tmp_path / "parts", source=start)) == tmp_path / "parts"
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    uninterrupted, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert uninterrupted.keys() == resumed.keys()
    assert all(torch.equal(uninterrupted[name], resumed[name]) for name in uninterrupted)
    assert any(
        not torch.equal(uninterrupted[name], tensor)
        for name, tensor in load_file(start / "model.safetensors").items()
        if name in uninterrupted
    )


@pytest.mark.slow
def test_a_killed_training_resumes_bitwise(examples: Path, tmp_path: Path) -> None:
    train(request(examples, tmp_path / "whole"))
    code = (
        "import sys, time; from pathlib import Path; import torch; torch.set_num_threads(1)\n"
        "from osrerank.training import loop\n"
        "from tests.unit.training.test_fit import request\n"
        "from osrerank.training.fit import train\n"
        "loop.SAVE_EVERY_S = 0.0\n"
        "step = loop.Training._train_step\n"
        "def slow(self, *given):\n"
        "    row = step(self, *given); print(row['step'], flush=True); time.sleep(0.3); return row\n"
        "loop.Training._train_step = slow\n"
        "train(request(Path(sys.argv[1]), Path(sys.argv[2])))\n"
    )
    command = [sys.executable, "-c", code, str(examples), str(tmp_path / "parts")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.strip() == "4":
                child.send_signal(signal.SIGKILL)
                break
    assert child.returncode == -signal.SIGKILL
    assert (tmp_path / "parts.training").is_dir()
    assert train(request(examples, tmp_path / "parts")) == tmp_path / "parts"
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    uninterrupted, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(uninterrupted[name], resumed[name]) for name in uninterrupted)


def test_a_stopped_distillation_resumes_with_its_student(examples: Path, tmp_path: Path) -> None:
    recipe = replace(SMALL, name="tinybert-listwise", mine_at=0.0, hard=False, dropout=0.0)
    student = {"layers": 1}
    begun = request(examples, tmp_path / "made", recipe, development=None)
    assert distill(replace(begun, max_minutes=1e-9), **student) is None
    for changed in ({"layers": 2}, {"layers": [1, 2]}):
        with pytest.raises(ConfigError, match="another unfinished training"):
            distill(begun, **{**student, **changed})
    assert distill(begun, **student) == tmp_path / "made"
    distill(replace(begun, output=tmp_path / "whole"), **student)
    resumed, uninterrupted = (load_file(tmp_path / name / "model.safetensors") for name in ("made", "whole"))
    assert all(torch.equal(uninterrupted[name], resumed[name]) for name in uninterrupted)


def test_the_size_of_micro_batches_changes_no_loss(examples: Path, tmp_path: Path) -> None:
    plain = replace(SMALL, dropout=0.0, steps=4, mine_at=0.0)
    for name, budget in (("large", 100_000), ("small", 100)):
        train(request(examples, tmp_path / name, replace(plain, budget_tokens=budget)))
    losses = [[float(row["loss"]) for row in curve(tmp_path / name)] for name in ("large", "small")]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_development_labels_change_only_the_chosen_step(examples: Path, tmp_path: Path) -> None:
    held_back = tmp_path / "held-back.jsonl"
    lines = [json.loads(line) for line in examples.read_text().splitlines()]
    held_back.write_text("".join(json.dumps({**line, "relevance": line["relevance"][::-1]}) + "\n" for line in lines))
    for name, development in (("right", examples), ("turned", held_back)):
        source = open_source({"examples": str(development)})
        train(request(examples, tmp_path / name, development=source))
    right, relabelled = (curve(tmp_path / name) for name in ("right", "turned"))
    assert [row["loss"] for row in right] == [row["loss"] for row in relabelled]
    assert [row["measure"] for row in right] != [row["measure"] for row in relabelled]


def test_bad_data_and_a_nan_loss_end_a_training(examples: Path, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"the loss of step \d+ is (nan|inf).*examples.jsonl, line"):
        train(request(examples, tmp_path / "diverged", replace(SMALL, rate=1e30, clip=0.0, warmup=0), development=None))
    with examples.open("a") as file:
        file.write('{"query": "q", "documents": ["a"], "relevance": [1, 0]}\n')
    with pytest.raises(FormatError, match="line 25"):
        train(request(examples, tmp_path / "made", development=None))
    lonely = tmp_path / "lonely.jsonl"
    lonely.write_text('{"query": "q", "documents": ["a"], "relevance": [1]}\n')
    with pytest.raises(EvaluationError, match="nothing to learn from"):
        train(request(lonely, tmp_path / "made", development=None))


def test_a_bi_encoder_is_trained_only_on_lists(examples: Path, tmp_path: Path) -> None:
    recipe = replace(SMALL, loss="pointwise", draw="balanced")
    with pytest.raises(ConfigError, match="loss=listwise"):
        train(request(examples, tmp_path / "made", recipe, source=carded(tmp_path / "start")))


def test_frozen_embeddings_are_not_trained(examples: Path, tmp_path: Path) -> None:
    train(request(examples, tmp_path / "made", replace(SMALL, freeze="embeddings"), development=None))
    before, after = (load_file(folder / "model.safetensors") for folder in (CLASSIFIER, tmp_path / "made"))
    for table in ("word", "position", "token_type"):
        name = f"bert.embeddings.{table}_embeddings.weight"
        assert torch.equal(before[name], after[name])
    name = "bert.encoder.layer.0.output.dense.weight"
    assert not torch.equal(before[name], after[name])


def test_a_start_without_weights_is_refused(examples: Path, tmp_path: Path) -> None:
    start = plain(tmp_path / "start", CLASSIFIER)
    (start / "model.safetensors").unlink()
    shutil.copytree(CLASSIFIER / "onnx", start / "onnx")  # the weights of a traced graph have no names
    with pytest.raises(ModelLoadError, match="safetensors"):
        train(request(examples, tmp_path / "made", source=start))


def test_a_smaller_student_approaches_its_teacher(examples: Path, tmp_path: Path) -> None:
    recipe = replace(SMALL, name="tinybert-listwise", steps=30, mine_at=0.0, hard=False, dropout=0.0)
    distill(request(examples, tmp_path / "made", recipe, development=None), layers=1)
    rows = curve(tmp_path / "made")
    for term in ("attention", "hidden"):
        values = [float(row[term]) for row in rows]
        assert np.mean(values[-5:]) < 0.9 * np.mean(values[:5])
    assert "hard" not in rows[0]
    assert float(rows[0]["loss"]) == pytest.approx(
        sum(float(rows[0][term]) for term in ("attention", "hidden", "soft")), rel=1e-6
    )
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert config["num_hidden_layers"] == 1
    assert "student_from" not in read_card(tmp_path / "made").provenance
    assert "projection.weight" not in load_file(tmp_path / "made" / "model.safetensors")
    assert load_scorer(str(tmp_path / "made"), backend="torch").score("low", ["salt"], [(0,)]).inferences == 1


def test_a_bi_encoder_learns_the_logits_of_a_cross_encoder(examples: Path, tmp_path: Path) -> None:
    recipe = replace(SMALL, name="logits", method="logits", steps=30, mine_at=0.0)
    start = carded(tmp_path / "start")
    distill(request(examples, tmp_path / "made", recipe, development=None), student=start)
    rows = curve(tmp_path / "made")
    assert np.mean([float(row["soft"]) for row in rows[-5:]]) < np.mean([float(row["soft"]) for row in rows[:5]])
    provenance = read_card(tmp_path / "made").provenance
    assert (provenance["base_model"], provenance["student_from"]) == (CLASSIFIER.name, start.name)
    assert f"the student began as `{start.name}`" in (tmp_path / "made" / "README.md").read_text(encoding="utf-8")


def test_a_checkpoint_is_tensors_and_json_and_belongs_to_one_training(examples, tmp_path):
    assert train(request(examples, tmp_path / "made", max_minutes=1e-9)) is None
    names = {path.name for path in (tmp_path / "made.training").iterdir()}
    assert names == {"step-0", "data.json"}
    names = {path.name for path in (tmp_path / "made.training" / "step-0").iterdir()}
    assert names == {"state.json", "weights.safetensors", "optimiser.safetensors"}
    assert train(request(examples, tmp_path / "made", max_minutes=1e-9)) is None
    with pytest.raises(ConfigError, match="another unfinished training"):
        train(request(examples, tmp_path / "made", replace(SMALL, rate=1e-4)))
    with examples.open("a") as file:
        file.write(examples.read_text().splitlines()[0] + "\n")
    with pytest.raises(ConfigError, match="another unfinished training"):
        train(request(examples, tmp_path / "made"))


def test_a_resumed_student_may_name_its_layers(examples: Path, tmp_path: Path) -> None:
    recipe = replace(SMALL, name="tinybert-listwise", steps=2, mine_at=0.0)
    distillation = request(examples, tmp_path / "made", recipe, development=None)
    assert distill(distillation, layers=range(1, 3), student=CLASSIFIER) == tmp_path / "made"


def test_a_distillation_reads_soft_labels_from_its_teacher(examples: Path, tmp_path: Path) -> None:
    scored = with_scores(examples, tmp_path / "scored.jsonl")
    with pytest.raises(ConfigError, match="soft=true is for train"):
        distill(request(scored, tmp_path / "made", replace(SMALL, soft=True)), layers=1)
