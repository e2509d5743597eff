"""The thing that is optimised: a network with its loss, whatever the loss is."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from osrerank.scoring.inputs import Batch
from osrerank.scoring.model import Head
from osrerank.training import losses
from osrerank.training.batches import Lot
from osrerank.training.recipes import Loss

Parts = Mapping[str, Tensor]
"""The loss of a lot by its parts, each a mean over the lot's lists; their sum is the loss."""


class Objective(nn.Module, ABC):
    """A network and a loss.

    Args:
        network: what is trained; takes `Batch`'s fields by name.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @abstractmethod
    def forward(self, lot: Lot) -> Parts:
        """Return the loss of a lot."""

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield what is trained, by name, each once."""
        return ((name, parameter) for name, parameter in self.named_parameters() if parameter.requires_grad)


class RankingObjective(Objective):
    """Cross-entropy with the labels, of single sequences or of lists.

    Args:
        network: gives logits ``(n, labels)``.
        head: what they mean.
        loss: pointwise or listwise.
    """

    def __init__(self, network: nn.Module, head: Head, loss: Loss) -> None:
        super().__init__(network)
        self.head = head
        self.loss = loss

    def forward(self, lot: Lot) -> Parts:
        device = next(self.network.parameters()).device
        logits = self.network(**on(device, lot.inputs)).float()
        return {"hard": hard_loss(logits, lot, self.head, self.loss)}


def hard_loss(logits: Tensor, lot: Lot, head: Head, loss: Loss) -> Tensor:
    """Return the cross-entropy of a lot with its labels."""
    targets = torch.from_numpy(lot.targets).to(logits.device)
    if loss == "pointwise":
        return losses.cross_entropy(logits, targets)
    return losses.list_cross_entropy(losses.raw_scores(logits, head), targets, lot.sizes)


def on(device: torch.device, batch: Batch) -> dict[str, Any]:
    """Return a batch's arrays as tensors on a device, by the model's input names."""
    return {name: torch.from_numpy(getattr(batch, name)).to(device, non_blocking=True) for name in Batch.__slots__}
