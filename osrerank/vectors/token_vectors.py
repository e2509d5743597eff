"""Compare texts by the vectors of their tokens (MaxSim), and merge the token vectors of a text into fewer vectors.

Khattab, Zaharia: ColBERT: Efficient and Effective Passage Search via Contextualized Late Interaction over BERT, 2020,
arXiv 2004.12832, section 3.3, equation 3.

Clavié, Chaffin, Adams: Reducing the Footprint of Multi-Vector Retrieval with Minimal Performance Impact via Token
Pooling, 2024, arXiv 2409.14683, section 3. As in PyLate and sentence-transformers, the clusters are those of Ward's
method (1963) on the distances 1 - cosine. As in sentence-transformers, merged vectors have norm 1.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.types.vectors import Floats

PROTECTED = 1
"""How many tokens at the start of a text are not merged: [CLS]."""

IN_ONE_THREAD = 1 << 18
"""The most multiplications of a matrix product that OpenBLAS computes in one thread. A larger product uses several
threads, which wait for each other: on busy cores, it takes ten times as long (docs/research/late-interaction.md)."""

Doubles = npt.NDArray[np.float64]


def maxsim(query: Floats, documents: Iterable[Floats]) -> Floats:
    """Return the MaxSim score of each document for a query, divided by the query's number of tokens, float32 ``(n,)``.

    For each token of the query, MaxSim takes the greatest product with a token of the document, and ColBERT adds these
    up. The mean gives the same order as the sum, and its range does not depend on the query's length.

    Args:
        query: the vectors of the query's tokens ``(tokens, dimensions)``.
        documents: for each document, the vectors of its tokens ``(tokens, dimensions)``, at least one.
    """
    products = np.array([_multiply(document, query).max(axis=0) for document in documents], dtype=np.float32)
    means: Floats = products.reshape(-1, len(query)).mean(axis=1)
    return means


def pool_tokens(vectors: Floats, factor: float) -> Floats:
    """Merge similar token vectors of a text; return the merged vectors in the order of their first tokens.

    A hundred tokens take about a millisecond, and two hundred take four times as long.

    Args:
        vectors: the vectors of the tokens, of norm 1 ``(tokens, dimensions)``.
        factor: how many vectors are merged into one on average, at least 1; with 1, nothing is merged.
    """
    protected, mergeable = vectors[:PROTECTED], vectors[PROTECTED:]
    count = max(int(len(mergeable) // factor), 1)
    if count >= len(mergeable):
        return vectors
    _, cluster = np.unique(_cluster_rows(mergeable, count), return_inverse=True)
    sums = np.zeros((count, vectors.shape[1]), dtype=np.float32)
    np.add.at(sums, cluster, mergeable)
    merged: Floats = np.concatenate([protected, sums / np.linalg.norm(sums, axis=1, keepdims=True)])
    return merged


def _cluster_rows(rows: Floats, count: int) -> npt.NDArray[np.intp]:
    """Divide rows into ``count`` clusters; return for each row the index of the first row in its cluster ``(n,)``.

    The two nearest clusters are merged until ``count`` clusters are left. Ward's distance is reducible: a merged
    cluster is not nearer to a third one than the nearer of the two was. So only clusters whose nearest neighbour was
    merged need a new nearest neighbour.
    """
    squares: Doubles = np.square(np.clip(1 - _multiply(rows, rows).astype(np.float64), 0, 2))
    np.fill_diagonal(squares, np.inf)
    members, sizes = np.arange(len(rows)), np.ones(len(rows))
    nearest, nearest_squares = squares.argmin(axis=1), squares.min(axis=1)
    for _ in range(len(rows) - count):
        closest = int(nearest_squares.argmin())
        first, second = sorted((closest, int(nearest[closest])))
        squares[first] = squares[:, first] = _merged_distances(squares, sizes, first, second)
        squares[second] = squares[:, second] = np.inf
        sizes[first] += sizes[second]
        members[members == second] = first
        stale: Any = np.flatnonzero((nearest == first) | (nearest == second))
        stale = np.append(stale, first)
        nearest[stale], nearest_squares[stale] = squares[stale].argmin(axis=1), squares[stale].min(axis=1)
        nearest_squares[second] = np.inf
    return members


def _merged_distances(squares: Doubles, sizes: Doubles, first: int, second: int) -> Doubles:
    """Return the squared distances of two merged clusters to all clusters ``(n,)``, by Lance and Williams' formula."""
    merged: Doubles = (sizes[first] + sizes) * squares[first] + (sizes[second] + sizes) * squares[second]
    merged -= sizes * squares[first, second]
    merged /= sizes[first] + sizes[second] + sizes
    return merged


def _multiply(rows: Floats, columns: Floats) -> Floats:
    """Return the product of each row with each of the ``columns``, which are rows of their own ``(rows, columns)``."""
    size = max(1, IN_ONE_THREAD // columns.size)
    products = [rows[start : start + size] @ columns.T for start in range(0, len(rows), size)]
    return products[0] if len(products) == 1 else np.concatenate(products)
