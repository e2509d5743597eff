"""Scores as JSON numbers that every client reads, in the order that the model gave.

ml-commons casts a score to ``Double`` and keeps it as a float32: a number of more than 18 characters arrives there as a
``BigDecimal``, one without a decimal point as an ``Integer``, and either fails the search. So scores have at most seven
decimals and always a point; neighbours that would round to the same number get a step between them, so that a client
that sorts again gets the same order.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DECIMALS = 7
STEPS = 10**DECIMALS
"""Steps in one: 1e-7 is more than float32 needs to distinguish two numbers in [0, 1]."""


def separated(values: Sequence[float], keys: Sequence[float], *, lowest: float = -np.inf) -> list[float]:
    """Round values to seven decimals and keep them apart where their keys differ.

    Args:
        values: ``(n,)``, never increasing.
        keys: ``(n,)``, never increasing; equal ones get equal numbers.
        lowest: no number is less; at most ``1e7 * (values[0] - lowest)`` different ones fit above it.

    Returns:
        Multiples of 1e-7 ``(n,)``, never increasing; less than the one before, in float32 too, where the key is.
    """
    steps: list[int] = []
    for index, value in enumerate(values):
        step = round(value * STEPS)
        if index and keys[index] == keys[index - 1]:
            step = steps[-1]
        elif index:
            step = _below(steps[-1], step)
        steps.append(step)
    return [step / STEPS for step in _raised(steps, keys, lowest)]


def _below(above: int, step: int) -> int:
    """Return the step, or the first below it that is a smaller float32 than the one above."""
    step = min(step, above - 1)
    while np.float32(step / STEPS) >= np.float32(above / STEPS):
        step -= max(1, abs(step) >> 24)
    return step


def _raised(steps: list[int], keys: Sequence[float], lowest: float) -> list[int]:
    """Return the steps with those below the lowest value lifted, and those above them where they must give way."""
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
    """JSON in ASCII that `encode` writes as it is: a client's own, whose numbers are not scores."""

    text: str


def encode(content: Any) -> bytes:
    """Return JSON in ASCII, floats without exponent, with a point and at most seven decimals."""
    return _encoded(content).encode("ascii")


def _encoded(content: Any) -> str:
    if isinstance(content, Json):
        return content.text
    if isinstance(content, float):
        digits = f"{content:.{DECIMALS}f}".rstrip("0")
        return f"{digits}0" if digits.endswith(".") else digits
    if isinstance(content, Mapping):
        return "{" + ",".join(f"{json.dumps(name)}:{_encoded(value)}" for name, value in content.items()) + "}"
    if isinstance(content, list | tuple):
        return "[" + ",".join(map(_encoded, content)) + "]"
    return json.dumps(content)
