"""The self-check passes what ranks, and names what is wrong with what does not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank.errors import ModelLoadError
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.card import ModelCard
from osrerank.scoring.checkpoints.self_check import MIN_CORRECT, QUESTIONS, examples, require_self_check, run_self_check
from osrerank.scoring.model_files import SHIPPED, tokenizer_file
from osrerank.scoring.registry import load_scorer
from osrerank.testing import FunctionScorer, overlap

MONO = SHIPPED / "e5-small"
CARD = ModelCard("tried", "logits2")
NSP = "this next-sentence head, output 0 means relevant, not output 1"


def test_each_self_check_example_has_an_answer_and_another_paragraph() -> None:
    assert len(examples()) == QUESTIONS
    assert examples() == examples()
    assert all(example.answer != example.unrelated for example in examples())
    right = sum(
        overlap(example.question, example.answer) > overlap(example.question, example.unrelated)
        for example in examples()
    )
    assert right >= MIN_CORRECT  # even words tell them apart


def trained_like(query: str, text: str) -> float:
    """Return logits as far apart as a trained model's."""
    return 20 * overlap(query, text)


def test_a_model_that_ranks_passes_the_self_check() -> None:
    check = require_self_check(FunctionScorer(trained_like), MONO, CARD, sha256="abc")
    assert (check.cause, check.casing, check.label) == ("", "lower case", 1)
    assert check.unknown_share < 0.01
    assert "answering paragraphs before random ones" in str(check)
    assert str(check).endswith("head logits2, label 1, lower case, 2 segment rows, SHA-256 abc")


@pytest.mark.long
@pytest.mark.parametrize(
    ("card", "function", "cause"),
    [
        (CARD, lambda query, text: -trained_like(query, text), "inverted: the labels are swapped"),
        (ModelCard("tried", "next-sentence"), lambda query, text: -trained_like(query, text), f"inverted: in {NSP}"),
        (CARD, lambda query, text: len(text) % 17 - len(query) % 5, "its head was lost or is not trained"),
        (
            CARD,
            overlap,
            "it scores answering and random paragraphs almost equally: its head was lost",
        ),  # in the right order, but not far apart
    ],
)
def test_a_model_that_does_not_rank_is_refused_with_the_cause(
    card: ModelCard, function: Callable[[str, str], float], cause: str
) -> None:
    scorer = FunctionScorer(function)
    assert cause in run_self_check(scorer, MONO, card).cause
    with pytest.raises(ModelLoadError, match=r"tried does not rank like a trained model.*--no-self-check"):
        require_self_check(scorer, MONO, card)


# Faults of a checkpoint that was trained: its config, vocabulary or weights are changed in a copy.


HEAD = ("classifier.weight", "classifier.bias")


def _changed(folder: Path, name: str, **changes: Any) -> None:
    (folder / name).write_text(json.dumps({**json.loads((folder / name).read_bytes()), **changes}), "utf-8")


def _weights(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    import torch

    state = torch.load(folder / "pytorch_model.bin", weights_only=True)
    change(state)
    torch.save(state, folder / "pytorch_model.bin")


def swapped_labels(folder: Path) -> None:
    _weights(folder, lambda state: state.update({name: state[name].flip(0) for name in HEAD}))


def no_lower_case(folder: Path) -> None:
    _changed(folder, "tokenizer_config.json", do_lower_case=False)


def cased_vocabulary(folder: Path) -> None:
    vocabulary = (folder / "vocab.txt").read_text("utf-8").split("\n")
    indices = [
        index for index, token in enumerate(vocabulary) if token.isascii() and token.isalpha() and len(token) > 2
    ]
    for index in indices[::3]:
        vocabulary[index] = vocabulary[index].capitalize()
    (folder / "vocab.txt").write_text("\n".join(vocabulary), "utf-8")
    _changed(folder, "tokenizer_config.json", do_lower_case=True)


def lost_head(folder: Path) -> None:
    import torch

    torch.manual_seed(1)
    _weights(folder, lambda state: state.update({name: torch.randn_like(state[name]) * 0.02 for name in HEAD}))


def next_sentence_the_other_way(folder: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        for parameter in ("weight", "bias"):
            state[f"cls.seq_relationship.{parameter}"] = state.pop(f"classifier.{parameter}").flip(0)

    _weights(folder, change)
    _changed(folder, "config.json", architectures=["BertForNextSentencePrediction"])


FAULTS: dict[Callable[[Path], None], str] = {
    swapped_labels: "the labels are swapped",
    cased_vocabulary: "set do_lower_case to false",
    no_lower_case: "tokens are unknown",
    lost_head: "its head was lost or is not trained",
    next_sentence_the_other_way: "output 0 means relevant, not output 1",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """osrerank/monobert-l6 in the old layout of transformers: pytorch_model.bin and vocab.txt."""
    torch = pytest.importorskip("torch")
    from osrerank.scoring.backends.torch import read_weights

    source = SHIPPED / "monobert-l6"
    folder = tmp_path_factory.mktemp("trained") / "monobert"
    folder.mkdir()
    shutil.copyfile(source / "config.json", folder / "config.json")
    tensors = ((name if name in HEAD else f"bert.{name}", tensor) for name, tensor in read_weights(source).items())
    torch.save(dict(tensors), folder / "pytorch_model.bin")
    vocabulary = json.loads(tokenizer_file(source).read_bytes())["model"]["vocab"]
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}), "utf-8")
    return folder


@pytest.mark.slow
def test_a_trained_checkpoint_loads_and_is_exported(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    reports: list[str] = []
    export_model(trained, tmp_path / "made", ExportOptions(self_check=True), report=reports.append)
    scorers = (load_scorer(str(folder)) for folder in (trained, tmp_path / "made"))
    values = [scorer.score("who wrote it", ["she wrote it", "a wing"], [(0,), (1,)]).values for scorer in scorers]
    np.testing.assert_allclose(*values, atol=1e-4)
    assert "head logits2, label 1, lower case, 2 segment rows, SHA-256 " in reports[0]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_self_check_names_a_planted_fault(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Path], None]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(trained, tmp_path / "faulty")
    fault(tmp_path / "faulty")
    with pytest.raises(ModelLoadError, match=FAULTS[fault]):
        load_scorer(str(tmp_path / "faulty"))
    with pytest.raises(ModelLoadError, match=FAULTS[fault]):
        export_model(tmp_path / "faulty", tmp_path / "made", ExportOptions(self_check=True))
    assert not (tmp_path / "made").exists()
