"""From options to ranked candidates: which model, which stages, which cache. Knows nothing of OpenSearch."""

import logging
import threading
import time
from typing import TYPE_CHECKING

from osrerank.errors import ConfigError, MissingDependencyError, ModelLoadError, WorkerError
from osrerank.pipeline import NO_STAGES, Pipeline, Rerank
from osrerank.settings import Settings
from osrerank.stages.interpolate import BlendStage
from osrerank.stages.mono import MonoStage
from osrerank.stages.passages import PassageStage
from osrerank.stages.sentences import SentenceStage
from osrerank.types import Deadline, Ranking, Scorer, Stage, StageReport

if TYPE_CHECKING:
    from osrerank.scoring.cache import CachedScorer  # imported when a cache is configured: it brings Redis

logger = logging.getLogger(__name__)

RETRY_LOAD_AFTER_S = 30.0
"""A model that failed to load is not tried again sooner: every search would wait for it."""


class Reranker:
    """Holds the model of a process, loaded once, when it is first needed.

    Safe to use from many threads.

    Args:
        settings: model, backend, threads, Redis.
        scorer: scores instead of the model named in the settings; stays the caller's to close.
    """

    def __init__(self, settings: Settings, scorer: Scorer | None = None) -> None:
        self.settings = settings
        self._given = scorer
        self._lock = threading.Lock()
        self._loaded: Scorer | None = None
        self._cached: CachedScorer | None = None
        self._failure: ModelLoadError | None = None
        self._failed_at_s = 0.0

    def depth(self, options: Rerank) -> int:
        """Return how many candidates the first pass must bring."""
        return options.pipeline.depth if isinstance(options.pipeline, Pipeline) else options.depth

    def rerank(self, ranking: Ranking, options: Rerank, deadline: Deadline) -> Ranking:
        """Return the ranking after the pipeline of the options.

        Raises:
            ScoringError: the model cannot be loaded or used, and the options say to raise.
            WorkerError: likewise, where workers score.
        """
        if options.pipeline == NO_STAGES:
            return ranking
        try:
            pipeline = self._pipeline(options)
        except (ModelLoadError, MissingDependencyError, WorkerError) as error:
            if options.on_failure == "raise":
                raise
            logger.warning("there is no model to score with, searches keep their first-pass order: %s", error)
            return ranking.with_report(StageReport(str(options.pipeline), applied=False, reason=str(error)))
        return pipeline.rerank(ranking, deadline=deadline, on_failure=options.on_failure)

    def identity(self, options: Rerank) -> dict[str, object]:
        """Return what an order depends on beside the options: the model's identity, and the blend with its weight.

        A pipeline of the caller's own has neither.

        Raises:
            ModelLoadError: the model cannot be loaded.
        """
        if isinstance(options.pipeline, Pipeline):
            return {}
        scorer = self._scorer(cached=False)
        blend = _blend(options, scorer)
        return {"scorer": scorer.identity, "blend": None if blend is None else [blend.method, blend.weight]}

    def warm_up(self) -> None:
        """Load the model and score one pair, so that the first search need not wait for it.

        Raises:
            ModelLoadError: the model cannot be loaded.
        """
        self._scorer(cached=False).score("warm", ["up"], [(0,)])

    def close(self) -> None:
        """Release the model that this loaded, and the connections to the cache."""
        with self._lock:
            if self._cached is not None:
                self._cached.disconnect()
            if self._loaded is not None:
                self._loaded.close()
            self._loaded = self._cached = None

    def _pipeline(self, options: Rerank) -> Pipeline:
        if isinstance(options.pipeline, Pipeline):
            return options.pipeline
        scorer = self._scorer(cached=options.cache)
        if options.sentences is not None:
            return Pipeline((SentenceStage(scorer, options.sentences, depth=options.depth),))
        mono = _mono(options, scorer)
        blend = _blend(options, scorer)
        return Pipeline((mono,) if blend is None else (mono, blend))

    def _scorer(self, *, cached: bool) -> Scorer:
        with self._lock:
            scorer = self._given or self._load()
            if not cached or self.settings.redis_url is None:
                return scorer
            if self._cached is None:
                from osrerank.scoring.cache import behind_cache  # noqa: PLC0415 - imports redis

                self._cached = behind_cache(scorer, self.settings)
            return self._cached

    def _load(self) -> Scorer:
        if self._loaded is not None:
            return self._loaded
        if self._failure is not None and time.monotonic() - self._failed_at_s < RETRY_LOAD_AFTER_S:
            raise ModelLoadError(str(self._failure), model=self._failure.model, path=self._failure.path)
        try:
            self._loaded = _load_scorer(self.settings)
        except ModelLoadError as error:
            self._failure, self._failed_at_s = error, time.monotonic()
            raise
        return self._loaded


def _load_scorer(settings: Settings) -> Scorer:
    if settings.backend == "workers":
        from osrerank.scoring.remote import RemoteScorer  # noqa: PLC0415 - imports redis and celery

        return RemoteScorer(settings.broker(), settings.model, queue_chunks=settings.queue_chunks)
    from osrerank.scoring.factory import load_scorer  # noqa: PLC0415 - imports onnxruntime or torch

    return load_scorer(settings.model, backend=settings.backend, threads=settings.threads)


def _mono(options: Rerank, scorer: Scorer) -> Stage:
    """Return the stage that scores documents, or their passages."""
    if options.passages is None:
        return MonoStage(scorer, depth=options.depth)
    return PassageStage(scorer, options.passages, depth=options.depth, separator=options.separator)


def _blend(options: Rerank, scorer: Scorer) -> BlendStage | None:
    """Return the stage that blends in the first pass, None when the model orders by itself."""
    if options.blend == "replace" or (options.blend == "card" and scorer.first_pass_weight == 0):
        return None
    if options.blend == "rrf":
        return BlendStage("rrf", depth=options.depth)
    if options.blend == "weighted":
        return BlendStage("weighted", 0.5 if options.blend_weight is None else options.blend_weight, options.depth)
    weight = scorer.first_pass_weight if options.blend_weight is None else options.blend_weight
    if options.blend_weight is None and weight == 0:
        raise ConfigError(
            f"a linear blend needs blend_weight: the card of {scorer.model} recommends none",
            setting="rerank.blend_weight",
            source="argument",
        )
    return BlendStage("linear", weight, options.depth)
