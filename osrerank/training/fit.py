"""Train or distil a model: count the data, run the loop, mine hard negatives, and write the best weights.

The commands ``osrerank train`` and ``osrerank distill`` call `train` and `distill`.
"""

import hashlib
import itertools
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from osrerank.errors import ConfigError
from osrerank.export.export_model import refuse_existing
from osrerank.formats.files import hash_file
from osrerank.options.passages import Passages
from osrerank.scoring.card import Kind
from osrerank.scoring.card_file import list_parameter_files, read_card
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.locate import model_name
from osrerank.scoring.model_files import CARD_FILE, CONFIG_FILE, hash_files, tokenizer_file
from osrerank.training.data_counts import DataCounts, count_data
from osrerank.training.development import MAX_MEASUREMENTS, DevelopmentSet, NetworkScorer, Schedule, plan_schedule
from osrerank.training.distill import DistillationObjective
from osrerank.training.examples.batches import MonoSequenceBuilder, SequenceBuilder, StepBuilder
from osrerank.training.examples.duo import DuoSequenceBuilder
from osrerank.training.examples.sampling import repeat_passes
from osrerank.training.examples.sources import ExampleSource
from osrerank.training.loop import Machine, Training, TrainingPlan
from osrerank.training.mining import MINED_FILE, MinedExamples, mine
from osrerank.training.objective import Objective, RankingObjective
from osrerank.training.recipes import Recipe
from osrerank.training.weights.model_directory import write_model
from osrerank.training.weights.models import Trainee, check_loss, load_trainee
from osrerank.training.weights.student import find_block_ends, find_target_layers, select_layers

