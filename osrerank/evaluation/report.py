"""Give the results of `osrerank evaluate` as JSON values and as CSV; nothing here prints."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from osrerank.evaluation.measures import Averaging, Evaluation
from osrerank.evaluation.significance import Marks, RunComparison


@dataclass(frozen=True, slots=True)
class Report:
    """Evaluated runs, and their comparisons if asked for.

    Attributes:
        evaluations: the evaluation of each run, in the order of the runs.
        averaging: how runs were cut and averaged.
        comparisons: the comparisons of runs; empty unless asked for.
        marks: (run, measure) -> letters of the runs that this run is significantly better than, or differs from.
        marked_by: ``holm`` if letters mark runs that it is better than, ``raw`` if runs that it differs from.
    """

    evaluations: Sequence[Evaluation]
    averaging: Averaging
    comparisons: Sequence[RunComparison]
    marks: Mapping[tuple[str, str], str]
    marked_by: Marks = "holm"

    def as_json(self, *, per_query: bool) -> dict[str, Any]:
        """Return the report as JSON values; numbers that JSON lacks, such as an infinite effect size, are None."""
        return {
            "averaging": asdict(self.averaging),
            "runs": [self._run(evaluation, per_query=per_query) for evaluation in self.evaluations],
            "comparisons": [_finite(asdict(comparison)) for comparison in self.comparisons],
        }

    def as_csv(self, *, per_query: bool) -> str:
        """Return CSV with a header and a row for each value of a run; comparisons follow after a blank line."""
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["run", "query_id", "measure", "value"])
        writer.writerows(row for evaluation in self.evaluations for row in _rows(evaluation, per_query=per_query))
        if self.comparisons:
            table.write("\n")
            names = [field.name for field in fields(RunComparison)]
            writer.writerow(names)
            writer.writerows([getattr(comparison, name) for name in names] for comparison in self.comparisons)
        return table.getvalue()

    def _run(self, evaluation: Evaluation, *, per_query: bool) -> dict[str, Any]:
        name = evaluation.run
        shown: dict[str, Any] = {
            "run": name,
            "n_queries": n_queries(evaluation),
            "measures": _finite(evaluation.overall),
        }
        if self.comparisons:
            relation = "better_than" if self.marked_by == "holm" else "differs_from"
            shown[relation] = {measure: letters for (run, measure), letters in self.marks.items() if run == name}
        if per_query:
            shown["per_query"] = {measure: _finite(values) for measure, values in evaluation.per_query.items()}
        return shown


def n_queries(evaluation: Evaluation) -> int:
    """Return the number of queries that were averaged over."""
    return max(len(values) for values in evaluation.per_query.values())


def _rows(evaluation: Evaluation, *, per_query: bool) -> list[tuple[str, str, str, float]]:
    rows = [
        (evaluation.run, query_id, measure, value)
        for measure, values in evaluation.per_query.items()
        for query_id, value in values.items()
        if per_query
    ]
    return [*rows, *((evaluation.run, "all", measure, value) for measure, value in evaluation.overall.items())]


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
