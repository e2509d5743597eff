from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from osrerank.errors import ConfigError  # noqa: E402 - with their twins
from osrerank.training.distill import DistillationObjective  # noqa: E402
from osrerank.training.examples.batches import Lot, MonoAssembly, Steps  # noqa: E402
from osrerank.training.examples.lists import Example  # noqa: E402
from osrerank.training.losses import soft_cross_entropy  # noqa: E402
from osrerank.training.objective import to_device  # noqa: E402
from osrerank.training.probe import Probe, forward  # noqa: E402
from osrerank.training.recipes import PRESETS, Recipe  # noqa: E402
from osrerank.training.weights.models import Trainee, load_trainee  # noqa: E402
from osrerank.training.weights.student import layer_map, select_layers, stand_ins  # noqa: E402
from tests.servers import ROOT  # noqa: E402

DATA = ROOT / "tests" / "data"
CLASSIFIER, BI_ENCODER = DATA / "tiny-bert-two-labels", DATA / "tiny-bert-bi-encoder"
POINTWISE = replace(PRESETS["simplified-tinybert"], dropout=0.0)
LISTWISE = replace(PRESETS["tinybert-listwise"], dropout=0.0)
EXAMPLES = [Example("low pressure", ("salt is low", "the wing of the engine " * 4, "heat"), (1, 0, 0))] * 2


def lot(trainee: Trainee, recipe: Recipe, budget_tokens: int = 10_000) -> Lot:
    steps = Steps(MonoAssembly(trainee.builder), 6, budget_tokens, trainee.pad_id, lists=recipe.loss == "listwise")
    (step,) = steps.made(iter(EXAMPLES))
    return step.lots[0]


@pytest.mark.parametrize(("start", "recipe"), [(CLASSIFIER, POINTWISE), (BI_ENCODER, LISTWISE)])
def test_a_model_is_no_distance_from_itself(start: Path, recipe: Recipe) -> None:
    student, teacher = load_trainee(start, recipe), load_trainee(start, recipe)
    with torch.no_grad():
        found = DistillationObjective(student, teacher, recipe)(lot(student, recipe))
    assert float(found["attention"]) == 0
    assert float(found["hidden"]) == pytest.approx(0, abs=1e-9)
    if recipe.loss == "listwise":
        assert float(found["soft"]) == pytest.approx(0, abs=1e-6)
    else:
        inputs = to_device(torch.device("cpu"), lot(student, recipe).inputs)
        logits = teacher.network(**inputs)
        assert float(found["soft"]) == pytest.approx(float(soft_cross_entropy(logits, logits)))


@pytest.mark.parametrize("start", [CLASSIFIER, BI_ENCODER])
def test_a_probe_keeps_one_pass_and_none_of_a_measurement(start: Path) -> None:
    trainee = load_trainee(start, LISTWISE)
    probe = Probe(trainee.network)
    inputs = to_device(torch.device("cpu"), lot(trainee, LISTWISE).inputs)
    for _ in range(2):
        forward(trainee.network, probe, inputs, learn=False)
        assert (len(probe.states), len(probe.attention)) == (3, 2)
        trainee.network(**inputs)
        assert (len(probe.states), len(probe.attention)) == (3, 2)
    with pytest.raises(TypeError):
        forward(trainee.network, probe, {"nothing": inputs["input_ids"]}, learn=False)
    trainee.network(**inputs)
    assert not probe.states
    assert not probe.attention


def test_padding_and_neighbours_count_for_nothing() -> None:
    teacher = load_trainee(CLASSIFIER, POINTWISE)
    student = select_layers(teacher, layer_map(2, 1), "student")
    objective = DistillationObjective(student, teacher, POINTWISE)
    objective.requires_grad_(requires_grad=False)
    whole = objective(lot(student, POINTWISE))
    steps = Steps(MonoAssembly(student.builder), 6, 1, student.pad_id)  # a sequence at a time
    (step,) = steps.made(iter(EXAMPLES))
    assert len(step.lots) == 6
    for part, value in whole.items():
        alone = sum(float(objective(one)[part]) * one.share for one in step.lots)
        assert alone == pytest.approx(float(value), rel=1e-5)


