"""Load the models that searches need, and rerank with them. This module does not depend on a search engine."""

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from cachetools import LRUCache

from osrerank._caches import SharedCache
from osrerank.errors import ConfigError, MissingDependencyError, ModelLoadError, WorkerError
from osrerank.options.rerank import NO_STAGES, VECTORS, VECTORS_MONO, Rerank
from osrerank.recipe import (
    ReadyModelOrError,
    Recipe,
    make_failed_recipe,
    make_recipe,
    name_first_stage,
    resolve_pipeline,
)
from osrerank.scoring.card import DUO, ENCODERS, POINTWISE
from osrerank.scoring.loaded import LoadedModel
from osrerank.scoring.names import AUTO, HTTP
from osrerank.scoring.registry import check_settings
from osrerank.settings import DEFAULT_MODEL, Settings
from osrerank.stages.language_guard import load_detector
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
from osrerank.types.scores import single_documents
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.store import VectorStore

SERVER_STARTUP_MS = 3_000.0
"""How long ``osrerank serve`` waits for a rerank server before it goes on without it, in milliseconds."""
MAX_RECIPES = 100
"""The maximum number of cached recipes. A recipe holds the stages for one combination of options."""
RECIPE_OPTIONS = (
    "pipeline", "depth", "mono_depth", "duo_depth", "pairs", "separator", "language_guard", "blend", "blend_weight",
    "passages", "sentences",
)  # fmt: skip
"""The rerank options that determine a recipe, and are the key of its cache."""
DUO_MODEL_FIX = "; name one with duo_model=..., --duo-model or OSRERANK_DUO_MODEL"
VECTOR_MODEL_FIX = "; name a bi-encoder with vector_model=..., --vector-model or OSRERANK_VECTOR_MODEL"


