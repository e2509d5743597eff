"""Measure contenders in turns, so that other load on the machine slows all of them."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from osrerank.bench.contenders import Contender, Ours, Values
from osrerank.bench.peak import measured_peak, operations
from osrerank.bench.workload import BenchQuery, pairs
from osrerank.errors import MissingDependencyError
from osrerank.evaluation.basic import ndcg
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.model_files import read_config
from osrerank.types import Qrels

TOP = 10


@dataclass(frozen=True, slots=True)
class Timings:
    """The results of the rounds.

    Attributes:
        seconds: of each round, by contender's name.
        cpu_seconds: processor time of each round, all threads together; other load distorts it less.
        values: a contender's scores, one array for each task.
    """

    seconds: Mapping[str, Sequence[float]]
    cpu_seconds: Mapping[str, Sequence[float]]
    values: Mapping[str, Sequence[Values]]


def take_turns(contenders: Sequence[Contender], tasks: Sequence[BenchQuery], rounds: int) -> Timings:
    """Score all tasks ``rounds`` times with each contender in turn, after one task to warm each up."""
    seconds: dict[str, list[float]] = {one.name: [] for one in contenders}
    cpu_seconds: dict[str, list[float]] = {one.name: [] for one in contenders}
    values: dict[str, list[Values]] = {}
    for one in contenders:
        one.score(tasks[0].query, list(tasks[0].documents.values()))
        if isinstance(one, Ours):
            one.spent.clear()
    for _round in range(rounds):
        for one in contenders:
            began, cpu_began = time.perf_counter(), one.cpu_s()
            values[one.name] = [one.score(task.query, list(task.documents.values())) for task in tasks]
            seconds[one.name].append(time.perf_counter() - began)
            cpu_seconds[one.name].append(one.cpu_s() - cpu_began)
    return Timings(seconds, cpu_seconds, values)


def rows(
    contenders: Sequence[Contender],
    tasks: Sequence[BenchQuery],
    timings: Timings,
    *,
    lengths: Sequence[int],
    reference: str,
    qrels: Qrels | None = None,
) -> list[dict[str, Any]]:
    """Return one row for each contender, in JSON's types.

    Args:
        contenders: as timed.
        tasks: as timed.
        timings: of `take_turns`.
        lengths: tokens of each pair without padding, for contenders that do not report them.
        reference: name of the contender that the others' orders are compared with.
        qrels: judgments, for nDCG@10.
    """
    found = []
    for one in contenders:
        taken = statistics.median(timings.seconds[one.name])
        own = lengths_of(one.builder, tasks) if isinstance(one, Ours) else lengths
        tokens = sum(own)
        row: dict[str, Any] = {
            "name": one.name,
            "version": one.version,
            "pairs_per_s": pairs(tasks) / taken,
            "pairs_per_cpu_s": pairs(tasks) / statistics.median(timings.cpu_seconds[one.name]),
            "tokens_per_s": tokens / taken,
            "mean_tokens": tokens / pairs(tasks),
            "seconds": list(timings.seconds[one.name]),
            "ndcg@10": None if qrels is None else _ndcg(tasks, timings.values[one.name], qrels),
            "top10_shared": _shared(timings.values[one.name], timings.values[reference]),
        }
        if isinstance(one, Ours):
            row |= _parts(one, own, timings.seconds[one.name])
        found.append(row)
    return found


def lengths_of(builder: InputBuilder, tasks: Sequence[BenchQuery]) -> list[int]:
    """Return the tokens of each pair."""
    lengths = []
    for task in tasks:
        query = builder.query(task.query)
        documents = builder.documents(list(task.documents.values()), query)
        lengths += [len(builder.mono(query, document).ids) for document in documents]
    return lengths


def _parts(one: Ours, lengths: Sequence[int], seconds: Sequence[float]) -> dict[str, Any]:
    """Return shares of the threads' time in all rounds, and the share of the peak that was reached."""
    spent, total = one.spent, sum(seconds) * one.threads
    config = read_config(one.directory)
    per_s = operations(config, lengths) / statistics.median(seconds)
    try:
        peak = measured_peak(one.precision, one.threads)
    except MissingDependencyError:
        peak = None
    return {
        "backend": one.kind,
        "precision": one.precision,
        "threads": one.threads,
        "budget_tokens": one.budget_tokens,
        "tokenise_share": spent.tokenise_s / total,
        "compute_share": spent.compute_s / total,
        "wait_share": max(0.0, 1 - (spent.compute_s + spent.tokenise_s) / total),
        "padding_waste": 1 - spent.tokens / spent.slots,
        "gops": per_s / 1e9,
        "peak_gops": None if peak is None else peak / 1e9,
        "mfu": None if peak is None else per_s / peak,
    }


def _order(values: Values) -> list[int]:
    return [int(index) for index in np.argsort(-values, kind="stable")]


def _ndcg(tasks: Sequence[BenchQuery], values: Sequence[Values], qrels: Qrels) -> float:
    """Return the mean over the tasks that have judgments."""
    found = []
    for task, scores in zip(tasks, values, strict=True):
        ids = list(task.documents)
        if task.query_id in qrels.judgments:
            found.append(ndcg([ids[index] for index in _order(scores)], qrels.judgments[task.query_id]))
    return statistics.mean(found) if found else 0.0


def _shared(values: Sequence[Values], reference: Sequence[Values]) -> float:
    """Return the mean share of the reference's first ten that are among the first ten."""
    shares = []
    for own, other in zip(values, reference, strict=True):
        top = min(TOP, len(own))
        shares.append(len(set(_order(own)[:top]) & set(_order(other)[:top])) / top)
    return statistics.mean(shares)
