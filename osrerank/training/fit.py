"""Train a model from beginning to end: check the data, run the loop, mine harder negatives, keep the best weights."""

import hashlib
import itertools
import json
import logging
import math
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from osrerank.errors import ConfigError, EvaluationError
from osrerank.export.export_model import refuse_existing
from osrerank.options.passages import Passages
from osrerank.scoring.card import Kind
from osrerank.scoring.card_file import parameter_files, read_card
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.locate import name_of
from osrerank.scoring.model_files import CARD_FILE, CONFIG_FILE, digest, tokenizer_file
from osrerank.training.development import MEASUREMENTS, Development, NetworkScorer, Schedule, cost, schedule
from osrerank.training.distill import DistillationObjective
from osrerank.training.examples.batches import Assembly, MonoAssembly, Steps
from osrerank.training.examples.duo import DuoAssembly
from osrerank.training.examples.sampling import drawn, passes
from osrerank.training.examples.sources import ExampleSource
from osrerank.training.loop import Machine, Training, TrainingPlan
from osrerank.training.mining import MINED_FILE, Mined, mine
from osrerank.training.objective import Objective, RankingObjective
from osrerank.training.recipes import Recipe
from osrerank.training.weights.model_directory import write_model
from osrerank.training.weights.models import Trainee, check_loss, load_trainee
from osrerank.training.weights.student import layer_map, select_layers, stand_ins

logger = logging.getLogger(__name__)
DATA_FILE = "data.json"


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """What to train, from which checkpoint, and on which data.

    Attributes:
        source: the checkpoint that the training starts from; in a distillation, the teacher.
        output: the model directory to make.
        recipe: the hyperparameters.
        data: the examples.
        development: the development set, by which the best weights are chosen; None to keep the last weights.
        depth: how many candidates of each development query are reordered.
        passages: how the development set's documents are cut into passages and scored; None to score them whole.
        max_minutes: the minutes after which the training stops, to be resumed by the same request; None for no limit.
        report: called with each line of progress.
        clock: returns the time in seconds, by which ``max_minutes`` is measured.
    """

    source: Path
    output: Path
    recipe: Recipe
    data: Sequence[ExampleSource]
    development: ExampleSource | None = None
    depth: int = 100
    passages: Passages | None = None
    max_minutes: float | None = None
    report: Callable[[str], None] = logger.info
    clock: Callable[[], float] = time.monotonic

    @property
    def folder(self) -> Path:
        """The folder of the checkpoints until the training is done."""
        return self.output.with_name(f"{self.output.name}.training")


@dataclass(frozen=True, slots=True)
class Amount:
    """How much training data there is.

    Attributes:
        examples: the number of examples in each source.
        sequences: the number of sequences in a pass over all sources.
        cost: the estimated cost of a pass (`osrerank.training.development.cost`).
    """

    examples: tuple[int, ...]
    sequences: int
    cost: float


def train(request: TrainingRequest, kind: Kind | None = None) -> Path | None:
    """Train a model and return its directory; return None if time ran out, and the same call then resumes.

    Args:
        request: the training.
        kind: the kind of the model; None for the recipe's kind or, if it sets no kind, that of the starting checkpoint.

    Raises:
        ConfigError: the output exists, or recipe, data and start do not fit together.
        FormatError: the data is malformed; the message names file and line.
        EvaluationError: the data has nothing to learn from, or the loss is not a number.
        ModelLoadError: the start cannot be read.
    """
    refuse_existing(request.output)
    machine = Machine(request.recipe.precision)
    request = replace(request, report=machine.on_main_process(request.report))
    trainee = load_trainee(request.source, request.recipe, kind=kind, name=request.output.name)
    objective = RankingObjective(trainee.network, trainee.card.head, request.recipe)
    steps = _steps(request.recipe, trainee, machine)
    return _fit(request, trainee, objective, machine, steps, _fingerprint(request))


def distill(
    request: TrainingRequest,
    *,
    layers: int | Sequence[int] = 0,
    student: Path | None = None,
) -> Path | None:
    """Train a student of the teacher ``request.source``, of the same kind; return as `train` does.

    Args:
        request: the training.
        layers: either the number M of the student's layers, each of which starts as the last layer of a block of N / M
            of the teacher's; or the teacher's layers to keep, counted from 1, each of which learns to do the work of
            the dropped layers after it, too.
        student: a checkpoint that the student starts from instead; if layers are listed, it learns their states.

    Raises:
        ConfigError: as `train`, or the student has another number of layers than listed, or the recipe sets ``soft``.
    """
    refuse_existing(request.output)
    if request.recipe.soft:
        reason = "soft=true is for train: a distillation gets its soft labels from its teacher"
        raise ConfigError(reason, setting="recipe.soft")
    layers = layers if isinstance(layers, int) else tuple(layers)
    machine = Machine(request.recipe.precision)
    request = replace(request, report=machine.on_main_process(request.report))
    kind = read_card(request.source).kind
    teacher = load_trainee(request.source, _as_it_is(request.recipe), kind=kind, name=request.source.name)
    count = int(teacher.config["num_hidden_layers"])
    made_of = {"layers": layers, "student": _weights(student) if student else ""}
    fingerprint = _fingerprint(request, json.dumps(made_of))
    watched = None if isinstance(layers, int) else stand_ins(count, [layer - 1 for layer in layers])
    kept_layers: tuple[int, ...] = ()
    if student is not None:
        wanted_kind = kind if kind == "duo" else None
        trainee = load_trainee(student, request.recipe, kind=wanted_kind, name=request.output.name)
    else:
        kept_layers = layer_map(count, layers) if isinstance(layers, int) else tuple(layer - 1 for layer in layers)
        trainee = select_layers(teacher, kept_layers, request.output.name)
    steps = _steps(request.recipe, trainee, machine, teacher)
    torch.manual_seed(request.recipe.seed)
    objective = DistillationObjective(trainee, teacher, request.recipe, watched)
    objective.teacher.to(machine.device)
    return _fit(request, trainee, objective, machine, steps, fingerprint)