class RerankService:
    """Reranks with up to three models: one that scores texts, a bi-encoder for vectors, and a duo model for pairs.

    If the scoring model is a bi-encoder, no second one is used. Safe to use from many threads.

    Args:
        settings: the settings, with models, backend, threads and Redis.
        scorer: a model to use instead of the settings' ``model``. The caller closes it.
        duo_scorer: a model to use instead of the settings' ``duo_model``. The caller closes it.
        encoder: a model to use instead of the settings' ``vector_model``. The caller closes it.
        clock: a function that returns the time in seconds, for deadlines.
        has_index: whether the documents are in an index. If not, the settings' Redis, if any, stores the vectors.

    Attributes:
        has_own_scorer: whether the caller passed ``scorer``. If so, the settings' ``model`` is not used.
        scoring_model: the model that scores texts.
        vector_model: the bi-encoder whose vectors are used if the scoring model is a cross-encoder.
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
        self.has_own_scorer = scorer is not None
        self.clock = clock
        self.scoring_model = LoadedModel(
            settings.model, POINTWISE, settings,
            provided=scorer, clock=clock, has_index=has_index, on_loaded=load_detector,
        )  # fmt: skip
        vector_settings, duo_fix = settings, DUO_MODEL_FIX
        if settings.backend == HTTP:
            # a rerank server returns no vectors, so this process computes them, and it has no duo model to name
            vector_settings, duo_fix = settings.model_copy(update={"backend": AUTO}), ""
        self.vector_model = LoadedModel(
            settings.vector_model, ENCODERS, vector_settings,
            provided=encoder, fix=VECTOR_MODEL_FIX, clock=clock, has_index=has_index, on_loaded=load_detector,
        )  # fmt: skip
        self._duo_model = LoadedModel(
            settings.duo_model or "", DUO, settings, provided=duo_scorer, fix=duo_fix, clock=clock
        )
        self._recipes: SharedCache[LRUCache[Any, Recipe]] = SharedCache(lambda: LRUCache(MAX_RECIPES))

    def set_side_index_stores(self, stores: Sequence[VectorStore]) -> None:
        """Let the models read vectors from these stores on OpenSearch. Call this before a model is loaded."""
        self.scoring_model.side_index_stores = self.vector_model.side_index_stores = stores

    def with_model(self, model: str) -> "RerankService":
        """Return a service with another scoring model, which is not loaded yet. The other models are shared."""
        service = copy(self)
        service.settings = self.settings.model_copy(update={"model": model})
        service.scoring_model = LoadedModel(
            model, POINTWISE, service.settings, clock=self.clock, on_loaded=load_detector
        )
        service._recipes = SharedCache(lambda: LRUCache(MAX_RECIPES))  # noqa: SLF001 - the same class
        if self.settings.model == self.settings.vector_model == DEFAULT_MODEL:
            service.vector_model = self.scoring_model  # the same model, which is then not loaded twice
        return service

    def count_candidates(self, options: Rerank) -> int:
        """Return the number of candidates that the first pass must return, for the deepest of the options' rankings."""
        depths = [  # two if rankings are interleaved
            ranking.max_depth if isinstance(ranking.pipeline, str) else ranking.pipeline.depth
            for ranking in options.rankings
        ]
        return max(depths)

    def rerank(self, ranking: Ranking, options: Rerank, deadline: Deadline = NEVER) -> Ranking:
        """Rerank the first pass with the stages that the options choose, and return the new ranking.

        Args:
            ranking: the first pass.
            options: the search's options.
            deadline: the call's deadline.

        Raises:
            ConfigError: the options do not fit the models.
            Exception: a model raised it, and the option ``on_failure`` is ``"raise"``.
        """
        if options.pipeline == NO_STAGES:
            return ranking
        recipe = self.load_recipe(options, deadline)
        return recipe.rerank(ranking, deadline, on_failure=options.on_failure)

    def load_recipe(self, options: Rerank, deadline: Deadline = NEVER) -> Recipe:
        """Return the recipe of `load_usable_recipe`. If that fails, return a recipe whose only stage raises the error.

        Raises:
            ConfigError: the options do not fit the models.
        """
        try:
            return self.load_usable_recipe(options, deadline)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a search goes on without its model
            return make_failed_recipe(options, error)

    def find_loaded_recipe(self, options: Rerank) -> Recipe | None:
        """Return the recipe for options, or None if one of its models is not loaded in this process.

        Raises:
            ConfigError: the options do not fit the models.
        """
        if not isinstance(options.pipeline, str):  # the caller's own pipeline
            return Recipe(options.pipeline, depth=options.pipeline.depth, max_depth=options.pipeline.depth)
        key = tuple(getattr(options, name) for name in RECIPE_OPTIONS)
        with self._recipes as recipes:
            cached: Recipe | None = recipes.get(key)
        if cached is not None:
            return cached
        if self.scoring_model.ready_model is None:  # its kind decides which models the stages need
            return None
        ready_models = []
        for model in self.select_models(options):
            ready = model.ready_model
            if ready is None or isinstance(ready.model, NeedsWorkers):  # workers can change their model
                return None
            ready_models.append(ready)
        recipe = make_recipe(options, ready_models)
        with self._recipes as recipes:
            recipes[key] = recipe
        return recipe

    def load_usable_recipe(self, options: Rerank, deadline: Deadline = NEVER) -> Recipe:
        """Load the models that the options need, look for workers if they run the models, and return the recipe.

        Args:
            options: the options of the search.
            deadline: how long to wait for models that are not loaded yet, and for workers.

        Raises:
            ConfigError: the options do not fit the models.
            StillLoading: the first stage's model is not loaded by the deadline.
            ModelLoadError, MissingDependencyError, WorkerError: the first stage's model cannot be used.
        """
        loaded_recipe = self.find_loaded_recipe(options)
        if loaded_recipe is not None:
            return loaded_recipe
        if options.pipeline not in VECTORS_MONO:
            self.scoring_model.load(deadline)  # its kind decides which models the stages need
        models = self.select_models(options)
        models_or_errors: list[ReadyModelOrError] = [models[0].load(deadline)]
        for model in models[1:]:
            try:
                models_or_errors.append(model.load(deadline))
            except Exception as error:  # noqa: BLE001 - the model's stage reports the error
                models_or_errors.append(error)
        for model in models:
            model.find_workers(deadline)
        # `find_loaded_recipe` also caches its recipe, but returns None if a model failed or runs on workers
        return self.find_loaded_recipe(options) or make_recipe(options, models_or_errors)

    def start_loading(self, options: Rerank) -> None:
        """Start to load the models that the options need, in other threads."""
        for model in self.select_models(options):
            model.start_loading()

    def identity(self, options: Rerank) -> dict[str, object]:
        """Return the identities of the models and the blend that determine the order, as `Recipe.identity` does.

        For the caller's own pipeline, return an empty dict, because its models are unknown.

        Raises:
            ModelLoadError, MissingDependencyError, WorkerError: a model cannot be loaded.
        """
        if not isinstance(options.pipeline, str):
            return {}
        for model in self.select_models(options):
            model.load()
        return self.load_usable_recipe(options).identity

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
        return self.scoring_model.model()

    def load_vectors(self, options: Rerank) -> DocumentVectors | None:
        """Return the first stage's document vectors, or None if it scores texts. Raise the same errors as `model`."""
        if options.pipeline not in VECTORS_MONO:
            self.scoring_model.load()  # its kind decides which models the stages need
        return self.select_models(options)[0].vectors()

    def load_vector_stage(self, options: Rerank) -> VectorStage:
        """Return the first stage of a pipeline that compares vectors.

        Raises:
            ConfigError: the model has no vectors, or the first stage scores sentences or is the caller's own.
            ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
        """
        recipe = self.load_usable_recipe(options)
        if recipe.vector_stage is not None:
            return recipe.vector_stage
        if self.load_vectors(options) is None:
            raise no_vectors_error(self.model.model)
        raise ConfigError(
            "vectors cannot be built for a search with the rerank option 'sentences', or with a pipeline of your own"
        )

    def score(self, query: str, documents: Sequence[str], deadline: Deadline, *, cached: bool = True) -> Scores:
        """Score texts as a search does by default: a long text by its best passage, if the model advises it.

        Args:
            query: the query's text.
            documents: the documents' texts. Blank texts are not scored.
            deadline: the call's deadline.
            cached: whether scores may come from the cache, if there is one.

        Raises:
            ScoringError: the model cannot be loaded, nothing was scored in time, or no document could be scored.
            WorkerError: the workers did not reply.
        """
        return score_texts(self.scoring_model.scorer(cached=cached), query, documents, deadline=deadline)

    def warm_up(self, options: Rerank | None = None, *, server_ms: float | None = None) -> None:
        """Load the models that the options need, and rank two texts with them. The first search then does not wait.

        Args:
            options: the options whose models are loaded. If None, only the scoring model is loaded.
            server_ms: how long to wait for a rerank server, in milliseconds. If None, there is no limit.

        Raises:
            ModelLoadError, MissingDependencyError: a model cannot be loaded, or a stage's extra is not installed.
            WorkerError: no worker runs.
            ScoringError: the rerank server returns no scores.
        """
        deadline = Deadline.after_ms(server_ms if self.settings.backend == HTTP else None, self.clock)
        model = self.scoring_model.model()
        if is_encoder(model):
            model.encode(["warm up"], "document", deadline=deadline)
        else:
            model.score("warm", ["up"], single_documents(1), deadline=deadline)
        if options is None or not isinstance(options.pipeline, str):
            return
        candidates = []
        for rank, text in enumerate(("Warm up.", "Cool down."), start=1):
            first_pass = StageScore("first_pass", score=1.0 / rank, rank=rank, unit=0.5)
            candidates.append(Candidate(str(rank), text, first_pass.score, rank, trace=(first_pass,)))
        options_that_raise = replace(options, on_failure="raise")
        self.rerank(Ranking(Query("warm", "warm up"), tuple(candidates)), options_that_raise, deadline)
        vectors = self.load_vectors(options)
        if vectors is not None:
            vectors.records.flush()  # this opens the store of vectors

    def close(self) -> None:
        """Release the models that this service has loaded, and close the connections to the cache."""
        with self._recipes as recipes:
            recipes.clear()
        for model in (self.scoring_model, self.vector_model, self._duo_model):
            model.close()

    def select_models(self, options: Rerank) -> list[LoadedModel]:
        """Return the models that the options' stages need, in order.

        If the scoring model is not loaded yet, the result assumes that it suits the first stage.

        Raises:
            WorkerError: workers score, and no worker runs that reports the model's kind.
        """
        if not isinstance(options.pipeline, str):
            return []
        models = [self.scoring_model]
        if options.pipeline in VECTORS_MONO:
            models = [self.vector_model, self.scoring_model]
        elif options.pipeline in VECTORS and self.scoring_model.is_encoder is False:
            # on workers, a bi-encoder is a scorer too, whose kind the workers report
            has_vectors = name_first_stage(self.scoring_model.model()) == "vectors"
            models = [self.scoring_model if has_vectors else self.vector_model]
        return [*models, self._duo_model] if options.compares_pairs else models

    def resolve_pipeline(self, options: Rerank) -> tuple[str, str]:
        """Return the pipeline that fits the model's kind, and a warning if another one was requested, or "".

        Raises:
            ConfigError: ``vectors-mono`` was requested, and the model is not a cross-encoder.
            ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
        """
        try:
            return resolve_pipeline(options, self.scoring_model.load())
        except (ModelLoadError, MissingDependencyError, WorkerError):
            if options.pipeline not in VECTORS_MONO:
                raise
            return str(options.pipeline), ""  # the stage of the failed model reports the error


def no_vectors_error(model: str) -> ConfigError:
    """Return the error for a model without document vectors, such as a cross-encoder."""
    reason = f"{model} has no document vectors: only bi-encoders and late interaction do"
    export = "osrerank export converts one from the hub"
    alternative = 'order by the vectors of vector_model first: pipeline = "vectors-mono" in the settings file'
    return ConfigError(f"{reason}; {export}; or {alternative}", setting="model", source="--model")
