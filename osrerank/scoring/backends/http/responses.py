"""Read a rerank server's response: the logit of each document, or the reason why the document has none."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from osrerank.errors import EndpointError
from osrerank.scoring.backends.http.dialects import Dialect, Scale

MAX_FLOAT32 = float(np.finfo(np.float32).max)
MIN_PROBABILITY = 1e-38
"""The lowest probability, whose logit is -87.5. A lower one counts as this."""
MAX_PROBABILITY = 1 - 2**-53
"""The highest probability, whose logit is 36.7: the last float64 before 1. A higher one counts as this."""
UNSCORED_HEADER = "x-rerank-unscored"
"""The header with the number of documents that ``osrerank serve`` could not score. They are last in its response."""


class WrongScaleError(EndpointError):
    """The server's scores are not on the scale that the settings state."""


def read_scores(
    dialect: Dialect, scale: Scale, content: Any, n_documents: int, headers: Mapping[str, str]
) -> tuple[dict[int, float], dict[int, str]]:
    """Read the logits of ``n_documents`` documents from the JSON ``content`` and the headers of a response.

    Returns:
        the logit of each scored document, by its index, and the reason why each other document has none:
        ``({0: 1.5, 2: -0.3}, {1: "the server's response has no score for it"})``.

    Raises:
        EndpointError: the response does not follow the dialect, scores a document twice, or scores a document that was
            not sent.
        WrongScaleError: the scale is ``probability``, and a score is not between 0 and 1.
    """
    scores: dict[int, Any] = {}
    for entry in _list_entries(dialect, content):
        index = entry.get("index") if isinstance(entry, dict) else None
        if not isinstance(index, int) or isinstance(index, bool) or dialect.score_key not in entry:
            raise _dialect_error(f"an entry without 'index' or {dialect.score_key!r}", dialect)
        if not 0 <= index < n_documents:
            raise EndpointError(
                f"the server scored document {index}, but the request had only documents 0 to {n_documents - 1}"
            )
        if index in scores:
            raise EndpointError(f"the server's response scores document {index} twice")
        scores[index] = entry[dialect.score_key]
    failures: dict[int, str] = {}
    if dialect.name == "osrerank":
        n_scored = len(scores) - _count_unscored(headers)
        unscored_indices = list(scores)[n_scored:]  # `scores` has the order of the response
        failures = dict.fromkeys(unscored_indices, "the server's model failed on it")
    logits: dict[int, float] = {}
    for index in range(n_documents):
        if index not in scores:
            failures[index] = "the server's response has no score for it"
        elif index not in failures:
            logit = _to_logit(scores[index], scale)
            if logit is None:
                failures[index] = f"the server's score is not a number: {str(scores[index])[:20]}"
            else:
                logits[index] = logit
    return logits, failures


def _list_entries(dialect: Dialect, content: Any) -> list[Any]:
    """Return the response's list, which has an entry for each document."""
    entries = content
    if dialect.list_key:
        entries = content.get(dialect.list_key) if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise _dialect_error(f"no list {dialect.list_key!r}" if dialect.list_key else "no list", dialect)
    return entries


def _dialect_error(problem: str, dialect: Dialect) -> EndpointError:
    fix = f"the server does not use the dialect {dialect.name!r}; set dialect in [http] of osrerank.toml"
    return EndpointError(f"the server's response has {problem}: {fix}")


def _count_unscored(headers: Mapping[str, str]) -> int:
    count = headers.get(UNSCORED_HEADER) or ""
    return int(count) if count.isdecimal() else 0


def _to_logit(score: Any, scale: Scale) -> float | None:
    """Return a score's logit, or None if the score is not a number that is finite in float32."""
    if not isinstance(score, int | float) or isinstance(score, bool):
        return None
    if not abs(score) <= MAX_FLOAT32:  # true for NaN as well
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
