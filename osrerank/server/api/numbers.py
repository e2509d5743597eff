"""Write scores as JSON numbers that every client can parse, and that keep the model's order.

OpenSearch's ml-commons casts a score to ``Double`` and stores it as a float32. It parses a number of more than 18
characters as a ``BigDecimal``, and one without a decimal point as an ``Integer``; both fail the search. Scores
therefore have a decimal point and at most seven decimals. Scores that differ, but would be rounded to the same number,
are moved apart by `round_without_ties`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DECIMALS = 7
STEPS_PER_UNIT = 10**DECIMALS
"""The functions below count in steps of 1e-7. In [0, 1], numbers that differ by a step also differ as float32."""


def round_without_ties(values: Sequence[float], keys: Sequence[float], *, lowest: float = -np.inf) -> list[float]:
    """Round values to seven decimals. Values with different keys stay different.

    Args:
        values: the values ``(n,)``, in descending order.
        keys: the keys by which the values were sorted ``(n,)``, in descending order.
        lowest: the minimum of the returned numbers. At most ``1e7 * (values[0] - lowest)`` different numbers fit.

    Returns:
        Multiples of 1e-7 ``(n,)`` in descending order, also as float32. Numbers are equal where keys are equal.
    """
    steps: list[int] = []
    for index, value in enumerate(values):
        step = round(value * STEPS_PER_UNIT)
        if index and keys[index] == keys[index - 1]:
            step = steps[-1]
        elif index:
            step = _lower_below(step, steps[-1])
        steps.append(step)
    return [step / STEPS_PER_UNIT for step in _raise_to_minimum(steps, keys, lowest)]


def _lower_below(step: int, upper: int) -> int:
    """Lower a step, if necessary, until it is less than ``upper``, also as float32."""
    step = min(step, upper - 1)
    while np.float32(step / STEPS_PER_UNIT) >= np.float32(upper / STEPS_PER_UNIT):
        step -= max(1, abs(step) >> 24)
    return step


def _raise_to_minimum(steps: list[int], keys: Sequence[float], lowest: float) -> list[int]:
    """Raise steps below ``lowest`` to it, and the steps before them as far as the order requires."""
    if not steps or steps[-1] >= lowest * STEPS_PER_UNIT:
        return steps
    minimum = round(lowest * STEPS_PER_UNIT)
    raised = list(steps)
    for index in range(len(raised) - 1, -1, -1):
        if raised[index] >= minimum:
            break
        raised[index] = minimum
        is_tie = index > 0 and keys[index] == keys[index - 1]
        if not is_tie:
            minimum += 1
    return raised


@dataclass(frozen=True, slots=True)
class Json:
    """JSON text in ASCII that `encode` writes unchanged, such as a document that the client sent."""

    text: str


def encode(content: Any) -> bytes:
    """Return content as JSON in ASCII. Floats have a decimal point, at most seven decimals, and no exponent."""
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
