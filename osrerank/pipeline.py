"""Rerank with one stage after another, such as a bi-encoder and then a cross-encoder, and handle a failing stage.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 3. A search retrieves
candidates, and each stage reorders the top of the previous ranking.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from osrerank._log_throttle import LogThrottle
from osrerank.errors import OsrerankError
from osrerank.tracing.attributes import set_stage_attributes
from osrerank.tracing.spans import add_event, error_type, is_recording, span
from osrerank.types import NEVER, Deadline, FailurePolicy, Ranking, Stage, StageReport
from osrerank.types.reasons import Reason, ReasonCode, log_message

NO_MODEL_CODES = (ReasonCode.MODEL, ReasonCode.EXTRA, ReasonCode.LOADING)
"""The reason codes of a missing model. No search can use the model until it is installed or loaded."""
logger = logging.getLogger(__name__)
log_throttle = LogThrottle()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages that are applied one after another.

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
        stages: the stages, at least one. Each reorders the top of the previous stage's ranking.
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
        """Apply the stages in order until one fails or runs out of time, and return the new ranking.

        Args:
            ranking: the first pass.
            deadline: the deadline of all stages together. A stage without a model can ignore it.
            on_failure: ``"first_pass"`` keeps the order of the previous stage and reports the failure. ``"raise"``
                raises the stage's error.

        Raises:
            ScoringError: a stage failed or had no time left, and ``on_failure`` is ``"raise"``.
            WorkerError, MissingDependencyError, Exception: a stage's model raised it, and ``on_failure`` is
                ``"raise"``.
        """
        for stage in self.stages:
            began_s = deadline.clock()
            try:
                with span(f"stage {stage.name}", {"osrerank.stage.depth": stage.depth}) as traced:
                    ranking = stage.rerank(ranking, deadline=deadline)
                    if is_recording():
                        set_stage_attributes(traced, ranking.reports[-1])
            except Exception as error:
                if on_failure == "raise":
                    raise
                return with_failure(ranking, stage.name, error, took_ms=(deadline.clock() - began_s) * 1000)
            last_report = ranking.reports[-1] if ranking.reports else None
            if last_report is not None and not last_report.applied and not last_report.skipped:
                break  # the stage scored no candidate, such as for lack of time
        return ranking


def with_failure(ranking: Ranking, stage: str, error: Exception, took_ms: float = 0.0) -> Ranking:
    """Return the ranking with a report of a failed stage, and log the failure.

    Args:
        ranking: the ranking before the failed stage.
        stage: the stage's name.
        error: the exception that the stage raised.
        took_ms: the time that the stage took, in milliseconds.
    """
    reason = Reason.from_error(error)
    if reason.code in NO_MODEL_CODES:
        add_event("osrerank.no_model", {"error.type": error_type(error)})
    n_suppressed = log_throttle.count_suppressed((stage, type(error)))
    if n_suppressed is not None:
        limit = "at most one line a minute"
        note = f"{n_suppressed} more were not logged; {limit}" if n_suppressed else limit
        if reason.code in NO_MODEL_CODES:
            logger.warning(
                "[no-model] a model is missing, so searches keep the order that they have without this model: %s; %s",
                log_message(error),
                note,
            )
        elif isinstance(error, OsrerankError):
            logger.warning('[stage-skipped] the stage "%s" was skipped: %s; %s', stage, log_message(error), note)
        else:  # the caller's own model raised it, or osrerank has a bug
            logger.warning('[stage-skipped] the stage "%s" was skipped: %s; %s', stage, reason, note, exc_info=error)
    report = StageReport(stage, applied=False, reason=str(reason), code=reason.code, took_ms=took_ms)
    return ranking.with_report(report)


def find_applied(reports: tuple[StageReport, ...]) -> bool | str:
    """Return whether a ranking was reranked: True, False, or "partial" if only some of its stages finished.

    Stages that were skipped on purpose do not count, because they would not have changed the order.
    """
    attempted = tuple(report for report in reports if not report.skipped)
    if all(report.applied is True for report in attempted):  # `applied` can also be "partial"
        return bool(reports)
    return "partial" if any(report.applied for report in attempted) else False


def describe_failures(reports: Iterable[StageReport]) -> str:
    """Return why stages failed or did not finish, such as "mono: the deadline passed". Return "" if all finished."""
    return "; ".join(f"{report.name}: {report.reason}" for report in reports if report.reason and not report.skipped)


def find_reason_code(reports: Iterable[StageReport]) -> ReasonCode | None:
    """Return the code of the first failure that `describe_failures` describes. Return None if there is no failure.

    The code of a failure without one is ``ReasonCode.SCORING``.
    """
    failed = (report for report in reports if report.reason and not report.skipped)
    return next((report.code or ReasonCode.SCORING for report in failed), None)
