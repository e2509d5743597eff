"""The training loop of rankers, distilled students and pre-trained encoders.

The recipe, the data and the starting checkpoint determine the trained weights: the dropout of step t depends only on
the seed and t, and the order of the data only on the seed and the pass. A killed training therefore resumes from its
last checkpoint with the same outcome. On a CPU, the weights are equal to the last bit.

If Accelerate or torchrun starts several processes, they divide each step's micro-batches and sum their gradients. The
main process measures, writes, and decides when time is over.
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
import torch.distributed.nn  # imported early, because its default arguments would keep a process group alive
from torch import Tensor, distributed

from osrerank._optional import require
from osrerank.errors import ConfigError, EvaluationError
from osrerank.scoring.backends.networks.engine import choose_precision
from osrerank.scoring.names import AUTO
from osrerank.training.checkpoint import Checkpoints, State
from osrerank.training.curve import CURVE_FILE, Curve
from osrerank.training.development import MAX_MEASUREMENTS
from osrerank.training.examples.batches import MicroBatch, TrainingStep, prefetch
from osrerank.training.objective import Objective
from osrerank.training.optimiser import Adam, group_parameters, learning_rate
from osrerank.training.recipes import Recipe

logger = logging.getLogger(__name__)
DEFAULT_BUDGET_TOKENS = {"cpu": 2048, "cuda": 32768}
"""The tokens in a micro-batch, including padding, for each device type. A recipe can set ``budget_tokens`` instead."""
SEED_STRIDE = 1_000_003
"""The factor that separates the random seeds of recipes, processes and steps. It is larger than any number of steps,
because each step adds 1 to the seed of its process."""
SAVE_EVERY_S = 120.0
"""The seconds between checkpoints."""
MAX_WAIT = timedelta(hours=12)
"""The maximum time for which the other processes wait while the main process measures or mines negatives."""
FP16_DEVICES = ("cuda",)
"""The device types that can train in fp16. On others, the first steps overflow."""
MAX_LOSS_PARTS = 16
"""The length of the tensor in which processes sum the parts of the loss, such as ``hard`` and ``soft``."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The length, the folder and the limits of a training.

    Attributes:
        recipe: the hyperparameters.
        total_steps: the number of steps of the whole training.
        folder: the folder of the checkpoints and the loss curve.
        fingerprint: a hash of the recipe, the data and the starting checkpoint, which determine the result.
        max_measurements: the maximum number of measurements, unless the recipe sets ``evaluate_every``.
        max_minutes: the minutes after which this call saves a checkpoint and stops. If None, there is no limit.
        report: called with each line of progress.
        clock: returns the time in seconds.
    """

    recipe: Recipe
    total_steps: int
    folder: Path
    fingerprint: str
    max_measurements: int = MAX_MEASUREMENTS
    max_minutes: float | None = None
    report: Callable[[str], None] = logger.info
    clock: Callable[[], float] = time.monotonic

    @property
    def evaluate_every(self) -> int:
        """The number of steps between measurements. The last step is always measured."""
        return self.recipe.evaluate_every or math.ceil(self.total_steps / self.max_measurements)

    @property
    def n_measurements(self) -> int:
        """The number of measurements in the whole training."""
        return math.ceil(self.total_steps / self.evaluate_every)


class Machine:
    """The device and the precision that a training uses, and the processes that compute it, as Accelerate detects them.

    Raises:
        ConfigError: this process already computes in another precision, the device cannot train in fp16, or Accelerate
            did not join the processes that were started.
    """

    def __init__(self, precision: str) -> None:
        accelerate: Any = require("accelerate", extra="torch")
        current = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        device_type = current.type if current is not None else "cpu"
        if accelerate.utils.parse_flag_from_env("ACCELERATE_USE_CPU"):
            device_type = "cpu"
        precision = _choose_precision(precision, device_type)
        try:
            self.accelerator = accelerate.Accelerator(
                cpu=device_type == "cpu",  # without it, Accelerate does not join processes on the CPU
                # In fp16 the loop scales the loss itself, because a checkpoint has to keep the scale.
                mixed_precision="bf16" if precision == "bf16" else "no",
                kwargs_handlers=[accelerate.InitProcessGroupKwargs(timeout=MAX_WAIT)],
            )
        except ValueError as error:
            reason = f"{precision} needs a new process, because this one has used another precision ({error})"
            raise ConfigError(reason, setting="recipe.precision") from error
        self.precision = precision
        self.process_count = int(self.accelerator.num_processes)
        self.process_index = int(self.accelerator.process_index)
        if self.process_count > 1:
            atexit.register(_destroy_process_group)
        n_started = int(os.environ.get("WORLD_SIZE") or 1)
        if n_started != self.process_count:
            reason = f"{n_started} processes were started (WORLD_SIZE), but Accelerate joined {self.process_count}"
            fix = "start them with torchrun or accelerate launch, because each would otherwise train its own model"
            raise ConfigError(f"{reason}; {fix}", setting="WORLD_SIZE", source="environment")
        self.device: torch.device = self.accelerator.device
        self.budget_tokens = DEFAULT_BUDGET_TOKENS.get(self.device.type, DEFAULT_BUDGET_TOKENS["cpu"])

    def autocast(self) -> Any:
        """Return the context for a forward pass in this precision."""
        if self.precision == "fp16":
            return torch.autocast(self.device.type, torch.float16)
        return self.accelerator.autocast() if self.accelerator.mixed_precision != "no" else nullcontext()

    @property
    def is_main_process(self) -> bool:
        """Whether this process measures and writes."""
        return self.process_index == 0

    def main_process_first(self) -> AbstractContextManager[None]:
        """Return a context that the other processes enter only after the main process has left it."""
        context: AbstractContextManager[None] = self.accelerator.main_process_first()
        return context

    def on_main_process(self, report: Callable[[str], None]) -> Callable[[str], None]:
        """Return a function that calls ``report`` in the main process, and does nothing in the other processes."""
        return report if self.is_main_process else lambda _line: None

    def wait(self) -> None:
        """Wait until every process has called this."""
        self.accelerator.wait_for_everyone()

    def broadcast(self, value: float) -> float:
        """Return the main process's value in every process."""
        if self.process_count == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        distributed.broadcast(tensor, 0)
        return tensor.item()

    def broadcast_parameters(self, parameters: Iterable[Tensor]) -> None:
        """Copy the main process's parameters to the others."""
        if self.process_count > 1:
            for parameter in parameters:
                distributed.broadcast(parameter.data, 0)

    def select_micro_batches(self, micro_batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """Return the micro-batches of a step that this process computes."""
        return micro_batches[self.process_index :: self.process_count]

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace each gradient by its sum over all processes.

        A parameter that has no gradient in any process still has none.
        """
        if self.process_count == 1:
            return
        has_gradient = [float(parameter.grad is not None) for parameter in parameters]
        n_with_gradient = torch.tensor(has_gradient, device=self.device)
        distributed.all_reduce(n_with_gradient)
        for parameter, n_processes in zip(parameters, n_with_gradient.tolist(), strict=True):
            if n_processes:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                distributed.all_reduce(parameter.grad)

    def sum_losses(self, parts: dict[str, float]) -> dict[str, float]:
        """Return the sum of each part of the loss over all processes.

        A process that had no micro-batch in the step does not know the names, and returns ``part 0``, ``part 1`` ...
        """
        if self.process_count == 1:
            return parts
        values = [parts[name] for name in sorted(parts)]
        sums = torch.tensor(values + [0.0] * (MAX_LOSS_PARTS - len(values)), device=self.device)
        distributed.all_reduce(sums)
        names = sorted(parts) or [f"part {number}" for number in range(MAX_LOSS_PARTS)]
        return dict(zip(names, sums.tolist(), strict=False))  # the other sums are padding


def _choose_precision(precision: str, device_type: str) -> str:
    """Replace "mixed" by the precision for this type of device, such as "bf16" for "cpu". Refuse fp16 without CUDA."""
    if precision == "mixed":
        return choose_precision(AUTO, torch.device(device_type)) if device_type == "cuda" else "bf16"
    if precision == "fp16" and device_type not in FP16_DEVICES:
        reason = f"fp16 needs CUDA, but this training runs on the {device_type}; set precision=bf16, or mixed"
        raise ConfigError(reason, setting="recipe.precision", source="argument")
    return precision


def _destroy_process_group() -> None:
    """End the process group's threads before the interpreter ends. A thread that outlives the interpreter can crash."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


class Training:
    """A running training. It resumes from the newest checkpoint in the plan's folder, if there is one."""

    def __init__(self, objective: Objective, plan: TrainingPlan, machine: Machine) -> None:
        self.objective = objective.to(machine.device)
        self.plan = plan
        self._machine = machine
        recipe = plan.recipe
        self._parameters = dict(objective.trainable_parameters())
        self._optimiser = Adam(
            group_parameters(self._parameters.values(), recipe.weight_decay),
            betas=(recipe.beta1, recipe.beta2),
            eps=recipe.eps,
            bias_correction=recipe.bias_correction,
        )
        self._scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.precision == "fp16")
        self._checkpoints = Checkpoints(plan.folder, plan.fingerprint)
        initial_state = State(step=0, best=None, best_step=0, fingerprint=plan.fingerprint)
        self.state = self._checkpoints.restore(self._parameters, self._optimiser) or initial_state
        if self.state.scaler:
            self._scaler.load_state_dict(dict(self.state.scaler))
        # Initialise the scaler now, because this process might get no micro-batch in a step.
        self._scaler.scale(torch.zeros((), device=machine.device))
        machine.wait()  # until every process has read the checkpoint
        machine.broadcast_parameters(self._parameters.values())
        self._curve = Curve(plan.folder / CURVE_FILE, self.state.step)
        self._began_at_s = self._saved_at_s = plan.clock()
        self._n_sequences = self._n_tokens = 0  # of the steps of this call

    def run(self, steps: Iterator[TrainingStep], last_step: int, measure: Callable[[], float] | None) -> bool:
        """Train up to step ``last_step``, and return whether it was reached before time ran out.

        Args:
            steps: the remaining steps, in order.
            last_step: the number of the last step, counted from 1 at the start of the training.
            measure: returns the measure of the current network; higher is better. If None, nothing is measured.

        Raises:
            EvaluationError: the loss is not finite, or the data ended.
        """
        evaluate_every = self.plan.evaluate_every
        prefetched_steps = prefetch(steps)
        try:
            while self.state.step < last_step:
                if self.plan.max_minutes is not None and self._machine.broadcast(self.is_time_over()):
                    self.save()
                    return False
                row = self._train_step(self.state.step, self._next_step(prefetched_steps))
                steps_done = self.state.step + 1
                self.state = replace(self.state, step=steps_done)
                if measure is not None and (steps_done % evaluate_every == 0 or steps_done == self.plan.total_steps):
                    value = measure() if self._machine.is_main_process else 0.0
                    row["measure"] = self._machine.broadcast(value)
                    self._save_if_best(row["measure"])
                if self._machine.is_main_process:
                    self._curve.add(row)
                self._report(row)
                if self.plan.clock() - self._saved_at_s > SAVE_EVERY_S:
                    self.save()
        finally:
            prefetched_steps.close()
        self.save()
        return True

    def save(self) -> None:
        """Write a checkpoint if this is the main process."""
        if not self._machine.is_main_process:
            return
        self.state = replace(self.state, scaler=self._scaler.state_dict())
        self._checkpoints.save(self.state, self._parameters, self._optimiser)
        self._saved_at_s = self.plan.clock()

    def restore_best(self) -> None:
        """Restore the weights with the best measure, if there was a measurement."""
        if self.state.best is not None:
            self._checkpoints.restore_best(self._parameters)

    def is_time_over(self) -> bool:
        """Return whether ``max_minutes`` are over by this process's clock."""
        minutes = self.plan.max_minutes
        return minutes is not None and self.plan.clock() - self._began_at_s > minutes * 60

    def _next_step(self, steps: Iterator[TrainingStep]) -> TrainingStep:
        try:
            return next(steps)
        except StopIteration:
            reason = f"the data ended after {self.state.step} of {self.plan.total_steps} steps"
            raise EvaluationError(f"{reason}; do not change its files during a training") from None

    def _train_step(self, index: int, step: TrainingStep) -> dict[str, Any]:
        """Update the weights by the step with this index, counted from 0, and return its row of the loss curve."""
        recipe = self.plan.recipe
        rate = learning_rate(
            index,
            peak=recipe.rate,
            warmup=recipe.warmup_steps(self.plan.total_steps),
            total=self.plan.total_steps,
            decay_from=recipe.decay_from,
        )
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        torch.manual_seed((recipe.seed + self._machine.process_index * SEED_STRIDE) * SEED_STRIDE + index)
        self.objective.train()
        sums: dict[str, Any] = defaultdict(float)
        for micro_batch in self._machine.select_micro_batches(step.micro_batches):
            with self._machine.autocast():
                losses = self.objective(micro_batch)
            loss = torch.stack(list(losses.values())).sum() * micro_batch.weight
            self._machine.accelerator.backward(self._scaler.scale(loss))
            for name, value in losses.items():
                sums[name] += value.detach() * micro_batch.weight
        self._machine.sum_gradients(list(self._parameters.values()))
        parts = self._machine.sum_losses({name: float(value) for name, value in sums.items()})
        total = math.fsum(parts.values())
        if not math.isfinite(total):
            locations = "; ".join(step.locations[:3])
            raise EvaluationError(
                f"the loss of step {index + 1} is {total}; lower the learning rate (rate), or inspect {locations}"
            )
        self._update_weights(recipe.clip)
        self._n_sequences += step.n_sequences
        self._n_tokens += step.n_tokens
        row: dict[str, Any] = {"step": index + 1, "rate": rate, "loss": total}
        if len(parts) > 1:  # a single part is the loss itself
            row |= parts
        return row

    def _update_weights(self, clip: float) -> None:
        """Let the optimiser update the weights. If gradients overflowed in fp16, lower the loss's scale instead."""
        scale = self._scaler.get_scale()
        self._scaler.unscale_(self._optimiser)
        if clip:
            torch.nn.utils.clip_grad_norm_(self._parameters.values(), clip)
        self._scaler.step(self._optimiser)
        self._scaler.update()
        was_skipped = self._scaler.get_scale() < scale  # the scaler lowers its scale only after skipping a step
        if was_skipped:
            self.state = replace(self.state, skipped=self.state.skipped + 1)
        self._optimiser.zero_grad(set_to_none=True)

    def _save_if_best(self, value: float) -> None:
        if self.state.best is None or value > self.state.best:
            self.state = replace(self.state, best=value, best_step=self.state.step)
            if self._machine.is_main_process:
                self._checkpoints.save_best(self._parameters)

    def _report(self, row: dict[str, Any]) -> None:
        """Report a step if the network was measured after it, and about 20 steps in all otherwise."""
        step = row["step"]
        is_due = step % max(1, self.plan.total_steps // 20) == 0
        if not is_due and "measure" not in row:
            return
        elapsed_s = max(self.plan.clock() - self._began_at_s, 1e-9)
        measured = f", {self.plan.recipe.measure} {row['measure']:.4f}" if "measure" in row else ""
        skipped = f", {self.state.skipped} steps skipped" if self.state.skipped else ""
        speed = f"{self._n_sequences / elapsed_s:.1f} sequences and {self._n_tokens / elapsed_s:.0f} tokens a second"
        self.plan.report(f"step {step} of {self.plan.total_steps}: loss {row['loss']:.4f}{measured}{skipped}; {speed}")
