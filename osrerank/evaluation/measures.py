"""Measure runs, by ir-measures' names for measures, and average as trec_eval does.

ir-measures (MacAvaney et al., 2022, arXiv 2111.13466) computes the values, by means of several providers. They get runs
in trec_eval's order, with scores that cannot tie, cut to the depth, and only the queries that are averaged over, so
that their own conventions do not matter.
"""

import contextlib
import math
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from osrerank._optional import require
from osrerank.errors import EvaluationError
from osrerank.evaluation.corrections import corrected, needs_correction
from osrerank.evaluation.values import QrelsLike, RunLike, as_qrels, as_run
from osrerank.formats.trec import trec_order
from osrerank.types import Qrels, Run

MSMARCO = "MRR@10 (MS MARCO)"
"""The name of the measure that MS MARCO's official script computes; see `msmarco_mrr`."""
MSMARCO_DEPTH = 10
"""How many ranks the official script looks at."""
_GDEVAL_GRADE = 4
_PACKAGE = re.compile(r"Unsupported measures {(.+?)}\..*?- (\S+) \(pip install ([^)]+)\)")
_UNSUPPORTED = re.compile(r"Unsupported measures {(.+)}\.?")
"""ir-measures' messages for a measure that it cannot compute; the first one names the package that can."""
DEFAULT_MEASURES = ("nDCG@10", "RR@10", "AP", "R@100")


