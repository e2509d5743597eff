"""Choose the stages of a search by its options and models.

A `Recipe` holds the chosen stages, such as ``vectors``, ``blend`` and ``mono``. Later searches with the same options
reuse it.
"""

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
from osrerank.stages.interpolate import VECTORS_BLEND, BlendStage, make_blend_stage
from osrerank.stages.language_guard import explain_unsupported_language
from osrerank.stages.mono import MonoStage
from osrerank.stages.passages import PassageStage, choose_passage_options
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

CROSS_ENCODER_FIX = "set model=..., --model or OSRERANK_MODEL to a cross-encoder, and vector_model to the bi-encoder"
ReadyModelOrError = ReadyModel | Exception
"""A loaded model, or the error that loading it raised."""


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """The stages for all searches with the same options and models.

    Attributes:
        pipeline: the stages, whose first one reranks ``depth`` candidates.
        depth: the number of candidates that the first stage always reranks.
        max_depth: the maximum number of candidates that the first stage reranks. It reranks candidates beyond ``depth``
            only if their vectors are stored.
        vector_stage: the first stage if it compares vectors, or else None.
        language_guard_model: the first stage's model if ``language_guard`` is on, or else None.
        warnings: warnings about stages that differ from the requested ones.
        models: the models of the stages, in order: of the first stage, of ``mono`` after ``vectors``, and of ``duo``.
            Models that cannot be loaded are left out. So are those of the caller's own pipeline, which are unknown.
        make_pipeline: makes the stages for another depth of the first stage. None if it has only one depth.
        options: the options of the search.
    """

    pipeline: StagePipeline
    depth: int
    max_depth: int
    vector_stage: VectorStage | None = None
    language_guard_model: Scorer | Encoder | None = None
    warnings: tuple[SearchWarning, ...] = ()
    models: tuple[ReadyModel, ...] = ()
    make_pipeline: Callable[[int], StagePipeline] | None = None
    options: Rerank = field(default_factory=Rerank)

    def rerank(
        self, ranking: Ranking, deadline: Deadline = NEVER, *, on_failure: FailurePolicy = "first_pass"
    ) -> Ranking:
        """Rerank the first pass, and return the new ranking. The arguments are those of `Pipeline.rerank`."""
        if self.language_guard_model is not None:
            reason = explain_unsupported_language(ranking, self.language_guard_model)
            if reason:
                return ranking.with_report(make_language_report(reason))
        pipeline = self.pipeline
        # stored vectors need no encoding, so the first stage also reranks candidates beyond `depth` that have them
        if self.max_depth > self.depth and self.vector_stage is not None and self.make_pipeline is not None:
            if ranking.vectors is None:
                ranking = replace(ranking, vectors=self.vector_stage.read_vectors(ranking, self.max_depth, deadline))
            depth = self.vector_stage.find_depth(ranking, self.depth, self.max_depth)
            pipeline = self.make_pipeline(depth)
        try:
            ranked = pipeline.rerank(ranking, deadline=deadline, on_failure=on_failure)
        except Exception as error:
            if on_failure == "raise" or isinstance(pipeline, Pipeline):  # a `Pipeline` reports its stages' failures
                raise
            ranked = with_failure(ranking, "pipeline", error)
        if self.warnings:
            ranked = replace(ranked, warnings=(*ranked.warnings, *self.warnings))
        return ranked

    def prefetch_query(self, query: str) -> None:
        """Begin to encode a query, so that its vector is ready when the search engine responds."""
        for ready in self.models:
            if ready.vectors is not None:
                ready.vectors.prefetch_query(query)

    @property
    def identity(self) -> dict[str, Any]:
        """The identities of the models, and the blend, which together determine the order. Empty without a model.

        For example: ``{"scorer": "5f2c.../8", "blend": ["linear", 0.5]}``, where 8 is the number of bits of a vector.

        Raises:
            WorkerError: workers score, but no running worker has reported its model.
        """
        if not self.models:
            return {}
        first, *later = self.models
        blend = make_blend_stage(self.options, first.model)
        scorer_identity = first.model.identity
        if first.vectors is not None:
            scorer_identity = f"{scorer_identity}/{first.vectors.records.bits}"  # rounding vectors changes scores
        blend_identity = None if blend is None else [blend.method, blend.weight]
        identity: dict[str, Any] = {"scorer": scorer_identity, "blend": blend_identity}
        if self.options.pipeline in VECTORS_MONO and later:
            mono = later[0].model
            identity |= {"mono": mono.identity, "vectors_weight": mono.advice.vectors_weight}
        if self.options.compares_pairs and later:
            duo = later[-1].model
            identity["duo"] = duo.identity
        return identity


@dataclass(frozen=True, slots=True)
class FailedStage:
    """Stands in for a stage whose model cannot be used. It raises the model's error when it is applied.

    Attributes:
        name: the stage's name.
        error: the error.
        depth: the number of candidates that the stage would rerank. The default is above that of any ranking.
    """

    name: str
    error: Exception
    depth: int = MAX_DEPTH * 2

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:  # noqa: ARG002 - its contract
        raise self.error


