"""The report of `osrerank evaluate` as JSON and CSV. `cli.evaluate_tables` prints it as tables."""

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
    """Evaluations of runs, and comparisons between them.

    Attributes:
        evaluations: an evaluation for each run.
        averaging: the documents and queries that the averages cover.
        comparisons: the comparisons of runs. They are empty if none were requested.
        letters: (run, measure) -> the letters of other runs, such as ``ac``, from
            `significance.letter_significant_runs`.
        marks: ``holm`` if the letters name the runs that are significantly worse, by corrected p-values. ``raw`` if
            they name those that are significantly worse or better, by uncorrected p-values.
    """

    evaluations: Sequence[Evaluation]
    averaging: Averaging
    comparisons: Sequence[RunComparison]
    letters: Mapping[tuple[str, str], str]
    marks: Marks = "holm"

    def as_json(self, *, per_query: bool) -> dict[str, Any]:
        """Return the report as JSON values. Infinite numbers and NaN become None: an effect size can be infinite."""
        return {
            "averaging": asdict(self.averaging),
            "runs": [self._run_as_json(evaluation, per_query=per_query) for evaluation in self.evaluations],
            "comparisons": [_replace_infinite(asdict(comparison)) for comparison in self.comparisons],
        }

    def as_csv(self, *, per_query: bool) -> str:
        """Return the report as CSV: a row for each value, and after a blank line a row for each comparison."""
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["run", "query_id", "measure", "value"])
        for evaluation in self.evaluations:
            writer.writerows(_list_values(evaluation, per_query=per_query))
        if self.comparisons:
            table.write("\n")
            names = [field.name for field in fields(RunComparison)]
            writer.writerow(names)
            writer.writerows([getattr(comparison, name) for name in names] for comparison in self.comparisons)
        return table.getvalue()

    def _run_as_json(self, evaluation: Evaluation, *, per_query: bool) -> dict[str, Any]:
        name = evaluation.run
        run_values: dict[str, Any] = {
            "run": name,
            "n_queries": count_queries(evaluation),
            "measures": _replace_infinite(evaluation.overall),
        }
        if self.comparisons:
            # raw letters do not say which run is better
            relation = "better_than" if self.marks == "holm" else "differs_from"
            run_values[relation] = {measure: letters for (run, measure), letters in self.letters.items() if run == name}
        if per_query:
            run_values["per_query"] = {
                measure: _replace_infinite(values) for measure, values in evaluation.per_query.items()
            }
        return run_values


def count_queries(evaluation: Evaluation) -> int:
    """Return the largest number of queries with a value of a measure. A measure can be undefined for some queries."""
    return max(len(values) for values in evaluation.per_query.values())


def _list_values(evaluation: Evaluation, *, per_query: bool) -> list[tuple[str, str, str, float]]:
    """Return rows (run, query id, measure, value). The query id of a mean is ``all``."""
    rows = []
    if per_query:
        for measure, values in evaluation.per_query.items():
            rows += [(evaluation.run, query_id, measure, value) for query_id, value in values.items()]
    return rows + [(evaluation.run, "all", measure, value) for measure, value in evaluation.overall.items()]


def _replace_infinite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a mapping in which None replaces infinite numbers and NaN, which JSON does not have."""
    replaced = dict(values)
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            replaced[name] = None
    return replaced
