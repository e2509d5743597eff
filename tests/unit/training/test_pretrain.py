"""Pretraining by masked tokens: sequences, masks, resuming, and corpora."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from osrerank.errors import ConfigError, EvaluationError, FormatError
from osrerank.training.curve import read_curve
from osrerank.training.pretrain import IGNORE_INDEX, EncoderSize, MaskedStepBuilder, create_encoder, pretrain
from osrerank.training.recipes import PRESETS
from tests.servers import ROOT
from tests.unit.training.test_fit import minutes

TOKENIZER = ROOT / "tests" / "data" / "tiny-bert-two-labels" / "tokenizer.json"
RECIPE = replace(PRESETS["masked"], steps=6, batch=4, max_tokens=32, max_query_tokens=16, rate=1e-3)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    lines = [
        {"id": str(n), "title": "Salt", "text": "low salt can cause low blood pressure " * (1 + n % 5)}
        for n in range(40)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def steps(**changes: object) -> MaskedStepBuilder:
    return MaskedStepBuilder(Tokenizer.from_file(str(TOKENIZER)), replace(RECIPE, **changes), 10_000)


def test_pretraining_sequences_lose_no_token() -> None:
    sequences = list(steps(max_tokens=10).build_sequences(["low " * 21, "low low"]))
    assert [len(ids) for ids in sequences] == [10, 10, 7]  # a rest of fewer than four pieces is left out
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    first, last = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    assert all(ids[0] == first and ids[-1] == last for ids in sequences)


def test_packed_pretraining_sequences_are_full_and_lose_no_token() -> None:
    maker = steps(max_tokens=12, pack=True)
    first, last = (maker.tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    low = maker.tokenizer.encode("low", add_special_tokens=False).ids
    for lengths in ([1] * 40, [3, 25, 10, 9, 1, 11, 30], [10, 10, 10], [9, 1, 9, 1, 9, 1, 9, 1, 9]):
        packed = [list(ids) for ids in maker.build_sequences(["low " * length for length in lengths])]
        assert {len(ids) for ids in packed[:-1]} <= {11, 12}  # one less where a text ends with a sequence
        assert 6 <= len(packed[-1]) <= 12
        assert all(ids[0] == first and ids[-1] == last and last not in (ids[1], ids[-2]) for ids in packed)
        low_pieces = sum(doc_id in low for ids in packed for doc_id in ids)
        assert sum(lengths) * len(low) - low_pieces < 4  # a rest of fewer than four pieces is left out
    inside = [list(ids[1:-1]) for ids in maker.build_sequences(["low low", "low low low", "low"])]
    assert inside == [[*low * 2, last, *low * 3, last, *low]]


def test_masking_hides_15_percent_of_tokens_and_never_separators() -> None:
    maker, rng = steps(), np.random.default_rng(1)
    mask = maker.tokenizer.token_to_id("[MASK]")
    ids = np.array([2, *range(20, 120), 3], dtype=np.int64)
    as_mask = unchanged = 0
    for _ in range(100):
        changed, targets = maker.mask_pieces(ids, rng)
        hidden = targets != IGNORE_INDEX
        assert int(hidden.sum()) == 15
        assert not hidden[0]
        assert not hidden[-1]
        assert (targets[hidden] == ids[hidden]).all()
        assert (changed[~hidden] == ids[~hidden]).all()
        as_mask += int((changed[hidden] == mask).sum())
        unchanged += int((changed[hidden] == ids[hidden]).sum())
    assert 0.77 < as_mask / 1500 < 0.83
    assert 0.07 < unchanged / 1500 < 0.14
    maker, rng = steps(max_tokens=40, pack=True), np.random.default_rng(1)
    (ids,) = maker.build_sequences(["low salt", "blood pressure", "can cause", "low low"])
    last = maker.tokenizer.token_to_id("[SEP]")
    assert list(ids).count(last) == 4
    for _ in range(60):
        changed, targets = maker.mask_pieces(ids, rng)
        assert (targets[ids == last] == IGNORE_INDEX).all()
        assert (changed[ids == last] == last).all()
        assert int((targets != IGNORE_INDEX).sum()) == max(1, round(0.15 * int((ids != last).sum() - 1)))


@pytest.mark.long
def test_masking_fits_roberta_tokenizers() -> None:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=names, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(["low pressure and rain over the sea"] * 30, trainer)
    builder = MaskedStepBuilder(tokenizer, RECIPE, 10_000, 1)
    (ids,) = builder.build_sequences(["low pressure and rain over the sea"])
    assert (ids[0], ids[-1]) == (tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>"))
    changed = np.concatenate([builder.mask_pieces(ids, np.random.default_rng(seed))[0] for seed in range(20)])
    assert tokenizer.token_to_id("<mask>") in changed
    bare = MaskedStepBuilder(Tokenizer(models.Unigram()), RECIPE, 10_000)
    with pytest.raises(ConfigError, match="the model's tokenizer has neither"):
        list(bare.build_sequences(["low"]))


def test_a_model_is_pretrained_from_scratch_and_further(corpus: Path, tmp_path: Path) -> None:
    start = create_encoder([corpus], tmp_path / "new", EncoderSize(layers=1, hidden=32, vocabulary=60))
    progress: list[str] = []
    pretrained = pretrain(start, tmp_path / "made", [corpus], replace(RECIPE, steps=40), report=progress.append)
    assert pretrained is not None
    losses = [float(row["loss"]) for row in read_curve(pretrained / "curve.csv")]
    assert np.mean(losses[-5:]) < 0.85 * np.mean(losses[:5])
    assert json.loads((pretrained / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    assert "cls.predictions.transform.dense.weight" in load_file(pretrained / "model.safetensors")
    assert (
        pretrain(pretrained, tmp_path / "more", [corpus], replace(RECIPE, steps=1), report=progress.append) is not None
    )


@pytest.mark.long
def test_a_stopped_pretraining_resumes_bitwise(corpus: Path, tmp_path: Path) -> None:
    start = create_encoder([corpus], tmp_path / "new", EncoderSize(layers=1, hidden=32, vocabulary=60))
    pretrain(start, tmp_path / "whole", [corpus], RECIPE, report=str)
    assert pretrain(start, tmp_path / "parts", [corpus], RECIPE, **minutes(3)) is None
    assert pretrain(start, tmp_path / "parts", [corpus], RECIPE, report=str) is not None
    uninterrupted, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(uninterrupted[name], resumed[name]) for name in uninterrupted)
    assert read_curve(tmp_path / "whole" / "curve.csv") == read_curve(tmp_path / "parts" / "curve.csv")


def test_corpora_without_usable_texts_are_refused(corpus: Path, tmp_path: Path) -> None:
    start = create_encoder([corpus], tmp_path / "new", EncoderSize(layers=1, hidden=32, vocabulary=60))
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(FormatError, match="has no text"):
        pretrain(start, tmp_path / "made", [tmp_path / "empty.txt"], RECIPE, report=str)
    (tmp_path / "bad.jsonl").write_text('{"id": "1"}\n')
    with pytest.raises(FormatError, match="line 1: 'text' is missing; expected JSON with a text"):
        pretrain(start, tmp_path / "made", [tmp_path / "bad.jsonl"], RECIPE, report=str)
    (tmp_path / "short.txt").write_text("low salt can cause low blood pressure\n")
    with pytest.raises(EvaluationError, match="set a lower batch"):
        pretrain(start, tmp_path / "made", [tmp_path / "short.txt"], RECIPE, report=str)
