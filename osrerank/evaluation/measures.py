"""Measure runs with ir-measures, and average over queries as trec_eval does.

ir-measures (MacAvaney et al., 2022, arXiv 2111.13466) lets other programs, its *providers*, compute the measures, such
as pytrec_eval or gdeval. Providers differ in how they break ties and select queries. So they get only the queries that
are averaged over, with rankings in trec_eval's order, truncated to `Averaging.depth`, and with distinct scores.
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
from osrerank.evaluation.corrections import compute_corrected, needs_correction
from osrerank.evaluation.values import QrelsLike, RunLike, as_qrels, as_run, score_by_rank
from osrerank.formats.trec import sort_as_trec_eval
from osrerank.types import Qrels, Run

MSMARCO = "MRR@10 (MS MARCO)"
"""The name of the measure that MS MARCO's official script computes (`msmarco_mrr`)."""
MSMARCO_DEPTH = 10
"""The number of top ranks that the official script evaluates."""
_GDEVAL_MAX_GRADE = 4
"""The highest grade with which the provider gdeval works."""
_MAX_GRADE = 1_000_000
"""The largest absolute value of a grade. pytrec_eval reserves memory for each grade up to the highest one."""
_MISSING_PACKAGE = re.compile(r"Unsupported measures {(.+?)}\..*?- (\S+) \(pip install ([^)]+)\)")
"""ir-measures' message if the package of a provider is missing: the measure, the package and what to install."""
_UNSUPPORTED = re.compile(r"Unsupported measures {(.+)}\.?")
"""ir-measures' message if no provider computes a measure."""
DEFAULT_MEASURES = ("nDCG@10", "RR@10", "AP", "R@100")


@dataclass(frozen=True, slots=True)
class Averaging:
    """Which documents and queries a measure is computed over, as set by trec_eval's options.

    Attributes:
        complete: whether to average over all judged queries (``-c``). Queries that are not in the run then count as 0.
            Otherwise, only queries in both run and judgments are averaged, as trec_eval does by default.
        relevance_level: the minimum grade of a relevant document, for measures with binary relevance (``-l``).
        depth: the number of top documents of each ranking to measure (``-M``). If None, all documents are measured.
        single_precision: whether to compare scores as 32-bit floats, as trec_eval up to 9.0.8 does.
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
        per_query: the value of each measure for each query. Queries for which the measure is undefined are left out,
            such as Accuracy for a ranking without relevant documents.
        overall: each measure's mean over the queries, or the sum if the measure is a count (``NumRel``).
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

    qrels = {"q1": {"d1": 1, "d2": 0}}
    assert evaluate(qrels, {"q1": {"d2": 7.1, "d1": 6.4}}, ["RR@10"]).overall == {"RR@10": 0.5}
    ```

    Args:
        qrels: the judgments: ``{query_id: {doc_id: grade}}``, a path, or a DataFrame with qid, docno and label.
        run: the run: ``{query_id: {doc_id: score}}``, ``{query_id: [doc_id, ...]}`` with the best first, a path, or a
            DataFrame with qid, docno and score.
        measures: names such as ``nDCG@10``, ``AP(rel=2)``, trec_eval's ``ndcg_cut_10``, or `MSMARCO`.
        averaging: the documents and queries to measure. If None, they are trec_eval's default.

    Raises:
        EvaluationError: a measure is unknown or has no value for any query, or run and judgments share no query.
    """
    run = as_run(run)
    evaluator = Evaluator(as_qrels(qrels), measures, averaging)
    evaluator.add(run)
    return evaluator.summarise(run.name)


