"""Build the pipeline of a search from its options and the loaded models, as a recipe that later searches reuse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from osrerank.errors import ConfigError
from osrerank.options.rerank import AUTO_PIPELINE, MAX_DEPTH, VECTORS_MONO, Rerank
from osrerank.pipeline import Pipeline, with_failure
from osrerank.scoring.card import ENCODERS
from osrerank.scoring.loaded import ReadyModel
from osrerank.stages.duo import DuoStage
from osrerank.stages.interpolate import BLENDED, BlendStage, make_blend_stage
from osrerank.stages.language_guard import unreadable_reason
from osrerank.stages.mono import MonoStage
from osrerank.stages.passages import PassageStage, passage_options
from osrerank.stages.sentences import SentenceStage
from osrerank.stages.vectors import VectorStage
from osrerank.types import (
    NEVER,
    Deadline,
    Encoder,
    FailurePolicy,
    Ranking,
    Scorer,
    Stage,
    StagePipeline,
    StageReport,
)
from osrerank.types.reasons import ReasonCode, SearchWarning, WarningCode

NAME_A_CROSS_ENCODER = "set a cross-encoder with model=..., --model or OSRERANK_MODEL; vector_model has the vectors"
Loaded = ReadyModel | Exception
"""A stage's model, or the error that was raised when it was loaded."""


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """The stages of a search, which depend on its options and the loaded models alone.

    Attributes:
        pipeline: the pipeline of stages.
        depth: the minimum number of candidates that the first stage reranks.
        max_depth: the maximum number; candidates beyond ``depth`` are reranked only if their vectors are stored.
        vector_stage: the first stage, if it compares vectors; else None.
        guarded_model: the first stage's model, if ``language_guard`` is on; else None.
        warnings: warnings about stages that differ from the requested ones.
        models: the models of the stages, in order, without those that cannot be loaded.
        at_depth: a function that returns the pipeline for another depth of the first stage.
        options: the options of the search.
    """

    pipeline: StagePipeline
    depth: int
    max_depth: int
    vector_stage: VectorStage | None = None
    guarded_model: Scorer | Encoder | None = None
    warnings: tuple[SearchWarning, ...] = ()
    models: tuple[ReadyModel, ...] = ()
    at_depth: Callable[[int], StagePipeline] | None = None
    options: Rerank = field(default_factory=Rerank)

    def rerank(
        self,
        ranking: Ranking,
        deadline: Deadline = NEVER,
        *,
        on_failure: FailurePolicy = "first_pass",
    ) -> Ranking:
        """Rerank a ranking; return the new one.

        Args:
            ranking: the first pass.
            deadline: the call's deadline.
            on_failure: the failure policy, as for `osrerank.pipeline.Pipeline.rerank`.
        """
        if self.guarded_model is not None and (reason := unreadable_reason(ranking, self.guarded_model)):
            return ranking.with_report(language_report(reason))
        pipeline = self.pipeline
        if self.vector_stage is not None and self.at_depth is not None and self.max_depth > self.depth:
            if ranking.vectors is None:
                ranking = replace(ranking, vectors=self.vector_stage.read_vectors(ranking, self.max_depth, deadline))
            pipeline = self.at_depth(self.vector_stage.stored_depth(ranking, self.depth, self.max_depth))
        try:
            ranked = pipeline.rerank(ranking, deadline=deadline, on_failure=on_failure)
        except Exception as error:
            if on_failure == "raise" or isinstance(pipeline, Pipeline):  # a `Pipeline` reports its stages' failures
                raise
            ranked = with_failure(ranking, "pipeline", error)
        return replace(ranked, warnings=(*ranked.warnings, *self.warnings)) if self.warnings else ranked

    def expect(self, query: str) -> None:
        """Begin to encode a query while the search engine finds its candidates."""
        for ready in self.models:
            if ready.vectors is not None:
                ready.vectors.prefetch_query(query)

    @property
    def identity(self) -> dict[str, Any]:
        """The model identities and the blend that determine the order; empty without a model.

        Raises:
            WorkerError: workers score, and no worker runs that reports its model.
        """
        if not self.models:
            return {}
        first, *later = self.models
        blend = make_blend_stage(self.options, first.model)
        scorer = first.model.identity
        identity: dict[str, Any] = {}
        identity["scorer"] = scorer if first.vectors is None else f"{scorer}/{first.vectors.records.bits}"
        identity["blend"] = None if blend is None else [blend.method, blend.weight]
        if self.options.pipeline in VECTORS_MONO and later:
            mono = later[0].model
            identity |= {"mono": mono.identity, "vectors_weight": mono.advice.vectors_weight}
        return identity | ({"duo": later[-1].model.identity} if self.options.compares_pairs and later else {})


@dataclass(frozen=True, slots=True)
class FailedStage:
    """A stage whose model cannot be used. It raises the error, and the failure policy decides what happens.

    Attributes:
        name: the stage's name.
        error: the error.
        depth: the stage's depth. The default exceeds every page.
    """

    name: str
    error: Exception
    depth: int = MAX_DEPTH * 2

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:  # noqa: ARG002 - its contract
        """Raise the error."""
        raise self.error


@dataclass(frozen=True, slots=True)
class GuardedStage:
    """A stage that does nothing if its model does not know the language of the query or the candidates.

    Attributes:
        stage: the stage.
        model: the stage's model.
    """

    stage: Stage
    model: Scorer | Encoder

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def depth(self) -> int:
        return self.stage.depth

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
        if reason := unreadable_reason(ranking, self.model):
            return ranking.with_report(language_report(reason))
        return self.stage.rerank(ranking, deadline=deadline)


