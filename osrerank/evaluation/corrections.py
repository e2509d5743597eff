"""Compute ``NumRel`` and ``IPrec`` as trec_eval 10 does, because pytrec-eval-terrier 0.5 differs.

``NumRel`` is the number of relevant documents, and ``IPrec`` the interpolated precision at a recall. The package
ignores the relevance level of ``NumRel``, and returns NaN for the ``IPrec`` of a query without documents. It finds the
rank of a recall as trec_eval 9 does, whereas trec_eval 10 rounds the number of documents to the nearest one.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any


def needs_correction(measure: Any) -> bool:
    """Return whether to compute a measure by `compute_corrected`, because its provider computes it differently."""
    return measure.NAME == "NumRel" or (measure.NAME == "IPrec" and not measure["judged_only"])


def compute_corrected(measure: Any, judged: Mapping[str, int], doc_ids: Sequence[str]) -> float:
    """Return trec_eval's value of ``NumRel`` or ``IPrec`` for one query, from document ids in rank order."""
    level = measure["rel"]
    n_relevant = sum(relevance >= level for relevance in judged.values())
    if measure.NAME == "NumRel":
        return float(n_relevant)
    is_relevant = [doc_id in judged and judged[doc_id] >= level for doc_id in doc_ids]
    return interpolated_precision(is_relevant, n_relevant, measure["recall"])


def interpolated_precision(is_relevant: Sequence[bool], n_relevant: int, recall: float) -> float:
    """Return the highest precision at or below the rank that reaches ``recall``, or 0 if no rank reaches it.

    Recall is reached at ``recall * n_relevant`` documents, rounded half up (trec_eval 10, ``m_iprec_at_recall.c``).
    """
    relevant_so_far = list(accumulate(map(int, is_relevant)))
    target = int(recall * n_relevant + 0.5)
    return max((count / rank for rank, count in enumerate(relevant_so_far, start=1) if count >= target), default=0.0)
