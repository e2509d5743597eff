"""The training loop, the same for rankers, students and encoders.

Recipe, data and start determine a training: the dropout of step t depends only on the seed and t, the order of the data
only on the seed and the pass. So a killed training resumes from its last checkpoint with the same result, on a CPU to
the last bit. If Accelerate or torchrun starts several processes, they divide each step's lots and add up their
gradients; the first process measures, writes, and decides when time is over.
"""

import atexit
import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed.nn  # imported before a process group exists, which its defaults would keep alive
from torch import Tensor, distributed

from osrerank._optional import require
from osrerank.errors import ConfigError, EvaluationError
from osrerank.scoring.backends.networks.engine import choose_precision
from osrerank.scoring.names import AUTO
from osrerank.training.checkpoint import Checkpoints, State
from osrerank.training.curve import CURVE_FILE, Curve
from osrerank.training.development import MEASUREMENTS
from osrerank.training.examples.batches import Lot, TrainingStep, prefetched
from osrerank.training.objective import Objective
from osrerank.training.optimiser import Adam, learning_rate, parameter_groups
from osrerank.training.recipes import Recipe

logger = logging.getLogger(__name__)
BUDGET_TOKENS = {"cpu": 2048, "cuda": 32768}
SEED_SPACE = 1_000_003
"""The distance between the seeds of two processes, and of two trainings."""
SAVE_EVERY_S = 120.0
LONGEST_WAIT = timedelta(hours=12)
"""How long the other processes wait for the first one, which alone measures and mines."""
HAVE_FP16 = ("cuda",)
"""Types of devices that can train in fp16; on others the first steps overflow."""
MAX_PARTS = 16
"""The maximum number of parts of a loss."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What the loop needs besides the objective: recipe, length, folder, limits and clock.

    Attributes:
        recipe: the hyperparameters.
        total: the number of steps of the whole training.
        folder: the folder of checkpoints and curve.
        fingerprint: a hash of the recipe, the data and the starting checkpoint, which determine the training.
        max_measurements: how often the development set is measured at most, unless the recipe sets ``evaluate_every``.
        max_minutes: the minutes after which the training stops with a checkpoint, from which another call resumes; None
            for no limit.
        save_every_s: the seconds between checkpoints.
        report: called with each line of progress.
        clock: returns the time in seconds.
    """

    recipe: Recipe
    total: int
    folder: Path
    fingerprint: str
    max_measurements: int = MEASUREMENTS
    max_minutes: float | None = None
    save_every_s: float = SAVE_EVERY_S
    report: Callable[[str], None] = logger.info
    clock: Callable[[], float] = time.monotonic

    @property
    def evaluate_every(self) -> int:
        """The number of steps between measurements on the development set; the last step is measured, too."""
        return self.recipe.evaluate_every or math.ceil(self.total / self.max_measurements)

    @property
    def measurements(self) -> int:
        """How many measurements a whole training has."""
        return math.ceil(self.total / self.evaluate_every)