def make_recipe(options: Rerank, models: Sequence[Loaded]) -> Recipe:
    """Return the recipe for options and loaded models.

    Args:
        options: the options of the search.
        models: the stages' models in order, at least one; the first one is loaded.

    Raises:
        ConfigError: the options do not fit the models.
    """
    first, *later = models
    assert isinstance(first, ReadyModel)  # otherwise nothing would be reranked
    checked_model = later[0] if options.pipeline in VECTORS_MONO else first
    warning = ""
    if options.pipeline != AUTO_PIPELINE and not isinstance(checked_model, Exception):
        _, warning = resolve_pipeline(options, checked_model)
    at_depth = partial(_pipeline, options, first, later)
    pipeline = at_depth(options.min_depth)
    vector_stage = stage if isinstance(stage := pipeline.stages[0], VectorStage) else None
    return Recipe(
        pipeline,
        options.min_depth,
        options.max_depth if vector_stage is not None else options.min_depth,
        vector_stage,
        first.model if options.language_guard else None,
        (SearchWarning(warning, WarningCode.PIPELINE_CHANGED),) if warning else (),
        tuple(ready for ready in models if isinstance(ready, ReadyModel)),
        at_depth,
        options,
    )


def failed_recipe(options: Rerank, error: Exception) -> Recipe:
    """Return the recipe of a search whose first model cannot be used; its only stage raises the error."""
    return Recipe(Pipeline((FailedStage(str(options.pipeline), error),)), options.min_depth, options.min_depth)


def resolve_pipeline(options: Rerank, ready: ReadyModel) -> tuple[str, str]:
    """Return the pipeline that fits a model's kind, and a warning if it compares vectors although mono was requested.

    Raises:
        ConfigError: the requested pipeline needs a cross-encoder, and the model is an encoder.
        WorkerError: workers score, and no worker runs that reports the model's kind.
    """
    model, requested = ready.model, str(options.pipeline)
    first_stage, kind = stage_name(model), model.advice.kind
    kind = kind if kind == "bi-encoder" else f"{kind} model"
    if options.pipeline in VECTORS_MONO and first_stage == "vectors":
        reason = f"the pipeline {requested} needs a cross-encoder, and {model.model} is a {kind}"
        raise ConfigError(f"{reason}; {NAME_A_CROSS_ENCODER}", setting="rerank.pipeline", source="argument")
    requested_first, _, later_stages = requested.partition("-")
    if requested_first == "vectors":
        return requested, ""
    runs = "-".join(filter(None, (first_stage, later_stages)))
    warning = f"the pipeline {requested} ran as {runs}, because {model.model} is a {kind}: ask for {runs}"
    return runs, warning if requested_first == "mono" and first_stage == "vectors" else ""


def stage_name(model: Scorer | Encoder) -> str:
    """Return the first stage's name for a model: ``vectors`` for an encoder, ``mono`` for a cross-encoder."""
    return "vectors" if model.advice.kind in ENCODERS else "mono"


def language_report(reason: str) -> StageReport:
    """Return the report of a stage that did nothing because the model does not know the language."""
    return StageReport("language", applied=False, reason=reason, code=ReasonCode.LANGUAGE)


def _pipeline(options: Rerank, first: ReadyModel, later: Sequence[Loaded], depth: int) -> Pipeline:
    """Return the pipeline for a depth of its first stage."""
    if first.vectors is not None and options.sentences is None:
        passages = passage_options(options, first.model)
        stages: list[Stage] = [VectorStage(first.vectors, passages, depth, options.separator)]
    else:
        stages = [_scorer_stage(options, first.scorer, depth)]
    if (blend := make_blend_stage(options, first.model, depth)) is not None:
        stages.append(blend)
    if options.pipeline in VECTORS_MONO:
        stages += _stages_after_vectors(options, later[0], min(options.mono_depth, depth))
    if options.compares_pairs:
        duo, duo_depth = later[-1], min(options.duo_depth, stages[-1].depth, depth)
        if isinstance(duo, Exception):
            stages.append(FailedStage("duo", duo, duo_depth))
        else:  # after the blend, which chooses the candidates
            stages.append(DuoStage(duo.scorer, duo_depth, options.pairs))
    return Pipeline(tuple(stages))


def _scorer_stage(options: Rerank, scorer: Scorer, depth: int) -> Stage:
    """Return the stage that scores each document by itself: whole, or by its passages or sentences."""
    if options.sentences is not None:
        return SentenceStage(scorer, options.sentences, depth=depth)
    name = stage_name(scorer)
    if (passages := passage_options(options, scorer)) is not None:
        return PassageStage(scorer, passages, depth, name, options.separator)
    return MonoStage(scorer, depth, name)


def _stages_after_vectors(options: Rerank, mono: Loaded, depth: int) -> list[Stage]:
    """Return the stages by which a cross-encoder orders the best of the stage ``vectors``."""
    if isinstance(mono, Exception):
        return [FailedStage("mono", mono, depth)]
    stage = _scorer_stage(options, mono.scorer, depth)
    stages: list[Stage] = [GuardedStage(stage, mono.model) if options.language_guard else stage]
    weight = mono.model.advice.vectors_weight
    return [*stages, BlendStage("before", weight, depth, BLENDED)] if weight else stages
