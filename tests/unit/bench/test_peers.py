import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from osrerank.bench.install import PINS, python_of
from osrerank.bench.peers import PeerProcess, Shared, choose_batch, make_peers
from osrerank.bench.runner.table import BATCH_SIZES, positive
from osrerank.bench.workload import BenchQuery
from osrerank.cli import cli
from osrerank.errors import InferenceError
from osrerank.scoring.registry import load_scorer

DATA = Path(__file__).parents[2] / "data"
TINY = DATA / "tiny-bert-one-label"
QUERY, DOCUMENTS = "low pressure", ["blood pressure is low", "wing flow", "heat " * 30]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment for the tests that export the tiny model, which takes a while."""
    return like_an_environment(tmp_path_factory.mktemp("peers") / "environment")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    return like_an_environment(tmp_path / "environment")


def like_an_environment(folder: Path) -> Path:
    """Return a directory that looks like a virtual environment."""
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = nowhere\n")
    script = folder / "bin" / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return folder


@pytest.mark.long
def test_a_peer_scores_as_the_model_does_whatever_the_batch(exported: Path) -> None:
    pytest.importorskip("onnx")
    shared = Shared(exported, threads=1, max_tokens=64)
    wanted = {"ONNX Runtime fp32", "ONNX Runtime int8 dynamic"}
    made, missing = make_peers(TINY, shared, wanted=lambda name: name in wanted)
    assert missing == {}
    assert [one.name for one in made] == sorted(wanted)
    expected = load_scorer(str(TINY), backend="torch").score(QUERY, DOCUMENTS, [(0,), (1,), (2,)]).values
    plain, int8 = made
    for plain.batch in (1, 2, 3):
        assert plain.score(QUERY, DOCUMENTS) == pytest.approx(expected, abs=1e-4)
    assert int8.score(QUERY, DOCUMENTS) == pytest.approx(expected, abs=0.3)
    assert plain.cpu_s() > 0
    choose_batch(plain, BenchQuery("1", QUERY, dict(enumerate(DOCUMENTS))))
    assert plain.batch in BATCH_SIZES
    assert plain.version.endswith(f"batches of {plain.batch}")
    plain.close()
    assert len(list((exported / "exports").iterdir())) == 1


@pytest.mark.long
def test_a_process_that_ended_says_what_it_printed(environment: Path, tmp_path: Path) -> None:
    (environment / "bin" / "python").write_text("#!/bin/sh\necho no such library >&2\nexit 3\n")
    one = PeerProcess(python_of(environment), tmp_path / "log", 1)
    with pytest.raises(InferenceError, match=r"ended with code 3; .*log has what it printed: no such library"):
        one.ask(do="load", peer="OpenVINO fp32")
    one.close()


@pytest.mark.long
def test_peers_whose_libraries_are_missing_are_named(environment: Path) -> None:
    pytest.importorskip("onnx")
    hidden = 'import sys; sys.modules["openvino"] = None\n'
    blocked = environment / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(hidden)
    lines = f'#!/bin/sh\nPYTHONPATH="{blocked}" exec "{sys.executable}" "$@"\n'
    (environment / "bin" / "python").write_text(lines)
    shared = Shared(environment, threads=1, max_tokens=64)
    made, missing = make_peers(TINY, shared, wanted=lambda name: name == "OpenVINO fp32")
    assert made == []
    assert "openvino" in missing["OpenVINO fp32"]


def test_logits_of_two_labels_become_one_number() -> None:
    assert positive(np.array([[1.0, 3.0], [2.0, 1.0]])).tolist() == [2.0, -1.0]
    assert positive(np.array([[4.0], [5.0]])).tolist() == positive([4.0, 5.0]).tolist() == [4.0, 5.0]


def test_torch_is_pinned_as_ours() -> None:
    constraints = (Path(__file__).parents[3] / "constraints.txt").read_text().splitlines()
    torch = next(line for line in PINS.read_text().splitlines() if line.startswith("torch=="))
    assert torch in constraints


def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    outcome = CliRunner().invoke(cli, ["bench", "--install-peers", str(tmp_path)])
    assert "is no virtual environment" in str(outcome.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.long
def test_an_environment_is_completed_and_its_versions_printed(environment: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    listed = json.dumps([{"name": "Huggingface_Hub", "version": "1"}, {"name": "other", "version": "2"}])
    answers = f"case \"$*\" in *list*) echo '{listed}';; esac"
    (environment / "bin" / "python").write_text(f'#!/bin/sh\necho "$@" >> "{calls}"\n{answers}\n')
    outcome = CliRunner().invoke(cli, ["bench", "--install-peers", str(environment)])
    assert outcome.exit_code == 0, outcome.output
    assert "huggingface-hub 1\n" in outcome.output
    assert f"--requirement {PINS}" in calls.read_text()
