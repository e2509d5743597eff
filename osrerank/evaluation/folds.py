"""Divide queries into the folds of a cross-validation: those of a published file, or blocks of sorted query ids."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from osrerank._bad_value import describe_bad_value
from osrerank.errors import EvaluationError
from osrerank.formats.lines import read_json_file

Folds = tuple[tuple[str, ...], ...]
"""The query ids of each fold."""


def read_folds(path: Path) -> Folds:
    """Read a JSON file with the query ids of each fold: ``[["q1", "q2"], ["q3"]]``, or Capreolus' format.

    Raises:
        EvaluationError: the file has neither format, a query is in two folds, or there are fewer than two folds.
    """
    try:
        content = read_json_file(path)
    except ValueError as error:
        raise EvaluationError(f"{path} is not JSON: {error}") from None
    try:
        if isinstance(content, dict):
            content = [fold["predict"]["test"] for fold in content.values()]
        folds = tuple(_parse_ids(fold) for fold in content)
    except (KeyError, TypeError) as error:
        expected = '[["q1", "q2"], ["q3"]] or {"s1": {"predict": {"test": ["q1", "q2"]}}, ...}'
        raise EvaluationError(f"{path}: {describe_bad_value(error)}; list each fold's query ids: {expected}") from None
    if len(folds) < 2:
        raise EvaluationError(f"{path} has {len(folds)} folds; a cross-validation needs at least two folds")
    counts = Counter(query_id for fold in folds for query_id in fold)
    repeated = [query_id for query_id, count in counts.items() if count > 1]
    if repeated:
        raise EvaluationError(f"{path} has query {repeated[0]!r} in two folds; remove it from one of them")
    return folds


def split_into_blocks(query_ids: Iterable[str], n_folds: int) -> Folds:
    """Split the sorted query ids into ``n_folds`` consecutive blocks, as Birch does for Core17 and Core18.

    Ids that are numbers come first, in numerical order: 2, 10, q1.

    Raises:
        EvaluationError: there are fewer queries than folds.
    """

    def sort_key(query_id: str) -> tuple[bool, int, str]:
        is_number = query_id.isdecimal()
        return not is_number, int(query_id) if is_number else 0, query_id

    sorted_ids = sorted(query_ids, key=sort_key)
    if len(sorted_ids) < n_folds:
        raise EvaluationError(f"{len(sorted_ids)} judged queries are too few for {n_folds} folds")
    edges = [len(sorted_ids) * number // n_folds for number in range(n_folds + 1)]
    return tuple(tuple(sorted_ids[start:end]) for start, end in pairwise(edges))


def _parse_ids(fold: Any) -> tuple[str, ...]:
    if isinstance(fold, str):
        raise TypeError(f"a fold is the text {fold!r}, not a list")
    return tuple(str(query_id) for query_id in fold)
