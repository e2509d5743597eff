"""Training losses, and gradients by hand."""

import math

import pytest
import torch

from osrerank.training import losses


def test_cross_entropy_loss_by_hand() -> None:
    # softmax of (0, log 3) is (1/4, 3/4): -log(3/4) for the relevant one, -log(1/4) for the other
    logits = torch.tensor([[0.0, math.log(3)], [math.log(3), 0.0]])
    loss = losses.cross_entropy(logits, torch.tensor([1, 1]))
    assert float(loss) == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)
    one_logit = losses.cross_entropy(torch.tensor([[math.log(3)], [math.log(3)]]), torch.tensor([1, 0]))
    assert float(one_logit) == pytest.approx(float(loss))


def test_list_cross_entropy_and_its_gradients_by_hand() -> None:
    # lists (0, log 2, 0) and (log 3, 0): shares 1/4, 1/2, 1/4 and 3/4, 1/4
    scores = torch.tensor([0.0, math.log(2), 0.0, math.log(3), 0.0])
    loss = losses.list_cross_entropy(scores, torch.tensor([0, 1, 0, 0, 1]), (3, 2))
    assert float(loss) == pytest.approx((math.log(2) + math.log(4)) / 2)
    # two relevant ones in a list
    loss = losses.list_cross_entropy(torch.tensor([0.0, math.log(2), 0.0]), torch.tensor([1, 1, 0]), (3,))
    assert float(loss) == pytest.approx((math.log(4) + math.log(2)) / 2)
    scores = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], requires_grad=True)
    losses.list_cross_entropy(scores, torch.tensor([1, 0, 0, 1, 0]), (3, 2)).backward()
    shares = torch.softmax(torch.tensor([1.0, 2.0, 3.0]), 0) - torch.tensor([1.0, 0.0, 0.0])
    torch.testing.assert_close(scores.grad[:3], shares / 2)


def test_divergence_losses_by_hand() -> None:
    student = torch.tensor([0.0, 0.0])  # (1/2, 1/2)
    teacher = torch.tensor([math.log(3), 0.0])  # (3/4, 1/4)
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert float(losses.list_divergence(student, teacher, (2,))) == pytest.approx(expected)
    assert float(losses.list_divergence(teacher, teacher, (2,))) == pytest.approx(0, abs=1e-7)
    assert float(losses.list_divergence(teacher + 5, teacher, (2,))) == pytest.approx(0, abs=1e-6)
    student, teacher = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[0.0, 0.0]])
    expected_loss = 0.5 * math.log(4) + 0.5 * math.log(4 / 3)
    assert float(losses.soft_cross_entropy(student, teacher)) == pytest.approx(expected_loss / 2)


def test_distances_of_states_and_attention_leave_padding_out() -> None:
    student = torch.tensor([[[1.0, 1.0], [0.0, 0.0], [9.0, 9.0]], [[2.0, 0.0], [0.0, 0.0], [0.0, 0.0]]])
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    # first: (1 + 0) / 2 tokens; second: (2 + 0 + 0) / 3 tokens
    assert float(losses.hidden_distance(student, torch.zeros_like(student), mask)) == pytest.approx((1 / 2 + 2 / 3) / 2)
    student = torch.tensor([[[[3.0, -1e4], [0.0, 1.0]]]])
    teacher = torch.tensor([[[[1.0, 2.0], [0.0, -1e9]]]])
    mask = torch.ones(1, 2)
    # differences 2, 0 - 2, 0, 1 - 0
    assert float(losses.attention_distance(student, teacher, mask)) == pytest.approx((4 + 4 + 0 + 1) / 4)
    mask = torch.tensor([[1.0, 0.0]])
    assert float(losses.attention_distance(student, teacher, mask)) == pytest.approx(4)
