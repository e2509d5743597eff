"""Training of duo models."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from osrerank.export.export_model import export_model
from osrerank.scoring.card_file import read_card
from osrerank.scoring.inputs import InputBuilder
from osrerank.training.curve import read_curve
from osrerank.training.development import DevelopmentSet, NetworkScorer
from osrerank.training.examples.duo import DuoSequenceBuilder, build_ordered_pairs
from osrerank.training.examples.example import Example
from osrerank.training.fit import distill, train
from osrerank.training.recipes import PRESETS
from osrerank.training.weights.models import load_trainee
from tests.servers import ROOT
from tests.unit.training.test_fit import request

pytestmark = pytest.mark.long

START = ROOT / "tests" / "data" / "tiny-bert-two-labels"
TEACHER = ROOT / "tests" / "data" / "tiny-bert-duo"
RECIPE = replace(PRESETS["duobert"], steps=40, batch=8, rate=1e-3, warmup=0, max_tokens=96, max_query_tokens=16)


def builder() -> InputBuilder:
    card = replace(read_card(START), kind="duo", segment_rows=3)
    return InputBuilder.load(START, card)


def test_a_duo_training_reads_pairs_of_unlike_labels_in_both_orders() -> None:
    example = Example("low", ("salt", "wing", "heat"), (1, 0, 0))
    made = DuoSequenceBuilder(builder()).build_sequences(example)
    assert DuoSequenceBuilder(builder()).count(example) == len(made) == 4
    pairs, sequences = build_ordered_pairs(builder(), "low", example.documents)
    by_pair = {pair: tuple(tokens.ids) for pair, tokens in zip(pairs, sequences, strict=True)}
    expected = {by_pair[0, 1]: 1, by_pair[0, 2]: 1, by_pair[1, 0]: 0, by_pair[2, 0]: 0}
    assert {tuple(sequence.tokens.ids): sequence.target for sequence in made} == expected
    assert all(set(sequence.tokens.segments) == {0, 1, 2} for sequence in made)
    assert DuoSequenceBuilder(builder()).build_sequences(Example("low", ("salt", "wing"), (0, 0))) == []


def test_teacher_scores_make_every_pair_with_its_difference() -> None:
    example = Example("low", ("salt", "wing", "heat"), (1, 0, 0), scores=(3.0, 1.0, 1.5))
    assembly = DuoSequenceBuilder(builder(), skips_equal_labels=False)
    sequences = assembly.build_sequences(example)
    assert assembly.count(example) == len(sequences) == 6
    assert sorted(sequence.score for sequence in sequences) == [-2.0, -1.5, -0.5, 0.5, 1.5, 2.0]
    labelled = DuoSequenceBuilder(builder()).build_sequences(example)
    assert {sequence.score for sequence in labelled} == {2.0, 1.5, -2.0, -1.5}


def test_the_development_measure_of_duo_sums_probabilities() -> None:
    trainee = load_trainee(START, RECIPE, kind="duo")
    example = Example("low pressure", ("salt", "the wing", "heat heat heat"), (0, 0, 1))
    scoring = NetworkScorer(torch.device("cpu"), 10_000)
    (sums,) = scoring.score_documents(trainee, [example])
    pairs, sequences = build_ordered_pairs(trainee.builder, example.query, example.documents)
    logits = scoring.score_sequences(trainee, sequences)
    expected = [
        sum(1 / (1 + np.exp(-z)) for (i, _), z in zip(pairs, logits, strict=True) if i == number) for number in range(3)
    ]
    np.testing.assert_allclose(sums, expected)
    rank = sorted(range(3), key=lambda number: -sums[number]).index(2) + 1
    assert DevelopmentSet([example], "RR@10").measure_network(trainee, scoring) == pytest.approx(1 / rank)


def test_a_duo_model_learns_and_is_exported(examples: Path, tmp_path: Path) -> None:
    assert train(request(examples, tmp_path / "made", RECIPE, source=START), "duo") == tmp_path / "made"
    rows = read_curve(tmp_path / "made" / "curve.csv")
    assert np.mean([float(row["loss"]) for row in rows[-8:]]) < np.mean([float(row["loss"]) for row in rows[:8]])
    card = json.loads((tmp_path / "made" / "osrerank.json").read_text())
    assert (card["kind"], card["segment_rows"]) == ("duo", 3)
    exported = export_model(tmp_path / "made", tmp_path / "exported")
    assert (exported.kind, exported.segment_rows) == ("duo", 3)
    assert (tmp_path / "exported" / "onnx" / "model.onnx").exists()


def test_a_duo_model_learns_from_a_duo_teacher(examples: Path, tmp_path: Path) -> None:
    recipe = replace(RECIPE, method="logits", head="", steps=20)
    distillation = request(examples, tmp_path / "made", recipe, source=TEACHER)
    assert distill(distillation, student=START) == tmp_path / "made"
    card = read_card(tmp_path / "made")
    assert (card.kind, card.segment_rows) == ("duo", 3)
    rows = read_curve(tmp_path / "made" / "curve.csv")
    assert all(float(row["soft"]) > 0 and float(row["hard"]) > 0 for row in rows)
