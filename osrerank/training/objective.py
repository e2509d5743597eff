"""Training objectives: modules that hold a network and compute its loss on a micro-batch."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from osrerank.scoring.card import Head
from osrerank.scoring.inputs import PaddedBatch
from osrerank.training import losses
from osrerank.training.examples.batches import MicroBatch
from osrerank.training.recipes import Loss, Recipe

LossParts = Mapping[str, Tensor]
"""A micro-batch's loss is the sum of these parts, which are named, such as ``{"soft": ..., "hard": ...}``."""


class Objective(nn.Module, ABC):
    """A network and the loss that training minimises. The network takes `PaddedBatch`'s fields as keyword arguments."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @abstractmethod
    def forward(self, micro_batch: MicroBatch) -> LossParts:
        """Return the loss of a micro-batch. Each part is a mean over its lists, sequences or masked word pieces."""

    def trainable_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield each parameter that is not frozen, with its name. A shared parameter is yielded once."""
        return ((name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad)


class RankingObjective(Objective):
    """The loss of a ranker against the labels (``hard``), against the scores in the examples (``soft``), or both.

    Args:
        network: returns logits ``(n, 1)`` or ``(n, 2)``.
        head: says what the logits mean.
        recipe: the recipe. Its ``loss``, ``soft``, ``hard`` and ``temperature`` are used.
    """

    def __init__(self, network: nn.Module, head: Head, recipe: Recipe) -> None:
        super().__init__(network)
        self._head = head
        self._recipe = recipe

    def forward(self, micro_batch: MicroBatch) -> LossParts:
        device = next(self.network.parameters()).device
        logits = self.network(**move_to_device(device, micro_batch.inputs)).float()
        if not self._recipe.soft:
            return {"hard": hard_loss(logits, micro_batch, self._head, self._recipe.loss)}
        teacher_logits = torch.from_numpy(micro_batch.scores).to(device).unsqueeze(1)
        heads: tuple[Head, Head] = (self._head, "logit1")  # each example has a single score
        return output_loss(logits, teacher_logits, micro_batch, heads, self._recipe)


def output_loss(
    logits: Tensor, teacher_logits: Tensor, micro_batch: MicroBatch, heads: tuple[Head, Head], recipe: Recipe
) -> LossParts:
    """Return the loss against teacher logits (``soft``) and, if the recipe sets it, against the labels (``hard``).

    Args:
        logits: the network's logits ``(n, labels)``.
        teacher_logits: a teacher's logits ``(n, labels)``, or the examples' scores ``(n, 1)``.
        micro_batch: the labels and the sizes of the lists.
        heads: the network's head and the teacher's head.
        recipe: the recipe. Its ``loss``, ``hard`` and ``temperature`` are used.
    """
    student_head, teacher_head = heads
    if recipe.loss == "listwise":
        student_scores = losses.raw_scores(logits, student_head)
        teacher_scores = losses.raw_scores(teacher_logits, teacher_head)
        soft = losses.list_divergence(student_scores, teacher_scores, micro_batch.sizes, recipe.temperature)
    else:
        soft = losses.soft_cross_entropy(logits, teacher_logits, recipe.temperature)
    if not recipe.hard:
        return {"soft": soft}
    return {"soft": soft, "hard": hard_loss(logits, micro_batch, student_head, recipe.loss)}


def hard_loss(logits: Tensor, micro_batch: MicroBatch, head: Head, loss: Loss) -> Tensor:
    """Return a network's cross-entropy with the labels of a micro-batch: pointwise, or listwise for any other loss."""
    targets = torch.from_numpy(micro_batch.targets).to(logits.device)
    if loss == "pointwise":
        return losses.cross_entropy(logits, targets)
    return losses.list_cross_entropy(losses.raw_scores(logits, head), targets, micro_batch.sizes)


def move_to_device(device: torch.device, batch: PaddedBatch) -> dict[str, Any]:
    """Return a batch's arrays as tensors on a device, by the model's input names."""
    return {
        name: torch.from_numpy(getattr(batch, name)).to(device, non_blocking=True) for name in PaddedBatch.__slots__
    }