logger = logging.getLogger(__name__)
COUNTS_FILE = "data.json"
"""The file in the training's folder that stores `DataCounts`, so that a resumed training need not count again."""


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """What to train: the starting checkpoint, recipe, data and output.

    Attributes:
        source: the checkpoint that training starts from or, in a distillation, the teacher.
        output: the model directory to create.
        recipe: the hyperparameters.
        data: the examples.
        development: the development set, which chooses the best weights. Without one, the last weights are kept.
        depth: how many candidates of each development query are reordered.
        passages: how the development set's documents are split into passages. If None, whole documents are scored.
        max_minutes: the minutes after which training stops. The same request resumes it. If None, there is no limit.
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
        """The folder of the checkpoints, which is removed at the end of the training."""
        return self.output.with_name(f"{self.output.name}.training")


def train(request: TrainingRequest, kind: Kind | None = None) -> Path | None:
    """Train a model and return its directory, or None if time ran out. The same call then resumes the training.

    Args:
        request: the training.
        kind: the kind of the model. If None, it is the recipe's kind or, if the recipe sets none, the checkpoint's.

    Raises:
        ConfigError: the output exists, or the recipe does not fit the data or the checkpoint.
        FormatError: the data is malformed. The message names file and line.
        EvaluationError: the data has nothing to learn from, or the loss is not finite.
        ModelLoadError: the checkpoint cannot be read.
    """
    refuse_existing(request.output)
    machine = Machine(request.recipe.precision)
    request = replace(request, report=machine.on_main_process(request.report))
    trainee = load_trainee(request.source, request.recipe, kind=kind, name=request.output.name)
    objective = RankingObjective(trainee.network, trainee.card.head, request.recipe)
    step_builder = _create_step_builder(request.recipe, trainee, machine)
    return _run_training(request, trainee, objective, machine, step_builder, _compute_fingerprint(request))


def distill(request: TrainingRequest, *, layers: int | Sequence[int] = 0, student: Path | None = None) -> Path | None:
    """Train a student of the teacher ``request.source``, and return its directory, or None if time ran out.

    The student has the teacher's kind. After a timeout, the same call resumes the training.

    Args:
        request: the training.
        layers: the number of student layers, or a list of the teacher layers to keep, counted from 1.
            A number n: the teacher's layers are divided into n blocks, and each student layer starts as its block's
            last layer and learns to imitate it.
            A list: each kept layer also learns to do the work of the dropped layers after it. Of 4 layers, [1, 3]
            keeps 1, which learns to compute the output of 2, and 3, which learns to compute that of 4.
        student: another checkpoint that the student starts from. A list of ``layers`` then only chooses the layers to
            imitate, and a number has no effect.

    Raises:
        ConfigError: the output exists; the recipe does not fit the data or the checkpoints, or sets ``soft``; or the
            layers do not fit the student.
        FormatError, EvaluationError, ModelLoadError: see `train`.
    """
    refuse_existing(request.output)
    if request.recipe.soft:
        reason = "soft=true is for train: a distillation gets its soft labels from its teacher"
        raise ConfigError(reason, setting="recipe.soft")
    layers = layers if isinstance(layers, int) else tuple(layers)
    machine = Machine(request.recipe.precision)
    request = replace(request, report=machine.on_main_process(request.report))
    kind = read_card(request.source).kind
    # The teacher keeps its own head and kind, and is not trained, so the loss does not matter.
    teacher_recipe = replace(request.recipe, head="", kind="", freeze="", loss="listwise")
    teacher = load_trainee(request.source, teacher_recipe, kind=kind, name=request.source.name)
    teacher_layers = int(teacher.config["num_hidden_layers"])
    fingerprint_options = {"layers": layers, "student": _hash_checkpoint(student) if student else ""}
    fingerprint = _compute_fingerprint(request, json.dumps(fingerprint_options))
    kept_layers: tuple[int, ...] = ()  # counted from 0
    target_layers = None
    if not isinstance(layers, int):
        kept_layers = tuple(layer - 1 for layer in layers)
        target_layers = find_target_layers(teacher_layers, kept_layers)
    elif student is None:
        kept_layers = find_block_ends(teacher_layers, layers)
    if student is None:
        trainee = select_layers(teacher, kept_layers, request.output.name)
    else:
        student_kind = kind if kind == "duo" else None  # `load_trainee` makes a duo model only if told to
        trainee = load_trainee(student, request.recipe, kind=student_kind, name=request.output.name)
    step_builder = _create_step_builder(request.recipe, trainee, machine, teacher)
    torch.manual_seed(request.recipe.seed)
    objective = DistillationObjective(trainee, teacher, request.recipe, target_layers)
    objective.teacher.to(machine.device)
    return _run_training(request, trainee, objective, machine, step_builder, fingerprint)


def _create_step_builder(
    recipe: Recipe, trainee: Trainee, machine: Machine, teacher: Trainee | None = None
) -> StepBuilder:
    """Create the builder of training steps. It builds the teacher's inputs if the teacher tokenises differently."""

    def create_sequence_builder(input_builder: InputBuilder) -> SequenceBuilder:
        if trainee.card.kind != "duo":
            return MonoSequenceBuilder(input_builder)
        learns_from_labels = recipe.hard or not recipe.soft
        return DuoSequenceBuilder(input_builder, skips_equal_labels=learns_from_labels)

    teacher_builder = None
    if teacher is not None and _build_tokenisation_key(teacher) != _build_tokenisation_key(trainee):
        teacher_builder = create_sequence_builder(teacher.builder)
    return StepBuilder(
        create_sequence_builder(trainee.builder),
        recipe.batch,
        recipe.budget_tokens or machine.budget_tokens,
        trainee.pad_id,
        is_listwise=recipe.loss == "listwise",
        teacher_builder=teacher_builder,
        teacher_pad_id=0 if teacher is None else teacher.pad_id,
    )


def _build_tokenisation_key(trainee: Trainee) -> tuple[Any, ...]:
    """Return a key that two models share if they convert every query and document to the same sequences."""
    card = trainee.card
    tokenizer = hash_file(tokenizer_file(trainee.source))
    return tokenizer, card.kind, card.max_tokens, card.max_query_tokens, card.length_rule, trainee.pad_id