class Machine:
    """The device, the precision and the processes of a training, as Accelerate detects them.

    Args:
        precision: the precision of the matrix products; ``mixed`` for the one that suits the device.

    Raises:
        ConfigError: this process already computes in another precision, the device cannot train in fp16, or Accelerate
            did not join the processes that were started.
    """

    def __init__(self, precision: str) -> None:
        accelerate: Any = require("accelerate", extra="torch")
        # Accelerate joins processes on the CPU only if `cpu` is set.
        current = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        is_cpu = current is None or bool(accelerate.utils.parse_flag_from_env("ACCELERATE_USE_CPU"))
        self.precision = precision = _precision(precision, "cpu" if current is None or is_cpu else current.type)
        try:
            self.accelerator = accelerate.Accelerator(
                cpu=is_cpu,
                # In fp16 the loop scales the loss itself, because a checkpoint has to keep the scale.
                mixed_precision="bf16" if precision == "bf16" else "no",
                kwargs_handlers=[accelerate.InitProcessGroupKwargs(timeout=LONGEST_WAIT)],
            )
        except ValueError as error:
            reason = f"{precision} cannot be used: this process has already used another precision ({error})"
            raise ConfigError(reason, setting="recipe.precision") from error
        self.processes, self.number = int(self.accelerator.num_processes), int(self.accelerator.process_index)
        if self.processes > 1:
            atexit.register(_leave_group)
        started = int(os.environ.get("WORLD_SIZE") or 1)
        if started != self.processes:
            reason = f"{started} processes were started (WORLD_SIZE), but Accelerate joined {self.processes}"
            fix = "each would train its own model: start them with torchrun or accelerate launch, or start only one"
            raise ConfigError(f"{reason}; {fix}", setting="WORLD_SIZE", source="environment")
        self.device: torch.device = self.accelerator.device
        self.budget_tokens = BUDGET_TOKENS.get(self.device.type, BUDGET_TOKENS["cpu"])

    def autocast(self) -> Any:
        """Return the context that a forward pass runs in."""
        if self.precision == "fp16":
            return torch.autocast(self.device.type, torch.float16)
        return self.accelerator.autocast() if self.accelerator.mixed_precision != "no" else nullcontext()

    @property
    def is_first(self) -> bool:
        """Whether this process measures and writes."""
        return self.number == 0

    def first_before_others(self) -> AbstractContextManager[None]:
        """Return a context that the other processes enter only after the first one has left it."""
        context: AbstractContextManager[None] = self.accelerator.main_process_first()
        return context

    def on_main_process(self, report: Callable[[str], None]) -> Callable[[str], None]:
        """Return the function in the first process, and one that does nothing in the others."""
        return report if self.is_first else _silent

    def wait(self) -> None:
        """Wait until every process has called this."""
        self.accelerator.wait_for_everyone()

    def agreed(self, value: float) -> float:
        """Return the first process's value in every process."""
        if self.processes == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float32, device=self.device)
        distributed.broadcast(shared, 0)
        return shared.item()

    def share(self, lots: Sequence[Lot]) -> Sequence[Lot]:
        """Return the lots of a step that this process computes."""
        return lots[self.number :: self.processes]

    def start_alike(self, parameters: Iterable[Tensor]) -> None:
        """Copy the first process's parameters to the others."""
        if self.processes > 1:
            for parameter in parameters:
                distributed.broadcast(parameter.data, 0)

    def add_up(self, parameters: Sequence[Tensor]) -> None:
        """Give every process the sum of all gradients; a parameter without a gradient in any process gets none."""
        if self.processes == 1:
            return
        has = torch.tensor([float(parameter.grad is not None) for parameter in parameters], device=self.device)
        distributed.all_reduce(has)
        for parameter, count in zip(parameters, has.tolist(), strict=True):
            if count:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                distributed.all_reduce(parameter.grad)

    def summed(self, parts: dict[str, float]) -> dict[str, float]:
        """Return the sums of the parts of the loss over all processes.

        A process without lots does not know the names of the parts, and calls them ``part 0``, ``part 1`` ...
        """
        if self.processes == 1:
            return parts
        values = [parts[name] for name in sorted(parts)]
        shared = torch.tensor(values + [0.0] * (MAX_PARTS - len(values)), device=self.device)
        distributed.all_reduce(shared)
        names = sorted(parts) or [f"part {number}" for number in range(MAX_PARTS)]
        return dict(zip(names, shared.tolist(), strict=False))


def _precision(precision: str, device: str) -> str:
    """Return the precision for a type of device.

    Raises:
        ConfigError: fp16 is wanted, and the device has no CUDA.
    """
    if precision == "mixed":
        return choose_precision(AUTO, torch.device(device)) if device == "cuda" else "bf16"
    if precision == "fp16" and device not in HAVE_FP16:
        reason = f"fp16 needs CUDA, but this training runs on the {device}; set precision=bf16, or mixed"
        raise ConfigError(reason, setting="recipe.precision", source="argument")
    return precision


