"""Load models and build the recipes of searches. Nothing here knows OpenSearch."""

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from cachetools import LRUCache

from osrerank._caches import SharedCache
from osrerank.errors import ConfigError, MissingDependencyError, ModelLoadError, WorkerError
from osrerank.options.rerank import NO_STAGES, VECTORS, VECTORS_MONO, Rerank
from osrerank.recipe import Loaded, Recipe, failed_recipe, make_recipe, resolve_pipeline, stage_name
from osrerank.scoring.card import DUO, ENCODERS, POINTWISE
from osrerank.scoring.loaded import LoadedModel
from osrerank.scoring.names import AUTO, HTTP
from osrerank.scoring.registry import check_settings
from osrerank.settings import DEFAULT_MODEL, Settings
from osrerank.stages.language_guard import prepare
from osrerank.stages.passages import score_texts
from osrerank.stages.vectors import VectorStage
from osrerank.types import (
    NEVER,
    Candidate,
    Deadline,
    Encoder,
    NeedsWorkers,
    Query,
    Ranking,
    Scorer,
    Scores,
    StageScore,
    is_encoder,
)
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.store import VectorStore

SERVER_MS = 3_000.0
"""The time that callers wait for an optional rerank server at startup, in milliseconds."""
MAX_RECIPES = 100
"""The maximum number of cached recipes."""
RECIPE_OPTIONS = (
    "pipeline", "depth", "mono_depth", "duo_depth", "pairs", "separator", "language_guard", "blend", "blend_weight",
    "passages", "sentences",
)  # fmt: skip
"""The options that a recipe depends on."""
NAME_A_DUO_MODEL = "; name one with duo_model=..., --duo-model or OSRERANK_DUO_MODEL"
NAME_A_VECTOR_MODEL = "; name a bi-encoder with vector_model=..., --vector-model or OSRERANK_VECTOR_MODEL"