def test_the_teacher_learns_nothing_and_drops_nothing() -> None:
    recipe = replace(POINTWISE, dropout=0.5)
    teacher = load_trainee(CLASSIFIER, recipe)
    student = select_layers(teacher, (1,), "student")
    objective = DistillationObjective(student, teacher, recipe).train()
    assert not objective.teacher.training
    names = {name for name, _ in objective.trained()}
    assert {"projection.weight", "projection.bias"} <= names
    assert not any(parameter.requires_grad for parameter in objective.teacher.parameters())
    sum(objective(lot(student, recipe)).values()).backward()
    assert all(parameter.grad is None for parameter in objective.teacher.parameters())


@pytest.mark.parametrize(
    ("teacher", "student", "expected"),
    [(24, 12, tuple(range(1, 24, 2))), (12, 3, (3, 7, 11)), (6, 2, (2, 5)), (6, 6, tuple(range(6)))],
)
def test_each_layer_learns_from_the_last_of_its_block(teacher: int, student: int, expected: tuple[int, ...]) -> None:
    assert layer_map(teacher, student) == expected


@pytest.mark.parametrize(("kept", "expected"), [((0, 1, 4, 5), (0, 3, 4, 5)), ((2,), (5,)), ((0, 2), (1, 5))])
def test_a_layer_that_is_kept_stands_in_for_those_dropped_behind_it(
    kept: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert stand_ins(6, kept) == expected


def test_layers_are_as_many_as_the_students() -> None:
    teacher = load_trainee(BI_ENCODER, LISTWISE)
    with pytest.raises(ConfigError, match="the student has 2 layers; 1 of the teacher's were named"):
        DistillationObjective(load_trainee(BI_ENCODER, LISTWISE), teacher, LISTWISE, (1,))
    with pytest.raises(ConfigError, match="layers are numbered 1 to 6; asked for 2, 7"):
        stand_ins(6, (1, 6))


def test_a_student_that_pools_learns_its_teachers_pooled_states() -> None:
    recipe = replace(LISTWISE, attention=False)
    teacher = load_trainee(BI_ENCODER, recipe)
    student = select_layers(teacher, (0, 1), "student", pool_factor=2.0)
    whole = lot(teacher, recipe)
    inputs = to_device(torch.device("cpu"), whole.inputs)
    probes = [Probe(model.network) for model in (teacher, student)]
    for model, probe in zip((teacher, student), probes, strict=True):
        forward(model.network, probe, inputs, learn=False)
    rows = probes[1].pooled.attention_mask == 1
    assert int(rows.sum()) < int(inputs["attention_mask"].sum())
    expected = 0.0
    for wanted, found in zip(*(probe.states for probe in probes), strict=True):
        far = (probes[1].pooled.shares @ wanted - found).square().mean(dim=2) * rows
        expected += float((far.sum(dim=1) / rows.sum(dim=1)).mean())
    assert expected > 1e-3
    none_pooled = select_layers(teacher, (0, 1), "student", pool_factor=1.0001)
    for learning, distance in ((student, expected), (none_pooled, 0.0)):
        objective = DistillationObjective(learning, teacher, recipe).requires_grad_(requires_grad=False)
        assert float(objective(whole)["hidden"]) == pytest.approx(distance, rel=1e-5, abs=1e-9)


def test_pooling_that_cannot_be_is_refused() -> None:
    teacher = load_trainee(BI_ENCODER, LISTWISE)
    student = select_layers(teacher, (0, 1), "student", pool_factor=2.0)
    with pytest.raises(ConfigError, match="set attention=false"):
        DistillationObjective(student, teacher, LISTWISE)
    bare = replace(LISTWISE, attention=False)
    for factor in (3.0, 1.0):
        other = select_layers(student, (0, 1), "other", pool_factor=factor)
        with pytest.raises(ConfigError, match=f"the teacher's pool factor is 2, the student's {factor:g}; they must"):
            DistillationObjective(other, student, bare)
    alike = select_layers(student, (0, 1), "alike")
    with pytest.raises(ConfigError, match="set freeze=embeddings"):
        DistillationObjective(alike, student, bare)
    frozen = DistillationObjective(alike, student, replace(LISTWISE, freeze="embeddings"))
    parts = frozen.requires_grad_(requires_grad=False)(lot(teacher, LISTWISE))
    assert float(parts["hidden"]) == pytest.approx(0, abs=1e-9)
    assert float(parts["attention"]) == pytest.approx(0, abs=1e-6)
    with pytest.raises(ConfigError, match=r"pool_factor is 0\.5; it must be 1 or above"):
        select_layers(teacher, (0, 1), "student", pool_factor=0.5)
    with pytest.raises(ConfigError, match="only models of the layout cross-bias can pool texts"):
        select_layers(load_trainee(CLASSIFIER, POINTWISE), (0, 1), "student", pool_factor=2.0)


def test_layers_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 layers do not divide the teacher's 6"):
        layer_map(6, 4)


@pytest.mark.parametrize("start", [CLASSIFIER, BI_ENCODER])
def test_selected_layers_are_the_teachers(start: Path) -> None:
    teacher = load_trainee(start, LISTWISE)
    student = select_layers(teacher, (1,), "student")
    before, after = dict(teacher.network.named_parameters()), dict(student.network.named_parameters())
    for name, tensor in after.items():
        same = name.replace("layer.0.", "layer.1.").replace("layers.0.", "layers.1.")
        assert torch.equal(tensor, before[same])
        assert tensor.data_ptr() != before[same].data_ptr()


def test_layouts_are_not_compared_layer_by_layer() -> None:
    with pytest.raises(ConfigError, match="method=logits"):
        DistillationObjective(load_trainee(BI_ENCODER, LISTWISE), load_trainee(CLASSIFIER, LISTWISE), LISTWISE)


def test_the_probe_sees_what_transformers_computes() -> None:
    transformers = pytest.importorskip("transformers")
    trainee = load_trainee(CLASSIFIER, POINTWISE)
    inputs = to_device(torch.device("cpu"), lot(trainee, POINTWISE).inputs)
    probe = Probe(trainee.network)
    forward(trainee.network.eval(), probe, inputs, learn=False)
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(CLASSIFIER, attn_implementation="eager")
    with torch.no_grad():
        made = plain.eval()(**inputs, output_hidden_states=True, output_attentions=True)
    for found, expected in zip(probe.states, made.hidden_states, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    padding = (1 - inputs["attention_mask"])[:, None, None, :] * -1e9
    for found, expected in zip(probe.attention, made.attentions, strict=True):
        torch.testing.assert_close((found + padding).softmax(dim=3), expected, rtol=1e-3, atol=1e-4)


def test_the_probe_sees_the_biases_of_the_other_layout() -> None:
    trainee = load_trainee(BI_ENCODER, LISTWISE)
    batch = lot(trainee, LISTWISE).inputs
    probe = Probe(trainee.network)
    forward(trainee.network, probe, to_device(torch.device("cpu"), batch), learn=False)
    in_document = batch.token_type_ids[0] == 1
    logits = np.asarray(probe.attention[0][0, 0])
    assert (logits[np.ix_(in_document, ~in_document)] < -9000).all()
    assert (logits[np.ix_(~in_document, ~in_document)] > -9000).all()
    assert len(probe.states) == 3


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, {"attention", "hidden", "soft", "hard"}),
        ({"attention": False}, {"hidden", "soft", "hard"}),
        ({"hidden": False, "hard": False}, {"attention", "soft"}),
    ],
)
def test_terms_can_be_left_out(changes: dict[str, bool], parts: set[str]) -> None:
    recipe = replace(LISTWISE, **changes)
    teacher = load_trainee(BI_ENCODER, recipe)
    objective = DistillationObjective(select_layers(teacher, (1,), "student"), teacher, recipe)
    assert set(objective(lot(teacher, recipe))) == parts