class Evaluator:
    """Measures a run as `evaluate` does, but batch by batch, so that the whole run need not be in memory.

    Raises:
        EvaluationError: a measure is unknown.
    """

    def __init__(self, qrels: Qrels, measures: Sequence[str], averaging: Averaging | None = None) -> None:
        self._qrels = qrels
        self._averaging = averaging or Averaging()
        level = self._averaging.relevance_level
        self._measures = parse_measures([name for name in measures if name != MSMARCO], level)
        names = (*self._measures, *([MSMARCO] if MSMARCO in measures else []))
        self._values: dict[str, dict[str, float]] = {name: {} for name in names}  # measure -> query id -> value
        self._run_query_ids: set[str] = set()

    def add(self, batch: Run) -> None:
        """Measure a batch of the run's queries."""
        self._run_query_ids.update(batch.rankings)
        judgments = self._qrels.judgments
        batch_judgments = {query_id: judgments[query_id] for query_id in batch.rankings if query_id in judgments}
        self._measure(batch_judgments, batch)

    def summarise(self, run_name: str) -> Evaluation:
        """Return the values of all batches and their means.

        Raises:
            EvaluationError: a measure has no value for any query, or run and judgments share no query.
        """
        judgments = select_judgments(self._qrels, self._run_query_ids, run_name, complete=self._averaging.complete)
        absent_judgments = {  # of queries that are averaged over although the run does not contain them
            query_id: judged for query_id, judged in judgments.items() if query_id not in self._run_query_ids
        }
        self._measure(absent_judgments, Run({}))
        per_query = {
            measure: {query_id: values[query_id] for query_id in judgments if query_id in values}
            for measure, values in self._values.items()
            if measure != MSMARCO
        }
        undefined = [measure for measure, values in per_query.items() if not values]
        if undefined:
            raise EvaluationError(
                f"{undefined[0]} has no value for any query of run {run_name}; leave out {undefined[0]}"
            )
        overall = {measure: _compute_overall(self._measures[measure], values) for measure, values in per_query.items()}
        if MSMARCO in self._values:  # the official script averages over all judged queries
            values = self._values[MSMARCO]
            per_query[MSMARCO] = {query_id: values.get(query_id, 0.0) for query_id in self._qrels.judgments}
            overall[MSMARCO] = math.fsum(per_query[MSMARCO].values()) / len(per_query[MSMARCO])
        return Evaluation(run_name, per_query, overall)

    def _measure(self, judgments: Mapping[str, Mapping[str, int]], run: Run) -> None:
        if not judgments:
            return
        for measure, values in _compute_values(self._measures, judgments, run, self._averaging).items():
            self._values[measure].update(values)
        if MSMARCO in self._values:
            self._values[MSMARCO].update(msmarco_mrr(Qrels(judgments), run))


def select_judgments(
    qrels: Qrels, run_query_ids: Collection[str], run_name: str, *, complete: bool = False
) -> dict[str, Mapping[str, int]]:
    """Return the judgments of all queries if ``complete``, otherwise only those of the queries in the run.

    Raises:
        EvaluationError: run and judgments share no query.
    """
    shared_judgments = {query_id: judged for query_id, judged in qrels.judgments.items() if query_id in run_query_ids}
    if not shared_judgments:
        raise EvaluationError(
            f"run {run_name} and the judgments share no query: the run has {_format_first_ids(run_query_ids)}, the "
            f"judgments have {_format_first_ids(qrels.judgments)}; pass a run and judgments of the same query set"
        )
    return dict(qrels.judgments) if complete else shared_judgments


def parse_measures(names: Iterable[str], relevance_level: int = 1) -> dict[str, Any]:
    """Return ir-measures' objects for the named measures, by the names to display: ``{"AP(rel=2)": AP(rel=2)}``.

    A measure keeps its given name, unless the name is an alias or ``relevance_level`` is added to it. Then the measure
    has the name that ir-measures gives it.

    Args:
        names: names from ir-measures or trec_eval. A trec_eval name can be an alias of several measures.
        relevance_level: the relevance level of measures with binary relevance whose name has no ``rel=``.

    Raises:
        EvaluationError: a name is unknown, or its parameters or the relevance level are invalid.
    """
    ir_measures = require("ir_measures", extra="eval")
    measures: dict[str, Any] = {}
    for name in names:
        named_measures = _parse_name(ir_measures, name)
        for measure in named_measures:
            measure_at_level = _set_relevance_level(measure, name, relevance_level)
            lowest_grade = measure_at_level.params.get("rel", 1)
            if not 1 <= lowest_grade <= _MAX_GRADE:  # trec_eval's code would end the process
                raise EvaluationError(
                    f"the relevance level of {name} is {lowest_grade}; it must be 1 to {_MAX_GRADE:,}"
                )
            keeps_name = len(named_measures) == 1 and measure_at_level is measure
            display_name = name if keeps_name else repr(measure_at_level)
            if measure_at_level not in measures.values():
                measures[display_name] = measure_at_level
    return measures


def msmarco_mrr(qrels: Qrels, run: Run) -> dict[str, float]:
    """Return the reciprocal rank of each judged query, as MS MARCO's official script computes it.

    Grades above 0 are relevant. A query that is not in the run counts as 0. In a three-column run, ranks come from
    the rank column, even if there are gaps.
    """
    return {query_id: _reciprocal_rank(judged, run, query_id) for query_id, judged in qrels.judgments.items()}