@dataclass(frozen=True, slots=True)
class Averaging:
    """How runs are cut, and which queries are averaged over.

    Attributes:
        complete: whether to average over all judged queries, where a query that the run lacks counts 0 (trec_eval's
            ``-c``), or only over the queries that are in both (trec_eval's default).
        relevance_level: the lowest grade that counts as relevant for measures of two grades (trec_eval's ``-l``).
        depth: how many documents from the top of each ranking are measured (trec_eval's ``-M``); None for all.
        single_precision: whether scores are compared as 32-bit floats, as trec_eval up to 9.0.8 does.
    """

    complete: bool = False
    relevance_level: int = 1
    depth: int | None = None
    single_precision: bool = True


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The measured values of one run.

    Attributes:
        run: the run's name.
        per_query: measure -> query_id -> value; a query for which the measure is not defined (Accuracy without a
            relevant document in the ranking) is left out.
        overall: measure -> the mean over the queries, or the sum if the measure is a count (``NumRel``).
    """

    run: str
    per_query: Mapping[str, Mapping[str, float]]
    overall: Mapping[str, float]


def evaluate(
    qrels: QrelsLike, run: RunLike, measures: Sequence[str] = DEFAULT_MEASURES, averaging: Averaging | None = None
) -> Evaluation:
    """Measure a run.

    ```python
    from osrerank.evaluation import evaluate

    judged = {"q1": {"d1": 1, "d2": 0}}
    assert evaluate(judged, {"q1": {"d2": 7.1, "d1": 6.4}}, ["RR@10"]).overall == {"RR@10": 0.5}
    ```

    Args:
        qrels: the judgments: ``{query_id: {doc_id: grade}}``, a path, or a DataFrame with qid, docno and label.
        run: the run: ``{query_id: {doc_id: score}}``, ``{query_id: [doc_id, ...]}`` with the best first, a path, or a
            DataFrame with qid, docno and score.
        measures: names such as ``nDCG@10``, ``AP(rel=2)``, trec_eval's ``ndcg_cut_10``, or `MSMARCO`.
        averaging: how runs are cut and averaged; None for trec_eval's defaults.

    Raises:
        EvaluationError: a measure is unknown or has no value for any query, or run and judgments share no query.
    """
    ranked = as_run(run)
    tally = Tally(as_qrels(qrels), measures, averaging)
    tally.add(ranked)
    return tally.evaluation(ranked.name)


class Tally:
    """Measures a run part by part, with the values that `evaluate` gives for the whole run; it keeps no rankings.

    Args:
        qrels, measures, averaging: the judgments, measures and averaging, as for `evaluate`.

    Raises:
        EvaluationError: a measure is unknown.
    """

    def __init__(self, qrels: Qrels, measures: Sequence[str], averaging: Averaging | None = None) -> None:
        self._qrels, self._averaging = qrels, averaging or Averaging()
        level = self._averaging.relevance_level
        self._parsed = parse_measures([name for name in measures if name != MSMARCO], level)
        names = (*self._parsed, *([MSMARCO] if MSMARCO in measures else []))
        self._values: dict[str, dict[str, float]] = {name: {} for name in names}
        self._run: set[str] = set()

    def add(self, run: Run) -> None:
        """Measure the queries of a part of the run."""
        self._run.update(run.rankings)
        judgments = self._qrels.judgments
        self._add({query_id: judgments[query_id] for query_id in run.rankings if query_id in judgments}, run)

    def evaluation(self, name: str) -> Evaluation:
        """Return the values of the run whose parts were added.

        Raises:
            EvaluationError: run and judgments share no query.
        """
        averaged = judged_queries(self._qrels, self._run, name, complete=self._averaging.complete)
        if self._averaging.complete:
            self._add({query_id: judged for query_id, judged in averaged.items() if query_id not in self._run}, Run({}))
        values = {
            measure: {query_id: by_query[query_id] for query_id in averaged if query_id in by_query}
            for measure, by_query in self._values.items()
            if measure != MSMARCO
        }
        if undefined := [measure for measure, by_query in values.items() if not by_query]:
            raise EvaluationError(f"{undefined[0]} has no value for any query of run {name}: leave it out")
        overall = {measure: _overall(self._parsed[measure], by_query) for measure, by_query in values.items()}
        if (by_query := self._values.get(MSMARCO)) is not None:  # queries that the run lacks count 0
            values[MSMARCO] = {query_id: by_query.get(query_id, 0.0) for query_id in self._qrels.judgments}
            overall[MSMARCO] = math.fsum(values[MSMARCO].values()) / len(values[MSMARCO])
        return Evaluation(name, values, overall)

    def _add(self, judged: Mapping[str, Mapping[str, int]], run: Run) -> None:
        if not judged:
            return
        for measure, by_query in _values(self._parsed, judged, run, self._averaging).items():
            self._values[measure].update(by_query)
        if MSMARCO in self._values:
            self._values[MSMARCO].update(msmarco_mrr(Qrels(judged), run))


def judged_queries(
    qrels: Qrels, run: Collection[str], name: str, *, complete: bool = False
) -> dict[str, Mapping[str, int]]:
    """Return the judgments of the queries that are averaged over, for a run of the given queries.

    Raises:
        EvaluationError: run and judgments share no query.
    """
    shared = {query_id: judged for query_id, judged in qrels.judgments.items() if query_id in run}
    if not shared:
        raise EvaluationError(
            f"run {name} and the judgments share no query: the run has {_examples(run)}, the judgments "
            f"{_examples(qrels.judgments)}; are both for the same query set?"
        )
    return dict(qrels.judgments) if complete else shared


def parse_measures(names: Iterable[str], relevance_level: int = 1) -> dict[str, Any]:
    """Return name to show -> ir-measures' measure.

    Args:
        names: ir-measures' names, or trec_eval's, some of which stand for several measures.
        relevance_level: the relevance level of measures of two grades whose name has no ``rel=``.

    Raises:
        EvaluationError: a name is unknown, or its parameters cannot be used.
    """
    ir_measures = require("ir_measures", extra="eval")
    measures: dict[str, Any] = {}
    for name in names:
        parsed = _parse(ir_measures, name)
        for measure in parsed:
            levelled = _with_level(measure, name, relevance_level)
            if levelled not in measures.values():
                measures[name if len(parsed) == 1 and levelled is measure else repr(levelled)] = levelled
    return measures


def msmarco_mrr(qrels: Qrels, run: Run) -> dict[str, float]:
    """Return each judged query's reciprocal rank, as MS MARCO's official script computes it.

    A query that the run lacks has 0, a query without judgments is ignored, and grades above 0 are relevant. A document
    in a three-column run has the rank that the run gives it, even if better ranks are missing.
    """
    return {query_id: _reciprocal_rank(judged, run, query_id) for query_id, judged in qrels.judgments.items()}


def _reciprocal_rank(judged: Mapping[str, int], run: Run, query_id: str) -> float:
    documents = run.rankings.get(query_id, ())
    ranks = (round(1 / document.score) if run.by_rank else rank for rank, document in enumerate(documents, start=1))
    relevant = (
        rank
        for rank, document in zip(ranks, documents, strict=True)
        if rank <= MSMARCO_DEPTH and judged.get(document.doc_id, 0) > 0
    )
    return 1 / next(relevant, math.inf)


def _values(
    measures: Mapping[str, Any], judged: Mapping[str, Mapping[str, int]], run: Run, averaging: Averaging
) -> dict[str, dict[str, float]]:
    """Return measure -> query_id -> value, queries in the order of the judgments."""
    rankings = {query_id: _ranked(run, query_id, averaging) for query_id in judged}
    values: dict[str, dict[str, float]] = {name: {} for name in measures}
    computed = {}
    for name, measure in measures.items():
        if needs_correction(measure):
            values[name] = {query_id: corrected(measure, judged[query_id], rankings[query_id]) for query_id in judged}
        else:
            computed[measure] = name
    if computed:
        names = list(judged)  # providers get numbers: gdeval takes what follows the last '-' of an id, and only digits
        numbers = {query_id: str(number) for number, query_id in enumerate(names, start=1)}
        evaluator = _evaluator(list(computed), {numbers[query_id]: grades for query_id, grades in judged.items()})
        with _provider_errors(computed, judged):
            ranked = _untied({numbers[query_id]: doc_ids for query_id, doc_ids in rankings.items()})
            for metric in evaluator.iter_calc(ranked):
                values[computed[metric.measure]][names[int(metric.query_id) - 1]] = float(metric.value)
    return {
        name: {query_id: by_query[query_id] for query_id in judged if query_id in by_query}
        for name, by_query in values.items()
    }


def _ranked(run: Run, query_id: str, averaging: Averaging) -> list[str]:
    """Return a query's document ids in trec_eval's order, cut to the depth; empty if the run lacks the query."""
    documents = trec_order(run.rankings.get(query_id, ()), single_precision=averaging.single_precision)
    return [document.doc_id for document in documents[: averaging.depth]]


def _untied(rankings: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float]]:
    """Return query_id -> document id -> a score that only encodes the rank: n, n-1, ..., 1."""
    return {
        query_id: {doc_id: float(len(doc_ids) - index) for index, doc_id in enumerate(doc_ids)}
        for query_id, doc_ids in rankings.items()
    }


@contextlib.contextmanager
def _provider_errors(measures: Iterable[Any], judged: Mapping[str, Mapping[str, int]]) -> Iterator[None]:
    """Turn the failure of a provider's program into an error of one sentence.

    Raises:
        EvaluationError: grades are too high for gdeval, or the program failed.
    """
    highest = max((grade for grades in judged.values() for grade in grades.values()), default=0)
    by_gdeval = [measure for measure in measures if measure.NAME == "ERR" or "exp-log2" in repr(measure)]
    if by_gdeval and highest > _GDEVAL_GRADE:
        raise EvaluationError(
            f"cannot measure {by_gdeval[0]}: it takes grades up to {_GDEVAL_GRADE}, the judgments have {highest}"
        )
    try:
        yield
    except (subprocess.SubprocessError, OSError) as error:
        raise EvaluationError(f"cannot measure {', '.join(map(str, measures))}: {_one_line(error)}") from error


def _evaluator(measures: Sequence[Any], judged: Mapping[str, Mapping[str, int]]) -> Any:
    ir_measures = require("ir_measures", extra="eval")
    try:
        return ir_measures.evaluator(measures, {query_id: dict(grades) for query_id, grades in judged.items()})
    except (ValueError, AssertionError, RuntimeError) as error:
        raise EvaluationError(_unsupported(measures, _one_line(error))) from error


def _unsupported(measures: Sequence[Any], message: str) -> str:
    """Return why ir-measures cannot compute these measures: a package is missing, or parameters are unknown."""
    if package := _PACKAGE.search(message):
        return f"measure {package[1]} needs the Python package {package[2]}: pip install '{package[3]}'"
    if unsupported := _UNSUPPORTED.fullmatch(message):
        return f"measure {unsupported[1]} cannot be used as it is written; see https://ir-measur.es for its parameters"
    return f"cannot measure {', '.join(map(str, measures))}: {message}"


def _parse(ir_measures: ModuleType, name: str) -> list[Any]:
    """Return the measures that a name of ir-measures or trec_eval stands for."""
    try:
        measures = [ir_measures.parse_measure(name)]
    except (NameError, ValueError, TypeError):
        measures = _parse_trec(ir_measures, name)
    try:
        for measure in measures:
            if lacking := [
                key for key, parameter in measure.SUPPORTED_PARAMS.items() if _is_lacking(measure, key, parameter)
            ]:
                raise AssertionError(f"it needs {' and '.join(lacking)}")  # noqa: TRY301 - as validate_params does
            measure.validate_params()
            if measure.params.get("cutoff", 1) < 1:  # trec_eval's code aborts the process
                raise AssertionError("its cutoff must be 1 or above")  # noqa: TRY301 - as validate_params does
    except AssertionError as error:
        raise EvaluationError(
            f"measure {name!r} cannot be used: {error}; write it as in nDCG@10 or P(rel=2)@5"
        ) from None
    return measures


def _is_lacking(measure: Any, key: str, parameter: Any) -> bool:
    return bool(parameter.required) and key not in measure.params


def _parse_trec(ir_measures: ModuleType, name: str) -> list[Any]:
    nicknames = require("pytrec_eval", extra="eval").supported_nicknames
    try:
        if name not in nicknames:  # sets such as all_trec hold names that ir-measures lacks
            return list(ir_measures.parse_trec_measure(name))
    except ValueError:
        pass
    names = ", ".join(sorted(ir_measures.measures.registry))
    raise EvaluationError(f"there is no measure {name!r}; write it as in nDCG@10 or P(rel=2)@5, known are: {names}")


def _with_level(measure: Any, name: str, level: int) -> Any:
    """Return the measure at a relevance level, if it takes one and its name does not set it."""
    level_matters = "rel" in measure.SUPPORTED_PARAMS and "rel=" not in name
    if level == 1 or not level_matters:
        return measure
    if measure.SUPPORTED_PARAMS["rel"].default == 1 or "rel" in measure.params:
        return measure(rel=level)
    return measure


def _overall(measure: Any, values: Mapping[str, float]) -> float:
    aggregator = measure.aggregator()
    for value in values.values():
        aggregator.add(value)
    return float(aggregator.result())


def _examples(query_ids: Iterable[str]) -> str:
    listed = sorted(query_ids)
    return f"{', '.join(listed[:3])}{', ...' if len(listed) > 3 else ''}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
