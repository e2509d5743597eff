"""Build the stages that score candidates by a model, from the options of a search."""

from dataclasses import dataclass

from osrerank.errors import ConfigError, MissingDependencyError, ModelLoadError, WorkerError
from osrerank.options.rerank import VECTORS_MONO, Rerank
from osrerank.scoring.card import ENCODERS
from osrerank.scoring.loaded import LoadedModel
from osrerank.stages.duo import DuoStage
from osrerank.stages.interpolate import BLENDED, BlendStage
from osrerank.stages.language_guard import why_unread
from osrerank.stages.mono import MonoStage
from osrerank.stages.passages import PassageStage, chosen_passages
from osrerank.stages.sentences import SentenceStage
from osrerank.types import NEVER, Deadline, Encoder, Ranking, Scorer, Stage, StageReport
from osrerank.types.reasons import ReasonCode

NAME_A_CROSS_ENCODER = "name one with model=..., --model or OSRERANK_MODEL; the vectors are those of vector_model"


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
    error: ModelLoadError | MissingDependencyError | WorkerError

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:  # noqa: ARG002 - its contract
        """Raise the error.

        Raises:
            ModelLoadError, MissingDependencyError, WorkerError: always.
        """
        raise self.error


@dataclass(frozen=True, slots=True)
class UnreadStage:
    """A stage whose model does not read the query's language or the documents': the pipeline ends there.

    Attributes:
        reason: why.
        depth: the stage's depth.
        name: how it is called in reports.
    """

    reason: str
    depth: int
    name: str = "language"

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:  # noqa: ARG002 - its contract
        """Return the ranking as it is, with the reason in a report."""
        return ranking.with_report(StageReport(self.name, applied=False, reason=self.reason, code=ReasonCode.LANGUAGE))


def scorer_stage(options: Rerank, scorer: Scorer, depth: int) -> Stage:
    """Return the stage that scores each document by itself: whole, or by its passages or sentences."""
    if options.sentences is not None:
        return SentenceStage(scorer, options.sentences, depth=depth)
    name = stage_name(scorer)
    if (passages := chosen_passages(options, scorer)) is not None:
        return PassageStage(scorer, passages, depth, name, options.separator)
    return MonoStage(scorer, depth, name)


def stages_after_vectors(options: Rerank, model: LoadedModel, ranking: Ranking, most: int) -> list[Stage]:
    """Return the stages by which a cross-encoder orders the best of the stage ``vectors``.

    Args:
        options: of the search.
        model: the cross-encoder.
        ranking: the first pass.
        most: the depth of the stage ``vectors``.
    """
    depth = min(options.mono_depth, most)
    try:
        scorer = model.scorer()
        if options.language_guard and (reason := why_unread(ranking, scorer)):
            return [UnreadStage(reason, depth)]
        stages = [scorer_stage(options, scorer, depth)]
    except (ModelLoadError, MissingDependencyError, WorkerError) as error:
        return [FailedStage("mono", depth, error)]
    weight = scorer.advice.vectors_weight
    return [*stages, BlendStage("before", weight, depth, BLENDED)] if weight else stages


def resolved(options: Rerank, model: Scorer | Encoder) -> tuple[str, str]:
    """Return the pipeline that fits a model's kind, and a warning if another one was requested; else "".

    Raises:
        ConfigError: ``vectors-mono`` was requested, and the model is a bi-encoder.
        WorkerError: workers score, and there are none that tell the model's kind.
    """
    asked, own = str(options.pipeline), stage_name(model)
    kind = "bi-encoder" if model.advice.kind == "bi-encoder" else f"{model.advice.kind} model"
    if options.pipeline in VECTORS_MONO and own == "vectors":
        reason = f"the pipeline {asked} needs a cross-encoder, and {model.model} is a {kind}"
        raise ConfigError(f"{reason}; {NAME_A_CROSS_ENCODER}", setting="rerank.pipeline", source="argument")
    first, _, rest = asked.partition("-")
    if first == "vectors":
        return asked, ""
    runs = "-".join(filter(None, (own, rest)))
    warning = f"the pipeline {asked} ran as {runs}, because {model.model} is a {kind}: ask for {runs}"
    return runs, warning if first == "mono" and own == "vectors" else ""


def duo_stage(options: Rerank, model: LoadedModel, most: int) -> Stage:
    """Return the stage that compares pairs, after the blend, so that the blend chooses its candidates."""
    depth = min(options.duo_depth, most)
    try:
        scorer = model.scorer()
    except (ModelLoadError, MissingDependencyError) as error:
        return FailedStage("duo", depth, error)
    return DuoStage(scorer, depth, options.pairs)


def stage_name(model: Scorer | Encoder) -> str:
    """Return the name of the stage that compares each document with the query by a model of this kind."""
    return "vectors" if model.advice.kind in ENCODERS else "mono"
