"""Compare texts by their token vectors (late interaction, MaxSim), and merge similar token vectors of a text.

Khattab, Zaharia: ColBERT: Efficient and Effective Passage Search via Contextualized Late Interaction over BERT, 2020,
arXiv 2004.12832, section 3.3, equation 3.

Clavié, Chaffin, Adams: Reducing the Footprint of Multi-Vector Retrieval with Minimal Performance Impact via Token
Pooling, 2024, arXiv 2409.14683, section 3. Token vectors are clustered by Ward's method (1963) with the distance
1 - cosine, as in PyLate and sentence-transformers. Merged vectors have norm 1, as in sentence-transformers.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.types.vectors import Floats

PROTECTED_TOKENS = 1
"""The number of tokens at the start of a text that are never merged: only [CLS]."""
MAX_MULTIPLICATIONS = 1 << 18
"""OpenBLAS computes a matrix product of up to this many multiplications in one thread. For a larger product, it uses
several threads, which wait for each other on busy cores and take ten times as long
(docs/research/late-interaction.md)."""

Doubles = npt.NDArray[np.float64]


def maxsim(query: Floats, documents: Iterable[Floats]) -> Floats:
    """Return the mean MaxSim score of each document, float32 ``(n,)``.

    For each query token, MaxSim takes the maximum dot product with any document token. ColBERT sums these maxima. The
    mean gives the same ranking as the sum, but its range does not depend on the query's length.

    Args:
        query: the token vectors of the query ``(tokens, dimensions)``.
        documents: the token vectors of each document ``(tokens, dimensions)``, at least one per document.
    """
    maxima = np.array([_multiply(document, query).max(axis=0) for document in documents], dtype=np.float32)
    means: Floats = maxima.reshape(-1, len(query)).mean(axis=1)
    return means


def pool_tokens(vectors: Floats, factor: float) -> Floats:
    """Merge similar token vectors of a text. Return the merged vectors in the order of their first tokens.

    The time grows with the square of the number of tokens. A hundred tokens take about a millisecond.

    Args:
        vectors: the token vectors, of norm 1 ``(tokens, dimensions)``.
        factor: the mean number of vectors that are merged into one, at least 1. A factor of 2 halves the number of
            vectors, and a factor of 1 merges none.
    """
    protected, mergeable = vectors[:PROTECTED_TOKENS], vectors[PROTECTED_TOKENS:]
    n_clusters = max(int(len(mergeable) // factor), 1)
    if n_clusters >= len(mergeable):
        return vectors
    # number the clusters 0, 1, ... in the order of their first rows
    _, clusters = np.unique(_cluster_rows(mergeable, n_clusters), return_inverse=True)
    sums = np.zeros((n_clusters, vectors.shape[1]), dtype=np.float32)
    np.add.at(sums, clusters, mergeable)
    pooled: Floats = np.concatenate([protected, sums / np.linalg.norm(sums, axis=1, keepdims=True)])
    return pooled


def _cluster_rows(rows: Floats, n_clusters: int) -> npt.NDArray[np.intp]:
    """Divide rows into clusters by Ward's method. For each row, return the index of its cluster's first row.

    For rows 0 and 2 in one cluster, and row 1 in another, the result is [0, 1, 0]. The two nearest clusters are merged
    until ``n_clusters`` remain. In Ward's method, the distance from a merged cluster to a third one is at least that of
    the nearer of its two parts. So only clusters whose nearest neighbour was merged need a new nearest neighbour.
    """
    distances = np.clip(1 - _multiply(rows, rows).astype(np.float64), 0, 2)
    squares: Doubles = np.square(distances)
    np.fill_diagonal(squares, np.inf)
    clusters = np.arange(len(rows))
    sizes = np.ones(len(rows))
    nearest, nearest_squares = squares.argmin(axis=1), squares.min(axis=1)
    for _ in range(len(rows) - n_clusters):
        # merge the two nearest clusters: their union replaces ``first``, and ``second`` is removed
        closest = int(nearest_squares.argmin())
        first, second = sorted((closest, int(nearest[closest])))
        squares[first] = squares[:, first] = _square_union_distances(squares, sizes, first, second)
        squares[second] = squares[:, second] = np.inf
        sizes[first] += sizes[second]
        clusters[clusters == second] = first
        # find a new nearest neighbour for the union, and for the clusters whose neighbour was merged
        outdated: Any = np.append(np.flatnonzero((nearest == first) | (nearest == second)), first)
        nearest[outdated] = squares[outdated].argmin(axis=1)
        nearest_squares[outdated] = squares[outdated].min(axis=1)
        nearest_squares[second] = np.inf  # last, because ``outdated`` can contain removed clusters
    return clusters


def _square_union_distances(squares: Doubles, sizes: Doubles, first: int, second: int) -> Doubles:
    """Return the squared distances ``(n,)`` of the union of two clusters to all clusters (Lance and Williams, 1967)."""
    union: Doubles = (sizes[first] + sizes) * squares[first] + (sizes[second] + sizes) * squares[second]
    union -= sizes * squares[first, second]
    union /= sizes[first] + sizes[second] + sizes
    return union


def _multiply(left: Floats, right: Floats) -> Floats:
    """Return ``left @ right.T``, computed in one thread."""
    block_size = max(1, MAX_MULTIPLICATIONS // right.size)
    products = [left[start : start + block_size] @ right.T for start in range(0, len(left), block_size)]
    return products[0] if len(products) == 1 else np.concatenate(products)
