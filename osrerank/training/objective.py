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
"""The parts whose sum is a micro-batch's loss, by name, such as ``{"soft": ..., "hard": ...}``."""


class Objective(nn.Module, ABC):
    """A network and the loss that training minimises. The network takes `PaddedBatch`'s fields as keyword arguments."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @abstractmethod
    def forward(self, micro_batch: MicroBatch) -> LossParts:
        """Return the loss of a micro-batch.

        Each part is a mean over the lists if the loss is listwise, or else over the sequences or masked word pieces.
        """

    def trainable_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield each parameter that is not frozen, with its name. A shared parameter is yielded once."""
        return ((name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad)


class RankingObjective(Objective):
    """The loss of a ranker against the labels (``hard``), against the scores in the examples (``soft``), or both.

    Args:
        network: returns logits ``(n, 1)`` or ``(n, 2)``.
        head: the network's head, which says what the logits mean.
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
        # The examples have a single score for each document, which is the output of the head logit1.
        return output_loss(
            logits, teacher_logits, micro_batch, self._recipe, student_head=self._head, teacher_head="logit1"
        )


def output_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    micro_batch: MicroBatch,
    recipe: Recipe,
    *,
    student_head: Head,
    teacher_head: Head,
) -> LossParts:
    """Return the loss against a teacher (``soft``) and, if ``recipe.hard`` is set, that against the labels (``hard``).

    Args:
        student_logits: the logits of the network that is trained, ``(n, 1)`` or ``(n, 2)``.
        teacher_logits: the teacher's logits, ``(n, 1)`` or ``(n, 2)``.
        micro_batch: its labels (``targets``) and the sizes of its lists are used.
        recipe: the recipe. Its ``loss``, ``hard`` and ``temperature`` are used.
        student_head: says what the student's logits mean.
        teacher_head: says what the teacher's logits mean.
    """
    if recipe.loss == "listwise":
        student_scores = losses.raw_scores(student_logits, student_head)
        teacher_scores = losses.raw_scores(teacher_logits, teacher_head)
        soft = losses.list_divergence(student_scores, teacher_scores, micro_batch.sizes, recipe.temperature)
    else:
        soft = losses.soft_cross_entropy(student_logits, teacher_logits, recipe.temperature)
    if not recipe.hard:
        return {"soft": soft}
    return {"soft": soft, "hard": hard_loss(student_logits, micro_batch, student_head, recipe.loss)}


def hard_loss(logits: Tensor, micro_batch: MicroBatch, head: Head, loss: Loss) -> Tensor:
    """Return the cross-entropy with the labels: pointwise, or listwise for any other ``loss``."""
    targets = torch.from_numpy(micro_batch.targets).to(logits.device)
    if loss == "pointwise":
        return losses.cross_entropy(logits, targets)
    return losses.list_cross_entropy(losses.raw_scores(logits, head), targets, micro_batch.sizes)


def move_to_device(device: torch.device, batch: PaddedBatch) -> dict[str, Any]:
    """Return a batch's arrays as tensors on a device, by the names of the network's arguments."""
    return {
        name: torch.from_numpy(getattr(batch, name)).to(device, non_blocking=True) for name in PaddedBatch.__slots__
    }
