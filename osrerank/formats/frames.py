"""Read runs, judgments and candidates from pandas DataFrames with PyTerrier's columns, without importing pandas.

Runs have the columns ``qid``, ``docno`` and ``score``, judgments ``qid``, ``docno`` and ``label``, and candidates
``qid``, ``query``, ``docno``, ``text`` and optionally ``title`` and ``score``.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np

from osrerank.errors import ConfigError
from osrerank.formats.tables import DOCNO, LABEL, QID, QUERY, SCORE, TEXT
from osrerank.formats.trec import sort_as_trec_eval
from osrerank.types import Qrels, Run

RANK = "rank"
FIRST_RANK = 0
"""PyTerrier counts ranks from 0."""


def is_frame(value: object) -> bool:
    """Return whether a value is a pandas DataFrame."""
    return hasattr(value, "columns") and hasattr(value, "iloc") and hasattr(value, "assign")


def name_type(value: object) -> str:
    """Return the name of a value's type, such as ``int``, or ``polars.DataFrame`` for a frame of another library."""
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}" if hasattr(value, "to_pandas") else kind.__name__


def read_frame_rows(frame: Any, columns: Sequence[str]) -> list[dict[Hashable, Any]]:
    """Return the rows of a frame, with None for missing values.

    Raises:
        ConfigError: a column is missing.
    """
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        frame_columns = ", ".join(map(str, frame.columns)) or "none"
        raise frame_error(f"the DataFrame has no column {missing[0]!r}; its columns are {frame_columns}")
    rows: list[dict[Hashable, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def group_by_query(frame: Any) -> dict[Any, list[tuple[int, dict[str, Any]]]]:
    """Return each query's rows, with their positions in the frame from 0, highest score first.

    Rows without scores come last, by rank. Rows without ranks stay in the order of the frame.

    Raises:
        ConfigError: a column is missing, or a row has no query, document id or text.
    """

    def sort_key(numbered_row: tuple[int, dict[str, Any]]) -> tuple[int, Any]:
        _position, row = numbered_row
        return (0, -row[SCORE]) if SCORE in row else (1, row.get(RANK, 0))

    groups: dict[Any, list[tuple[int, dict[str, Any]]]] = {}
    for number, row in _read_complete_rows(frame, (QID, QUERY, DOCNO, TEXT)):
        groups.setdefault(row[QID], []).append((number, drop_missing_values(row)))
    for rows in groups.values():
        rows.sort(key=sort_key)
    return groups


def with_scores(frame: Any, order: Sequence[int], scores: Sequence[float], ranks: Sequence[int]) -> Any:
    """Return a new frame with the rows at the positions in ``order``, in this order, with new scores and ranks."""
    new_columns = {SCORE: np.array(scores, dtype=np.float64), RANK: np.array(ranks, dtype=np.int64)}
    return frame.iloc[list(order)].assign(**new_columns).reset_index(drop=True)


def frame_to_run(frame: Any, name: str) -> Run:
    """Return the run in a frame with ``qid``, ``docno`` and ``score``, with documents in trec_eval's order.

    Raises:
        ConfigError: a column or value is missing, a query has a document twice, or a score is not finite.
    """
    rankings: dict[str, dict[str, float]] = {}
    for query_id, doc_id, score in _read_columns(frame, SCORE):
        documents = rankings.setdefault(query_id, {})
        if doc_id in documents:
            raise frame_error(f"the DataFrame has document {doc_id} twice for query {query_id}; remove one")
        documents[doc_id] = float(score)
        if not isfinite(documents[doc_id]):
            raise frame_error(f"the score of document {doc_id} for query {query_id} is {score}, not a finite number")
    return Run({query_id: sort_as_trec_eval(documents) for query_id, documents in rankings.items()}, name)


def frame_to_qrels(frame: Any) -> Qrels:
    """Return the judgments in a frame with ``qid``, ``docno`` and ``label``.

    Raises:
        ConfigError: a column or value is missing, a label is not a whole number, or a query has a document twice with
            different labels.
    """
    judgments: dict[str, dict[str, int]] = {}
    for query_id, doc_id, label in _read_columns(frame, LABEL):
        relevance = int(label)
        if relevance != float(label):
            raise frame_error(f"the label of document {doc_id} for query {query_id} is {label}, not a whole number")
        documents = judgments.setdefault(query_id, {})
        if documents.setdefault(doc_id, relevance) != relevance:
            raise frame_error(f"the DataFrame has document {doc_id} twice for query {query_id}, with different labels")
    return Qrels(judgments)


def _read_columns(frame: Any, column: str) -> Iterator[tuple[str, str, Any]]:
    for _, row in _read_complete_rows(frame, (QID, DOCNO, column)):
        yield str(row[QID]), str(row[DOCNO]), row[column]


def _read_complete_rows(frame: Any, columns: Sequence[str]) -> Iterator[tuple[int, dict[Hashable, Any]]]:
    """Yield the numbers and rows of a frame, in which each row must have a value in each of the columns.

    Raises:
        ConfigError: a column or a value is missing.
    """
    for number, row in enumerate(read_frame_rows(frame, columns)):
        missing = [name for name in columns if row[name] is None]
        if missing:
            raise frame_error(f"row {number} of the DataFrame has no value in the column {missing[0]!r}")
        yield number, row


def frame_error(reason: str) -> ConfigError:
    """Return the error for an invalid frame."""
    return ConfigError(reason, setting="frame", source="argument")


def drop_missing_values(row: Mapping[Hashable, Any]) -> dict[str, Any]:
    """Return a row without missing values, and with column names as strings."""
    return {str(name): value for name, value in row.items() if value is not None}
