"""Convert the runs and judgments that callers pass to `evaluate` and `compare`: mappings, DataFrames and paths."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from osrerank.errors import EvaluationError
from osrerank.formats.frames import frame_to_qrels, frame_to_run, is_frame, name_type
from osrerank.formats.trec import read_qrels, read_run, sort_as_trec_eval
from osrerank.types import Qrels, Run, ScoredDocument

RunLike = Run | Mapping[str, Any] | Path | str | Any
"""A run, ``{query_id: {doc_id: score}}``, ``{query_id: [doc_id, ...]}``, a path, or a DataFrame of pandas."""
QrelsLike = Qrels | Mapping[str, Any] | Path | str | Any
"""Judgments, ``{query_id: {doc_id: grade}}``, a path, or a DataFrame of pandas."""
DEFAULT_RUN_NAME = "run"


def as_run(value: RunLike) -> Run:
    """Convert a value to a run.

    A list must begin with the best document. Its elements are ids, or the ranked documents that `Reranker` returns.

    Raises:
        EvaluationError: the value cannot be converted to a run.
        ConfigError: a DataFrame lacks a column or a value.
        FormatError: a file is malformed.
    """
    if isinstance(value, Run):
        return value
    if isinstance(value, Path | str):
        return read_run(value)
    if is_frame(value):
        return frame_to_run(value, DEFAULT_RUN_NAME)
    if not isinstance(value, Mapping):
        raise _type_error(
            "run", "{query_id: {doc_id: score}}, {query_id: [doc_id, ...]} or a DataFrame of pandas", value
        )
    return Run(
        {str(query_id): _parse_ranking(query_id, documents) for query_id, documents in value.items()}, DEFAULT_RUN_NAME
    )


def as_qrels(value: QrelsLike) -> Qrels:
    """Convert a value to judgments.

    Raises:
        EvaluationError: the value cannot be converted to judgments.
        ConfigError: a DataFrame lacks a column or a value.
        FormatError: a file is malformed.
    """
    if isinstance(value, Qrels):
        return value
    if isinstance(value, Path | str):
        return read_qrels(value)
    if is_frame(value):
        return frame_to_qrels(value)
    expected = "{query_id: {doc_id: grade}}"
    if not isinstance(value, Mapping):
        raise _type_error("judgments", f"{expected} or a DataFrame of pandas", value)
    judgments = {}
    for query_id, judged in value.items():
        # Python's and NumPy's whole numbers have __index__
        if not isinstance(judged, Mapping) or not all(hasattr(grade, "__index__") for grade in judged.values()):
            raise _type_error(f"judgments of query {query_id}", f"{expected} with whole numbers as grades", judged)
        judgments[str(query_id)] = {str(doc_id): int(grade) for doc_id, grade in judged.items()}
    return Qrels(judgments)


def _parse_ranking(query_id: object, documents: Any) -> tuple[ScoredDocument, ...]:
    if isinstance(documents, Mapping):
        try:
            return sort_as_trec_eval({str(doc_id): float(score) for doc_id, score in documents.items()})
        except (TypeError, ValueError):
            raise _type_error(f"run of query {query_id}", "{doc_id: score}", documents) from None
    if isinstance(documents, str) or not isinstance(documents, Sequence):
        raise _type_error(f"run of query {query_id}", "{doc_id: score} or [doc_id, ...]", documents)
    ids = [str(getattr(document, "doc_id", document)) for document in documents]
    if len(set(ids)) != len(ids):
        repeated = next(doc_id for doc_id in ids if ids.count(doc_id) > 1)
        raise EvaluationError(f"the run of query {query_id!r} has document {repeated!r} twice; remove one")
    return score_by_rank(ids)


def score_by_rank(doc_ids: Sequence[str]) -> tuple[ScoredDocument, ...]:
    """Return documents whose scores decrease with their rank: n, n-1, ..., 1."""
    return tuple(ScoredDocument(doc_id, float(len(doc_ids) - index)) for index, doc_id in enumerate(doc_ids))


def _type_error(label: str, expected: str, value: object) -> EvaluationError:
    return EvaluationError(f"the {label} must be {expected}, not {name_type(value)}")
