"""The protocols of stages and pipelines."""

from typing import Literal, Protocol, runtime_checkable

from osrerank.types.scores import NEVER, Deadline
from osrerank.types.values import Ranking


@runtime_checkable
class Stage(Protocol):
    """A step that reorders the top ``depth`` candidates of a ranking and leaves the others below them.

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
        """The stage's name in traces and reports."""

    @property
    def depth(self) -> int:
        """The number of candidates that the stage reorders, from the top; the others stay below, in their old order."""

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
        """Return the ranking with its top ``depth`` reordered and one more report."""


FailurePolicy = Literal["first_pass", "raise"]
"""What happens when a stage fails: the best order so far is kept and reported, or the stage's error is raised."""


@runtime_checkable
class StagePipeline(Protocol):
    """Stages that are applied one after another, such as `osrerank.pipeline.Pipeline`.

    The option ``pipeline`` of a search takes such an object, or a name.
    """

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages; each reorders the top of the previous ranking."""

    @property
    def depth(self) -> int:
        """The depth of the deepest stage."""

    def rerank(
        self, ranking: Ranking, *, deadline: Deadline = NEVER, on_failure: FailurePolicy = "first_pass"
    ) -> Ranking:
        """Apply every stage; see `osrerank.pipeline.Pipeline`."""