def _run_training(
    request: TrainingRequest,
    trainee: Trainee,
    objective: Objective,
    machine: Machine,
    step_builder: StepBuilder,
    fingerprint: str,
) -> Path | None:
    """Train and write the model, or return None if time ran out."""
    recipe = request.recipe
    check_loss(trainee.card, recipe)
    counts = _load_counts(request, step_builder.sequence_builder, trainee.card.kind, fingerprint, machine)
    total_steps = recipe.steps or math.ceil(recipe.epochs * counts.sequences / recipe.batch)
    request.report(f"{sum(counts.examples)} examples, {counts.sequences} sequences a pass, {total_steps} steps")
    training_cost = total_steps * recipe.batch * counts.cost / counts.sequences
    schedule = _choose_schedule(request, trainee, training_cost)
    plan = TrainingPlan(
        recipe,
        total_steps,
        request.folder,
        fingerprint,
        schedule.max_measurements,
        request.max_minutes,
        report=request.report,
        clock=request.clock,
    )
    training = Training(objective, plan, machine)
    # Scoring needs no gradients, so its batches can be larger than training batches.
    scorer = NetworkScorer(machine.device, 4 * step_builder.budget_tokens, machine.autocast)
    measure_network = None
    if schedule.development is not None:
        measure_network = partial(schedule.development.measure_network, trainee, scorer)
        is_first_call = training.state.step == 0
        if is_first_call and machine.is_main_process:
            measures = [f"first pass {schedule.development.measure_first_pass():.4f}"]
            if schedule.measures_untrained:
                measures.append(f"before training {measure_network():.4f}")
            request.report(f"{recipe.measure}: {', '.join(measures)}")
    is_finished = _run_steps(
        request,
        trainee,
        source_counts=counts.examples,
        step_builder=step_builder,
        scorer=scorer,
        training=training,
        machine=machine,
        measure_network=measure_network,
    )
    if not is_finished:
        return None
    if machine.is_main_process:
        _write_trained_model(request, trainee, training, counts, schedule)
    machine.wait()
    return request.output


def _run_steps(
    request: TrainingRequest,
    trainee: Trainee,
    *,
    source_counts: Sequence[int],
    step_builder: StepBuilder,
    scorer: NetworkScorer,
    training: Training,
    machine: Machine,
    measure_network: Callable[[], float] | None,
) -> bool:
    """Run all steps that remain, and return whether they were finished in time.

    With the recipe's draw ``list``, the steps after ``mine_at`` use negatives that the model itself has chosen.
    """
    recipe = request.recipe
    total_steps = training.plan.total_steps
    sources = [source.read for source in request.data]
    mining_step = round(total_steps * recipe.mine_at) if recipe.draw == "list" else 0  # 0: nothing is mined
    if mining_step:
        if training.state.step < mining_step:
            examples = repeat_passes(sources, source_counts, recipe)
            steps = step_builder.build(examples, skip=training.state.step)
            if not training.run(steps, mining_step, measure_network):
                return False
        mined = _mine_negatives(
            request,
            trainee,
            source_counts=source_counts,
            scorer=scorer,
            training=training,
            machine=machine,
            remaining_steps=total_steps - mining_step,
        )
        if mined is None:
            return False
        sources = [mined.read]
        source_counts = (mined.count,)
    examples = repeat_passes(sources, source_counts, recipe)
    steps = step_builder.build(examples, skip=training.state.step - mining_step)
    return training.run(steps, total_steps, measure_network)


def _mine_negatives(
    request: TrainingRequest,
    trainee: Trainee,
    *,
    source_counts: Sequence[int],
    scorer: NetworkScorer,
    training: Training,
    machine: Machine,
    remaining_steps: int,
) -> MinedExamples | None:
    """Mine as many examples as the remaining steps need, or return None if time ran out.

    Only the main process mines. It broadcasts the number of mined examples to the others, or -1 if time ran out.
    """
    recipe = request.recipe
    sequences_per_example = 1 + recipe.negatives
    n_needed = math.ceil(remaining_steps * recipe.batch / sequences_per_example)
    sources = [source.read for source in request.data]
    whole_examples = repeat_passes(sources, source_counts, replace(recipe, draw="all"))  # draws no documents
    n_examples = min(n_needed, sum(source_counts))  # at most one pass
    examples = itertools.islice(whole_examples, n_examples)
    mined = None
    if machine.is_main_process:
        mined = mine(request.folder, examples, trainee, scorer, recipe, training.is_time_over)
    mined_count = int(machine.broadcast(-1 if mined is None else mined.count))
    if mined_count < 0:
        return None
    request.report(f"mined the hardest negatives of {mined_count} examples")
    # the other processes read the main process's file
    return mined or MinedExamples(request.folder / MINED_FILE, mined_count)


