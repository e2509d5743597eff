"""Models of the Hugging Face hub through huggingface_hub itself, from a hub on loopback."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from osrerank.scoring.registry import load_scorer
from tests.hub import COMMIT, files_of, osrerank_at, running_hub
from tests.late_interaction import SAVED
from tests.servers import ROOT, free_port

pytestmark = pytest.mark.long

TINY = ROOT / "tests" / "data" / "tiny-bert-one-label"
REPOSITORY = "somebody/tiny"
PICKLE = {"pytorch_model.bin": b"\x80\x02code"}
NEEDED = ["config.json", "onnx/model.onnx", "tokenizer.json"]


def published() -> dict[str, bytes]:
    """Return a model's files as others publish them: without a card of ours."""
    return {name: content for name, content in files_of(TINY).items() if name != "osrerank.json"}


def score(model: str, endpoint: str, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Score a pair."""
    for file in home.glob("out.run*"):
        file.unlink()
    candidates = home / "candidates.jsonl"
    candidates.write_text('{"query_id": "1", "query": "low", "candidates": [{"doc_id": "a", "text": "pressure"}]}\n')
    arguments = ("rerank", "--candidates", str(candidates), "--output", str(home / "out.run"))
    return osrerank_at(endpoint, home, "--model", model, *options, "--debug", *arguments)


def fetched(files: Mapping[str, bytes], home: Path, *options: str) -> list[str]:
    """Return what is fetched of a repository to score a pair, as it does."""
    with running_hub(REPOSITORY, files) as hub:
        done = score(REPOSITORY, hub.url, home, *options)
    assert done.returncode == 0, done.stderr
    return sorted(hub.fetched)


def logit(home: Path) -> float:
    """Return the score that was written."""
    record = json.loads((home / "out.run.jsonl").read_text("utf-8").splitlines()[-1])
    return float(record["candidates"][0]["stages"]["mono"]["score"])


def test_only_the_graph_and_its_needed_files_are_downloaded(tmp_path: Path) -> None:
    more = {"README.md": b"# tiny", "train.py": b"print()", "onnx/model_O4.onnx": b"another"}
    assert fetched(published() | PICKLE | more, tmp_path) == NEEDED
    own_score = float(load_scorer(str(TINY), backend="onnx").score("low", ["pressure"], [(0,)]).values[0])
    assert logit(tmp_path) == pytest.approx(own_score, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["onnx/model_quantized.onnx", "model.safetensors"])
def test_the_int8_graph_is_downloaded_first_and_weights_only_without_a_graph(tmp_path: Path, weights: str) -> None:
    pytest.importorskip("torch")
    files = published() | PICKLE
    graph = files.pop("onnx/model.onnx")
    if "onnx" in weights:
        files |= {"onnx/model.onnx": graph, weights: graph}
    options = ("--backend", "onnx") if "onnx" in weights else ()
    assert fetched(files, tmp_path, *options) == sorted(["config.json", weights, "tokenizer.json"])


@pytest.mark.slow
def test_weights_are_downloaded_if_the_graph_lacks_the_head(tmp_path: Path) -> None:
    """A modular cross-encoder: sentence-transformers exports its encoder alone."""
    pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.numpy").save
    files = published()
    width = json.loads(files["config.json"])["hidden_size"]
    modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    written = {
        "modules.json": [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in modules.items()],
        "config_sentence_transformers.json": {"model_type": "CrossEncoder"},
        "1_Pooling/config.json": {"pooling_mode": "cls"},
        "2_Dense/config.json": {"out_features": 1, "bias": False, "module_output_name": "scores"},
    }
    files |= {name: json.dumps(content).encode() for name, content in written.items()}
    files["2_Dense/model.safetensors"] = save({"linear.weight": np.ones((1, width), dtype=np.float32)})
    assert {"2_Dense/model.safetensors", "model.safetensors", *written} < set(fetched(files, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pooled", "stanford"])
def test_all_files_of_a_late_interaction_model_are_downloaded(tmp_path: Path, name: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    with running_hub(REPOSITORY, files_of(SAVED / name)) as hub:
        done = osrerank_at(hub.url, tmp_path, "export", REPOSITORY, str(tmp_path / "made"))
    assert done.returncode == 0, done.stderr
    assert set(hub.fetched) == set(files_of(SAVED / name))


@pytest.mark.parametrize("revision", [COMMIT, pytest.param("v2", marks=pytest.mark.slow)])
def test_the_revision_in_a_model_name_is_downloaded(tmp_path: Path, revision: str) -> None:
    with running_hub(REPOSITORY, files_of(TINY)) as hub:
        done = score(f"{REPOSITORY}@{revision}", hub.url, tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(hub.revisions) == {revision}
    assert set(hub.fetched) == {*NEEDED, "osrerank.json"}  # a card of ours, too


def test_a_downloaded_model_loads_without_the_hub(tmp_path: Path) -> None:
    with running_hub(REPOSITORY, files_of(TINY)) as hub:
        assert score(REPOSITORY, hub.url, tmp_path).returncode == 0
        count = len(hub.fetched)
        assert score(REPOSITORY, hub.url, tmp_path).returncode == 0
        assert len(hub.fetched) == count
    done = score(REPOSITORY, hub.url, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_pickle_of_more_than_tensors_is_refused(tmp_path: Path) -> None:
    files = {name: content for name, content in published().items() if name.endswith(".json")}
    with running_hub(REPOSITORY, files | PICKLE | {"vocab.txt": b"low"}) as hub:
        done = score(REPOSITORY, hub.url, tmp_path)
    assert done.returncode != 0
    assert set(hub.fetched) == {*files, *PICKLE, "vocab.txt"}  # they are fetched where there is nothing else
    assert "pytorch_model.bin is a pickle of more than tensors" in done.stderr


def test_an_unknown_repository_says_how_to_bring_a_model(tmp_path: Path) -> None:
    with running_hub(REPOSITORY, files_of(TINY)) as hub:
        done = score("somebody/else", hub.url, tmp_path)
    assert done.returncode != 0
    assert "ModelLoadError: there is no directory 'somebody/else'" in done.stderr
    assert "run hf download somebody/else --local-dir else" in done.stderr


def test_an_unreachable_hub_is_a_one_line_error(tmp_path: Path) -> None:
    done = score("somebody/tiny@v2", f"http://127.0.0.1:{free_port()}", tmp_path)
    assert done.returncode != 0
    last_line = done.stderr.splitlines()[-1]
    assert last_line.startswith("osrerank.errors.ModelLoadError: ")
    assert "hf download somebody/tiny --revision v2 --local-dir tiny" in last_line
