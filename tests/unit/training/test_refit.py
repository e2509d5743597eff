from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from osrerank.errors import ConfigError  # noqa: E402 - with their twins
from osrerank.scoring.inputs import Batch, padded  # noqa: E402
from osrerank.training.examples.sources import open_source  # noqa: E402
from osrerank.training.fit import Request, distill  # noqa: E402
from osrerank.training.objective import on  # noqa: E402
from osrerank.training.probe import Probe, forward  # noqa: E402
from osrerank.training.recipes import PRESETS  # noqa: E402
from osrerank.training.refit import Sums, refit, spared_least  # noqa: E402
from osrerank.training.weights.models import Trainee, load_trainee, select_layers  # noqa: E402
from tests.servers import ROOT  # noqa: E402

DATA = ROOT / "tests" / "data"
CLASSIFIER, BI_ENCODER = DATA / "tiny-bert-two-labels", DATA / "tiny-bert-cross-bias"
RECIPE = replace(PRESETS["tinybert-listwise"], dropout=0.0)
WORDS = ["salt", "heat", "wing", "engine", "pressure", "low", "high", "flow", "of", "the", "is", "a"]


def batches(trainee: Trainee, sequences: int, seed: int) -> list[Batch]:
    """Return sequences of random words, eight a batch, of unequal lengths."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(sequences):
        query = trainee.builder.query(" ".join(rng.choice(WORDS, 3)))
        (document,) = trainee.builder.documents([" ".join(rng.choice(WORDS, rng.integers(2, 30)))], query)
        made.append(trainee.builder.mono(query, document))
    return [padded(made[start : start + 8]) for start in range(0, sequences, 8)]


def wider(batch: Batch) -> Batch:
    """Return a batch with seven more columns of padding."""
    rows = len(batch.input_ids)
    none, last = np.zeros((rows, 7), dtype=np.int64), np.repeat(batch.token_type_ids[:, -1:], 7, axis=1)
    parts = ((batch.input_ids, none), (batch.attention_mask, none), (batch.token_type_ids, last))
    return Batch(*(np.concatenate(pair, axis=1) for pair in parts))


def far(teacher: Trainee, student: Trainee, some: Sequence[Batch]) -> float:
    """Return the mean squared distance of the last states, the teacher's pooled as the student's are."""
    probes = [Probe(model.network) for model in (teacher, student)]
    distances = []
    for batch in some:
        inputs = on(torch.device("cpu"), batch)
        for model, probe in zip((teacher, student), probes, strict=True):
            forward(model.network, probe, inputs, learn=False)
        pooled = probes[1].pooled
        known = probes[0].states[-1] if pooled.shares is None else pooled.shares @ probes[0].states[-1]
        distances.append((known - probes[1].states[-1])[pooled.attention_mask == 1].square())
    return float(torch.cat(distances).mean())


def test_a_whole_copy_of_the_teacher_is_left_as_it_is() -> None:
    teacher = load_trainee(BI_ENCODER, RECIPE)
    student = select_layers(teacher, (0, 1), "student")
    left = refit(teacher, student, (0, 1), (0, 1), batches(teacher, 64, 1))
    assert left == pytest.approx([0, 0], abs=1e-6)
    assert far(teacher, student, batches(teacher, 32, 2)) < 1e-4


@pytest.mark.parametrize(
    ("kept", "watched", "inner", "factor"),
    [((0, 1), (0, 1), 8, 1), ((0,), (1,), 0, 1), ((1,), (1,), 16, 1), ((0, 1), (0, 1), 0, 2.5), ((0,), (1,), 16, 2.5)],
)
def test_a_refitted_student_is_nearer_on_sequences_it_was_not_fitted_to(
    kept: tuple[int, ...], watched: tuple[int, ...], inner: int, factor: float
) -> None:
    teacher = load_trainee(BI_ENCODER, RECIPE)
    plain, student = (select_layers(teacher, kept, "student", inner=inner, pool_factor=factor) for _ in range(2))
    left = refit(teacher, student, kept, watched, batches(teacher, 400, 1))
    assert len(left) == len(kept)
    assert 0 < left[-1] < 1
    others = batches(teacher, 64, 2)
    assert far(teacher, student, others) < far(teacher, plain, others)


def test_a_teacher_that_pools_has_students_that_pool_alike() -> None:
    whole = load_trainee(BI_ENCODER, RECIPE)
    teacher = select_layers(whole, (0, 1), "teacher", pool_factor=2.5)
    student = select_layers(teacher, (0, 1), "student")
    assert student.card.biases["pool_factor"] == 2.5
    assert refit(teacher, student, (0, 1), (0, 1), batches(teacher, 64, 1)) == pytest.approx([0, 0], abs=1e-6)


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_padding_counts_for_nothing(factor: float) -> None:
    teacher = load_trainee(BI_ENCODER, RECIPE)
    some = batches(teacher, 64, 1)
    wide = [wider(batch) for batch in some]
    one, other = (select_layers(teacher, (0,), "student", inner=8, pool_factor=factor) for _ in range(2))
    assert refit(teacher, one, (0,), (1,), some) == pytest.approx(refit(teacher, other, (0,), (1,), wide), rel=1e-4)
    for name, tensor in one.network.state_dict().items():
        assert torch.allclose(tensor, other.network.state_dict()[name], atol=1e-3), name


def test_the_weighted_fit_is_numpys() -> None:
    rng = np.random.default_rng(1)
    inputs, wanted, weights = rng.normal(size=(50, 4)), rng.normal(size=(50, 3)), rng.uniform(size=50)
    sums = Sums.empty(4, 3)
    for part in (slice(0, 20), slice(20, 50)):
        sums.add(*(torch.from_numpy(array[part]).float() for array in (inputs, wanted, weights)))
    root = np.sqrt(weights)[:, None]
    rows = np.concatenate([inputs, np.ones((50, 1))], axis=1)
    expected, *_ = np.linalg.lstsq(rows * root, wanted * root, rcond=None)
    np.testing.assert_allclose(sums.solved().numpy(), expected, atol=1e-5)
    few = torch.tensor([1, 3, 4])
    expected, *_ = np.linalg.lstsq(rows[:, few.numpy()] * root, wanted * root, rcond=None)
    np.testing.assert_allclose(sums.solved(few).numpy(), expected, atol=1e-5)
    near = sums.drawn_to(torch.full((5, 3), 2.0), 1e9).solved()
    np.testing.assert_allclose(near.numpy(), 2.0, atol=1e-6)


def test_what_goes_is_what_the_others_can_say() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(400, 6, generator=generator)
    inputs[:, 4] = inputs[:, 0] + inputs[:, 2] + 0.01 * inputs[:, 4]  # the strongest of all, and the others say it
    inputs[:, 1] *= 0.01
    wanted = inputs @ torch.tensor([[2.0], [1.0], [1.0], [1.0], [3.0], [0.5]])
    sums = Sums.empty(6, 1)
    sums.add(inputs, wanted, torch.ones(400))
    near = sums.drawn_to(torch.zeros(7, 1), 1e-6)
    losses = {out: lost(near, [place for place in range(6) if place != out]) for out in range(6)}
    assert sorted(set(range(6)) - {min(losses, key=losses.__getitem__)}) == spared_least(near, 5).tolist()
    four = spared_least(near, 4).tolist()
    assert {3, 5} < set(four)
    assert len({0, 2, 4} & set(four)) == 2
    assert spared_least(near, 6).tolist() == list(range(6))


def lost(sums: Sums, kept: list[int]) -> float:
    """Return what a fit with some of the inputs leaves unexplained, but for what is the same for all fits."""
    rows = torch.tensor([*kept, len(sums.gram) - 1])
    return -float((sums.solved(rows) * sums.products[rows]).sum())


def test_the_layout_must_be_cross_bias() -> None:
    teacher = load_trainee(CLASSIFIER, RECIPE)
    with pytest.raises(ConfigError, match="refit is for models of the layout cross-bias"):
        refit(teacher, select_layers(teacher, (0,), "student"), (0,), (1,), batches(teacher, 8, 1))


def test_a_distillation_begins_with_the_refit(tmp_path: Path) -> None:
    data = tmp_path / "examples.jsonl"
    lines = ['{"query": "low salt", "documents": ["salt is low", "heat of the wing"], "relevance": [1, 0]}\n'] * 12
    data.write_text("".join(lines), encoding="utf-8")
    said: list[str] = []
    recipe = replace(RECIPE, steps=2, batch=4, depth=2, negatives=1)
    sources = [open_source({"examples": str(data)})]
    request = Request(BI_ENCODER, tmp_path / "small", recipe, sources, say=said.append)
    assert distill(request, layers=1, inner=8, refitted=10) == tmp_path / "small"
    (line,) = (line for line in said if line.startswith("refitted"))
    assert 0 <= float(line.rsplit(" ", 1)[1]) < 1
    request = replace(request, output=tmp_path / "other")
    for asked in ({"refitted": 10}, {"pool_factor": 2.0}, {"query_pool_factor": 2.0}, {"inner": 8}):
        with pytest.raises(ConfigError, match="made of its teacher's layers"):
            distill(request, student=BI_ENCODER, **asked)
