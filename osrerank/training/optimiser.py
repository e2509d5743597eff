"""Adam with decoupled weight decay, and the learning-rate schedule, as in BERT's released code or as in AdamW.

BERT's released code (Devlin et al. 2018, arXiv 1810.04805) uses Adam (Kingma, Ba 2014) with decoupled weight decay but
without bias correction. Its learning rate decays from step 0 on. Nogueira and Cho 2019 (arXiv 1901.04085, section 4)
train with this code.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor, nn

from osrerank.training.recipes import DecayFrom

MOMENTS = ("first", "second")
"""The names of a parameter's running means: of its gradient (first moment), and of the gradient's square (second)."""


def learning_rate(step: int, *, peak: float, warmup: int, total: int, decay_from: DecayFrom) -> float:
    """Return the learning rate of a step: linear warm-up, then linear decay to 0.

    If the decay counts from the ``start``, as in BERT, the rate is peak * t / W before step W, then peak * (1 - t / T).
    The first step then has the rate 0, and the rate never reaches the peak. If the decay counts from the end of the
    ``warmup``, the first step has the rate peak / W, and step W the peak.

    Args:
        step: the number t of the step, from 0.
        peak: the maximum rate.
        warmup: the number W of warm-up steps.
        total: the number T of all steps.
        decay_from: whether the decay counts from the start or from the end of the warm-up.
    """
    if decay_from == "start":
        return peak * step / warmup if step < warmup else peak * (1 - step / total)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (total - step) / max(1, total - warmup)


class Adam(torch.optim.Optimizer):
    """Adam with decoupled weight decay.

    With ``bias_correction``, this is AdamW (Loshchilov, Hutter 2017, arXiv 1711.05101). Otherwise, it is BERT's
    optimiser: w <- w - rate * (m / (sqrt(v) + eps) + decay * w), with the running means m of the gradient, and v of its
    square.

    Args:
        groups: parameters, or groups ``{"params": [...], "weight_decay": 0.01}``.
        betas: the decay rates of the running means of the gradient and of its square.
        eps: a small number that is added to the denominator.
        bias_correction: whether the means are divided by 1 - beta ** t.
    """

    def __init__(
        self,
        groups: Iterable[Any],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        bias_correction: bool = False,
    ) -> None:
        defaults = {"lr": 0.0, "weight_decay": 0.0, "betas": betas, "eps": eps, "bias_correction": bias_correction}
        super().__init__(groups, {**defaults, "steps": 0})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update the parameters by their gradients. A parameter without a gradient is not changed."""
        if closure is not None:
            raise ValueError("this optimiser takes no closure")
        for group in self.param_groups:
            group["steps"] += 1
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(group, parameters)
        return None

    def _update(self, group: Mapping[str, Any], parameters: list[Tensor]) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        first_moments = [self._get_moment(parameter, "first") for parameter in parameters]  # m
        second_moments = [self._get_moment(parameter, "second") for parameter in parameters]  # v
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(first_moments, gradients, 1 - beta1)
        torch._foreach_mul_(second_moments, beta2)
        torch._foreach_addcmul_(second_moments, gradients, gradients, 1 - beta2)
        first_correction = 1.0
        second_correction = 1.0
        if group["bias_correction"]:
            first_correction = 1 - beta1 ** group["steps"]
            second_correction = 1 - beta2 ** group["steps"]
        denominators = torch._foreach_sqrt(second_moments)  # noqa: SLF001 - torch's own optimisers call it, too
        torch._foreach_div_(denominators, second_correction**0.5)
        torch._foreach_add_(denominators, group["eps"])
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_addcdiv_(parameters, first_moments, denominators, -group["lr"] / first_correction)

    def _get_moment(self, parameter: Tensor, name: str) -> Tensor:
        """Return a running mean of a parameter. It starts at 0."""
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter)
        moment: Tensor = state[name]
        return moment


def group_parameters(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices and embedding tables with weight decay, biases and layer norms without."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in trainable if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trainable if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