def _reciprocal_rank(judged: Mapping[str, int], run: Run, query_id: str) -> float:
    for position, document in enumerate(run.rankings.get(query_id, ()), start=1):
        rank = round(1 / document.score) if run.by_rank else position  # scores of a three-column run are 1 / rank
        if rank <= MSMARCO_DEPTH and judged.get(document.doc_id, 0) > 0:
            return 1 / rank
    return 0.0


def _compute_values(
    measures: Mapping[str, Any], judged: Mapping[str, Mapping[str, int]], run: Run, averaging: Averaging
) -> dict[str, dict[str, float]]:
    """Return each measure's values by query, in the order of the judgments."""
    rankings = {query_id: _rank_doc_ids(run, query_id, averaging) for query_id in judged}
    per_query: dict[str, dict[str, float]] = {name: {} for name in measures}
    names_by_measure = {}  # of the measures that providers compute
    for name, measure in measures.items():
        if needs_correction(measure):
            per_query[name] = {
                query_id: compute_corrected(measure, grades, rankings[query_id]) for query_id, grades in judged.items()
            }
        else:
            names_by_measure[measure] = name
    for measure in [measure for measure in names_by_measure if measure.NAME in ("Bpref", "Judged")]:
        # Without documents, both are 0, and so is Bpref without relevant ones. The provider of Judged would divide by
        # zero, and that of Bpref, pytrec_eval, would read or write invalid memory.
        name = names_by_measure.pop(measure)
        per_query[name] = dict.fromkeys(judged, 0.0)
        safe = {
            query_id: grades
            for query_id, grades in judged.items()
            if rankings[query_id] and (measure.NAME == "Judged" or max(grades.values(), default=0) >= measure["rel"])
        }
        for _, query_id, value in _ask_provider([measure], safe, rankings):
            per_query[name][query_id] = value
    for measure, query_id, value in _ask_provider(list(names_by_measure), judged, rankings):
        per_query[names_by_measure[measure]][query_id] = value
    return {  # in the order of the judgments, in which providers need not return the queries
        name: {query_id: values[query_id] for query_id in judged if query_id in values}
        for name, values in per_query.items()
    }


def _ask_provider(
    measures: Sequence[Any], judged: Mapping[str, Mapping[str, int]], rankings: Mapping[str, Sequence[str]]
) -> Iterator[tuple[Any, str, float]]:
    """Yield each measure's values by query, as its provider computes them."""
    if not measures or not judged:
        return
    _check_grades(measures, judged)
    # gdeval reads only the digits after the last '-' of a query id, so providers get numbers as ids.
    id_by_number = {str(number): query_id for number, query_id in enumerate(judged, start=1)}
    grades = {number: _with_grade_0(judged[query_id]) for number, query_id in id_by_number.items()}
    provider = _create_provider(measures, grades)
    scores = {number: dict(score_by_rank(rankings[query_id])) for number, query_id in id_by_number.items()}
    with _provider_errors(measures):
        for metric in provider.iter_calc(scores):
            yield metric.measure, id_by_number[metric.query_id], float(metric.value)


def _with_grade_0(grades: Mapping[str, int]) -> dict[str, int]:
    """Return a query's judgments. If all are negative, which ends pytrec_eval, add 0 for a document that is not there.

    A document that no ranking has, and that is not relevant, changes no measure.
    """
    return {**grades, "\n": 0} if all(grade < 0 for grade in grades.values()) else dict(grades)


def _rank_doc_ids(run: Run, query_id: str, averaging: Averaging) -> list[str]:
    """Return the ids of a query's top documents in trec_eval's order. A query that is not in the run has none."""
    documents = sort_as_trec_eval(run.rankings.get(query_id, ()), single_precision=averaging.single_precision)
    return [document.doc_id for document in documents[: averaging.depth]]


def _check_grades(measures: Iterable[Any], judged: Mapping[str, Mapping[str, int]]) -> None:
    """Raise `EvaluationError` if a provider cannot take a grade."""
    all_grades = {grade for grades in judged.values() for grade in grades.values()}
    for grade in all_grades:
        if abs(grade) > _MAX_GRADE:
            raise EvaluationError(f"the judgments have the grade {grade}; grades can be up to {_MAX_GRADE:,}")
    max_grade = max(all_grades, default=0)
    # gdeval computes ERR, and nDCG with exponential gains
    gdeval_measures = [measure for measure in measures if measure.NAME == "ERR" or "exp-log2" in repr(measure)]
    if gdeval_measures and max_grade > _GDEVAL_MAX_GRADE:
        raise EvaluationError(
            f"cannot measure {gdeval_measures[0]}: it takes grades up to {_GDEVAL_MAX_GRADE}, but the judgments have "
            f"the grade {max_grade}"
        )


