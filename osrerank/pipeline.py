"""Apply stages one after another, and handle the failure of one.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 3: H0 retrieves,
every later stage reorders the top of the ranking before it and leaves the rest below.
"""

import logging
from dataclasses import dataclass

from osrerank.errors import MissingDependencyError, ScoringError, WorkerError
from osrerank.tracing.attributes import tell_report
from osrerank.tracing.spans import is_recording, span
from osrerank.types import NEVER, Deadline, FailurePolicy, Ranking, Stage, StageReport
from osrerank.types.reasons import Reason

logger = logging.getLogger(__name__)


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
        offset: int = 0,
    ) -> Ranking:
        """Apply the stages in order, until one fails or has no time left; return the new ranking.

        Args:
            ranking: the first pass.
            deadline: passed to each stage; one that computes nothing may ignore it.
            on_failure: ``"first_pass"`` keeps the best order so far and reports the failure, ``"raise"`` raises it.
            offset: candidates above the requested page; stages that can only change the order above it are skipped.

        Raises:
            ScoringError: a stage failed, or no time was left for it, and ``on_failure`` is ``"raise"``.
            WorkerError: likewise, from workers.
            MissingDependencyError: likewise, if a stage needs an extra that is not installed.
        """
        for index, stage in enumerate(self.stages):
            if offset and offset >= max(later.depth for later in self.stages[index:]):
                ranking = ranking.with_report(_needless(stage, offset))
                continue
            started = deadline.clock()
            try:
                with span(f"stage {stage.name}", {"osrerank.stage.depth": stage.depth}) as traced:
                    ranking = stage.rerank(ranking, deadline=deadline)
                    if is_recording():
                        tell_report(traced, ranking.reports[-1])
            except (ScoringError, WorkerError, MissingDependencyError) as error:
                if on_failure == "raise":
                    raise
                logger.warning("[stage-skipped] stage %s was skipped: %s", stage.name, error)
                took_ms = (deadline.clock() - started) * 1000
                reason = Reason.of(error)
                report = StageReport(stage.name, applied=False, reason=str(reason), code=reason.code, took_ms=took_ms)
                return ranking.with_report(report)
            if not (ranking.reports[-1].applied or ranking.reports[-1].skipped):
                break
        return ranking


def _needless(stage: Stage, offset: int) -> StageReport:
    reason = f"skipped: the page begins behind {offset} hits, below the stage's depth of {stage.depth}"
    return StageReport(stage.name, applied=False, reason=reason, skipped=True)


def applied(reports: tuple[StageReport, ...]) -> bool | str:
    """Return whether a ranking was reranked: True, False, or "partial" if a stage failed or was cut short.

    If all stages were skipped on purpose, the order is the one that they would have given, so it is True.
    """
    tried = tuple(report for report in reports if not report.skipped)
    if all(report.applied is True for report in tried):
        return bool(reports)
    return "partial" if any(report.applied for report in tried) else False
