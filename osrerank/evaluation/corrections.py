"""Compute two measures as trec_eval 10 does, because pytrec-eval-terrier 0.5 returns other values.

``NumRel`` is the number of relevant documents. For any minimum grade (``rel``), pytrec-eval-terrier returns the number
for grade 1. ``IPrec`` is the interpolated precision at a recall. A recall is reached with ``recall * n_relevant``
relevant documents. trec_eval 10 rounds this number, but pytrec-eval-terrier needs at least this number, as trec_eval 9
does. For a query without retrieved documents, its ``IPrec`` is NaN.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any


def needs_correction(measure: Any) -> bool:
    """Return whether `compute_corrected` must compute a measure of ir_measures."""
    # compute_corrected does not leave out unjudged documents, as judged_only requires.
    return measure.NAME == "NumRel" or (measure.NAME == "IPrec" and not measure["judged_only"])


def compute_corrected(measure: Any, grades: Mapping[str, int], doc_ids: Sequence[str]) -> float:
    """Return ``NumRel`` or ``IPrec`` of one query, from the grades of its documents and the ids in rank order."""
    min_grade = measure["rel"]
    n_relevant = sum(grade >= min_grade for grade in grades.values())
    if measure.NAME == "NumRel":
        return float(n_relevant)
    is_relevant = [doc_id in grades and grades[doc_id] >= min_grade for doc_id in doc_ids]
    return _interpolated_precision(is_relevant, n_relevant, measure["recall"])


def _interpolated_precision(is_relevant: Sequence[bool], n_relevant: int, recall: float) -> float:
    """Return the highest precision at the rank that reaches ``recall`` or a later rank, or 0 if no rank reaches it.

    The recall is reached at ``recall * n_relevant`` relevant documents, rounded half up (trec_eval 10,
    ``m_iprec_at_recall.c``). ``is_relevant`` has a value for each rank.
    """
    n_needed = int(recall * n_relevant + 0.5)
    ranks = enumerate(accumulate(is_relevant), start=1)
    return max((n_found / rank for rank, n_found in ranks if n_found >= n_needed), default=0.0)
