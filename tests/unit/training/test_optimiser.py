"""BERT's Adam and the learning rates of a training."""

import math

import pytest
import torch

from osrerank.training.optimiser import Adam, group_parameters, learning_rate
from osrerank.training.recipes import PRESETS


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.0), (5_000, 1.5e-6), (9_999, 3e-6 * 0.9999), (10_000, 2.7e-6), (50_000, 1.5e-6), (99_999, 3e-11)],
)
def test_the_learning_rate_of_the_papers_by_hand(step: int, expected: float) -> None:
    recipe = PRESETS["monobert"]
    found = learning_rate(
        step,
        peak=recipe.rate,
        warmup=recipe.warmup_steps(recipe.steps),
        total=recipe.steps,
        decay_from=recipe.decay_from,
    )
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(("step", "expected"), [(0, 0.1), (9, 1.0), (10, 1.0), (55, 0.5), (99, 1 / 90)])
def test_the_linear_learning_rate_by_hand(step: int, expected: float) -> None:
    assert learning_rate(step, peak=1.0, warmup=10, total=100, decay_from="warmup") == pytest.approx(expected)
    assert learning_rate(0, peak=1.0, warmup=0, total=4, decay_from="start") == 1.0


def small() -> tuple[torch.nn.Module, list[torch.Tensor]]:
    torch.manual_seed(1)
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 1))
    return network.double(), [torch.randn(8, 4, dtype=torch.float64) for _ in range(6)]


def trained(network: torch.nn.Module, inputs: list[torch.Tensor], step) -> list[torch.Tensor]:
    for number, batch in enumerate(inputs):
        network.zero_grad()
        network(batch).square().sum().backward()
        step(number)
    return [parameter.detach().clone() for parameter in network.parameters()]


def rate(step: int) -> float:
    return learning_rate(step, peak=1e-2, warmup=2, total=6, decay_from="start")


def test_berts_adam_equals_a_plain_implementation_step_by_step() -> None:
    network, inputs = small()
    first = {parameter: torch.zeros_like(parameter) for parameter in network.parameters()}
    second = {parameter: torch.zeros_like(parameter) for parameter in network.parameters()}

    def plain(step: int) -> None:
        norm = math.sqrt(sum(float(parameter.grad.square().sum()) for parameter in network.parameters()))
        for parameter in network.parameters():
            gradient = parameter.grad * min(1.0, 1.0 / norm)
            first[parameter] = 0.9 * first[parameter] + 0.1 * gradient
            second[parameter] = 0.999 * second[parameter] + 0.001 * gradient**2
            update = first[parameter] / (second[parameter].sqrt() + 1e-6)
            if parameter.ndim > 1:
                update = update + 0.01 * parameter.data
            parameter.data = parameter.data - rate(step) * update

    expected = trained(network, inputs, plain)
    network, inputs = small()
    recipe = PRESETS["monobert"]
    optimiser = Adam(
        group_parameters(network.parameters(), recipe.weight_decay),
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.eps,
        bias_correction=recipe.bias_correction,
    )

    def ours(step: int) -> None:
        torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
        for group in optimiser.param_groups:
            group["lr"] = rate(step)
        optimiser.step()

    trained_weights = trained(network, inputs, ours)
    torch.testing.assert_close(trained_weights, expected, rtol=1e-6, atol=1e-9)


def test_our_adam_with_bias_correction_equals_torchs_adamw() -> None:
    results = []
    for make in (
        lambda groups: Adam(groups, eps=1e-8, bias_correction=True),
        lambda groups: torch.optim.AdamW(groups, eps=1e-8),
    ):
        network, inputs = small()
        optimiser = make(group_parameters(network.parameters(), 0.1))
        for group in optimiser.param_groups:
            group["lr"] = 1e-2
        results.append(trained(network, inputs, lambda _step, optimiser=optimiser: optimiser.step()))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-12)
