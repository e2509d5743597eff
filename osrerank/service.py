"""Load the models and run the stages that a search's options ask for. Nothing here knows OpenSearch."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from itertools import takewhile

from osrerank.errors import (
    ConfigError,
    DeadlineExceeded,
    MissingDependencyError,
    ModelLoadError,
    OsrerankError,
    WorkerError,
)
from osrerank.options.rerank import AUTO_PIPELINE, NO_STAGES, VECTORS, VECTORS_MONO, Rerank
from osrerank.pipeline import Pipeline
from osrerank.scoring.card import DUO, ENCODERS, POINTWISE
from osrerank.scoring.loaded import LoadedModel
from osrerank.scoring.registry import AUTO, HTTP, check_settings
from osrerank.settings import DEFAULT_MODEL, Settings
from osrerank.stages.build import (
    duo_stage,
    resolved,
    scorer_stage,
    stage_name,
    stages_after_vectors,
)
from osrerank.stages.interpolate import blend_of
from osrerank.stages.language_guard import prepare, why_unread
from osrerank.stages.passages import chosen_passages, score_texts
from osrerank.stages.vectors import VectorStage
from osrerank.tracing.spans import name_of, tell_event
from osrerank.types import (
    NEVER,
    Candidate,
    Deadline,
    Encoder,
    Query,
    Ranking,
    Scorer,
    Scores,
    Stage,
    StagePipeline,
    StageReport,
    StageScore,
    is_encoder,
)
from osrerank.types.reasons import Reason, ReasonCode
from osrerank.types.values import is_blank
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.records import FetchedVectors, Lookup

logger = logging.getLogger(__name__)

SERVER_MS = 3_000.0
"""How long callers that can do without a rerank server wait for it at startup, in milliseconds."""
NAME_A_DUO_MODEL = "; name one with duo_model=..., --duo-model or OSRERANK_DUO_MODEL"
NAME_A_VECTOR_MODEL = "; name a bi-encoder with vector_model=..., --vector-model or OSRERANK_VECTOR_MODEL"


class RerankService:
    """Reranks with the models of a process: one that scores, one for vectors if that has none, and one for pairs.

    Safe to use from many threads.

    Args:
        settings: models, backend, threads, Redis.
        scorer: used instead of the settings' model; the caller closes it.
        duo_scorer: likewise, instead of the settings' ``duo_model``.
        encoder: likewise, instead of the settings' ``vector_model``.
        clock: returns the time in seconds, for deadlines.
        has_index: whether the documents are in an index; if not, vectors are kept in the settings' Redis, if any.
    """

    def __init__(
        self,
        settings: Settings,
        scorer: Scorer | Encoder | None = None,
        duo_scorer: Scorer | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        encoder: Encoder | None = None,
        has_index: bool = False,
    ) -> None:
        check_settings(settings)
        self.settings = settings
        self.clock = clock
        fix = "" if settings.backend == HTTP else NAME_A_DUO_MODEL
        self.first = LoadedModel(
            settings.model, POINTWISE, settings, scorer, clock=clock, has_index=has_index, then=prepare
        )
        local = settings.model_copy(update={"backend": AUTO}) if settings.backend == HTTP else settings
        self.encoder = LoadedModel(
            settings.vector_model, ENCODERS, local, encoder, NAME_A_VECTOR_MODEL, clock,
            has_index=has_index, then=prepare,
        )  # fmt: skip
        self._duo = LoadedModel(settings.duo_model or "", DUO, settings, duo_scorer, fix, clock)

    def with_model(self, model: str) -> "RerankService":
        """Return a service that scores by another model, not loaded yet, and shares those for vectors and pairs."""
        other = copy(self)
        other.settings = self.settings.model_copy(update={"model": model})
        other.first = LoadedModel(model, POINTWISE, other.settings, clock=self.clock, then=prepare)
        if self.settings.model == self.settings.vector_model == DEFAULT_MODEL:
            other.encoder = self.first  # not loaded twice
        return other

    def depth(self, options: Rerank) -> int:
        """Return how many candidates the first pass must return."""
        depths = (one.most_depth if isinstance(one.pipeline, str) else one.pipeline.depth for one in options.rankings)
        return max(depths)

    def rerank(
        self,
        ranking: Ranking,
        options: Rerank,
        deadline: Deadline,
        *,
        offset: int = 0,
        vectors: FetchedVectors | None = None,
    ) -> Ranking:
        """Rerank a ranking by the pipeline that the options name; return the new ranking.

        Args:
            ranking: the first pass.
            options: the search's options.
            deadline: the call's deadline.
            offset: candidates above the requested page.
            vectors: document vectors fetched for the search.

        Raises:
            ScoringError, WorkerError: a model or its workers cannot be used, and the options say to raise.
        """
        if options.pipeline == NO_STAGES:
            return ranking
        try:
            models = self._ready(options, deadline)
            if models and options.language_guard and (reason := why_unread(ranking, models[0].model())):
                return ranking.with_report(
                    StageReport("language", applied=False, reason=reason, code=ReasonCode.LANGUAGE)
                )
            pipeline, warnings = self._pipeline(options, ranking, vectors, models)
        except (ModelLoadError, MissingDependencyError, WorkerError, DeadlineExceeded) as error:
            if options.on_failure == "raise":
                raise
            tell_event("osrerank.no_model", {"error.type": name_of(error)})
            logger.warning("[no-model] the model is not available, so searches keep their first pass: %s", error)
            why = Reason.of(error)
            report = StageReport(str(options.pipeline), applied=False, reason=str(why), code=why.code)
            return ranking.with_report(report)
        ranked = pipeline.rerank(ranking, deadline=deadline, on_failure=options.on_failure, offset=offset)
        return replace(ranked, warnings=(*ranked.warnings, *warnings)) if warnings else ranked

    def identity(self, options: Rerank) -> dict[str, object]:
        """Return the model identities and the blend that determine the order; nothing for a caller's own pipeline.

        Raises:
            ModelLoadError: a model cannot be loaded.
        """
        if not isinstance(options.pipeline, str):
            return {}
        vectors, is_vectors_mono = self.vectors_of(options), options.pipeline in VECTORS_MONO
        model = self.models_of(options)[0].model()
        blend = blend_of(options, model)
        depends: dict[str, object] = {
            "scorer": model.identity if vectors is None else f"{model.identity}/{vectors.records.bits}",
            "blend": None if blend is None else [blend.method, blend.weight],
        }
        if is_vectors_mono:
            mono = self.first.model()
            depends |= {"mono": mono.identity, "vectors_weight": mono.advice.vectors_weight}
        return depends | ({"duo": self._duo.model().identity} if options.compares_pairs else {})

    @property
    def model_name(self) -> str:
        """The name of the model that scores, from the settings or the rerank server; it loads no local model."""
        return self.model.model if self.settings.backend == HTTP else self.settings.model

    @property
    def model(self) -> Scorer | Encoder:
        """The model of the first stage, loaded if necessary.

        Raises:
            ModelLoadError, MissingDependencyError, WorkerError: it cannot be loaded.
        """
        return self.first.model()

    def vectors_of(self, options: Rerank) -> DocumentVectors | None:
        """Return the source of the vectors that the first stage reads; None if it scores texts. Raises as `model`."""
        if options.pipeline not in VECTORS_MONO:
            self.first.model()
        return self.models_of(options)[0].vectors()

    def score(self, query: str, documents: Sequence[str], deadline: Deadline, *, cached: bool = True) -> Scores:
        """Score texts as a search does by default: long ones by their best passage if the model advises it.

        Args:
            query: the query's text.
            documents: the documents' texts; blank ones are not scored.
            deadline: the call's deadline.
            cached: whether scores may come from the cache, if there is one.

        Raises:
            ScoringError: the model cannot be loaded, nothing was scored in time, or no document could be.
            WorkerError: the workers did not answer.
        """
        return score_texts(self.first.scorer(cached=cached), query, documents, deadline=deadline)

    def vector_stage(self, options: Rerank, fetched: FetchedVectors | None = None) -> VectorStage:
        """Return the first stage, which compares vectors; its depth is 0.

        Args:
            options: the search's options.
            fetched: document vectors fetched for the search.

        Raises:
            ConfigError: the model has no vectors, or the first stage scores sentences or is the caller's own.
            ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
        """
        vectors = self.vectors_of(options)
        if vectors is None:
            raise no_vectors(self.model.model)
        if options.sentences is not None or not isinstance(options.pipeline, str):
            raise ConfigError("vectors cannot be built for sentences, nor for a pipeline of your own")
        return self._vector_stage(options, vectors if fetched is None else vectors.with_fetched(fetched))

    def warm_up(self, options: Rerank | None = None, *, server_ms: float | None = None) -> None:
        """Load the models that the options need and rank two texts, so that the first search need not wait.

        Args:
            options: say which models are loaded; by default, only the one that scores candidates.
            server_ms: how long to wait for a rerank server, in milliseconds; None for no limit.

        Raises:
            ModelLoadError, MissingDependencyError: a model cannot be loaded, or a stage's extra is not installed.
            WorkerError, ScoringError: there are no workers, or a rerank server does not score.
        """
        deadline = Deadline.after_ms(server_ms if self.settings.backend == HTTP else None, self.clock)
        if is_encoder(model := self.first.model()):
            model.encode(["warm up"], "document", deadline=deadline)
        else:
            model.score("warm", ["up"], [(0,)], deadline=deadline)
        if options is None or not isinstance(options.pipeline, str):
            return
        texts = enumerate(("Warm up.", "Cool down."), start=1)
        candidates = tuple(
            Candidate(str(rank), text, 1.0 / rank, rank, (StageScore("first_pass", 1.0 / rank, rank, 0.5),))
            for rank, text in texts
        )
        unbounded = replace(options, on_failure="raise")
        self.rerank(Ranking(Query("warm", "warm up"), candidates), unbounded, deadline)
        if (vectors := self.vectors_of(options)) is not None:
            vectors.records.flush()  # so that its store is open, too

    def close(self) -> None:
        """Release the models loaded here, and the connections to the cache."""
        for model in (self.first, self.encoder, self._duo):
            model.close()

    def lookup(
        self, rankings: Sequence[tuple[Ranking, Rerank]], indices: Sequence[str], deadline: Deadline = NEVER
    ) -> Lookup:
        """Return the vectors that the first stage may need and this machine has, and the keys of those it lacks.

        Both are empty if the model has no vectors or cannot be loaded.

        Args:
            rankings: first-pass rankings, each with the search's options, with fields.
            indices: the index of each candidate, in their order.
            deadline: the call's deadline.
        """
        fetched, index_of = FetchedVectors(), dict[bytes, str]()
        source: DocumentVectors | None = None
        for ranking, options in rankings:
            try:
                self._ready(options, deadline)
                stage = self.vector_stage(options, fetched)
            except (ConfigError, ModelLoadError, MissingDependencyError, WorkerError, DeadlineExceeded):
                continue
            source, keys = stage.vectors, _keys(ranking.candidates[: self.depth(options)], stage)
            index_of |= {key: index for key, index in zip(keys, indices, strict=False) if key is not None}
        known = source.known(list(index_of)) if source else set()
        lacking = {key: index for key, index in index_of.items() if key not in known}
        return Lookup(lacking, fetched, source.label if source else "")

    def models_of(self, options: Rerank) -> list[LoadedModel]:
        """Return the stages' models, in order; a settings' model not loaded yet is assumed to suit the first stage.

        Raises:
            WorkerError: workers score, and there are none that tell the model's kind.
        """
        models = [self.first]
        if options.pipeline in VECTORS_MONO:
            models = [self.encoder, self.first]
        elif options.pipeline in VECTORS and self.first.is_encoder is False:
            models = [self.first if stage_name(self.first.model()) == "vectors" else self.encoder]
        return [*models, self._duo] if options.compares_pairs else models

    def _ready(self, options: Rerank, deadline: Deadline) -> list[LoadedModel]:
        """Load the stages' models and check that their workers are there; return the models."""
        if not isinstance(options.pipeline, str):
            return []
        if options.pipeline not in VECTORS_MONO:
            self.first.model(deadline)  # its kind decides which models the stages need
        first, *later = models = self.models_of(options)
        first.model(deadline)
        for model in later:
            with contextlib.suppress(ModelLoadError, MissingDependencyError):  # its stage reports the error
                model.model(deadline)
        for model in models:
            model.find_workers(deadline)
        return models

    def encodes(self, options: Rerank) -> bool:
        """Load the first stage's model; return whether it is an encoder, or False if it cannot be loaded."""
        try:
            self.first.model()
            return all(is_encoder(self.models_of(each)[0].model()) for each in options.rankings)
        except OsrerankError:  # raised again when the model is used
            return False

    def resolve(self, options: Rerank) -> tuple[str, str]:
        """Return the pipeline that fits the model's kind, and a warning if another one was requested; else "".

        Raises:
            ConfigError: ``vectors-mono`` needs a cross-encoder, and the model is another.
            ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
        """
        try:
            return resolved(options, self.first.model())
        except (ModelLoadError, MissingDependencyError, WorkerError):
            if options.pipeline not in VECTORS_MONO:
                raise
            return str(options.pipeline), ""  # the vectors then decide the order, and the next stage reports why

    def _pipeline(
        self, options: Rerank, ranking: Ranking, fetched: FetchedVectors | None, models: Sequence[LoadedModel]
    ) -> tuple[StagePipeline, tuple[str, ...]]:
        """Build the pipeline that the options name for a ranking; return it and warnings."""
        if not isinstance(options.pipeline, str):
            return options.pipeline, ()
        warning = ""
        if options.pipeline != AUTO_PIPELINE:
            _, warning = self.resolve(options)
        vectors = models[0].vectors()
        if vectors is not None and options.depth == "auto":
            fetched = fetched or FetchedVectors({})  # what is read to find the depth is not read again
        if vectors is not None and fetched is not None:
            vectors = vectors.with_fetched(fetched)
        depth = options.least_depth
        if options.depth == "auto" and vectors is not None and options.sentences is None:
            depth = self._known_depth(options, ranking, fetched)
        if vectors is not None and options.sentences is None:
            stages: list[Stage] = [self._vector_stage(options, vectors, depth)]
        else:
            stages = [scorer_stage(options, models[0].scorer(), depth)]
        if (blend := blend_of(options, models[0].model(), depth)) is not None:
            stages.append(blend)
        if options.pipeline in VECTORS_MONO:
            stages += stages_after_vectors(options, self.first, ranking, depth)
        if options.compares_pairs:
            stages.append(duo_stage(options, self._duo, min(stages[-1].depth, depth)))
        return Pipeline(tuple(stages)), (warning,) if warning else ()

    def _known_depth(self, options: Rerank, ranking: Ranking, fetched: FetchedVectors | None) -> int:
        """Return the depth for "auto": it ends before the first candidate without a vector."""
        depth, stage = options.least_depth, self.vector_stage(options, fetched)
        keys = _keys(ranking.candidates[depth : options.most_depth], stage)
        known = stage.vectors.known([key for key in keys if key is not None])
        return depth + sum(1 for _ in takewhile(lambda key: key is None or key in known, keys))

    def _vector_stage(self, options: Rerank, vectors: DocumentVectors, depth: int = 0) -> VectorStage:
        return VectorStage(vectors, chosen_passages(options, vectors.encoder), depth, options.separator)


def _keys(candidates: Sequence[Candidate], stage: VectorStage) -> list[bytes | None]:
    """Return the key of each candidate's vectors; None for one without text."""
    texts = {at: stage.text_of(candidate) for at, candidate in enumerate(candidates) if not is_blank(candidate.text)}
    keys = dict(zip(texts, stage.vectors.keys_of(list(texts.values())), strict=True))
    return [keys.get(at) for at in range(len(candidates))]


def no_vectors(model: str) -> ConfigError:
    """Return the error to raise for a model that has no document vectors."""
    reason = f"{model} has no document vectors: only bi-encoders and late interaction do"
    export = "osrerank export converts one from the hub"
    order = 'order by the vectors of vector_model first: pipeline = "vectors-mono" in the settings file'
    return ConfigError(f"{reason}; {export}; or {order}", setting="model", source="--model")
