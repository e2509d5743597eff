"""The torch backend: precision, memory, failures, threads, and what it says of itself."""

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import REGISTRY

from osrerank.errors import ConfigError, InferenceError, ModelLoadError
from osrerank.scoring.card import ModelCard
from osrerank.scoring.cross_encoder import CrossEncoder
from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.scoring.model_files import read_card
from osrerank.scoring.registry import load_scorer
from osrerank.types import Scores

torch = pytest.importorskip("torch")

from osrerank.scoring.backends.torch import TorchBackend  # noqa: E402 - imports torch

DATA = Path(__file__).parents[3] / "data"
DIRECTORY = DATA / "tiny-bert-one-label"
FORMS = ("one-label", "two-labels", "bi-encoder")


class Small:
    """An engine that scores by length; more tokens than its memory holds, or one bad token, fail."""

    packed = True

    def __init__(self, memory_tokens: int = 1 << 30, bad: int = -1) -> None:
        self.memory_tokens, self.bad = memory_tokens, bad
        self.sizes: list[int] = []

    def __call__(self, sequences: Sequence[Tokens]) -> np.ndarray:
        lengths = [len(tokens.ids) for tokens in sequences]
        if sum(lengths) > self.memory_tokens:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if any((tokens.ids == self.bad).any() for tokens in sequences):
            raise RuntimeError("this one cannot be computed")
        self.sizes.append(sum(lengths))
        return np.array(lengths, dtype=np.float32)[:, None]


def scorer_of(engine: Small) -> tuple[CrossEncoder, TorchBackend]:
    card = ModelCard("tiny", "logit1")
    backend = TorchBackend(engine, device="cuda", precision="fp32", model="tiny", files=())
    return CrossEncoder(DIRECTORY, card, InputBuilder.load(DIRECTORY, card), backend), backend


def score(scorer: CrossEncoder, documents: Sequence[str]) -> Scores:
    return scorer.score("low", documents, [(index,) for index in range(len(documents))])


def count() -> float:
    return REGISTRY.get_sample_value("osrerank_torch_out_of_memory_total") or 0.0


def test_out_of_memory_halves_the_batches_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    engine = Small(memory_tokens=40)
    scorer, backend = scorer_of(engine)
    backend.budget_tokens = 200
    documents = ["wing " * (1 + index % 7) for index in range(60)]
    before = count()
    scores = score(scorer, documents)
    assert not scores.failures
    assert scores.values.tolist() == [4 + 1 + index % 7 for index in range(60)]
    assert max(engine.sizes) <= 40
    assert 1 <= backend.budget_tokens <= 50
    assert count() > before
    assert "do not fit" in caplog.text
    assert "wing" not in caplog.text
    seen = count()
    score(scorer, documents)
    assert count() <= seen + 1


def test_a_sequence_too_large_for_the_memory_is_reported_alone() -> None:
    scorer, _ = scorer_of(Small(memory_tokens=40))
    scores = score(scorer, ["wing", "wing " * 100, "low wing"])
    assert set(scores.failures) == {1}
    assert "tiny" in scores.failures[1]
    assert "do not fit" in scores.failures[1]
    assert scores.values[[0, 2]].tolist() == [5, 6]


def test_a_failure_of_torch_is_isolated_and_names_the_model() -> None:
    bad = int(InputBuilder.load(DIRECTORY, ModelCard("tiny", "logit1")).query("heat").ids[0])
    scorer, _ = scorer_of(Small(bad=bad))
    scores = score(scorer, ["wing", "heat", "low wing"])
    assert set(scores.failures) == {1}
    assert scores.failures[1] == "tiny failed in torch: this one cannot be computed"