def _leave_group() -> None:
    """End the process group and its threads before the interpreter ends; a thread that outlives it may abort."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _silent(_line: str) -> None:
    """Report nothing."""


class Training:
    """A training in progress.

    Args:
        objective: computes the loss.
        plan: the recipe, the number of steps, the folder and the limits.
        machine: the device and the processes.
    """

    def __init__(self, objective: Objective, plan: TrainingPlan, machine: Machine) -> None:
        self.objective = objective.to(machine.device)
        self.plan = plan
        self._machine = machine
        recipe = plan.recipe
        self._trained = dict(objective.trained())
        self._optimiser = Adam(
            parameter_groups(self._trained.values(), recipe.weight_decay),
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            bias_correction=recipe.bias_correction,
        )
        self._scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.precision == "fp16")
        self._checkpoints = Checkpoints(plan.folder, plan.fingerprint)
        start = State(0, None, 0, plan.fingerprint)
        self.state = self._checkpoints.restore(self._trained, self._optimiser) or start
        if self.state.scaler:
            self._scaler.load_state_dict(dict(self.state.scaler))
        self._scaler.scale(torch.zeros((), device=machine.device))  # initialise it: a step may have no loss here
        machine.wait()  # until every process has read the checkpoint
        machine.start_alike(self._trained.values())
        self._curve = Curve(plan.folder / CURVE_FILE, self.state.step)
        self._started_s = self._saved_s = plan.clock()
        self._sequences = self._tokens = 0

    def run(self, steps: Iterator[TrainingStep], until: int, measure: Callable[[], float] | None) -> bool:
        """Train until a number of steps is done; return False if time ran out first.

        Args:
            steps: the steps that are not done yet, in order.
            until: the number of steps after which to stop.
            measure: returns the measure of the current network, higher is better; None for no measurements.

        Raises:
            EvaluationError: the loss is not a number, or the data ended.
        """
        evaluate_every = self.plan.evaluate_every
        prepared = prefetched(steps)
        try:
            while self.state.step < until:
                if self.is_over():
                    self.save()
                    return False
                row = self._step(self.state.step, self._next(prepared))
                done = self.state.step + 1
                self.state = replace(self.state, step=done)
                if measure is not None and (done % evaluate_every == 0 or done == self.plan.total):
                    row["measure"] = self._machine.agreed(measure() if self._machine.is_first else 0.0)
                    self._remember(row["measure"])
                if self._machine.is_first:
                    self._curve.add(row)
                self._report(row)
                if self.plan.clock() - self._saved_s > self.plan.save_every_s:
                    self.save()
        finally:
            prepared.close()
        self.save()
        return True

    def save(self) -> None:
        """Write a checkpoint, in the first process."""
        if not self._machine.is_first:
            return
        self.state = replace(self.state, scaler=self._scaler.state_dict())
        self._checkpoints.save(self.state, self._trained, self._optimiser)
        self._saved_s = self.plan.clock()

    def restore_best(self) -> None:
        """Restore the best weights, if any were measured."""
        if self.state.best is not None:
            self._checkpoints.restore_best(self._trained)

    def _next(self, steps: Iterator[TrainingStep]) -> TrainingStep:
        try:
            return next(steps)
        except StopIteration:
            raise EvaluationError(f"the data ended after {self.state.step} of {self.plan.total} steps") from None

    def _step(self, number: int, step: TrainingStep) -> dict[str, Any]:
        """Change the weights once, and return the step's row of the curve."""
        recipe = self.plan.recipe
        rate = learning_rate(
            number,
            peak=recipe.rate,
            warmup=recipe.warmup_steps(self.plan.total),
            total=self.plan.total,
            decay_from=recipe.decay_from,
        )
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        torch.manual_seed((recipe.seed + self._machine.number * SEED_SPACE) * SEED_SPACE + number)
        self.objective.train()
        values: dict[str, Any] = defaultdict(float)
        for lot in self._machine.share(step.lots):
            with self._machine.autocast():
                losses = self.objective(lot)
            loss = torch.stack(list(losses.values())).sum() * lot.share
            self._machine.accelerator.backward(self._scaler.scale(loss))
            for name, value in losses.items():
                values[name] += value.detach() * lot.share
        self._machine.add_up([*self._trained.values()])
        parts = self._machine.summed({name: float(value) for name, value in values.items()})
        total = math.fsum(parts.values())
        if not math.isfinite(total):
            locations = "; ".join(step.locations[:3])
            raise EvaluationError(f"the loss of step {number + 1} is {total}; lower the rate, or look at {locations}")
        self._change_weights(recipe.clip)
        self._sequences += step.sequences
        self._tokens += step.tokens
        return {"step": number + 1, "rate": rate, "loss": total, **(parts if len(parts) > 1 else {})}

    def _change_weights(self, clip: float) -> None:
        """Take a step of the optimiser; if gradients of a scaled loss overflowed, count a skipped step instead."""
        scale = self._scaler.get_scale()
        self._scaler.unscale_(self._optimiser)
        if clip:
            torch.nn.utils.clip_grad_norm_(self._trained.values(), clip)
        self._scaler.step(self._optimiser)
        self._scaler.update()
        if self._scaler.get_scale() < scale:
            self.state = replace(self.state, skipped=self.state.skipped + 1)
        self._optimiser.zero_grad(set_to_none=True)

    def _remember(self, value: float) -> None:
        if self.state.best is None or value > self.state.best:
            self.state = replace(self.state, best=value, best_step=self.state.step)
            if self._machine.is_first:
                self._checkpoints.save_best(self._trained)

    def is_over(self) -> bool:
        """Return whether the time for this call is over, by the first process's clock."""
        return self.plan.max_minutes is not None and bool(self._machine.agreed(self.is_late()))

    def is_late(self) -> bool:
        """Return whether the time for this call is over, by this process's clock."""
        minutes = self.plan.max_minutes
        return minutes is not None and self.plan.clock() - self._started_s > minutes * 60

    def _report(self, row: dict[str, Any]) -> None:
        step = row["step"]
        if step % max(1, self.plan.total // 20) and "measure" not in row:
            return
        elapsed_s = max(self.plan.clock() - self._started_s, 1e-9)
        measured = f", {self.plan.recipe.measure} {row['measure']:.4f}" if "measure" in row else ""
        skipped = f", {self.state.skipped} steps left out" if self.state.skipped else ""
        speed = f"{self._sequences / elapsed_s:.1f} sequences and {self._tokens / elapsed_s:.0f} tokens a second"
        self.plan.report(f"step {step} of {self.plan.total}: loss {row['loss']:.4f}{measured}{skipped}; {speed}")
