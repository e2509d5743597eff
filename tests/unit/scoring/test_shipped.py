"""The models in the package: that they are there, small, and rank."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from osrerank.scoring.card_file import read_card
from osrerank.scoring.locate import locate
from osrerank.scoring.model_files import SHIPPED
from osrerank.scoring.registry import load_scorer
from osrerank.settings import DEFAULT_MODEL
from osrerank.types import Scorer
from tests import servers

MONO = "osrerank/monobert-l6"
KINDS = {DEFAULT_MODEL: "bi-encoder", "osrerank/minilm-l6": "bi-encoder", MONO: "cross-encoder"}
MINIMUM = {DEFAULT_MODEL: 0.5, "osrerank/minilm-l6": 0, MONO: 0.3}
"""Probability of the answer."""
MAX_BYTES = 36_000_000
QUERY = "what causes low blood pressure"
DOCUMENTS = (
    "Paris is the capital of France, on the river Seine.",
    "Dehydration, heart problems and some medicines may cause hypotension, that is, low blood pressure.",
    "High blood pressure, or hypertension, is usually treated with drugs and exercise.",
    "",
)
TUPLES = [(index,) for index in range(len(DOCUMENTS))]


@pytest.fixture(scope="module", params=KINDS)
def scorer(request: pytest.FixtureRequest) -> Scorer:
    return load_scorer(request.param)


@pytest.mark.long
def test_each_shipped_model_is_in_the_package_with_its_origin(scorer: Scorer) -> None:
    directory = locate(scorer.model)
    card = read_card(directory)
    assert (card.name, card.kind, card.languages) == (scorer.model, KINDS[scorer.model], ("en",))
    assert card.provenance["licence"] in {"Apache-2.0", "MIT"}
    assert "MS MARCO" in card.provenance["base_data"]
    assert ("SQuAD" in card.provenance["our_training"]) == (scorer.model == MONO)
    assert directory.parent == SHIPPED
    assert sum(file.stat().st_size for file in directory.rglob("*") if file.is_file()) < MAX_BYTES


def test_all_shipped_models_have_the_size_that_the_readme_names() -> None:
    size = sum(file.stat().st_size for file in SHIPPED.rglob("*") if file.is_file())
    assert size < 85_000_000
    assert f"are in the package ({size / 1e6:.0f} MB" in (servers.ROOT / "README.md").read_text("utf-8")


def test_each_shipped_model_ranks_the_answer_first(scorer: Scorer) -> None:
    scores = scorer.score(QUERY, DOCUMENTS, TUPLES)
    assert not scores.failures
    assert np.argsort(-scores.values)[:2].tolist() == [1, 2]
    probabilities = scorer.probabilities(scores.values)
    assert probabilities[1] > max(2 * probabilities[2], MINIMUM[scorer.model])
    assert probabilities[3] < 0.1
    assert probabilities[0] < 0.01


@pytest.mark.long
def test_shipped_models_score_their_longest_sequences(scorer: Scorer) -> None:
    scores = scorer.score("blood " * 100, ["pressure " * 1000], [(0,)])
    assert np.isfinite(scores.values).all()
    assert scores.truncated == 1


PROGRAM = """
import os, sys
from osrerank.scoring.registry import load_scorer
load_scorer(sys.argv[1]).score("a", ["b"], [(0,)])
print(sorted({"torch", "transformers", "onnx", "optimum", "huggingface_hub"} & set(sys.modules)))
print(os.environ["ORT_DISABLE_TELEMETRY"])
"""


@pytest.mark.long
@pytest.mark.parametrize("model", KINDS)
def test_a_base_install_is_enough_and_onnx_runtime_reports_nothing_to_its_makers(model: str, tmp_path: Path) -> None:
    homes = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"), str(tmp_path))
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"} | homes
    command = [sys.executable, "-c", PROGRAM, model]
    done = subprocess.run(command, cwd=servers.ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["[]", "1"]
    assert list(tmp_path.rglob("*")) == []  # the runtime keeps what it is going to send in a file
