"""Apply stages one after another, and handle the failure of one.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 3: H0 retrieves,
every later stage reorders the top of the ranking before it and leaves the rest below.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from osrerank._seldom import Seldom
from osrerank.errors import OsrerankError
from osrerank.tracing.attributes import tell_report
from osrerank.tracing.spans import is_recording, name_of, span, tell_event
from osrerank.types import NEVER, Deadline, FailurePolicy, Ranking, Stage, StageReport
from osrerank.types.reasons import Reason, ReasonCode

NO_MODEL = (ReasonCode.MODEL, ReasonCode.EXTRA, ReasonCode.LOADING)
"""Reasons for which no search is reranked until an operator or time mends them."""
logger = logging.getLogger(__name__)
due = Seldom()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages applied one after another; itself a function from a ranking to a ranking.

    ```python
    from osrerank import connect
    from osrerank.pipeline import Pipeline
    from osrerank.stages.mono import MonoStage
    from osrerank.testing import FunctionScorer

    client = connect("embedded:./data")
    client.index(index="notes", id="1", body={"text": "a note about pressure"}, refresh=True)
    pipeline = Pipeline((MonoStage(FunctionScorer(), depth=20),))
    response = client.search("pressure", index="notes", rerank={"pipeline": pipeline})
    assert response["rerank"]["stages"][0]["name"] == "mono"
    ```

    Attributes:
        stages: each reorders the top of the ranking before it.
    """

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        if not self.stages:
            raise ValueError("a pipeline needs at least one stage")
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise ValueError(f"two stages of a pipeline have the same name: {', '.join(names)}")

    @property
    def depth(self) -> int:
        """The depth of the deepest stage."""
        return max(stage.depth for stage in self.stages)

    def rerank(
        self,
        ranking: Ranking,
        *,
        deadline: Deadline = NEVER,
        on_failure: FailurePolicy = "first_pass",
    ) -> Ranking:
        """Apply the stages in order, until one fails or has no time left; return the new ranking.

        Args:
            ranking: the first pass.
            deadline: passed to each stage; one that computes nothing may ignore it.
            on_failure: ``"first_pass"`` keeps the best order so far and reports the failure, ``"raise"`` raises it.

        Raises:
            Exception: what a stage raised, if ``on_failure`` is ``"raise"``: a `ScoringError` if it failed or had no
                time left, a `WorkerError`, a `MissingDependencyError`, or whatever a model of your own raises.
        """
        for stage in self.stages:
            started = deadline.clock()
            try:
                with span(f"stage {stage.name}", {"osrerank.stage.depth": stage.depth}) as traced:
                    ranking = stage.rerank(ranking, deadline=deadline)
                    if is_recording():
                        tell_report(traced, ranking.reports[-1])
            except Exception as error:
                if on_failure == "raise":
                    raise
                return failed(ranking, stage.name, error, (deadline.clock() - started) * 1000)
            if ranking.reports and not (ranking.reports[-1].applied or ranking.reports[-1].skipped):
                break
        return ranking


def failed(ranking: Ranking, stage: str, error: Exception, took_ms: float = 0.0) -> Ranking:
    """Return the best order so far with the report of a stage that failed, and log why.

    Args:
        ranking: the order so far.
        stage: the stage's name.
        error: what the stage raised.
        took_ms: time that the stage took.
    """
    reason = Reason.of(error)
    if reason.code in NO_MODEL:
        tell_event("osrerank.no_model", {"error.type": name_of(error)})
    if (untold := due.untold((stage, type(error)))) is not None:
        more = f"{untold} more were not logged; at most one line a minute" if untold else "at most one line a minute"
        if reason.code in NO_MODEL:
            logger.warning("[no-model] a model is missing, so searches keep the order without it: %s; %s", error, more)
        elif isinstance(error, OsrerankError):
            logger.warning("[stage-skipped] stage %s was skipped: %s; %s", stage, error, more)
        else:  # a model of the caller's own, or a mistake of ours
            logger.warning("[stage-skipped] stage %s was skipped: %s; %s", stage, reason, more, exc_info=error)
    report = StageReport(stage, applied=False, reason=str(reason), code=reason.code, took_ms=took_ms)
    return ranking.with_report(report)


def applied(reports: tuple[StageReport, ...]) -> bool | str:
    """Return whether a ranking was reranked: True, False, or "partial" if a stage failed or was cut short.

    If all stages were skipped on purpose, the order is the one that they would have given, so it is True.
    """
    tried = tuple(report for report in reports if not report.skipped)
    if all(report.applied is True for report in tried):
        return bool(reports)
    return "partial" if any(report.applied for report in tried) else False


def reasons(reports: Iterable[StageReport]) -> str:
    """Return why stages did not do all their work, without stages that were skipped on purpose."""
    return "; ".join(f"{report.name}: {report.reason}" for report in reports if report.reason and not report.skipped)


def code_of(reports: Iterable[StageReport]) -> ReasonCode | None:
    """Return the code of the first stage's reason, without stages that were skipped on purpose; None if all is done."""
    told = (report for report in reports if report.reason and not report.skipped)
    return next((report.code or ReasonCode.SCORING for report in told), None)
