"""A stage in the place of one that there cannot be."""

from dataclasses import dataclass

from osrerank.errors import MissingDependencyError, ModelLoadError
from osrerank.types import NEVER, Deadline, Ranking


@dataclass(frozen=True, slots=True)
class FailedStage:
    """A stage whose model could not be loaded: the pipeline ends there, by its failure policy.

    Attributes:
        name: the stage's name.
        depth: the stage's depth.
        error: why.
    """

    name: str
    depth: int
    error: ModelLoadError | MissingDependencyError

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:  # noqa: ARG002 - its contract
        """Raise the error as a scoring error.

        Raises:
            ModelLoadError: always.
        """
        raise ModelLoadError(str(self.error), path=getattr(self.error, "path", "")) from self.error
