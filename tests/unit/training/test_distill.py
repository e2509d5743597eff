"""Distillation losses over hidden states and attention, and students made from a teacher's layers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from osrerank.errors import ConfigError
from osrerank.training.distill import DistillationObjective
from osrerank.training.examples.batches import MicroBatch, MonoSequenceBuilder, StepBuilder
from osrerank.training.examples.example import Example
from osrerank.training.losses import soft_cross_entropy
from osrerank.training.objective import move_to_device
from osrerank.training.probe import NetworkProbe
from osrerank.training.recipes import PRESETS, Recipe
from osrerank.training.weights.models import Trainee, load_trainee
from osrerank.training.weights.student import find_block_ends, find_target_layers, select_layers
from tests.bi_encoders import carded
from tests.servers import ROOT

DATA = ROOT / "tests" / "data"
CLASSIFIER = DATA / "tiny-bert-two-labels"
POINTWISE = replace(PRESETS["simplified-tinybert"], dropout=0.0)
LISTWISE = replace(PRESETS["tinybert-listwise"], dropout=0.0)
EXAMPLES = [Example("low pressure", ("salt is low", "the wing of the engine " * 4, "heat"), (1, 0, 0))] * 2


def micro_batch(trainee: Trainee, recipe: Recipe) -> MicroBatch:
    steps = StepBuilder(
        MonoSequenceBuilder(trainee.builder), 6, 10_000, trainee.pad_id, is_listwise=recipe.loss == "listwise"
    )
    (step,) = steps.build(iter(EXAMPLES))
    return step.micro_batches[0]


@pytest.mark.parametrize("recipe", [POINTWISE, LISTWISE], ids=lambda recipe: recipe.name)
def test_the_distillation_loss_of_a_model_with_itself_is_0(recipe: Recipe) -> None:
    student, teacher = load_trainee(CLASSIFIER, recipe), load_trainee(CLASSIFIER, recipe)
    with torch.no_grad():
        terms = DistillationObjective(student, teacher, recipe)(micro_batch(student, recipe))
    assert float(terms["attention"]) == 0
    assert float(terms["hidden"]) == pytest.approx(0, abs=1e-9)
    if recipe.loss == "listwise":
        assert float(terms["soft"]) == pytest.approx(0, abs=1e-6)
    else:
        inputs = move_to_device(torch.device("cpu"), micro_batch(student, recipe).inputs)
        logits = teacher.network(**inputs)
        assert float(terms["soft"]) == pytest.approx(float(soft_cross_entropy(logits, logits)))


def test_padding_and_other_sequences_do_not_change_the_distillation_loss() -> None:
    teacher = load_trainee(CLASSIFIER, POINTWISE)
    student = select_layers(teacher, find_block_ends(2, 1), "student")
    objective = DistillationObjective(student, teacher, POINTWISE)
    objective.requires_grad_(requires_grad=False)
    terms = objective(micro_batch(student, POINTWISE))
    steps = StepBuilder(MonoSequenceBuilder(student.builder), 6, 1, student.pad_id)  # a sequence at a time
    (step,) = steps.build(iter(EXAMPLES))
    assert len(step.micro_batches) == 6
    for name, value in terms.items():
        alone = sum(float(objective(micro)[name]) * micro.weight for micro in step.micro_batches)
        assert alone == pytest.approx(float(value), rel=1e-5)


def test_the_teacher_has_no_gradients_and_no_dropout() -> None:
    recipe = replace(POINTWISE, dropout=0.5)
    teacher = load_trainee(CLASSIFIER, recipe)
    student = select_layers(teacher, (1,), "student")
    objective = DistillationObjective(student, teacher, recipe).train()
    assert not objective.teacher.training
    names = {name for name, _ in objective.trainable_parameters()}
    assert {"projection.weight", "projection.bias"} <= names
    assert not any(parameter.requires_grad for parameter in objective.teacher.parameters())
    sum(objective(micro_batch(student, recipe)).values()).backward()
    assert all(parameter.grad is None for parameter in objective.teacher.parameters())


@pytest.mark.parametrize(
    ("teacher", "student", "expected"),
    [(24, 12, tuple(range(1, 24, 2))), (12, 3, (3, 7, 11)), (6, 2, (2, 5)), (6, 6, tuple(range(6)))],
)
def test_each_student_layer_learns_from_the_last_teacher_layer_of_its_block(
    teacher: int, student: int, expected: tuple[int, ...]
) -> None:
    assert find_block_ends(teacher, student) == expected


@pytest.mark.parametrize(("layers", "expected"), [((0, 1, 4, 5), (0, 3, 4, 5)), ((2,), (5,)), ((0, 2), (1, 5))])
def test_a_kept_layer_replaces_the_dropped_layers_after_it(layers, expected):
    assert find_target_layers(6, layers) == expected


def test_a_student_whose_layers_do_not_fit_the_teacher_is_refused() -> None:
    teacher = load_trainee(CLASSIFIER, LISTWISE)
    with pytest.raises(ConfigError, match="the student has 2 layers, but 1 teacher layers are listed"):
        DistillationObjective(load_trainee(CLASSIFIER, LISTWISE), teacher, LISTWISE, (1,))
    with pytest.raises(ConfigError, match="layers are numbered 1 to 6, but layers lists 2, 7"):
        find_target_layers(6, (1, 6))
    with pytest.raises(ConfigError, match="teacher's 6 layers cannot be divided evenly among the student's 4"):
        find_block_ends(6, 4)


@pytest.mark.parametrize("form", ["cross-encoder", "bi-encoder"])
def test_selected_layers_are_copied_from_the_teacher(form: str, tmp_path: Path) -> None:
    teacher = load_trainee(CLASSIFIER if form == "cross-encoder" else carded(tmp_path / "start"), LISTWISE)
    student = select_layers(teacher, (1,), "student")
    before, after = dict(teacher.network.named_parameters()), dict(student.network.named_parameters())
    for name, tensor in after.items():
        source_name = name.replace("layer.0.", "layer.1.").replace("layers.0.", "layers.1.")
        assert torch.equal(tensor, before[source_name])
        assert tensor.data_ptr() != before[source_name].data_ptr()


def test_a_bi_encoder_is_not_compared_layer_by_layer(tmp_path: Path) -> None:
    start = carded(tmp_path / "start")
    for teacher in (start, CLASSIFIER):
        with pytest.raises(ConfigError, match="BiEncoderNetwork is not built like BERT; set method=logits"):
            DistillationObjective(load_trainee(start, LISTWISE), load_trainee(teacher, LISTWISE), LISTWISE)


def test_recorded_hidden_states_equal_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    trainee = load_trainee(CLASSIFIER, POINTWISE)
    inputs = move_to_device(torch.device("cpu"), micro_batch(trainee, POINTWISE).inputs)
    probe = NetworkProbe(trainee.network.eval())
    with torch.no_grad():
        probe.run(inputs)
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(CLASSIFIER, attn_implementation="eager")
    with torch.no_grad():
        output = plain.eval()(**inputs, output_hidden_states=True, output_attentions=True)
    for recorded, expected in zip(probe.states, output.hidden_states, strict=True):
        torch.testing.assert_close(recorded, expected, rtol=1e-4, atol=1e-4)
    padding = (1 - inputs["attention_mask"])[:, None, None, :] * -1e9
    for recorded, expected in zip(probe.attention, output.attentions, strict=True):
        torch.testing.assert_close((recorded + padding).softmax(dim=3), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "terms"),
    [
        ({}, {"attention", "hidden", "soft", "hard"}),
        ({"attention": False}, {"hidden", "soft", "hard"}),
        ({"hidden": False, "hard": False}, {"attention", "soft"}),
    ],
)
def test_terms_of_the_distillation_loss_can_be_left_out(changes: dict[str, bool], terms: set[str]) -> None:
    recipe = replace(LISTWISE, **changes)
    teacher = load_trainee(CLASSIFIER, recipe)
    objective = DistillationObjective(select_layers(teacher, (1,), "student"), teacher, recipe)
    assert set(objective(micro_batch(teacher, recipe))) == terms
