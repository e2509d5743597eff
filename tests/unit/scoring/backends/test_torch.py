"""The torch backend: precision, memory, failures, threads, and what it says of itself."""

import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import ConfigError, InferenceError, ModelLoadError
from osrerank.scoring.card import ModelCard
from osrerank.scoring.card_file import read_card
from osrerank.scoring.cross_encoder import CrossEncoder
from osrerank.scoring.inputs import InputBuilder, Tokens
from osrerank.scoring.registry import load_scorer
from osrerank.types import Scores

torch = pytest.importorskip("torch")

from osrerank.scoring.backends.networks.engine import choose_precision  # noqa: E402 - imports torch
from osrerank.scoring.backends.torch import TorchBackend  # noqa: E402 - likewise

DATA = Path(__file__).parents[3] / "data"
DIRECTORY = DATA / "tiny-bert-one-label"
FORMS = ("one-label", "two-labels", "bi-encoder")


class Small:
    """An engine that scores by length; more tokens than its memory holds, or one bad token, fail."""

    is_packed = True

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


def test_out_of_memory_halves_the_batches_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    engine = Small(memory_tokens=40)
    scorer, backend = scorer_of(engine)
    backend.budget_tokens = 200
    documents = ["wing " * (1 + index % 7) for index in range(60)]
    scores = score(scorer, documents)
    assert not scores.failures
    assert scores.values.tolist() == [4 + 1 + index % 7 for index in range(60)]
    assert max(engine.sizes) <= 40
    assert 1 <= backend.budget_tokens <= 50
    assert "does not fit" in caplog.text
    assert "wing" not in caplog.text
    caplog.clear()
    score(scorer, documents)
    assert caplog.text.count("[memory-short]") <= 1


def test_a_sequence_that_fails_is_reported_alone_with_the_model() -> None:
    scorer, _ = scorer_of(Small(memory_tokens=40))
    scores = score(scorer, ["wing", "wing " * 100, "low wing"])
    assert set(scores.failures) == {1}
    assert "tiny" in scores.failures[1]
    assert "does not fit" in scores.failures[1]
    assert scores.values[[0, 2]].tolist() == [5, 6]
    bad = int(InputBuilder.load(DIRECTORY, ModelCard("tiny", "logit1")).tokenise_query("heat").ids[0])
    scorer, _ = scorer_of(Small(bad=bad))
    assert score(scorer, ["wing", "heat"]).failures == {1: "tiny failed in torch: this one cannot be computed"}


@pytest.mark.parametrize("form", FORMS)
def test_empty_long_and_strange_documents_are_scored(form: str) -> None:
    scorer = load_scorer(str(DATA / f"tiny-bert-{form}"), backend="torch")
    onnx = load_scorer(str(DATA / f"tiny-bert-{form}"), backend="onnx")
    documents = ["", " ", "[SEP] [CLS] [PAD] wing", "wing " * 5000, "\x00\u202e", "wing", "\ud800", "a" * 3000]
    scores = score(scorer, documents)
    assert not scores.failures
    assert scores.truncated == 1
    np.testing.assert_allclose(scores.values, score(onnx, documents).values, atol=1e-4)


def test_precision_is_part_of_the_identity_and_near_fp32() -> None:
    scorers = [load_scorer(str(DIRECTORY), dtype=dtype) for dtype in ("fp32", "bf16", "fp16")]
    assert len({scorer.identity for scorer in scorers}) == 3
    exact, *rounded = (
        score(scorer, ["wing", "low blood pressure", "heat flow " * 30, ""]).values for scorer in scorers
    )
    for values in rounded:
        assert 0 < np.abs(values - exact).max() < 0.1


def test_auto_is_fp32_on_the_cpu_and_says_what_runs(caplog: pytest.LogCaptureFixture) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with caplog.at_level(logging.INFO, logger="osrerank"):
        backend = TorchBackend.load(DIRECTORY, read_card(DIRECTORY))
    assert (backend.precision, backend.threads, backend.is_packed) == ("fp32", 1, False)
    assert "on cpu, fp32, padded attention (packed attention needs CUDA" in caplog.text
    backend.close()
    with pytest.raises(InferenceError, match="closed"):
        backend.run([Tokens(np.array([2, 3]), np.array([0, 1]))])


def test_auto_is_16_bits_on_cuda() -> None:
    assert choose_precision("auto", torch.device("cuda")) in {"bf16", "fp16"}
    assert choose_precision("fp32", torch.device("cuda")) == "fp32"


def test_a_dtype_for_the_onnx_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="--backend torch"):
        load_scorer(str(DIRECTORY), backend="onnx", dtype="bf16")
    with pytest.raises(ConfigError, match="fp32, bf16, fp16"):
        load_scorer(str(DIRECTORY), dtype="int4")


def electra(folder: Path) -> Path:
    """A random model of an architecture that our own forward pass does not know."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(11)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.ElectraConfig(vocab_size=278, embedding_size=16, num_labels=1, **shape)
    network = transformers.ElectraForSequenceClassification(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "LayerNorm" not in name:
                parameter.normal_(std=0.2)
    network.save_pretrained(folder)
    shutil.copyfile(DIRECTORY / "tokenizer.json", folder / "tokenizer.json")
    return folder


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_other_architectures_go_through_transformers(
    tmp_path: Path, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = electra(tmp_path / "electra")
    with caplog.at_level(logging.INFO, logger="osrerank"):
        scorer = load_scorer(str(directory), backend="torch", dtype=dtype)
    assert f"{dtype}, transformers (model_type is electra)" in caplog.text
    documents = ["wing", "low blood pressure", "", "heat " * 40]
    together = score(scorer, documents).values
    alone = [score(scorer, [document]).values[0] for document in documents]
    assert np.ptp(together) > 0.01
    np.testing.assert_allclose(together, alone, atol=1e-5 if dtype == "fp32" else 0.1)


def rewritten(folder: Path, renamed: Callable[[str], str]) -> str:
    """Copy the tiny model with other names of its weights; what has none is left out."""
    from safetensors.torch import load_file, save_file

    file = Path(shutil.copytree(DIRECTORY, folder)) / "model.safetensors"
    weights = {renamed(name): tensor for name, tensor in load_file(file).items() if renamed(name)}
    save_file(weights, file, {"format": "pt"})
    return str(folder)


def test_old_names_of_layer_norms_are_read_by_torch(tmp_path: Path) -> None:
    def older(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    scorers = (load_scorer(model, backend="torch") for model in (rewritten(tmp_path / "old", older), str(DIRECTORY)))
    old, new = (score(scorer, ["wing", "low"]).values.tolist() for scorer in scorers)
    assert old == new


@pytest.mark.parametrize("name", ["bert.encoder.layer.1.output.dense.weight", "bert.pooler.dense.bias"])
def test_a_missing_weight_is_named(tmp_path: Path, name: str) -> None:
    lacking = rewritten(tmp_path / "lacking", lambda weight: "" if weight == name else weight)
    with pytest.raises(ModelLoadError, match=f"lacks weights.*{name.removeprefix('bert.')}"):
        load_scorer(lacking, backend="torch")


def test_weights_of_another_shape_and_a_file_that_is_cut_are_refused(tmp_path: Path) -> None:
    wrong, cut = (shutil.copytree(DIRECTORY, tmp_path / name) for name in ("wrong", "cut"))
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-1000])
    for folder in (wrong, cut):
        with pytest.raises(ModelLoadError, match="cannot be read; download or save the model again"):
            load_scorer(str(folder), backend="torch")
