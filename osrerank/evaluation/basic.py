"""Compute nDCG, reciprocal rank and average precision of one ranking without ir-measures, for the demo and training.

nDCG has linear gains and log2(rank + 1) discounts, as trec_eval's `ndcg_cut` (Järvelin, Kekäläinen: Cumulated
gain-based evaluation of IR techniques, TOIS 2002).
"""

import math
from collections.abc import Mapping, Sequence


def ndcg(ranked: Sequence[str], relevance: Mapping[str, int], cutoff: int = 10) -> float:
    """Return nDCG of document ids in rank order, in [0, 1], or 0 if nothing is relevant."""
    gains = [max(relevance.get(doc_id, 0), 0) for doc_id in ranked[:cutoff]]
    ideal_gains = sorted((max(grade, 0) for grade in relevance.values()), reverse=True)[:cutoff]
    ideal_dcg = _sum_discounted(ideal_gains)
    return _sum_discounted(gains) / ideal_dcg if ideal_dcg else 0.0


def reciprocal_rank(ranked: Sequence[str], relevance: Mapping[str, int], cutoff: int = 10) -> float:
    """Return 1 / rank of the first relevant document, or 0 if no document up to the cutoff is relevant."""
    for rank, doc_id in enumerate(ranked[:cutoff], start=1):
        if relevance.get(doc_id, 0) > 0:
            return 1 / rank
    return 0.0


def average_precision(ranked: Sequence[str], relevance: Mapping[str, int], cutoff: int) -> float:
    """Return the mean precision at the ranks of all relevant documents. Relevant documents below the cutoff count as 0.

    This is trec_eval's ``map``, whose option ``-M`` is the cutoff. It is 0 if nothing is relevant.
    """
    relevant_ranks = [rank for rank, doc_id in enumerate(ranked[:cutoff], start=1) if relevance.get(doc_id, 0) > 0]
    sum_of_precisions = math.fsum(number / rank for number, rank in enumerate(relevant_ranks, start=1))
    n_relevant = sum(grade > 0 for grade in relevance.values())
    return sum_of_precisions / max(1, n_relevant)


def _sum_discounted(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
