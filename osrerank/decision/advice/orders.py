"""What can be known without judgments: how much orders differ, and which documents a judge should look at."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from osrerank.decision.advice.sample import Found
from osrerank.formats.files import write_atomically

TOP = 10
SPREAD = 0.3
"""Usual standard deviation of the differences of nDCG@10 between queries."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How much two orders of the same hits differ, averaged over queries that found something.

    Attributes:
        queries: that were compared.
        same_first: share of the queries with the same first hit.
        overlap: share of the ten first hits that both have.
        tau: Kendall's tau of the hits that either has among its ten first, in [-1, 1].
    """

    queries: int
    same_first: float
    overlap: float
    tau: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def difference(one: Sequence[Sequence[str]], other: Sequence[Sequence[str]]) -> Difference | None:
    """Return how much orders of the same queries differ; None where no query found anything."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a and b]
    if not pairs:
        return None
    overlaps = [len(set(a[:TOP]) & set(b[:TOP])) / min(TOP, len(a), len(b)) for a, b in pairs]
    same = [a[0] == b[0] for a, b in pairs]
    return Difference(
        len(pairs), float(np.mean(same)), float(np.mean(overlaps)), float(np.mean([_tau(a, b) for a, b in pairs]))
    )


def _tau(one: Sequence[str], other: Sequence[str]) -> float:
    """Return Kendall's tau over the documents that either has at the top; 1 for fewer than two."""
    chosen = [doc_id for doc_id in dict.fromkeys((*one[:TOP], *other[:TOP])) if doc_id in set(one) & set(other)]
    if len(chosen) < 2:
        return 1.0
    places = np.array([(one.index(doc_id), other.index(doc_id)) for doc_id in chosen])
    upper = np.triu_indices(len(chosen), 1)
    signs = np.sign(places[:, None] - places[None, :])[upper]
    return float(np.mean(signs[:, 0] * signs[:, 1]))


def judged_share(orders: Mapping[str, Sequence[str]], judgments: Mapping[str, Mapping[str, int]]) -> float:
    """Return the share of the ten first hits of each query that have a judgment; 1 without hits."""
    flags = [doc_id in judgments[query_id] for query_id, order in orders.items() for doc_id in order[:TOP]]
    return float(np.mean(flags)) if flags else 1.0


def write_pool(
    path: Path,
    found: Sequence[Found],
    orders: Sequence[Sequence[Sequence[str]]],
    judgments: Mapping[str, Mapping[str, int]],
    *,
    seed: int,
) -> int:
    """Write what a judge should look at: the ten first hits of every order that have no judgment yet.

    The file is one of candidates, as ``osrerank rerank`` reads it; the order of a query's hits is drawn, so that it
    says nothing of who found them.

    Args:
        path: file to write, JSON lines.
        found: the sample.
        orders: of the same queries, by first pass and models.
        judgments: that exist.
        seed: of the draw.

    Returns:
        The number of documents to judge.
    """
    draw, lines, count = random.Random(seed), [], 0  # noqa: S311 - no secret
    for place, one in enumerate(found):
        known = judgments.get(one.query.query_id, {})
        pooled = [doc_id for order in orders for doc_id in order[place][:TOP] if doc_id not in known]
        doc_ids = list(dict.fromkeys(pooled))
        draw.shuffle(doc_ids)
        if doc_ids:
            candidates = [{"doc_id": doc_id, "text": one.texts[doc_id]} for doc_id in doc_ids]
            line = {"query_id": one.query.query_id, "query": one.query.text, "candidates": candidates}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
            count += len(doc_ids)
    write_atomically(path, lines)
    return count


def queries_for(difference_of: float, reach: float = 2.8) -> int:
    """Return how many judged queries find a difference of nDCG@10 with a power of 80%, with the usual spread."""
    return round((reach * SPREAD / difference_of) ** 2)
