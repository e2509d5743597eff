"""Compute, as trec_eval does, the measures that ir-measures' providers compute differently.

trec_eval's self-test found the differences in pytrec-eval-terrier 0.5: it counts ``NumRel`` at relevance 1 only, gives
NaN for ``IPrec`` of a query without documents, and takes recall points as trec_eval 9 did; trec_eval 10 rounds them to
the nearest document.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any


def needs_correction(measure: Any) -> bool:
    """Return whether `corrected` must compute a measure."""
    return measure.NAME == "NumRel" or (measure.NAME == "IPrec" and not measure["judged_only"])


def corrected(measure: Any, judged: Mapping[str, int], doc_ids: Sequence[str]) -> float:
    """Return the value of a measure that `needs_correction`, for one query.

    Args:
        measure: ir-measures' ``NumRel`` or ``IPrec``.
        judged: document id -> relevance.
        doc_ids: documents in rank order.
    """
    level = measure["rel"]
    n_relevant = sum(relevance >= level for relevance in judged.values())
    if measure.NAME == "NumRel":
        return float(n_relevant)
    is_relevant = [doc_id in judged and judged[doc_id] >= level for doc_id in doc_ids]
    return interpolated_precision(is_relevant, n_relevant, measure["recall"])


def interpolated_precision(is_relevant: Sequence[bool], n_relevant: int, recall: float) -> float:
    """Return the highest precision at or below the rank where ``recall`` is reached; 0 if it never is.

    Recall is reached at ``recall * n_relevant`` documents, rounded half up (trec_eval 10, ``m_iprec_at_recall.c``).
    """
    relevant_so_far = list(accumulate(map(int, is_relevant)))
    target = int(recall * n_relevant + 0.5)
    return max((count / rank for rank, count in enumerate(relevant_so_far, start=1) if count >= target), default=0.0)
