"""Predictions of Birch's released code, read as the evidence that `tune` combines.

Akkalyoncu Yilmaz et al.: Cross-domain modeling of sentence-level evidence for document retrieval, EMNLP 2019. Its
archive has two files of an experiment. The dataset has a line for each sentence, with eight fields between tabs: label,
first-pass score, query, sentence, query id, ``DOCID_NUMBER`` of the sentence, the query's number, running id. The
predictions have ``number Q0 running_id line logit bert``, where the logit is the next-sentence head's second. A query's
number is its id in Robust04's five folds, and its position among the topics, from 1, in Core17 and Core18.
"""

from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from osrerank.errors import FormatError
from osrerank.evaluation.tune import Evidence
from osrerank.formats.files import bad_line
from osrerank.formats.lines import numbered_lines
from osrerank.stages.sentences import KEPT

_DATASET_FIELDS, _PREDICTION_FIELDS = 8, 6
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Dataset:
    """The sentences of a dataset, in the order of the file.

    Attributes:
        documents: (query id, document id) -> its index.
        scores: of the documents in the first pass.
        running: each sentence's running id.
        owners: each sentence's document.
        numbered: query's number -> its id.
    """

    documents: dict[tuple[str, str], int] = field(default_factory=dict)
    scores: list[float] = field(default_factory=list)
    running: "array[int]" = field(default_factory=lambda: array("q"))
    owners: "array[int]" = field(default_factory=lambda: array("q"))
    numbered: dict[str, str] = field(default_factory=dict)


def read_predictions(predictions: Path, dataset: Path) -> list[Evidence]:
    """Read the evidence for each query from an experiment's predictions; 16 bytes of memory for each line of each file.

    A sentence that the predictions lack counts for nothing. Document ids may hold an underscore.

    Args:
        predictions: Birch's file ``predict.EXPERIMENT``.
        dataset: the file of the sentences that they are of, such as ``robust04_5cv.csv``.

    Raises:
        FormatError: a line of either file is malformed, a running id is repeated, or the two files do not belong
            together.
    """
    known = _read_dataset(dataset)
    ids, order = _sorted_once(np.array(known.running, dtype=np.int64), dataset)
    owners = np.array(known.owners, dtype=np.int64)[order]
    asked, logits = _read_logits(predictions, dataset, ids, owners, known)
    best = _best(owners[np.searchsorted(ids, asked)], logits, len(known.documents))
    return _evidence(list(known.documents), np.array(known.scores), best)


def _read_dataset(path: Path) -> _Dataset:
    found = _Dataset()
    for number, line in numbered_lines(path):
        fields = line.split("\t")
        if len(fields) != _DATASET_FIELDS:
            reason = f"expected the 8 fields of Birch's dataset between tabs, found {len(fields)}"
            raise bad_line(path, number, reason)
        _label, score, _query, _sentence, query_id, sentence_id, number_of_query, running = fields
        doc_id, underscore, _sentence_number = sentence_id.rpartition("_")
        if not underscore or not doc_id:
            raise bad_line(path, number, f"the sentence's id {sentence_id!r} is not DOCID_NUMBER")
        if (other := found.numbered.setdefault(number_of_query, query_id)) != query_id:
            reason = f"column 7 gives queries {other} and {query_id} the same number, {number_of_query}"
            raise bad_line(path, number, reason)
        first_pass = _number(path, number, "first-pass score", score)
        owner = found.documents.setdefault((query_id, doc_id), len(found.scores))
        if owner == len(found.scores):
            found.scores.append(first_pass)
        elif found.scores[owner] != first_pass:
            reason = (
                f"document {doc_id} of query {query_id} has two first-pass scores, {found.scores[owner]} and {score}"
            )
            raise bad_line(path, number, reason)
        found.running.append(_integer(path, number, running))
        found.owners.append(owner)
    if not found.scores:
        raise FormatError(f"{path}: no sentence; expected Birch's dataset, 8 fields a line", file=str(path))
    return found


def _read_logits(
    path: Path, dataset: Path, ids: Integers, owners: Integers, known: _Dataset
) -> tuple[Integers, Floats]:
    """Return the running ids that have a prediction, and their logits, each ``(n,)``.

    Args:
        path: the predictions.
        dataset: where the sentences are from.
        ids: running ids of the sentences, in ascending order.
        owners: the sentences' documents, in that order.
        known: the documents, and what the predictions call their queries; a query's own id will do too.
    """
    query_ids = [query_id for query_id, _doc_id in known.documents]
    running, logits = array("q"), array("d")
    for number, line in numbered_lines(path):
        fields = line.split()
        if len(fields) != _PREDICTION_FIELDS:
            reason = f"expected `query_id Q0 running_id line logit bert`, found {len(fields)} fields"
            raise bad_line(path, number, reason)
        query_id, _q0, sentence, _line, logit, _name = fields
        one = _integer(path, number, sentence)
        index = int(np.searchsorted(ids, one))
        if index == len(ids) or ids[index] != one:
            raise bad_line(path, number, f"{dataset} has no sentence with the running id {one}; give its own dataset")
        if (owner := query_ids[owners[index]]) not in (query_id, known.numbered.get(query_id)):
            reason = f"sentence {one} is of query {owner} in {dataset}, not of {query_id}; give its own dataset"
            raise bad_line(path, number, reason)
        running.append(one)
        logits.append(_number(path, number, "logit", logit))
    if not running:
        raise FormatError(f"{path}: no prediction; expected `query_id Q0 running_id line logit bert`", file=str(path))
    asked = np.array(running, dtype=np.int64)
    _sorted_once(asked, path)
    return asked, np.array(logits, dtype=np.float64)


def _sorted_once(ids: Integers, path: Path) -> tuple[Integers, npt.NDArray[np.intp]]:
    """Return running ids in ascending order, and the order; refuse one that is there twice."""
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise bad_line(
            path, int(order[twice[0] + 1]) + 1, f"the running id {ordered[twice[0]]} comes twice; remove one"
        )
    return ordered, order


def _best(owners: Integers, logits: Floats, documents: int) -> Floats:
    """Return each document's best logits, ``(documents, 3)``, the best first; NaN where it has fewer."""
    order = np.lexsort((-logits, owners))
    owners, logits = owners[order], logits[order]
    ranks = np.arange(len(owners)) - np.searchsorted(owners, owners)
    kept = ranks < KEPT
    best = np.full((documents, KEPT), np.nan)
    best[owners[kept], ranks[kept]] = logits[kept]
    return best


def _evidence(documents: list[tuple[str, str]], scores: Floats, best: Floats) -> list[Evidence]:
    """Group documents by query, in first-pass order; equal scores in the order of the file."""
    by_query: dict[str, list[int]] = {}
    for index, (query_id, _doc_id) in enumerate(documents):
        by_query.setdefault(query_id, []).append(index)
    evidence = []
    for query_id, of_query in by_query.items():
        indices = np.array(of_query)[np.argsort(-scores[of_query], kind="stable")]
        doc_ids = tuple(documents[index][1] for index in indices)
        evidence.append(Evidence(query_id, doc_ids, scores[indices], best[indices]))
    return evidence


def _number(path: Path, number: int, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise bad_line(path, number, f"the {name} {text!r} is not a finite number")
    return value


def _integer(path: Path, number: int, text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    raise bad_line(path, number, f"the running id {text!r} is not a whole number")
