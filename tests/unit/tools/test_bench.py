"""The benchmark that compares osrerank with other libraries."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import InferenceError
from osrerank.scoring.registry import load_scorer
from tests.servers import ROOT
from tools.bench.peers import PeerProcess, load_peers
from tools.bench.race import BenchQuery, generate_queries, race, read_queries, top_overlap
from tools.bench.runner.table import BATCH_SIZES, to_scores

TINY = ROOT / "tests" / "data" / "tiny-bert-one-label"
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
def test_each_compared_library_scores_as_the_model_for_any_batch_size(exported: Path) -> None:
    pytest.importorskip("onnx")
    expected_peers = {"ONNX Runtime fp32", "ONNX Runtime int8 dynamic"}
    peers, missing = load_peers(
        TINY, exported, threads=1, max_tokens=64, is_selected=lambda name: name in expected_peers
    )
    assert missing == {}
    assert [peer.name for peer in peers] == sorted(expected_peers)
    expected = load_scorer(str(TINY), backend="torch").score(QUERY, DOCUMENTS, [(0,), (1,), (2,)]).values
    plain, int8 = peers
    for plain.batch in (1, 2, 3):
        assert plain.score(QUERY, DOCUMENTS) == pytest.approx(expected, abs=1e-4)
    assert int8.score(QUERY, DOCUMENTS) == pytest.approx(expected, abs=0.3)
    assert plain.cpu_s() > 0
    plain.choose_batch_size(BenchQuery(QUERY, DOCUMENTS))
    assert plain.batch in BATCH_SIZES
    assert plain.version.endswith(f"batches of {plain.batch}")
    plain.close()
    assert len(list((exported / "exports").iterdir())) == 1


@pytest.mark.long
def test_an_ended_benchmark_process_is_reported_with_its_output(environment: Path, tmp_path: Path) -> None:
    (environment / "bin" / "python").write_text("#!/bin/sh\necho no such library >&2\nexit 3\n")
    peer_process = PeerProcess(environment / "bin" / "python", tmp_path / "log", 1)
    with pytest.raises(InferenceError, match=r"code 3; .*log has its output, which ends: no such library"):
        peer_process.request(do="load", peer="OpenVINO fp32")
    peer_process.close()


@pytest.mark.long
def test_missing_libraries_of_a_benchmark_are_named(environment: Path) -> None:
    pytest.importorskip("onnx")
    hidden = 'import sys; sys.modules["openvino"] = None\n'
    blocked = environment / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(hidden)
    lines = f'#!/bin/sh\nPYTHONPATH="{blocked}" exec "{sys.executable}" "$@"\n'
    (environment / "bin" / "python").write_text(lines)
    only = {"is_selected": lambda name: name == "OpenVINO fp32"}
    peers, missing = load_peers(TINY, environment, threads=1, max_tokens=64, **only)
    assert peers == []
    assert "openvino" in missing["OpenVINO fp32"]


def test_two_logits_become_their_difference() -> None:
    assert to_scores(np.array([[1.0, 3.0], [2.0, 1.0]])).tolist() == [2.0, -1.0]
    assert to_scores(np.array([[4.0], [5.0]])).tolist() == to_scores([4.0, 5.0]).tolist() == [4.0, 5.0]


def test_the_benchmark_pins_torch_as_constraints_do() -> None:
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    pins = (ROOT / "tools" / "bench" / "peers.txt").read_text().splitlines()
    torch = next(line for line in pins if line.startswith("torch=="))
    assert torch in constraints


def test_benchmark_texts_are_drawn_reproducibly_and_cut_to_the_options(tmp_path: Path) -> None:
    tasks = generate_queries(40, n_queries=3, depth=30)
    assert tasks == generate_queries(40, n_queries=3, depth=30)
    sizes = [len(text.split()) for task in tasks for text in task.documents]
    assert len(sizes) == 90
    assert 20 <= min(sizes) < 30
    assert 50 < max(sizes) <= 60
    (tmp_path / "c.jsonl").write_text("\n".join(line(str(n), 4) for n in range(3)))
    tasks = read_queries(tmp_path / "c.jsonl", n_queries=2, depth=3)
    assert [task.documents for task in tasks] == [["low blood 0", "low blood 1", "low blood 2"]] * 2


def line(query_id: str, documents: int) -> str:
    candidates = [{"doc_id": str(n), "title": "low", "text": f"blood {n}"} for n in range(documents)]
    return json.dumps({"query_id": query_id, "query": "pressure", "candidates": candidates})


class ByLength:
    """A contender that scores texts by their length."""

    version = "1"

    def __init__(self, name: str, sign: int, calls: list[str]) -> None:
        self.name, self.sign, self.calls = name, sign, calls

    def score(self, query, documents):
        self.calls.append(self.name)
        return np.array([self.sign * float(len(document)) for document in documents])

    def cpu_s(self):
        return 2.0 * self.calls.count(self.name)

    def close(self):
        pass


def test_contenders_run_in_turn_and_their_orders_are_compared() -> None:
    calls: list[str] = []
    two_scorers = [ByLength("up", 1, calls), ByLength("down", -1, calls)]
    outcome = race(two_scorers, [BenchQuery("q", ["x" * (n + 1) for n in range(20)])], rounds=3)
    assert calls == ["up", "down"] * 4
    assert (len(outcome["up"].seconds), outcome["up"].cpu_seconds) == (3, [2.0] * 3)
    up, down = outcome["up"].scores, outcome["down"].scores
    assert (top_overlap(up, up), top_overlap(down, up)) == (1.0, 0.0)


@pytest.mark.long
def test_a_benchmark_measures_a_checkpoint_in_fp32_and_int8() -> None:
    pytest.importorskip("onnx")
    options = ["--words", "5", "--queries", "1", "--depth", "3", "--rounds", "1"]
    command = [sys.executable, "-m", "tools.bench", str(TINY), *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    rows = [row for row in done.stdout.splitlines() if row.startswith("| osrerank")]
    assert [row.split()[2] for row in rows] == ["fp32", "int8"]
    assert rows[0].endswith("| 1.00 |")
