"""A rerank server's answer as logits: what can be used of it, and why the rest cannot."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from osrerank.errors import EndpointError
from osrerank.scoring.backends.http.dialects import Dialect, Scale

LARGEST = float(np.finfo(np.float32).max)
LEAST = 1e-38
"""Probabilities below it, 0 among them, count as it: their logit is -87.5."""
MOST = 1 - 2**-53
"""Probabilities above it, 1, count as it: their logit is 36.7."""
UNSCORED = "x-rerank-unscored"
"""``osrerank serve`` counts here the documents that its model failed on; they stand last."""


class WrongScaleError(EndpointError):
    """The scores are not what the settings say they are."""


def read(
    dialect: Dialect, scale: Scale, content: Any, count: int, headers: Mapping[str, str]
) -> tuple[dict[int, float], dict[int, str]]:
    """Return the logits of the documents by their indices in the request, and why others have none.

    Args:
        dialect: the dialect of the answer.
        scale: what its scores are.
        content: the answer's JSON.
        count: documents of the request.
        headers: the headers of the answer.

    Raises:
        EndpointError: the answer is not one of the dialect, or names a document twice or one that was not sent.
    """
    items = _items(dialect, content)
    scores: dict[int, Any] = {}
    for item in items:
        index = item.get("index") if isinstance(item, dict) else None
        if not isinstance(index, int) or isinstance(index, bool) or dialect.score not in item:
            raise EndpointError(f"the server's answer has an item without index and {dialect.score}{_hint(dialect)}")
        if not 0 <= index < count:
            raise EndpointError(f"the server scored document {index}, but was sent the documents 0 to {count - 1}")
        if index in scores:
            raise EndpointError(f"the server's answer scores document {index} twice")
        scores[index] = item[dialect.score]
    unscored = _unscored(headers) if dialect.name == "osrerank" else 0
    failures = dict.fromkeys(list(scores)[len(scores) - unscored :], "the server's model failed on it")
    failures |= {index: "the server's answer has no score for it" for index in range(count) if index not in scores}
    logits: dict[int, float] = {}
    for index, score in scores.items():
        if index not in failures:
            logit = _logit(score, scale)
            if logit is None:
                failures[index] = f"the server's score is not a number: {str(score)[:20]}"
            else:
                logits[index] = logit
    return logits, failures


def _items(dialect: Dialect, content: Any) -> list[Any]:
    if dialect.items:
        content = content.get(dialect.items) if isinstance(content, dict) else None
    if not isinstance(content, list):
        missing = f"no list {dialect.items}" if dialect.items else "no list"
        raise EndpointError(f"the server's answer has {missing}{_hint(dialect)}")
    return content


def _hint(dialect: Dialect) -> str:
    return f": it does not speak the dialect {dialect.name}, name its dialect in [http] of osrerank.toml"


def _unscored(headers: Mapping[str, str]) -> int:
    told = headers.get(UNSCORED) or ""
    return int(told) if told.isdigit() else 0


def _logit(score: Any, scale: Scale) -> float | None:
    """Return a score as a logit that is finite in float32; None where it is not a number.

    Raises:
        WrongScaleError: it should be a probability, and is not.
    """
    if not isinstance(score, int | float) or isinstance(score, bool) or not -LARGEST <= score <= LARGEST:
        return None
    if scale == "probability":
        if not 0 <= score <= 1:
            reason = (
                f'the server\'s score {score:g} is no probability: write scores = "logit" in [http] of osrerank.toml'
            )
            raise WrongScaleError(reason)
        chance = min(max(float(score), LEAST), MOST)
        return math.log(chance) - math.log1p(-chance)
    return float(score)