@contextlib.contextmanager
def _provider_errors(measures: Iterable[Any]) -> Iterator[None]:
    """Convert the failure of a provider's program in the block to an `EvaluationError`."""
    try:
        yield
    except ZeroDivisionError as error:  # Accuracy compares relevant documents with others
        raise EvaluationError("Accuracy needs rankings with documents that are not relevant; leave it out") from error
    except (subprocess.SubprocessError, OSError) as error:
        raise EvaluationError(f"cannot measure {', '.join(map(str, measures))}: {_format_one_line(error)}") from error


def _create_provider(measures: Sequence[Any], judged: Mapping[str, Mapping[str, int]]) -> Any:
    ir_measures = require("ir_measures", extra="eval")
    try:
        return ir_measures.evaluator(measures, judged)
    except (ValueError, AssertionError, RuntimeError) as error:
        raise EvaluationError(_explain_unsupported(measures, _format_one_line(error))) from error


def _explain_unsupported(measures: Sequence[Any], message: str) -> str:
    """Return an error message that says what to do, from ir-measures' error message."""
    if package := _MISSING_PACKAGE.search(message):
        return f"measure {package[1]} needs the Python package {package[2]}: pip install '{package[3]}'"
    if unsupported := _UNSUPPORTED.fullmatch(message):
        return f"measure {unsupported[1]} has invalid parameters; see https://ir-measur.es for its parameters"
    return f"cannot measure {', '.join(map(str, measures))}: {message}"


def _parse_name(ir_measures: ModuleType, name: str) -> list[Any]:
    """Return the measure of a name such as ``nDCG@10``, or the measures of a trec_eval alias such as ``ndcg_cut``."""
    try:
        measures = [ir_measures.parse_measure(name)]
    except (NameError, ValueError, TypeError):
        measures = _parse_trec_name(ir_measures, name)
    try:
        for measure in measures:
            required = [key for key, parameter in measure.SUPPORTED_PARAMS.items() if parameter.required]
            missing = [key for key in required if key not in measure.params]
            if missing:
                raise AssertionError(f"it needs {' and '.join(missing)}")  # noqa: TRY301 - as validate_params does
            measure.validate_params()
            if measure.params.get("cutoff", 1) < 1:  # trec_eval's code would abort the process
                raise AssertionError("its cutoff must be 1 or above")  # noqa: TRY301 - as validate_params does
    except AssertionError as error:
        raise EvaluationError(
            f"measure {name!r} is invalid: {error}; examples of valid measures: nDCG@10, P(rel=2)@5"
        ) from None
    return measures


def _parse_trec_name(ir_measures: ModuleType, name: str) -> list[Any]:
    nicknames = require("pytrec_eval", extra="eval").supported_nicknames
    try:
        if name not in nicknames:  # a nickname such as all_trec includes measures that ir-measures does not know
            return list(ir_measures.parse_trec_measure(name))
    except ValueError:
        pass
    names = ", ".join(sorted(ir_measures.measures.registry))
    raise EvaluationError(f"there is no measure {name!r}; choose one such as nDCG@10 or P(rel=2)@5; names are: {names}")


def _set_relevance_level(measure: Any, name: str, level: int) -> Any:
    """Return the measure with a relevance level, such as ``AP(rel=2)`` for ``AP`` and 2.

    The measure is unchanged if its name sets a level, or if it has no level that can be set.
    """
    if level == 1 or "rel=" in name or "rel" not in measure.SUPPORTED_PARAMS:
        return measure
    has_level = measure.SUPPORTED_PARAMS["rel"].default == 1 or "rel" in measure.params  # RBP has none by default
    return measure(rel=level) if has_level else measure


def _compute_overall(measure: Any, values: Mapping[str, float]) -> float:
    aggregator = measure.aggregator()
    for value in values.values():
        aggregator.add(value)
    return float(aggregator.result())


def _format_first_ids(query_ids: Iterable[str]) -> str:
    """Return up to three ids, such as "q1, q2, q3, ..."."""
    sorted_ids = sorted(query_ids)
    return f"{', '.join(sorted_ids[:3])}{', ...' if len(sorted_ids) > 3 else ''}"


def _format_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
