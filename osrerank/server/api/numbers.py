"""Write scores as JSON numbers that every client can read, and that keep the model's order.

ml-commons casts a score to ``Double`` and stores it as a float32. It parses a number of more than 18 characters as a
``BigDecimal``, and a number without a decimal point as an ``Integer``; either fails the search. So scores have at most
seven decimals and always a point. Different scores that would round to the same number are moved apart, so that sorting
by them gives the same order.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DECIMALS = 7
STEPS = 10**DECIMALS
"""The number of steps of 1e-7 in 1; numbers in [0, 1] that differ by such a step differ as float32, too."""


def separate(values: Sequence[float], keys: Sequence[float], *, lowest: float = -np.inf) -> list[float]:
    """Round values to seven decimals; values with different keys stay different.

    Args:
        values: the values ``(n,)``, never increasing.
        keys: the sort keys ``(n,)``, never increasing; values with equal keys become equal numbers.
        lowest: the smallest number; at most ``1e7 * (values[0] - lowest)`` different numbers fit above it.

    Returns:
        Multiples of 1e-7 ``(n,)``, never increasing. A number is less than the one before it, in float32, too, if its
        key is.
    """
    steps: list[int] = []
    for index, value in enumerate(values):
        step = round(value * STEPS)
        if index and keys[index] == keys[index - 1]:
            step = steps[-1]
        elif index:
            step = _below(steps[-1], step)
        steps.append(step)
    return [step / STEPS for step in _raise_to(steps, keys, lowest)]


def _below(above: int, step: int) -> int:
    """Return the step, or the next lower one that is a smaller float32 than the step ``above``."""
    step = min(step, above - 1)
    while np.float32(step / STEPS) >= np.float32(above / STEPS):
        step -= max(1, abs(step) >> 24)
    return step


def _raise_to(steps: list[int], keys: Sequence[float], lowest: float) -> list[int]:
    """Raise steps below ``lowest`` up to it, and the steps before them just enough to keep the order."""
    if not steps or steps[-1] >= lowest * STEPS:
        return steps
    floor = round(lowest * STEPS)
    raised = list(steps)
    for index in range(len(raised) - 1, -1, -1):
        if raised[index] >= floor:
            break
        raised[index] = floor
        is_tie = index and keys[index] == keys[index - 1]
        floor += 0 if is_tie else 1
    return raised


@dataclass(frozen=True, slots=True)
class Json:
    """JSON text in ASCII that `encode` writes unchanged: a client's document, whose numbers are not scores."""

    text: str


def encode(content: Any) -> bytes:
    """Return content as JSON in ASCII; floats have a point, at most seven decimals, and no exponent."""
    return _encode(content).encode("ascii")


def _encode(content: Any) -> str:
    if isinstance(content, Json):
        return content.text
    if isinstance(content, float):
        digits = f"{content:.{DECIMALS}f}".rstrip("0")
        return f"{digits}0" if digits.endswith(".") else digits
    if isinstance(content, Mapping):
        return "{" + ",".join(f"{json.dumps(name)}:{_encode(value)}" for name, value in content.items()) + "}"
    if isinstance(content, list | tuple):
        return "[" + ",".join(map(_encode, content)) + "]"
    return json.dumps(content)
