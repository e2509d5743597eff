"""Write and restore checkpoints, each whole or absent: tensors as safetensors, the rest as JSON, no pickles."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from osrerank.errors import ConfigError
from osrerank.training.optimiser import NAMES

STATE_FILE = "state.json"
WEIGHTS_FILE = "weights.safetensors"
OPTIMISER_FILE = "optimiser.safetensors"
PREFIX = "step-"


@dataclass(frozen=True, slots=True)
class State:
    """The progress of a training.

    Attributes:
        step: how many steps are done.
        best: the best measure on the development set so far; None before the first measurement.
        best_step: how many steps were done when the best measure was reached.
        fingerprint: a hash of the recipe, the data and the starting checkpoint, which determine the training.
        skipped: how many steps changed nothing, because gradients overflowed in fp16.
        scaler: the state of the loss scaler in fp16; empty for other precisions.
    """

    step: int
    best: float | None
    best_step: int
    fingerprint: str
    skipped: int = 0
    scaler: Mapping[str, float] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of one training, in a folder; only the newest is kept.

    Args:
        folder: the training's folder.
        fingerprint: a hash of the recipe, the data and the starting checkpoint, which determine the training.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        folder.mkdir(parents=True, exist_ok=True)

    def newest(self) -> Path | None:
        """Return the newest whole checkpoint."""
        return max(self._folder.glob(f"{PREFIX}*"), key=lambda path: int(path.name.removeprefix(PREFIX)), default=None)

    def save(self, state: State, trained: Mapping[str, nn.Parameter], optimiser: torch.optim.Optimizer) -> None:
        """Write a checkpoint, then remove the previous one."""
        before = self.newest()
        unfinished = self._folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        save_file(_copied(trained), unfinished / WEIGHTS_FILE)
        save_file(_means(trained, optimiser), unfinished / OPTIMISER_FILE)
        content = {name: getattr(state, name) for name in State.__slots__}
        (unfinished / STATE_FILE).write_text(f"{json.dumps(content)}\n", encoding="utf-8")
        target = self._folder / f"{PREFIX}{state.step}"
        if before == target:
            shutil.rmtree(target)
        unfinished.rename(target)
        if before not in (None, target):
            shutil.rmtree(before)

    def restore(self, trained: Mapping[str, nn.Parameter], optimiser: torch.optim.Optimizer) -> State | None:
        """Restore the weights and running means of the newest checkpoint and return its state; None without one.

        Raises:
            ConfigError: the checkpoint belongs to a training with another fingerprint.
        """
        newest = self.newest()
        if newest is None:
            return None
        state = State(**json.loads((newest / STATE_FILE).read_text(encoding="utf-8")))
        if state.fingerprint != self._fingerprint:
            fix = f"use the same recipe, data and starting checkpoint to continue it, or remove {self._folder}"
            raise ConfigError(f"{self._folder} holds another unfinished training: {fix}", setting="output")
        restore_weights(newest / WEIGHTS_FILE, trained)
        averages = load_file(newest / OPTIMISER_FILE)
        for name, parameter in trained.items():
            for mean in NAMES:
                if f"{name}/{mean}" in averages:
                    optimiser.state[parameter][mean] = averages[f"{name}/{mean}"].to(parameter.device)
        for group in optimiser.param_groups:
            group["steps"] = state.step - state.skipped
        return state

    def save_best(self, trained: Mapping[str, nn.Parameter]) -> None:
        """Save these weights as the best so far."""
        unfinished = self._folder / "best.unfinished"
        save_file(_copied(trained), unfinished)
        unfinished.replace(self._folder / "best.safetensors")

    def restore_best(self, trained: Mapping[str, nn.Parameter]) -> None:
        """Restore the best weights."""
        restore_weights(self._folder / "best.safetensors", trained)


def restore_weights(file: Path, trained: Mapping[str, nn.Parameter]) -> None:
    """Copy weights into the parameters of the same names."""
    weights = load_file(file)
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(weights[name])


def _copied(trained: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: parameter.detach().cpu().contiguous() for name, parameter in trained.items()}


def _means(trained: Mapping[str, nn.Parameter], optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{mean}": tensor.cpu().contiguous()
        for name, parameter in trained.items()
        for mean, tensor in optimiser.state.get(parameter, {}).items()
    }