def count(sources: Sequence[ExampleSource], recipe: Recipe, assembly: Assembly, kind: Kind) -> Amount:
    """Read all data once and count it; malformed lines then show before the training begins.

    Raises:
        FormatError: a line is malformed.
        EvaluationError: the data has nothing to learn from.
    """
    examples: list[int] = []
    sequences, total_cost = 0, 0.0
    rng = random.Random(recipe.seed)  # noqa: S311 - only counts
    for source in sources:
        number = 0
        for number, example in enumerate(source.read(), start=1):  # noqa: B007 - the last number is the count
            if recipe.soft and example.documents and not example.scores:
                raise EvaluationError(
                    f"{example.location}: soft=true learns from scores, but the example has no scores"
                )
            for chosen in drawn(example, recipe, rng):
                sequence_count = assembly.count(chosen)
                sequences += sequence_count
                total_cost += cost(chosen.query, chosen.documents, sequence_count, kind, assembly.builder.max_tokens)
        examples.append(number)
    if not sequences:
        names = "; ".join(source.name for source in sources)
        need = "relevant documents and others" if recipe.draw in {"balanced", "list"} else "documents"
        raise EvaluationError(f"there is nothing to learn from in {names}: no example has {need}")
    return Amount(tuple(examples), sequences, total_cost)


def _as_it_is(recipe: Recipe) -> Recipe:
    """Return the recipe with which a teacher is loaded: it keeps its own head and kind, and trains nothing."""
    return replace(recipe, head="", kind="", freeze="", loss="listwise")


def _steps(recipe: Recipe, trainee: Trainee, machine: Machine, teacher: Trainee | None = None) -> Steps:
    """Return the maker of steps for a model, and for its teacher if the teacher reads texts differently."""

    def assembly(builder: InputBuilder) -> Assembly:
        if trainee.card.kind != "duo":
            return MonoAssembly(builder)
        return DuoAssembly(builder, unlike=recipe.hard or not recipe.soft)

    reads_alike = teacher is None or _reading(teacher) == _reading(trainee)
    return Steps(
        assembly(trainee.builder),
        recipe.batch,
        recipe.budget_tokens or machine.budget_tokens,
        trainee.pad_id,
        lists=recipe.loss == "listwise",
        teacher=None if teacher is None or reads_alike else assembly(teacher.builder),
        teacher_pad_id=0 if teacher is None else teacher.pad_id,
    )


def _reading(trainee: Trainee) -> tuple[Any, ...]:
    """Return the values that determine which sequences a model reads; models with equal ones read alike."""
    card = trainee.card
    tokenizer = hashlib.sha256(tokenizer_file(trainee.source).read_bytes()).hexdigest()
    return tokenizer, card.kind, card.max_tokens, card.max_query_tokens, card.length_rule, trainee.pad_id


def _fit(
    request: TrainingRequest, trainee: Trainee, objective: Objective, machine: Machine, steps: Steps, fingerprint: str
) -> Path | None:
    """Run the loop, before and after mining if the recipe mines, and write the model."""
    recipe = request.recipe
    check_loss(trainee.card, recipe)
    amount = _counted(request, steps.assembly, trainee.card.kind, fingerprint, machine)
    total = recipe.steps or math.ceil(recipe.epochs * amount.sequences / recipe.batch)
    request.report(f"{sum(amount.examples)} examples, {amount.sequences} sequences a pass, {total} steps")
    measuring = _schedule(request, trainee, total * recipe.batch * amount.cost / amount.sequences)
    measurements, limit = measuring.measurements, request.max_minutes
    plan = TrainingPlan(
        recipe, total, request.folder, fingerprint, measurements, limit, report=request.report, clock=request.clock
    )
    training = Training(objective, plan, machine)
    scoring = NetworkScorer(machine.device, 4 * steps.budget_tokens, machine.autocast)
    measure = _measure(request, measuring, trainee, scoring, training, machine)
    mine_at = round(total * recipe.mine_at) if recipe.draw == "list" else 0
    sources, counts = [source.read for source in request.data], amount.examples
    if mine_at:
        stream = passes(sources, counts, recipe)
        if training.state.step < mine_at and not training.run(
            steps.make(stream, training.state.step), mine_at, measure
        ):
            return None
        example_count = math.ceil((total - mine_at) * recipe.batch / (1 + recipe.negatives))
        whole_examples = passes(sources, counts, replace(recipe, draw="all"))
        examples = itertools.islice(whole_examples, min(example_count, sum(counts)))
        mined = mine(request.folder, examples, trainee, scoring, recipe, training.is_late) if machine.is_first else None
        mined_count = int(machine.agreed(-1 if mined is None else mined.count))
        if mined_count < 0:
            return None
        mined = mined or Mined(request.folder / MINED_FILE, mined_count)
        sources, counts = [mined.read], (mined.count,)
        request.report(f"ordered the documents of {mined.count} examples by the model")
    stream = passes(sources, counts, recipe)
    if not training.run(steps.make(stream, training.state.step - mine_at), total, measure):
        return None
    if machine.is_first:
        _finish(request, trainee, training, amount, measuring)
    machine.wait()
    return request.output