class RerankService:
    """Reranks with the models of a process: a model that scores texts, a bi-encoder for vectors, and a duo model.

    If the scoring model is a bi-encoder itself, it provides the vectors. Safe to use from many threads.

    Args:
        settings: the settings, with models, backend, threads and Redis.
        scorer: a model to use instead of the settings' ``model``; the caller closes it.
        duo_scorer: a model to use instead of the settings' ``duo_model``; the caller closes it.
        encoder: a model to use instead of the settings' ``vector_model``; the caller closes it.
        clock: returns the time in seconds, for deadlines.
        has_index: whether the documents are in an index. If not, vectors are stored in the settings' Redis, if any.

    Attributes:
        settings: the settings.
        clock: the clock.
        is_given: whether the caller passed the scoring model, so that the settings' ``model`` is not used.
        first: the scoring model.
        encoder: the model of the vectors, if the scoring model is a cross-encoder.
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
        self.is_given = scorer is not None
        self.clock = clock
        fix = "" if settings.backend == HTTP else NAME_A_DUO_MODEL
        self.first = LoadedModel(
            settings.model, POINTWISE, settings, scorer, clock=clock, has_index=has_index, on_loaded=prepare
        )
        local = settings.model_copy(update={"backend": AUTO}) if settings.backend == HTTP else settings
        self.encoder = LoadedModel(
            settings.vector_model, ENCODERS, local, encoder, NAME_A_VECTOR_MODEL, clock,
            has_index=has_index, on_loaded=prepare,
        )  # fmt: skip
        self._duo = LoadedModel(settings.duo_model or "", DUO, settings, duo_scorer, fix, clock)
        self._recipes: SharedCache[LRUCache[Any, Recipe]] = SharedCache(lambda: LRUCache(MAX_RECIPES))

    def add_vector_stores(self, stores: Sequence[VectorStore]) -> None:
        """Add stores from which vectors are read outside a search; call this before a model is loaded."""
        self.first.side_index_stores = self.encoder.side_index_stores = stores

    def with_model(self, model: str) -> "RerankService":
        """Return a service with another scoring model, not loaded yet, which shares the other models with this one."""
        service = copy(self)
        service.settings = self.settings.model_copy(update={"model": model})
        service.first = LoadedModel(model, POINTWISE, service.settings, clock=self.clock, on_loaded=prepare)
        service._recipes = SharedCache(lambda: LRUCache(MAX_RECIPES))  # noqa: SLF001 - the same class
        if self.settings.model == self.settings.vector_model == DEFAULT_MODEL:
            service.encoder = self.first  # so that the model is not loaded twice
        return service

    def depth(self, options: Rerank) -> int:
        """Return the number of candidates that the first pass must return."""
        depths = (
            ranking.max_depth if isinstance(ranking.pipeline, str) else ranking.pipeline.depth
            for ranking in options.rankings
        )
        return max(depths)

    def rerank(self, ranking: Ranking, options: Rerank, deadline: Deadline = NEVER) -> Ranking:
        """Rerank a ranking by the pipeline that the options name; return the new ranking.

        Args:
            ranking: the first pass.
            options: the search's options.
            deadline: the call's deadline.

        Raises:
            ConfigError: the options do not fit the models.
            Exception: a model raised it, and the options say to raise.
        """
        if options.pipeline == NO_STAGES:
            return ranking
        recipe = self.recipe(options, deadline)
        return recipe.rerank(ranking, deadline, on_failure=options.on_failure)

    def recipe(self, options: Rerank, deadline: Deadline = NEVER) -> Recipe:
        """Return the recipe for options, or one whose only stage fails if the first model cannot be used.

        Args:
            options: the options of the search.
            deadline: the time until which to wait for models that are not loaded yet.

        Raises:
            ConfigError: the options do not fit the models.
        """
        try:
            return self.usable_recipe(options, deadline)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a search goes on without its model
            return failed_recipe(options, error)

    def cached_recipe(self, options: Rerank) -> Recipe | None:
        """Return the recipe for options if their models are loaded in this process; else None.

        Raises:
            ConfigError: the options do not fit the models.
        """
        if not isinstance(options.pipeline, str):
            return Recipe(options.pipeline, options.pipeline.depth, options.pipeline.depth)
        key = tuple(getattr(options, name) for name in RECIPE_OPTIONS)
        with self._recipes as recipes:
            cached: Recipe | None = recipes.get(key)
        if cached is not None or self.first.ready_model is None:
            return cached
        ready = [model.ready_model for model in self.models_of(options)]
        loaded = [model for model in ready if model is not None and not isinstance(model.model, NeedsWorkers)]
        if len(loaded) < len(ready):
            return None
        recipe = make_recipe(options, loaded)
        with self._recipes as recipes:
            recipes[key] = recipe
        return recipe

    def usable_recipe(self, options: Rerank, deadline: Deadline = NEVER) -> Recipe:
        """Load the stages' models, check that their workers run, and return the recipe.

        Raises:
            ConfigError: the options do not fit the models.
            StillLoading: the first stage's model is not loaded by the deadline.
            ModelLoadError, MissingDependencyError, WorkerError: the first stage's model cannot be used.
        """
        if (recipe := self.cached_recipe(options)) is not None:
            return recipe
        if options.pipeline not in VECTORS_MONO:
            self.first.load(deadline)  # the kind of this model decides which models the stages need
        first, *later = models = self.models_of(options)
        loaded: list[Loaded] = [first.load(deadline)]
        for model in later:
            try:
                loaded.append(model.load(deadline))
            except Exception as error:  # noqa: BLE001 - the model's stage reports the error
                loaded.append(error)
        for model in models:
            model.find_workers(deadline)
        return self.cached_recipe(options) or make_recipe(options, loaded)  # not cached: workers may change their model

    def start_loading(self, options: Rerank) -> None:
        """Start to load the models that the options need, in other threads."""
        for model in self.models_of(options):
            model.start_loading()

    def identity(self, options: Rerank) -> dict[str, object]:
        """Return the model identities and the blend that determine the order; empty for a caller's own pipeline.

        Raises:
            ModelLoadError, MissingDependencyError, WorkerError: a model cannot be loaded.
        """
        if not isinstance(options.pipeline, str):
            return {}
        for model in self.models_of(options):
            model.load()
        return self.usable_recipe(options).identity

    @property
    def model_name(self) -> str:
        """The name of the scoring model, from the settings or the rerank server. No local model is loaded."""
        return self.model.model if self.settings.backend == HTTP else self.settings.model

    @property
    def model(self) -> Scorer | Encoder:
        """The scoring model, loaded if necessary.

        Raises:
            ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
        """
        return self.first.model()

    def vectors_of(self, options: Rerank) -> DocumentVectors | None:
        """Return the source of the first stage's vectors, or None if it scores texts; raise the errors of `model`."""
        if options.pipeline not in VECTORS_MONO:
            self.first.model()
        return self.models_of(options)[0].vectors()

    def vector_stage(self, options: Rerank) -> VectorStage:
        """Return the first stage, which compares vectors.

        Raises:
            ConfigError: the model has no vectors, or the first stage scores sentences or is the caller's own.
            ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
        """
        recipe = self.usable_recipe(options)
        if recipe.vector_stage is not None:
            return recipe.vector_stage
        if self.vectors_of(options) is None:
            raise no_vectors(self.model.model)
        raise ConfigError("vectors cannot be built for sentences, nor for a pipeline of your own")

    def score(self, query: str, documents: Sequence[str], deadline: Deadline, *, cached: bool = True) -> Scores:
        """Score texts as a search does by default: long ones by their best passage if the model advises it.

        Args:
            query: the query's text.
            documents: the documents' texts; blank ones are not scored.
            deadline: the call's deadline.
            cached: whether scores may come from the cache, if there is one.

        Raises:
            ScoringError: the model cannot be loaded, nothing was scored in time, or no document could be scored.
            WorkerError: the workers did not reply.
        """
        return score_texts(self.first.scorer(cached=cached), query, documents, deadline=deadline)

    def warm_up(self, options: Rerank | None = None, *, server_ms: float | None = None) -> None:
        """Load the models that the options need and rank two texts, so that the first search does not wait for it.

        Args:
            options: the options whose models are loaded; by default, only the scoring model is.
            server_ms: the time to wait for a rerank server, in milliseconds; None for no limit.

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
            vectors.records.flush()  # this opens the store of vectors

    def close(self) -> None:
        """Release the models loaded here, and the connections to the cache."""
        with self._recipes as recipes:
            recipes.clear()
        for model in (self.first, self.encoder, self._duo):
            model.close()

    def models_of(self, options: Rerank) -> list[LoadedModel]:
        """Return the stages' models, in order; a model that is not loaded yet is assumed to suit the first stage.

        Raises:
            WorkerError: workers score, and no worker runs that reports the model's kind.
        """
        if not isinstance(options.pipeline, str):
            return []
        models = [self.first]
        if options.pipeline in VECTORS_MONO:
            models = [self.encoder, self.first]
        elif options.pipeline in VECTORS and self.first.is_encoder is False:
            models = [self.first if stage_name(self.first.model()) == "vectors" else self.encoder]
        return [*models, self._duo] if options.compares_pairs else models

    def resolve(self, options: Rerank) -> tuple[str, str]:
        """Return the pipeline that fits the model's kind, and a warning, "" if that pipeline was requested.

        Raises:
            ConfigError: ``vectors-mono`` was requested, and the model is not a cross-encoder.
            ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
        """
        try:
            return resolve_pipeline(options, self.first.load())
        except (ModelLoadError, MissingDependencyError, WorkerError):
            if options.pipeline not in VECTORS_MONO:
                raise
            return str(options.pipeline), ""  # the vectors decide the order, and the next stage reports the error


def no_vectors(model: str) -> ConfigError:
    """Return the error to raise for a model that has no document vectors."""
    reason = f"{model} has no document vectors: only bi-encoders and late interaction do"
    export = "osrerank export converts one from the hub"
    order = 'order by the vectors of vector_model first: pipeline = "vectors-mono" in the settings file'
    return ConfigError(f"{reason}; {export}; or {order}", setting="model", source="--model")
