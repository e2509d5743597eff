"""Read a rerank server's response: the documents' logits, and why some documents have no logit."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from osrerank.errors import EndpointError
from osrerank.scoring.backends.http.dialects import Dialect, Scale

LARGEST = float(np.finfo(np.float32).max)
MIN_PROBABILITY = 1e-38
"""Smaller probabilities, such as 0, are raised to this one, whose logit is -87.5."""
MAX_PROBABILITY = 1 - 2**-53
"""Larger probabilities, such as 1, are lowered to this one, whose logit is 36.7."""
UNSCORED_HEADER = "x-rerank-unscored"
"""Header in which ``osrerank serve`` counts the documents that its model failed on; they come last in the response."""


class WrongScaleError(EndpointError):
    """The scores do not have the scale in the settings."""


def read_scores(
    dialect: Dialect, scale: Scale, content: Any, count: int, headers: Mapping[str, str]
) -> tuple[dict[int, float], dict[int, str]]:
    """Return the logits by document index, and by index the reasons why other documents have no logit.

    Args:
        dialect: dialect of the response.
        scale: scale of the response's scores.
        content: JSON of the response.
        count: number of documents in the request.
        headers: headers of the response.

    Raises:
        EndpointError: the response does not follow the dialect, or scores a document twice or one that was not sent.
        WrongScaleError: the scores should be probabilities, and one is not.
    """
    scores: dict[int, Any] = {}
    for entry in _entries(dialect, content):
        index = entry.get("index") if isinstance(entry, dict) else None
        if not isinstance(index, int) or isinstance(index, bool) or dialect.score_key not in entry:
            reason = f"the server's response has an entry without index or {dialect.score_key}"
            raise EndpointError(f"{reason}{_hint(dialect)}")
        if not 0 <= index < count:
            raise EndpointError(
                f"the server scored document {index}, but the request had only documents 0 to {count - 1}"
            )
        if index in scores:
            raise EndpointError(f"the server's response scores document {index} twice")
        scores[index] = entry[dialect.score_key]
    unscored = _unscored_count(headers) if dialect.name == "osrerank" else 0
    failures = dict.fromkeys(list(scores)[len(scores) - unscored :], "the server's model failed on it")
    failures |= {index: "the server's response has no score for it" for index in range(count) if index not in scores}
    logits: dict[int, float] = {}
    for index, score in scores.items():
        if index not in failures:
            logit = _logit(score, scale)
            if logit is None:
                failures[index] = f"the server's score is not a number: {str(score)[:20]}"
            else:
                logits[index] = logit
    return logits, failures


def _entries(dialect: Dialect, content: Any) -> list[Any]:
    """Return the response's list, which has an entry for each document."""
    if dialect.list_key:
        content = content.get(dialect.list_key) if isinstance(content, dict) else None
    if not isinstance(content, list):
        missing = f"no list {dialect.list_key}" if dialect.list_key else "no list"
        raise EndpointError(f"the server's response has {missing}{_hint(dialect)}")
    return content


def _hint(dialect: Dialect) -> str:
    return f": the server does not use the dialect {dialect.name}; set its dialect in [http] of osrerank.toml"


def _unscored_count(headers: Mapping[str, str]) -> int:
    count = headers.get(UNSCORED_HEADER) or ""
    return int(count) if count.isdigit() else 0


def _logit(score: Any, scale: Scale) -> float | None:
    """Return a score as a logit that is finite in float32; None if the score is not a number.

    Raises:
        WrongScaleError: the score should be a probability, but is not.
    """
    if not isinstance(score, int | float) or isinstance(score, bool) or not -LARGEST <= score <= LARGEST:
        return None
    if scale == "probability":
        if not 0 <= score <= 1:
            reason = (
                f'the server\'s score {score:g} is not a probability: set scores = "logit" in [http] of osrerank.toml'
            )
            raise WrongScaleError(reason)
        probability = min(max(float(score), MIN_PROBABILITY), MAX_PROBABILITY)
        return math.log(probability) - math.log1p(-probability)
    return float(score)
