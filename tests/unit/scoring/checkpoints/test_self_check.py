"""The self-check passes what ranks, and names what is wrong with what does not."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank.errors import ModelLoadError
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.card import ModelCard
from osrerank.scoring.checkpoints.self_check import ENOUGH, PAIRS, checked, examples, self_check
from osrerank.scoring.locate import SHIPPED
from osrerank.scoring.registry import load_scorer
from osrerank.testing import FunctionScorer, overlap

MONO = SHIPPED / "e5-small"
CARD = ModelCard("tried", "logits2")


def test_the_examples_are_questions_with_their_paragraph_and_one_of_another_article() -> None:
    assert len(examples()) == PAIRS
    assert examples() == examples()
    assert all(example.answering != example.other for example in examples())
    right = sum(overlap(one.question, one.answering) > overlap(one.question, one.other) for one in examples())
    assert right >= ENOUGH  # even words tell them apart


def trained_like(query: str, text: str) -> float:
    """Return logits as far apart as a trained model's."""
    return 20 * overlap(query, text)


def test_what_ranks_passes() -> None:
    found = checked(FunctionScorer(trained_like), MONO, CARD, sha256="abc")
    assert (found.cause, found.casing, found.label) == ("", "lower case", 1)
    assert found.unknown < 0.01
    assert "answering paragraphs before random ones" in str(found)
    assert str(found).endswith("head logits2, label 1, lower case, 2 segment rows, SHA-256 abc")


@pytest.mark.long
@pytest.mark.parametrize(
    ("card", "function", "cause"),
    [
        (CARD, lambda query, text: -trained_like(query, text), "upside down: the labels are swapped"),
        (
            ModelCard("tried", "next-sentence"),
            lambda query, text: -trained_like(query, text),
            "upside down: in this next-sentence head, output 0 means relevant, not output 1",
        ),
        (CARD, lambda query, text: len(text) % 17 - len(query) % 5, "its head was lost or is not trained"),
        (CARD, overlap, "it hardly tells paragraphs apart: its head was lost"),  # in the right order, but not far apart
    ],
)
def test_what_does_not_rank_is_refused(card: ModelCard, function: Callable[[str, str], float], cause: str) -> None:
    scorer = FunctionScorer(function)
    assert cause in self_check(scorer, MONO, card).cause
    with pytest.raises(ModelLoadError, match=r"tried does not rank as a trained model does.*--no-self-check"):
        checked(scorer, MONO, card)


@pytest.mark.slow
@pytest.mark.long
def test_the_shipped_model_passes() -> None:
    with closing(load_scorer("osrerank/e5-small")) as scorer:
        assert self_check(scorer, MONO, scorer.vectors.encoder.card).right == PAIRS


# Faults of a checkpoint that was trained: its config, vocabulary or weights are changed in a copy.


def _changed(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads((folder / name).read_bytes())
    change(content)
    (folder / name).write_text(json.dumps(content), "utf-8")


def _weights(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    import torch

    state = torch.load(folder / "pytorch_model.bin", weights_only=True)
    change(state)
    torch.save(state, folder / "pytorch_model.bin")


def swapped_labels(folder: Path) -> None:
    _weights(folder, lambda state: state.update({name: state[name].flip(0) for name in HEAD}))


def cased_vocabulary(folder: Path) -> None:
    vocabulary = (folder / "vocab.txt").read_text("utf-8").split("\n")
    places = [place for place, token in enumerate(vocabulary) if token.isascii() and token.isalpha() and len(token) > 2]
    for place in places[::3]:
        vocabulary[place] = vocabulary[place].capitalize()
    (folder / "vocab.txt").write_text("\n".join(vocabulary), "utf-8")
    _changed(folder, "tokenizer_config.json", lambda settings: settings.update(do_lower_case=True))


def no_lower_case(folder: Path) -> None:
    _changed(folder, "tokenizer_config.json", lambda settings: settings.update(do_lower_case=False))


def lost_head(folder: Path) -> None:
    import torch

    torch.manual_seed(1)
    _weights(folder, lambda state: state.update({name: torch.randn_like(state[name]) * 0.02 for name in HEAD}))


def next_sentence_the_other_way(folder: Path) -> None:
    def change(state: dict[str, Any]) -> None:
        for part in ("weight", "bias"):
            state[f"cls.seq_relationship.{part}"] = state.pop(f"classifier.{part}").flip(0)

    _weights(folder, change)
    _changed(folder, "config.json", lambda config: config.update(architectures=["BertForNextSentencePrediction"]))


HEAD = ("classifier.weight", "classifier.bias")
FAULTS: dict[Callable[[Path], None], str] = {
    swapped_labels: "the labels are swapped",
    cased_vocabulary: "do_lower_case must be false",
    no_lower_case: "pieces are unknown",
    lost_head: "its head was lost or is not trained",
    next_sentence_the_other_way: "output 0 means relevant, not output 1",
}


@pytest.fixture(scope="module")
def trained(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder of three layers that was trained for some minutes, as transformers saved it years ago."""
    torch = pytest.importorskip("torch")
    from tokenizers import Tokenizer
    from transformers import BertForSequenceClassification

    source = shared.parent / "models" / "e5-small-v2"
    torch.manual_seed(1)
    network = BertForSequenceClassification.from_pretrained(source, num_labels=2, num_hidden_layers=3).float()
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=0)
    tokenizer.enable_truncation(96)
    articles = json.loads((shared / "squad" / "train-v1.1.json").read_bytes())["data"]
    pairs = [
        (paragraph["qas"][0]["question"], paragraph["context"])
        for article in articles
        for paragraph in article["paragraphs"][::4]
        if paragraph["qas"]
    ]
    order = np.random.default_rng(1).permutation(len(pairs))
    optimiser = torch.optim.AdamW(network.parameters(), 1e-4)
    for step in range(250):
        some = [pairs[at] for at in order[step * 8 : step * 8 + 8]]
        texts = [(question, some[(at + turn) % 8][1]) for turn in (0, 1) for at, (question, _) in enumerate(some)]
        encoded = tokenizer.encode_batch(texts)
        ids, types, mask = (
            torch.tensor([getattr(one, part) for one in encoded]) for part in ("ids", "type_ids", "attention_mask")
        )
        labels = torch.tensor([1] * 8 + [0] * 8)
        loss = network(ids, attention_mask=mask, token_type_ids=types, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    folder = tmp_path_factory.mktemp("trained") / "monobert"
    network.eval().save_pretrained(folder, safe_serialization=False)
    vocabulary = tokenizer.get_vocab()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}), "utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_trained_checkpoint_loads_and_is_exported(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with closing(load_scorer(str(trained))) as scorer:
        own = scorer.score("who wrote it", ["she wrote it", "a wing"], [(0,), (1,)]).values
    said: list[str] = []
    export_model(trained, tmp_path / "made", ExportOptions(self_check=True), report=said.append)
    with closing(load_scorer(str(tmp_path / "made"))) as scorer:
        np.testing.assert_allclose(
            scorer.score("who wrote it", ["she wrote it", "a wing"], [(0,), (1,)]).values, own, atol=1e-4
        )
    assert "head logits2, label 1, lower case, 2 segment rows, SHA-256 " in said[0]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught_and_named(
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
