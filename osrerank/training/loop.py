"""The training loop: one for everything that is trained, in one page.

A training is determined by its recipe, its data and its start: step t draws its dropout from the seed and t alone, and
the data's order from the seed and the pass. So one that was killed goes on from its last checkpoint as if it had not
been, on a CPU to the last bit.
"""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from osrerank._optional import require
from osrerank.errors import ConfigError, EvaluationError
from osrerank.training.batches import Step, prefetched
from osrerank.training.checkpoint import Checkpoints, State
from osrerank.training.curve import CURVE_FILE, Curve
from osrerank.training.objective import Objective
from osrerank.training.optimiser import Adam, learning_rate, parameter_groups
from osrerank.training.recipes import Recipe

logger = logging.getLogger(__name__)
BUDGET_TOKENS = {"cpu": 2048, "cuda": 32768}
SEED_SPACE = 1_000_003
"""Distance between the seeds of two trainings' steps."""
SAVE_EVERY_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What the loop needs beside the objective.

    Attributes:
        recipe: of the optimiser.
        total: steps of the whole training.
        folder: of checkpoints and curve.
        fingerprint: of what the training depends on.
        max_minutes: after so long the training stops with a checkpoint, to go on in another call; None for never.
        save_every_s: time between checkpoints.
        say: is told the progress, one line at a time.
    """

    recipe: Recipe
    total: int
    folder: Path
    fingerprint: str
    max_minutes: float | None = None
    save_every_s: float = SAVE_EVERY_S
    say: Callable[[str], None] = logger.info

    @property
    def evaluate_every(self) -> int:
        """Steps between measurements on the development set; the last step is measured too."""
        return self.recipe.evaluate_every or math.ceil(self.total / 10)

    @property
    def measurements(self) -> int:
        """How often a whole training is measured."""
        return math.ceil(self.total / self.evaluate_every)


class Machine:
    """The device and the precision, as Accelerate finds them.

    Args:
        precision: of the matrix products.

    Raises:
        ConfigError: this process already computes in another precision, or is one of several.
    """

    def __init__(self, precision: str) -> None:
        accelerate: Any = require("accelerate", extra="torch")
        try:
            self.accelerator = accelerate.Accelerator(mixed_precision="no" if precision == "fp32" else precision)
        except ValueError as error:
            reason = f"{precision} cannot be used in this process, where another precision was: {error}"
            raise ConfigError(reason, setting="recipe.precision") from error
        if self.accelerator.num_processes > 1:
            raise ConfigError("training runs on one device; start it without accelerate launch", setting="processes")
        self.device: torch.device = self.accelerator.device
        self.budget_tokens = BUDGET_TOKENS.get(self.device.type, BUDGET_TOKENS["cpu"])

    def autocast(self) -> Any:
        """Return the context in which a forward pass is computed."""
        return self.accelerator.autocast() if self.accelerator.mixed_precision != "no" else nullcontext()


class Training:
    """A training under way.

    Args:
        objective: what is optimised.
        plan: how.
        machine: where.
    """

    def __init__(self, objective: Objective, plan: Plan, machine: Machine) -> None:
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
        self._checkpoints = Checkpoints(plan.folder, plan.fingerprint)
        start = State(0, None, 0, plan.fingerprint)
        self.state = self._checkpoints.restore(self._trained, self._optimiser) or start
        self._curve = Curve(plan.folder / CURVE_FILE, self.state.step)
        self._started_s = self._saved_s = time.monotonic()
        self._sequences = self._tokens = 0

    def run(self, steps: Iterator[Step], until: int, measure: Callable[[], float] | None) -> bool:
        """Train until a number of steps is done; return False when the time was over before.

        Args:
            steps: those that are not done yet, in order.
            until: how many steps are done at the end.
            measure: measures the network as it is, higher is better.

        Raises:
            EvaluationError: the loss is no number any more, or the data ended.
        """
        every = self.plan.evaluate_every
        made = prefetched(steps)
        try:
            while self.state.step < until:
                if self.is_over():
                    self.save()
                    return False
                row = self._step(self.state.step, self._next(made))
                done = self.state.step + 1
                self.state = replace(self.state, step=done)
                if measure is not None and (done % every == 0 or done == self.plan.total):
                    row["measure"] = measure()
                    self._remember(row["measure"])
                self._curve.add(row)
                self._report(row)
                if time.monotonic() - self._saved_s > self.plan.save_every_s:
                    self.save()
        finally:
            made.close()
        self.save()
        return True

    def save(self) -> None:
        """Write a checkpoint."""
        self._checkpoints.save(self.state, self._trained, self._optimiser)
        self._saved_s = time.monotonic()

    def restore_best(self) -> None:
        """Put the best weights back, where any were measured."""
        if self.state.best is not None:
            self._checkpoints.restore_best(self._trained)

    def _next(self, steps: Iterator[Step]) -> Step:
        try:
            return next(steps)
        except StopIteration:
            raise EvaluationError(f"the data ended after {self.state.step} of {self.plan.total} steps") from None

    def _step(self, number: int, step: Step) -> dict[str, Any]:
        """Change the weights once, and return the row of the curve."""
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
        torch.manual_seed(recipe.seed * SEED_SPACE + number)
        self.objective.train()
        values: dict[str, Any] = defaultdict(float)
        for lot in step.lots:
            with self._machine.autocast():
                found = self.objective(lot)
            loss = torch.stack(list(found.values())).sum() * lot.share
            self._machine.accelerator.backward(loss)
            for name, part in found.items():
                values[name] += part.detach() * lot.share
        parts = {name: float(value) for name, value in values.items()}
        total = math.fsum(parts.values())
        if not math.isfinite(total):
            places = "; ".join(step.places[:3])
            raise EvaluationError(f"the loss of step {number + 1} is {total}; lower the rate, or look at {places}")
        if recipe.clip:
            torch.nn.utils.clip_grad_norm_(self._trained.values(), recipe.clip)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._sequences += step.sequences
        self._tokens += step.tokens
        return {"step": number + 1, "rate": rate, "loss": total, **(parts if len(parts) > 1 else {})}

    def _remember(self, value: float) -> None:
        if self.state.best is None or value > self.state.best:
            self.state = replace(self.state, best=value, best_step=self.state.step)
            self._checkpoints.save_best(self._trained)

    def is_over(self) -> bool:
        """Return whether the time for this call is over."""
        minutes = self.plan.max_minutes
        return minutes is not None and time.monotonic() - self._started_s > minutes * 60

    def _report(self, row: dict[str, Any]) -> None:
        step = row["step"]
        if step % max(1, self.plan.total // 20) and "measure" not in row:
            return
        elapsed_s = time.monotonic() - self._started_s
        measured = f", {self.plan.recipe.measure} {row['measure']:.4f}" if "measure" in row else ""
        pace = f"{self._sequences / elapsed_s:.1f} sequences and {self._tokens / elapsed_s:.0f} tokens a second"
        self.plan.say(f"step {step} of {self.plan.total}: loss {row['loss']:.4f}{measured}; {pace}")