def rewritten(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> str:
    """Copy the tiny model with other weights."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(DIRECTORY, folder)
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})
    return str(folder)


@pytest.mark.parametrize("form", FORMS)
def test_awkward_documents(form: str) -> None:
    scorer = load_scorer(str(DATA / f"tiny-bert-{form}"), backend="torch")
    onnx = load_scorer(str(DATA / f"tiny-bert-{form}"), backend="onnx")
    documents = ["", " ", "[SEP] [CLS] [PAD] wing", "wing " * 5000, "\x00\u202e", "wing", "\ud800", "a" * 3000]
    scores = score(scorer, documents)
    assert not scores.failures
    assert scores.truncated == 1
    np.testing.assert_allclose(scores.values, score(onnx, documents).values, atol=1e-4)


def test_threads_share_the_network() -> None:
    scorer = load_scorer(str(DIRECTORY), backend="torch")
    documents = ["wing " * (index % 9) for index in range(40)]
    expected = score(scorer, documents).values
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: score(scorer, documents).values, range(8)):
            np.testing.assert_allclose(found, expected, atol=1e-5)


def test_precision_is_part_of_the_identity_and_near_fp32() -> None:
    documents = ["wing", "low blood pressure", "heat flow " * 30, ""]
    scorers = {dtype: load_scorer(str(DIRECTORY), dtype=dtype) for dtype in ("fp32", "bf16", "fp16")}
    assert len({scorer.identity for scorer in scorers.values()}) == 3
    exact = score(scorers["fp32"], documents).values
    for dtype in ("bf16", "fp16"):
        difference = np.abs(score(scorers[dtype], documents).values - exact).max()
        assert 0 < difference < 0.1


def test_auto_is_fp32_on_the_cpu_and_says_what_runs(caplog: pytest.LogCaptureFixture) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with caplog.at_level(logging.INFO, logger="osrerank"):
        backend = TorchBackend.load(DIRECTORY, read_card(DIRECTORY))
    assert (backend.precision, backend.threads, backend.packed) == ("fp32", 1, False)
    assert "on cpu, fp32, padded attention (packed attention needs CUDA" in backend.description
    assert backend.description in caplog.text


def test_onnx_has_no_dtype() -> None:
    with pytest.raises(ConfigError, match="--backend torch"):
        load_scorer(str(DIRECTORY), backend="onnx", dtype="bf16")
    with pytest.raises(ConfigError, match="fp32, bf16, fp16"):
        load_scorer(str(DIRECTORY), dtype="int4")


def electra(folder: Path) -> Path:
    """A random model of an architecture that our own forward pass does not know."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(11)
    config = transformers.ElectraConfig(
        vocab_size=278, embedding_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, num_labels=1,
    )  # fmt: skip
    network = transformers.ElectraForSequenceClassification(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "LayerNorm" not in name:
                parameter.normal_(std=0.2)
    network.save_pretrained(folder)
    shutil.copyfile(DIRECTORY / "tokenizer.json", folder / "tokenizer.json")
    return folder


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_other_architectures_go_through_transformers(tmp_path: Path, dtype: str) -> None:
    directory = electra(tmp_path / "electra")
    backend = TorchBackend.load(directory, read_card(directory), dtype=dtype)
    assert f"{dtype}, transformers (model_type is electra)" in backend.description
    scorer = load_scorer(str(directory), backend="torch", dtype=dtype)
    documents = ["wing", "low blood pressure", "", "heat " * 40]
    together = score(scorer, documents).values
    alone = [score(scorer, [document]).values[0] for document in documents]
    assert np.ptp(together) > 0.01
    np.testing.assert_allclose(together, alone, atol=1e-5 if dtype == "fp32" else 0.1)


def test_the_old_names_of_norms_are_read(tmp_path: Path) -> None:
    later = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def old_name(name: str) -> str:
        ours = next((now for now in later if name.endswith(now)), "")
        return name.replace(ours, later[ours]) if ours else name

    old = rewritten(tmp_path / "old", lambda weights: {old_name(name): weights[name] for name in weights})
    found = score(load_scorer(old, backend="torch"), ["wing", "low"]).values
    assert found.tolist() == score(load_scorer(str(DIRECTORY), backend="torch"), ["wing", "low"]).values.tolist()


@pytest.mark.parametrize("name", ["bert.encoder.layer.1.output.dense.weight", "bert.pooler.dense.bias"])
def test_a_missing_weight_is_named(tmp_path: Path, name: str) -> None:
    lacking = rewritten(tmp_path / "lacking", lambda weights: {one: weights[one] for one in weights if one != name})
    with pytest.raises(ModelLoadError, match=f"lacks weights.*{name.removeprefix('bert.')}"):
        load_scorer(lacking, backend="torch")


def test_weights_of_another_shape_and_a_file_that_is_cut_are_refused(tmp_path: Path) -> None:
    wrong = shutil.copytree(DIRECTORY, tmp_path / "wrong")
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    with pytest.raises(ModelLoadError, match="cannot be read as"):
        load_scorer(str(wrong), backend="torch")
    cut = shutil.copytree(DIRECTORY, tmp_path / "cut")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-1000])
    with pytest.raises(ModelLoadError, match="cannot be read as"):
        load_scorer(str(cut), backend="torch")


def test_a_closed_backend_says_so() -> None:
    backend = TorchBackend.load(DIRECTORY, read_card(DIRECTORY))
    backend.close()
    with pytest.raises(InferenceError, match="closed"):
        backend.run([Tokens(np.array([2, 3]), np.array([0, 1]))])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")  # the compiler imports parts of torch that warn
def test_compiled_layers_give_the_same_scores() -> None:
    documents = ["wing " * length for length in range(0, 30, 3)]
    compiled = load_scorer(str(DIRECTORY), backend="torch", compiled=True)
    plain = load_scorer(str(DIRECTORY), backend="torch")
    np.testing.assert_allclose(score(compiled, documents).values, score(plain, documents).values, atol=1e-5)
