"""Make the folds of a cross-validation: read them from published files, or divide the sorted queries into blocks."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from osrerank.errors import EvaluationError
from osrerank.formats.lines import json_file

Folds = tuple[tuple[str, ...], ...]


def read_folds(path: Path) -> Folds:
    """Read a JSON file: a list of lists of query ids, or Capreolus' ``{"s1": {"predict": {"test": [...]}}}``.

    Raises:
        EvaluationError: the file has neither form, a query is in two folds, or there are fewer than two folds.
    """
    try:
        content = json_file(path)
    except ValueError as error:
        raise EvaluationError(f"{path}: not JSON: {error}") from None
    try:
        lists = [fold["predict"]["test"] for fold in content.values()] if isinstance(content, dict) else list(content)
        folds = tuple(tuple(_ids(query_list)) for query_list in lists)
    except (KeyError, TypeError) as error:
        forms = '[["q1", "q2"], ["q3"]] or {"s1": {"predict": {"test": ["q1", "q2"]}}, ...}'
        raise EvaluationError(f"{path}: expected the query ids of each fold, as {forms}; {error}") from None
    all_ids = [query_id for fold in folds for query_id in fold]
    if len(folds) < 2:
        raise EvaluationError(f"{path}: {len(folds)} folds; at least two are needed")
    if len(set(all_ids)) != len(all_ids):
        twice = next(query_id for query_id in all_ids if all_ids.count(query_id) > 1)
        raise EvaluationError(f"{path}: query {twice} is in two folds")
    return folds


def block_folds(query_ids: Iterable[str], count: int) -> Folds:
    """Return consecutive blocks of the sorted queries, as Birch does for Core17 and Core18; numbers sort as numbers.

    Raises:
        EvaluationError: there are fewer queries than folds.
    """
    ordered = sorted(
        query_ids,
        key=lambda query_id: (not query_id.isdecimal(), int(query_id) if query_id.isdecimal() else 0, query_id),
    )
    if len(ordered) < count:
        raise EvaluationError(f"{len(ordered)} judged queries are too few for {count} folds")
    edges = [len(ordered) * number // count for number in range(count + 1)]
    return tuple(tuple(ordered[start:end]) for start, end in pairwise(edges))


def _ids(values: Any) -> Sequence[str]:
    if isinstance(values, str):
        raise TypeError(f"a fold is the text {values!r}")
    return [str(value) for value in values]
