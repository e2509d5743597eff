"""Write and restore the checkpoints from which a killed training resumes, as safetensors and JSON, without pickles."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from osrerank.errors import ConfigError
from osrerank.training.optimiser import MOMENTS

STATE_FILE = "state.json"
WEIGHTS_FILE = "weights.safetensors"
OPTIMISER_FILE = "optimiser.safetensors"
BEST_FILE = "best.safetensors"
CHECKPOINT_PREFIX = "step-"
"""The name of a checkpoint's folder consists of this prefix and the number of finished steps, as in ``step-1200``."""


@dataclass(frozen=True, slots=True)
class State:
    """The progress of a training.

    Attributes:
        step: the number of finished steps.
        best: the best value of the recipe's ``measure`` on the development set so far, such as 0.41 for nDCG@10. It is
            None before the first measurement.
        best_step: the number of finished steps at the best measurement.
        fingerprint: identifies the recipe, the data and the starting checkpoint, which determine the trained weights.
        skipped: the number of steps that changed no weight, because gradients overflowed in fp16.
        scaler: the state of ``torch.amp.GradScaler``, which scales the loss in fp16. It is empty in other precisions.
    """

    step: int
    best: float | None
    best_step: int
    fingerprint: str
    skipped: int = 0
    scaler: Mapping[str, float] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints in a training's folder: only the newest one, and the best weights."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        folder.mkdir(parents=True, exist_ok=True)

    def find_newest(self) -> Path | None:
        """Return the newest complete checkpoint, or None if there is none."""
        folders = self._folder.glob(f"{CHECKPOINT_PREFIX}*")
        return max(folders, key=lambda path: int(path.name.removeprefix(CHECKPOINT_PREFIX)), default=None)

    def save(self, state: State, parameters: Mapping[str, nn.Parameter], optimiser: torch.optim.Optimizer) -> None:
        """Write a checkpoint, completely or not at all, then remove the previous one."""
        previous = self.find_newest()
        unfinished = self._folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        save_file(_copy_to_cpu(parameters), unfinished / WEIGHTS_FILE)
        save_file(_collect_moments(parameters, optimiser), unfinished / OPTIMISER_FILE)
        content = {name: getattr(state, name) for name in State.__slots__}
        (unfinished / STATE_FILE).write_text(f"{json.dumps(content)}\n", encoding="utf-8")
        target = self._folder / f"{CHECKPOINT_PREFIX}{state.step}"
        if previous == target:
            shutil.rmtree(target)
        unfinished.rename(target)
        if previous not in (None, target):
            shutil.rmtree(previous)

    def restore(self, parameters: Mapping[str, nn.Parameter], optimiser: torch.optim.Optimizer) -> State | None:
        """Load the newest checkpoint into the parameters and the optimiser. Return its state, or None without one.

        Raises:
            ConfigError: the checkpoint belongs to a training with another fingerprint.
        """
        newest = self.find_newest()
        if newest is None:
            return None
        state = State(**json.loads((newest / STATE_FILE).read_text(encoding="utf-8")))
        if state.fingerprint != self._fingerprint:
            fix = f"use the same recipe, data and starting checkpoint to continue it, or remove {self._folder}"
            reason = f"{self._folder} contains the checkpoint of another unfinished training"
            raise ConfigError(f"{reason}: {fix}", setting="output")
        _restore_weights(newest / WEIGHTS_FILE, parameters)
        tensors = load_file(newest / OPTIMISER_FILE)
        for name, parameter in parameters.items():
            for moment in MOMENTS:
                if f"{name}/{moment}" in tensors:
                    optimiser.state[parameter][moment] = tensors[f"{name}/{moment}"].to(parameter.device)
        for group in optimiser.param_groups:
            group["steps"] = state.step - state.skipped  # Adam counts only the steps that changed weights
        return state

    def save_best(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Save the current weights as the best so far."""
        unfinished = self._folder / "best.unfinished"
        save_file(_copy_to_cpu(parameters), unfinished)
        unfinished.replace(self._folder / BEST_FILE)

    def restore_best(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Restore the best weights."""
        _restore_weights(self._folder / BEST_FILE, parameters)


def _restore_weights(file: Path, parameters: Mapping[str, nn.Parameter]) -> None:
    weights = load_file(file)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def _copy_to_cpu(parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().cpu().contiguous() for name, parameter in parameters.items()}


def _collect_moments(parameters: Mapping[str, nn.Parameter], optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return Adam's running means, under names such as ``classifier.weight/first`` (see `MOMENTS`)."""
    return {
        f"{name}/{moment}": tensor.cpu().contiguous()
        for name, parameter in parameters.items()
        for moment, tensor in optimiser.state.get(parameter, {}).items()
    }