def _choose_schedule(request: TrainingRequest, trainee: Trainee, training_cost: float) -> Schedule:
    """Return the recipe's schedule if it sets ``evaluate_every``. Otherwise, plan a schedule and report it."""
    if request.development is None:
        return Schedule(None, MAX_MEASUREMENTS, measures_untrained=False, note="")
    examples = tuple(request.development.read())
    development = DevelopmentSet(examples, request.recipe.measure, request.depth, request.passages)
    development.check_aggregation(trainee.card.kind)
    if request.recipe.evaluate_every:
        return Schedule(development, MAX_MEASUREMENTS, measures_untrained=True, note="")
    schedule = plan_schedule(development, training_cost, trainee.card.kind, trainee.card.max_tokens)
    request.report(schedule.note)
    return schedule


def _load_counts(
    request: TrainingRequest, builder: SequenceBuilder, kind: Kind, fingerprint: str, machine: Machine
) -> DataCounts:
    """Read the counts of the data from the file of an earlier call. If there is none, count the data and write it."""
    file = request.folder / COUNTS_FILE
    with machine.main_process_first():  # the others then read its file
        if file.exists():
            content = json.loads(file.read_text(encoding="utf-8"))
            # files of older versions contain no cost
            if content.pop("fingerprint") == fingerprint and "cost" in content:
                return DataCounts(tuple(content["examples"]), content["sequences"], content["cost"])
        counts = count_data(request.data, request.recipe, builder, kind)
        request.folder.mkdir(parents=True, exist_ok=True)
        content = {"fingerprint": fingerprint, **asdict(counts)}
        file.write_text(f"{json.dumps(content)}\n", encoding="utf-8")
    return counts


def _compute_fingerprint(request: TrainingRequest, student_options: str = "") -> str:
    """Return a hash of the recipe, the data and the checkpoints, which determine the trained weights.

    In a distillation, ``student_options`` contains the student's layers and checkpoint, as JSON. The recipe's
    ``budget_tokens`` is left out, because it only divides steps into forward passes.
    """
    recipe = {name: value for name, value in asdict(request.recipe).items() if name != "budget_tokens"}
    data = [(source.name, source.sizes) for source in request.data]
    content = [recipe, _hash_checkpoint(request.source), data, student_options]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _hash_checkpoint(source: Path) -> str:
    """Return a hash of a checkpoint's card, ``config.json`` and weights."""
    files = [name for name in (CARD_FILE, CONFIG_FILE) if (source / name).exists()]
    return hash_files(source, [*files, *list_parameter_files(source)])


def _write_trained_model(
    request: TrainingRequest, trainee: Trainee, training: Training, counts: DataCounts, schedule: Schedule
) -> None:
    """Write the model with its best weights, and remove the training's folder."""
    training.restore_best()
    state = training.state
    provenance = {
        "base_model": model_name(request.source),
        "our_training": asdict(request.recipe),
        "steps": training.plan.total_steps,
        "data": [
            {"source": source.name, "examples": examples}
            for source, examples in zip(request.data, counts.examples, strict=True)
        ],
        "seed": request.recipe.seed,
    }
    if trainee.source != request.source:
        provenance["student_from"] = model_name(trainee.source)
    if state.best is not None and request.development is not None and schedule.development is not None:
        n_measurements = training.plan.n_measurements
        choice = f"the best of {n_measurements} measurements on this set, so it is optimistic"
        provenance["measures"] = {
            request.recipe.measure: round(state.best, 4),
            "on": request.development.name,
            "queries": len(schedule.development.examples),
            "at_step": state.best_step,
            "chosen": choice if n_measurements > 1 else "the last weights",
        }
    write_model(request.output, trainee, request.folder, provenance)
    shutil.rmtree(request.folder)
