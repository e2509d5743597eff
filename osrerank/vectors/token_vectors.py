"""Compare texts by their tokens' vectors (MaxSim), and merge a text's into fewer (hierarchical token pooling).

Khattab, Zaharia: ColBERT: Efficient and Effective Passage Search via Contextualized Late Interaction over BERT, 2020,
arXiv 2004.12832, section 3.3, equation 3.

Clavié, Chaffin, Adams: Reducing the Footprint of Multi-Vector Retrieval with Minimal Performance Impact via Token
Pooling, 2024, arXiv 2409.14683, section 3. Clusters are Ward's (1963) on the distances 1 - cosine, as PyLate and
sentence-transformers compute them; sentence-transformers' pooled vectors have norm 1, and so have these.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.types.vectors import Floats

PROTECTED = 1
"""How many first tokens are left as they are: [CLS]."""

IN_ONE_THREAD = 1 << 18
"""Multiplications of a matrix product that OpenBLAS computes in one thread. The threads of a larger one wait for each
other: where cores are busy, that takes ten times as long as the product (docs/research/late-interaction.md)."""

Doubles = npt.NDArray[np.float64]


def maxsim(query: Floats, documents: Iterable[Floats]) -> Floats:
    """Return the mean over a query's tokens of each one's greatest product with a document's tokens, float32 ``(n,)``.

    ColBERT's score is their sum. The mean gives the same order, and short and long queries values of one range. A
    document's value does not depend on the others.

    Args:
        query: its tokens' vectors ``(tokens, dimensions)``.
        documents: each one's ``(tokens, dimensions)``, at least one.
    """
    best = np.array([_products(one, query).max(axis=0) for one in documents], dtype=np.float32)
    means: Floats = best.reshape(-1, len(query)).mean(axis=1)
    return means


def pooled(vectors: Floats, factor: float) -> Floats:
    """Return a text's token vectors, all but the first merged to about one in ``factor``, in their first tokens' order.

    It takes about a millisecond for a hundred tokens, and four times as long for two hundred.

    Args:
        vectors: the tokens' vectors, of norm 1 ``(tokens, dimensions)``.
        factor: at least 1; 1 merges none.
    """
    first, rest = vectors[:PROTECTED], vectors[PROTECTED:]
    count = max(int(len(rest) // factor), 1)
    if count >= len(rest):
        return vectors
    _, cluster = np.unique(_clusters(rest, count), return_inverse=True)
    sums = np.zeros((count, vectors.shape[1]), dtype=np.float32)
    np.add.at(sums, cluster, rest)
    merged: Floats = np.concatenate([first, sums / np.linalg.norm(sums, axis=1, keepdims=True)])
    return merged


def _clusters(rows: Floats, count: int) -> npt.NDArray[np.intp]:
    """Return the first member of each row's cluster ``(n,)``, of so many clusters.

    The nearest two are merged until ``count`` are left. A merged cluster is never nearer to a third than the nearer of
    its parts was (Ward's distance is reducible), so only those that were nearest to a part look for another.
    """
    squares: Doubles = np.square(np.clip(1 - _products(rows, rows).astype(np.float64), 0, 2))
    np.fill_diagonal(squares, np.inf)
    members, sizes = np.arange(len(rows)), np.ones(len(rows))
    nearest, least = squares.argmin(axis=1), squares.min(axis=1)
    for _ in range(len(rows) - count):
        one = int(least.argmin())
        kept, gone = sorted((one, int(nearest[one])))
        squares[kept] = squares[:, kept] = _distances(squares, sizes, kept, gone)
        squares[gone] = squares[:, gone] = np.inf
        sizes[kept] += sizes[gone]
        members[members == gone] = kept
        stale: Any = np.flatnonzero((nearest == kept) | (nearest == gone))
        stale = np.append(stale, kept)
        nearest[stale], least[stale] = squares[stale].argmin(axis=1), squares[stale].min(axis=1)
        least[gone] = np.inf
    return members


def _distances(squares: Doubles, sizes: Doubles, one: int, other: int) -> Doubles:
    """Return the squared distances of two merged clusters to all others ``(n,)``, by Lance and Williams' formula."""
    both: Doubles = (sizes[one] + sizes) * squares[one] + (sizes[other] + sizes) * squares[other]
    both -= sizes * squares[one, other]
    both /= sizes[one] + sizes[other] + sizes
    return both


def _products(rows: Floats, others: Floats) -> Floats:
    """Return the product of each row with each other one ``(rows, others)``."""
    size = max(1, IN_ONE_THREAD // others.size)
    pieces = [rows[start : start + size] @ others.T for start in range(0, len(rows), size)]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
