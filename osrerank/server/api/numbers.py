"""Write scores as JSON numbers that every client can parse, and that keep the model's order.

OpenSearch's ml-commons casts a score to ``Double`` and stores it as a float32. It parses a number of more than 18
characters as a ``BigDecimal``, and a number without a decimal point as an ``Integer``. Both make the search fail, so
scores have a decimal point and at most seven decimals. If different scores would be rounded to the same number,
`round_without_ties` lowers one of them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

DECIMALS = 7
STEPS_PER_UNIT = 10**DECIMALS
"""The number of steps in 1. The functions below compute with whole steps of 1e-7, so .5 is 5,000,000 steps. Two numbers
in [0, 1] that differ by a step also differ after their conversion to float32."""


def round_without_ties(values: Sequence[float], keys: Sequence[float], *, lowest: float = -np.inf) -> list[float]:
    """Round values to seven decimals, but return different numbers for values with different keys.

    The values .12345678 and .12345677 become .1234568 and .1234567, although both would be rounded to .1234568.

    Args:
        values: the values ``(n,)``, in descending order.
        keys: what the values were sorted by ``(n,)``, in descending order: the logits of probabilities, for example.
        lowest: the minimum of the returned numbers. At most ``1e7 * (values[0] - lowest)`` different numbers fit.

    Returns:
        Multiples of 1e-7 ``(n,)`` in descending order, also as float32. Equal keys get equal numbers.
    """
    rounded: list[int] = []
    for index, value in enumerate(values):
        n_steps = round(value * STEPS_PER_UNIT)
        if index and keys[index] == keys[index - 1]:
            n_steps = rounded[-1]
        elif index:
            n_steps = _lower_until_less(n_steps, rounded[-1])
        rounded.append(n_steps)
    return [n_steps / STEPS_PER_UNIT for n_steps in _raise_to_minimum(rounded, keys, lowest)]


def _lower_until_less(n_steps: int, previous: int) -> int:
    """Lower a number of steps, if necessary, until it is less than the previous one, also as float32."""
    n_steps = min(n_steps, previous - 1)
    while np.float32(n_steps / STEPS_PER_UNIT) >= np.float32(previous / STEPS_PER_UNIT):
        n_steps -= max(1, abs(n_steps) >> 24)  # about to the next float32 below
    return n_steps


def _raise_to_minimum(rounded: list[int], keys: Sequence[float], lowest: float) -> list[int]:
    """Raise numbers of steps to at least ``lowest``, but keep those with different keys different.

    With ``lowest`` 0, the numbers (5, -1, -2) become (5, 1, 0).
    """
    if not rounded or rounded[-1] >= lowest * STEPS_PER_UNIT:
        return rounded
    lowest_free = round(lowest * STEPS_PER_UNIT)
    raised = list(rounded)
    for index in range(len(raised) - 1, -1, -1):  # from the end, each new key gets one step more
        if raised[index] >= lowest_free:
            break
        raised[index] = lowest_free
        is_tie = index > 0 and keys[index] == keys[index - 1]
        if not is_tie:
            lowest_free += 1
    return raised


@dataclass(frozen=True, slots=True)
class Json:
    """JSON text in ASCII that `encode` writes unchanged, such as ``{"title": "Cats"}`` for a client's document."""

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
