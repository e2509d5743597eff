"""Protocols for reranking stages and for pipelines of stages. To write a stage of your own, implement `Stage`."""

from typing import Literal, Protocol, runtime_checkable

from osrerank.types.scores import NEVER, Deadline
from osrerank.types.values import Ranking


@runtime_checkable
class Stage(Protocol):
    """A step that reorders the top ``depth`` candidates of a ranking. Those below keep their order.

    ```python
    from osrerank.stages.ordering import ScoredCandidate, reorder
    from osrerank.types import NEVER, Candidate, Query, Ranking, StageReport

    class ShortFirst:
        name, depth = "short-first", 10

        def rerank(self, ranking, *, deadline=NEVER):
            top, tail = ranking.candidates[: self.depth], ranking.candidates[self.depth :]
            scored = [ScoredCandidate(hit, score=-len(hit.text), unit=1 / (1 + len(hit.text))) for hit in top]
            report = StageReport(self.name, applied=True, candidates=len(top))
            return ranking.reordered(reorder(ranking, self.name, scored, tail), report)

    candidates = (Candidate("a", "a long text", 2.0, 1), Candidate("b", "short", 1.0, 2))
    ranking = ShortFirst().rerank(Ranking(Query("1", "text"), candidates))
    assert [candidate.doc_id for candidate in ranking.candidates] == ["b", "a"]
    ```
    """

    @property
    def name(self) -> str:
        """The name shown in traces and reports."""

    @property
    def depth(self) -> int:
        """The number of top candidates to reorder."""

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
        """Return the reordered ranking, with this stage's report added."""


FailurePolicy = Literal["first_pass", "raise"]
"""What happens when a stage fails: keep the order so far and report the failure, or raise the error."""


@runtime_checkable
class StagePipeline(Protocol):
    """Stages that are applied in order, such as `osrerank.pipeline.Pipeline`.

    The option ``pipeline`` of a search can be such an object, or the name of a built-in pipeline.
    """

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages. Each stage reorders the result of the stage before it."""

    @property
    def depth(self) -> int:
        """The depth of the stage that reorders the most candidates."""

    def rerank(
        self, ranking: Ranking, *, deadline: Deadline = NEVER, on_failure: FailurePolicy = "first_pass"
    ) -> Ranking:
        """Apply the stages in order, as `osrerank.pipeline.Pipeline` does."""
