"""Training objectives: a network with the loss that training minimises."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from osrerank.scoring.card import Head
from osrerank.scoring.inputs import PaddedBatch
from osrerank.training import losses
from osrerank.training.examples.batches import Lot
from osrerank.training.recipes import Loss, Recipe

Parts = Mapping[str, Tensor]
"""The parts of a micro-batch's loss by name, each a mean over lists, sequences or hidden pieces; they add up to it."""


class Objective(nn.Module, ABC):
    """A network with the loss that training minimises.

    Args:
        network: the network to train; it takes `PaddedBatch`'s fields by name.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @abstractmethod
    def forward(self, lot: Lot) -> Parts:
        """Return the parts of a micro-batch's loss, by name."""

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield each trained parameter with its name; a shared parameter is yielded once."""
        return ((name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad)


class RankingObjective(Objective):
    """Learns from labels, from the scores in the examples, or from both; over single sequences or over lists.

    Args:
        network: returns logits ``(n, labels)``.
        head: the kind of head, which says what the logits mean.
        recipe: the recipe; its ``loss``, ``soft``, ``hard`` and ``temperature`` are used.
    """

    def __init__(self, network: nn.Module, head: Head, recipe: Recipe) -> None:
        super().__init__(network)
        self._head = head
        self._recipe = recipe

    def forward(self, lot: Lot) -> Parts:
        device = next(self.network.parameters()).device
        logits = self.network(**to_device(device, lot.inputs)).float()
        if not self._recipe.soft:
            return {"hard": hard_loss(logits, lot, self._head, self._recipe.loss)}
        teacher_logits = torch.from_numpy(lot.scores).to(device).unsqueeze(1)
        return output_loss(logits, teacher_logits, lot, (self._head, "logit1"), self._recipe)


def output_loss(logits: Tensor, teacher_logits: Tensor, lot: Lot, heads: tuple[Head, Head], recipe: Recipe) -> Parts:
    """Return the parts of the loss on logits: ``soft``, and ``hard`` if the recipe sets it.

    Args:
        logits: the network's logits ``(n, labels)``.
        teacher_logits: a teacher's logits, or the scores in the examples ``(n, 1)``.
        lot: the micro-batch.
        heads: the kinds of head that gave the logits and the teacher's logits.
        recipe: the recipe; its ``loss``, ``temperature`` and ``hard`` are used.
    """
    if recipe.loss == "listwise":
        student_scores, teacher_scores = (
            losses.raw_scores(z, head) for z, head in zip((logits, teacher_logits), heads, strict=True)
        )
        soft = losses.list_divergence(student_scores, teacher_scores, lot.sizes, recipe.temperature)
    else:
        soft = losses.soft_cross_entropy(logits, teacher_logits, recipe.temperature)
    if not recipe.hard:
        return {"soft": soft}
    return {"soft": soft, "hard": hard_loss(logits, lot, heads[0], recipe.loss)}


def hard_loss(logits: Tensor, lot: Lot, head: Head, loss: Loss) -> Tensor:
    """Return the cross-entropy of a micro-batch with its labels, over single sequences or over lists."""
    targets = torch.from_numpy(lot.targets).to(logits.device)
    if loss == "pointwise":
        return losses.cross_entropy(logits, targets)
    return losses.list_cross_entropy(losses.raw_scores(logits, head), targets, lot.sizes)


def to_device(device: torch.device, batch: PaddedBatch) -> dict[str, Any]:
    """Return a batch's arrays as tensors on a device, by the model's input names."""
    return {
        name: torch.from_numpy(getattr(batch, name)).to(device, non_blocking=True) for name in PaddedBatch.__slots__
    }