def _schedule(request: TrainingRequest, trainee: Trainee, training: float) -> Schedule:
    """Return how a training of this cost is measured, and report it; the recipe's ``evaluate_every`` comes first."""
    if request.development is None:
        return Schedule(None, MEASUREMENTS, before=False, says="")
    examples = tuple(request.development.read())
    development = Development(examples, request.recipe.measure, request.depth, request.passages)
    development.check(trainee.card.kind)
    if request.recipe.evaluate_every:
        return Schedule(development, MEASUREMENTS, before=True, says="")
    measuring = schedule(development, training, trainee.card.kind, trainee.card.max_tokens)
    request.report(measuring.says)
    return measuring


def _measure(
    request: TrainingRequest,
    measuring: Schedule,
    trainee: Trainee,
    scoring: NetworkScorer,
    training: Training,
    machine: Machine,
) -> Callable[[], float] | None:
    """Return a function that measures on the development set; None without one. Report the measure before training."""
    development = measuring.development
    if development is None:
        return None
    if not training.state.step and machine.is_first:
        name, first_pass = request.recipe.measure, f"{development.first_pass():.4f}"
        before = f"before: {name} {development.value(trainee, scoring):.4f}; " if measuring.before else ""
        request.report(f"{before}the candidates' own order: {'' if before else f'{name} '}{first_pass}")
    return lambda: development.value(trainee, scoring)


def _counted(request: TrainingRequest, assembly: Assembly, kind: Kind, fingerprint: str, machine: Machine) -> Amount:
    """Count the data in the first process, or read the counts that it or an earlier call wrote."""
    file = request.folder / DATA_FILE
    with machine.first_before_others():
        if file.exists():
            content = json.loads(file.read_text(encoding="utf-8"))
            if content.pop("fingerprint") == fingerprint and "cost" in content:
                return Amount(tuple(content["examples"]), content["sequences"], content["cost"])
        amount = count(request.data, request.recipe, assembly, kind)
        request.folder.mkdir(parents=True, exist_ok=True)
        counts = {"fingerprint": fingerprint, **asdict(amount)}
        file.write_text(f"{json.dumps(counts)}\n", encoding="utf-8")
    return amount


def _fingerprint(request: TrainingRequest, student: str = "") -> str:
    """Return a hash of recipe, data and start, which determine the outcome; the device does not count.

    Args:
        request: the training.
        student: the layers and start of a distillation's student, as JSON; empty for `train`.
    """
    recipe = {name: value for name, value in request.recipe.as_json().items() if name != "budget_tokens"}
    data = [(source.name, source.sizes) for source in request.data]
    content = [recipe, _weights(request.source), data, student]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _weights(source: Path) -> str:
    """Return a hash of a checkpoint's weights, card and config."""
    files = [name for name in (CARD_FILE, CONFIG_FILE) if (source / name).exists()]
    return digest(source, [*files, *parameter_files(source)])


def _finish(
    request: TrainingRequest, trainee: Trainee, training: Training, amount: Amount, measuring: Schedule
) -> None:
    """Write the model with its card, and remove the checkpoints."""
    training.restore_best()
    state = training.state
    written = {
        "base_model": name_of(request.source),
        "our_training": request.recipe.as_json(),
        "steps": training.plan.total,
        "data": [
            {"source": source.name, "examples": examples}
            for source, examples in zip(request.data, amount.examples, strict=True)
        ],
        "seed": request.recipe.seed,
    }
    if trainee.source != request.source:
        written["student_from"] = name_of(trainee.source)
    if state.best is not None and request.development is not None and measuring.development is not None:
        measurements = training.plan.measurements
        best = f"the best of {measurements} measurements on this set, so it is optimistic"
        written["measures"] = {
            request.recipe.measure: round(state.best, 4),
            "on": request.development.name,
            "queries": len(measuring.development.examples),
            "at_step": state.best_step,
            "chosen": best if measurements > 1 else "the last weights",
        }
    write_model(request.output, trainee, request.folder, written)
    shutil.rmtree(request.folder)