@dataclass(frozen=True, slots=True)
class GuardedStage:
    """A stage that reranks only if its model supports the language of the query and the candidates.

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
        reason = explain_unsupported_language(ranking, self.model)
        if reason:
            return ranking.with_report(make_language_report(reason))
        return self.stage.rerank(ranking, deadline=deadline)


def make_recipe(options: Rerank, models: Sequence[ReadyModelOrError]) -> Recipe:
    """Choose the stages for options and loaded models.

    Args:
        options: the options of the search.
        models: the models of the stages, in the order of `Recipe.models`. The first one must be loaded.

    Raises:
        ConfigError: the options do not fit the models.
    """
    first, *later = models
    assert isinstance(first, ReadyModel)
    scoring_model = later[0] if options.pipeline in VECTORS_MONO else first
    warning = ""
    if options.pipeline != AUTO_PIPELINE and not isinstance(scoring_model, Exception):
        _, warning = resolve_pipeline(options, scoring_model)  # checks that the model's kind suits the pipeline
    make_pipeline = partial(_make_pipeline, options, first, later)
    pipeline = make_pipeline(options.min_depth)
    first_stage = pipeline.stages[0]
    vector_stage = first_stage if isinstance(first_stage, VectorStage) else None
    return Recipe(
        pipeline,
        depth=options.min_depth,
        max_depth=options.max_depth if vector_stage is not None else options.min_depth,
        vector_stage=vector_stage,
        language_guard_model=first.model if options.language_guard else None,
        warnings=(SearchWarning(warning, WarningCode.PIPELINE_CHANGED),) if warning else (),
        models=tuple(ready for ready in models if isinstance(ready, ReadyModel)),
        make_pipeline=make_pipeline,
        options=options,
    )


def make_failed_recipe(options: Rerank, error: Exception) -> Recipe:
    """Return the recipe of a search whose first model cannot be used. The recipe's only stage raises the error."""
    pipeline = Pipeline((FailedStage(str(options.pipeline), error),))
    return Recipe(pipeline, depth=options.min_depth, max_depth=options.min_depth)


def resolve_pipeline(options: Rerank, ready: ReadyModel) -> tuple[str, str]:
    """Return the pipeline that fits a model's kind, and a warning if it differs from the requested one, or "".

    For a bi-encoder and the requested pipeline ``mono-duo``, the result is ``("vectors-duo", "the pipeline mono-duo ran
    as ...")``. The pipeline ``auto`` fits all kinds, so there is no warning.

    Raises:
        ConfigError: the requested pipeline needs a cross-encoder, and the model is an encoder.
        WorkerError: workers score, but no running worker has reported the model's kind.
    """
    model, requested = ready.model, str(options.pipeline)
    first_stage = name_first_stage(model)
    kind = model.advice.kind
    kind_name = kind if kind == "bi-encoder" else f"{kind} model"  # such as "late-interaction model"
    if options.pipeline in VECTORS_MONO and first_stage == "vectors":
        reason = f"the pipeline {requested} needs a cross-encoder, and {model.model} is a {kind_name}"
        raise ConfigError(f"{reason}; {CROSS_ENCODER_FIX}", setting="rerank.pipeline", source="argument")
    requested_first, _, later_stages = requested.partition("-")
    if requested_first == "vectors":
        return requested, ""
    actual = f"{first_stage}-{later_stages}" if later_stages else first_stage
    warning = ""
    if requested_first == "mono" and first_stage == "vectors":
        warning = f"the pipeline {requested} ran as {actual}, because {model.model} is a {kind_name}: ask for {actual}"
    return actual, warning


def name_first_stage(model: Scorer | Encoder) -> str:
    """Return the first stage's name for a model: ``vectors`` for an encoder, ``mono`` for a cross-encoder."""
    return "vectors" if model.advice.kind in ENCODERS else "mono"


def make_language_report(reason: str) -> StageReport:
    """Return the report of a stage whose model does not support the language."""
    return StageReport("language", applied=False, reason=reason, code=ReasonCode.LANGUAGE)


def _make_pipeline(options: Rerank, first: ReadyModel, later: Sequence[ReadyModelOrError], depth: int) -> Pipeline:
    """Return the stages. The first one reranks ``depth`` candidates, and the later ones at most as many."""
    stages: list[Stage] = []
    if first.vectors is not None and options.sentences is None:
        passages = choose_passage_options(options, first.model)
        stages.append(VectorStage(first.vectors, passages, depth=depth, separator=options.separator))
    else:
        stages.append(_make_scoring_stage(options, first.scorer, depth))
    blend = make_blend_stage(options, first.model, depth)
    if blend is not None:
        stages.append(blend)
    if options.pipeline in VECTORS_MONO:
        stages += _make_cross_encoder_stages(options, later[0], min(options.mono_depth, depth))
    if options.compares_pairs:  # after the blend, which chooses the candidates
        duo = later[-1]
        duo_depth = min(options.duo_depth, stages[-1].depth, depth)
        if isinstance(duo, Exception):
            stages.append(FailedStage("duo", duo, duo_depth))
        else:
            stages.append(DuoStage(duo.scorer, depth=duo_depth, pairs=options.pairs))
    return Pipeline(tuple(stages))


def _make_scoring_stage(options: Rerank, scorer: Scorer, depth: int) -> Stage:
    """Return the stage that scores each document separately: as a whole, or by its passages or sentences."""
    if options.sentences is not None:
        return SentenceStage(scorer, options.sentences, depth=depth)
    name = name_first_stage(scorer)
    passages = choose_passage_options(options, scorer)
    if passages is not None:
        return PassageStage(scorer, passages, depth=depth, name=name, separator=options.separator)
    return MonoStage(scorer, depth=depth, name=name)


def _make_cross_encoder_stages(options: Rerank, mono: ReadyModelOrError, depth: int) -> list[Stage]:
    """Return the stages in which a cross-encoder reranks the top of the stage ``vectors``."""
    if isinstance(mono, Exception):
        return [FailedStage("mono", mono, depth)]
    stage = _make_scoring_stage(options, mono.scorer, depth)
    stages: list[Stage] = [GuardedStage(stage, mono.model) if options.language_guard else stage]
    weight = mono.model.advice.vectors_weight
    if weight:  # add the weighted scores of the stage ``vectors``
        stages.append(BlendStage("earlier_stage", weight, depth=depth, name=VECTORS_BLEND))
    return stages
