"""Compute ``NumRel`` and ``IPrec`` as trec_eval 10 does, which pytrec-eval-terrier 0.5 computes differently.

``NumRel`` is the number of relevant documents, of which pytrec-eval-terrier ignores the relevance level. ``IPrec`` is
the interpolated precision at a recall. For a query without retrieved documents, pytrec-eval-terrier returns NaN. To
reach the recall, it needs ``recall * n_relevant`` documents, as trec_eval 9 does, but trec_eval 10 rounds this number.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any


def needs_correction(measure: Any) -> bool:
    """Return whether `compute_corrected` must compute a measure, because pytrec-eval-terrier's value differs."""
    return measure.NAME == "NumRel" or (measure.NAME == "IPrec" and not measure["judged_only"])


def compute_corrected(measure: Any, judged: Mapping[str, int], doc_ids: Sequence[str]) -> float:
    """Return trec_eval's value of ``NumRel`` or ``IPrec`` for one query, from document ids in rank order."""
    min_relevance = measure["rel"]
    n_relevant = sum(relevance >= min_relevance for relevance in judged.values())
    if measure.NAME == "NumRel":
        return float(n_relevant)
    is_relevant = [doc_id in judged and judged[doc_id] >= min_relevance for doc_id in doc_ids]
    return interpolated_precision(is_relevant, n_relevant, measure["recall"])


def interpolated_precision(is_relevant: Sequence[bool], n_relevant: int, recall: float) -> float:
    """Return the highest precision at the rank that reaches ``recall`` or a later rank, or 0 if no rank reaches it.

    Recall is reached at ``recall * n_relevant`` documents, rounded half up (trec_eval 10, ``m_iprec_at_recall.c``).
    """
    target = int(recall * n_relevant + 0.5)
    precisions = [n_found / rank for rank, n_found in enumerate(accumulate(is_relevant), start=1) if n_found >= target]
    return max(precisions, default=0.0)
