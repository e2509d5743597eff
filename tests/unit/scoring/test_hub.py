"""Models of the Hugging Face hub through huggingface_hub itself, from a hub on loopback."""

import json
import subprocess
from pathlib import Path

import pytest

from osrerank.errors import ModelLoadError
from osrerank.scoring.registry import load_scorer
from tests.hub import COMMIT, files_of, osrerank_at, running_hub
from tests.servers import ROOT

pytestmark = pytest.mark.long

TINY = ROOT / "tests" / "data" / "tiny-bert-one-label"
REPOSITORY = "somebody/tiny"
PICKLE = {"pytorch_model.bin": b"\x80\x02code"}


def score(model: str, endpoint: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Score a pair."""
    candidates = home / "candidates.jsonl"
    candidates.write_text('{"query_id": "1", "query": "low", "candidates": [{"doc_id": "a", "text": "pressure"}]}\n')
    arguments = ("rerank", "--candidates", str(candidates), "--output", str(home / "out.run"))
    return osrerank_at(endpoint, home, "--model", model, "--debug", *arguments)


def own_score() -> float:
    return float(load_scorer(str(TINY), backend="onnx").score("low", ["pressure"], [(0,)]).values[0])


def test_a_graph_is_fetched_and_nothing_that_is_not_needed(tmp_path: Path) -> None:
    files = files_of(TINY) | PICKLE | {"README.md": b"# tiny", "train.py": b"print()"}
    with running_hub(REPOSITORY, files) as hub:
        done = score(REPOSITORY, hub.url, tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"config.json", "tokenizer.json", "onnx/model.onnx"} <= set(hub.fetched)
    assert not {"pytorch_model.bin", "train.py", "model.safetensors"} & set(hub.fetched)
    record = json.loads((tmp_path / "out.run.jsonl").read_text("utf-8").splitlines()[-1])
    assert record["candidates"][0]["stages"]["mono"]["score"] == pytest.approx(own_score(), abs=1e-6)


def test_a_revision_is_asked_for(tmp_path: Path) -> None:
    with running_hub(REPOSITORY, files_of(TINY)) as hub:
        done = score(f"{REPOSITORY}@{COMMIT}", hub.url, tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(hub.revisions) == {COMMIT}


def test_a_model_that_was_fetched_loads_without_the_hub(tmp_path: Path) -> None:
    with running_hub(REPOSITORY, files_of(TINY)) as hub:
        assert score(REPOSITORY, hub.url, tmp_path).returncode == 0
        fetched = len(hub.fetched)
        (tmp_path / "out.run").unlink()
        (tmp_path / "out.run.jsonl").unlink()
        assert score(REPOSITORY, hub.url, tmp_path).returncode == 0
        assert len(hub.fetched) == fetched
    (tmp_path / "out.run").unlink()
    (tmp_path / "out.run.jsonl").unlink()
    done = score(REPOSITORY, hub.url, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_pickle_of_more_than_tensors_is_refused(tmp_path: Path) -> None:
    files = {name: content for name, content in files_of(TINY).items() if name.endswith(".json")} | PICKLE
    with running_hub(REPOSITORY, {name: content for name, content in files.items() if name != "osrerank.json"}) as hub:
        done = score(REPOSITORY, hub.url, tmp_path)
    assert done.returncode != 0
    assert "pytorch_model.bin is a pickle of more than tensors" in done.stderr


def test_pickled_weights_and_a_vocabulary_are_fetched_and_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from tests import checkpoints

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "source"
    network = checkpoints.network()
    network.save_pretrained(source, safe_serialization=False)
    checkpoints.write_vocabulary(source)
    with running_hub(REPOSITORY, files_of(source)) as hub:
        done = score(REPOSITORY, hub.url, tmp_path)
    assert {"config.json", "pytorch_model.bin", "vocab.txt"} <= set(hub.fetched)
    assert done.returncode != 0  # it is random
    assert f"{REPOSITORY} does not rank as a trained model does" in done.stderr
    assert "was converted once, to" in done.stderr
    (converted,) = (tmp_path / "cache" / "osrerank" / "models").iterdir()
    pair = load_scorer(str(converted)).score("low", ["blood pressure"], [(0,)]).values[0]
    first, second = checkpoints.expected(network, "low", "blood pressure")
    assert pair == pytest.approx(second - first, abs=1e-5)


def test_an_unknown_repository_says_how_to_bring_a_model(tmp_path: Path) -> None:
    with running_hub(REPOSITORY, files_of(TINY)) as hub:
        done = score("somebody/else", hub.url, tmp_path)
    assert done.returncode != 0
    assert ModelLoadError.__name__ in done.stderr
    assert "run hf download somebody/else --local-dir else" in done.stderr
