"""Rerank candidates by options: models, stages and cache. It does not know OpenSearch."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from itertools import takewhile

import numpy as np

from osrerank.errors import ConfigError, DeadlineExceeded, MissingDependencyError, ModelLoadError, WorkerError
from osrerank.options.passages import BY_WINDOW, Passages
from osrerank.options.rerank import NO_STAGES, Rerank
from osrerank.pipeline import Pipeline
from osrerank.scoring.card import DUO, POINTWISE
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.loaded import LoadedModel
from osrerank.scoring.registry import HTTP, check_settings
from osrerank.settings import Settings
from osrerank.stages.duo import DuoStage
from osrerank.stages.failed import FailedStage
from osrerank.stages.interpolate import blend_of
from osrerank.stages.language_guard import prepare, why_unread
from osrerank.stages.mono import MonoStage
from osrerank.stages.passages import PassageStage, score_by_passages
from osrerank.stages.sentences import SentenceStage
from osrerank.stages.vectors import VectorStage
from osrerank.tracing.spans import current, name_of
from osrerank.types import (
    NEVER,
    Candidate,
    Deadline,
    Encoder,
    Feedback,
    LongText,
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
from osrerank.types.values import BLANK, is_blank
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.records import FetchedVectors, Lookup

logger = logging.getLogger(__name__)

SERVER_MS = 3_000.0
"""How long callers that can do without a rerank server wait for it at startup, in milliseconds."""
NAME_A_DUO_MODEL = "; name one with duo_model=..., --duo-model or OSRERANK_DUO_MODEL"


class RerankService:
    """The models of a process: one that scores candidates, and one that compares pairs of them.

    Safe to use from many threads.

    Args:
        settings: models, backend, threads, Redis.
        scorer: used in place of the settings' model; the caller closes it.
        duo_scorer: likewise, in place of the settings' ``duo_model``.
        clock: returns the seconds that deadlines are counted in.
        has_index: whether documents are in an index; else a configured Redis keeps vectors.
    """

    def __init__(
        self,
        settings: Settings,
        scorer: Scorer | Encoder | None = None,
        duo_scorer: Scorer | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        has_index: bool = False,
    ) -> None:
        check_settings(settings)
        self.settings = settings
        self.clock = clock
        fix = "" if settings.backend == HTTP else NAME_A_DUO_MODEL
        self.first = LoadedModel(
            settings.model, POINTWISE, settings, scorer, clock=clock, has_index=has_index, then=prepare
        )
        self._duo = LoadedModel(settings.duo_model or "", DUO, settings, duo_scorer, fix, clock)

    def with_model(self, model: str) -> "RerankService":
        """Return a service with another first-stage model, not loaded yet, and the same duo model."""
        other = copy(self)
        other.settings = self.settings.model_copy(update={"model": model})
        other.first = LoadedModel(model, POINTWISE, other.settings, clock=self.clock, then=prepare)
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
        """Return the ranking after the pipeline of the options.

        Args:
            ranking: the first pass.
            options: of the search.
            deadline: of the call.
            offset: candidates above the requested page.
            vectors: document vectors fetched for the search.

        Raises:
            ScoringError: the model cannot be loaded or used, and the options say to raise.
            WorkerError: likewise, where workers score.
        """
        if options.pipeline == NO_STAGES:
            return ranking
        try:
            self._find_workers(options, deadline)
            is_guarded = options.language_guard and isinstance(options.pipeline, str)
            if is_guarded and (reason := why_unread(ranking, self.first.model())):
                return ranking.with_report(StageReport("language", applied=False, reason=reason))
            pipeline, warnings = self._pipeline(options, ranking, vectors)
        except (ModelLoadError, MissingDependencyError, WorkerError, DeadlineExceeded) as error:
            if options.on_failure == "raise":
                raise
            current().event("osrerank.no_model", error__type=name_of(error))
            logger.warning("[no-model] there is no model to score with, searches keep their first pass: %s", error)
            return ranking.with_report(StageReport(str(options.pipeline), applied=False, reason=str(error)))
        ranked = pipeline.rerank(ranking, deadline=deadline, on_failure=options.on_failure, offset=offset)
        return replace(ranked, warnings=(*ranked.warnings, *warnings)) if warnings else ranked

    def identity(self, options: Rerank) -> dict[str, object]:
        """Return the model identities and the blend that, besides the options, determine the order.

        It is empty for a pipeline of the caller's own.

        Raises:
            ModelLoadError: a model cannot be loaded.
        """
        if not isinstance(options.pipeline, str):
            return {}
        model, vectors = self.first.model(), self.first.vectors()
        blend = blend_of(options, model)
        depends: dict[str, object] = {
            "scorer": model.identity if vectors is None else f"{model.identity}/{vectors.records.bits}",
            "blend": None if blend is None else [blend.method, blend.weight],
        }
        if feedback := _feedback(options, model):
            depends["feedback"] = [feedback.share, feedback.temperature]
        return depends | ({"duo": self._duo.model().identity} if options.compares_pairs else {})

    @property
    def model_name(self) -> str:
        """The name of the model that scores, of the settings or of a rerank server; no model is loaded for it."""
        return self.model.model if self.settings.backend == HTTP else self.settings.model

    @property
    def model(self) -> Scorer | Encoder:
        """The model of the first stage, loaded if necessary.

        Raises:
            ModelLoadError, MissingDependencyError, WorkerError: it cannot be loaded.
        """
        return self.first.model()

    @property
    def vectors(self) -> DocumentVectors | None:
        """The source of that model's vectors; None if it is a scorer. Raises as `model`."""
        return self.first.vectors()

    def score(self, query: str, documents: Sequence[str], deadline: Deadline, *, cached: bool = True) -> Scores:
        """Score texts as a search does by default: long ones by their best passage if the model advises it.

        Args:
            query: its text.
            documents: their texts; blank ones are not scored.
            deadline: of the call.
            cached: whether scores may come from the cache, if there is one.

        Raises:
            ScoringError: the model cannot be loaded, nothing was scored in time, or no document could be.
            WorkerError: the workers did not answer.
        """
        places = [place for place, document in enumerate(documents) if not is_blank(document)]
        if len(places) < len(documents):
            texts = [documents[place] for place in places]
            scores = self.score(query, texts, deadline, cached=cached) if texts else Scores(np.empty(0, np.float32))
            return scores.among(places, len(documents), BLANK)
        scorer = self.first.scorer(cached=cached)
        if scorer.advice.passages:
            return score_by_passages(scorer, query, documents, BY_WINDOW, deadline=deadline)
        return scorer.score(query, documents, [(place,) for place in range(len(documents))], deadline=deadline)

    def text_of(self, options: Rerank) -> Callable[[Candidate], str | LongText]:
        """Return the function from a candidate to the text whose vectors the first stage needs.

        Raises:
            ConfigError: the model has no vectors, or the first stage scores sentences or is the caller's own.
            ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
        """
        vectors = self.first.vectors()
        if vectors is None:
            raise no_vectors(self.model.model)
        if options.sentences is not None or not isinstance(options.pipeline, str):
            raise ConfigError("the texts of sentences and of a pipeline of your own are not known beforehand")
        return self._vector_stage(options, vectors).text_of

    def warm_up(self, options: Rerank | None = None, *, server_ms: float | None = None) -> None:
        """Load the models that the options need and rank two texts, so that the first search need not wait.

        Args:
            options: which models; by default the one that scores candidates.
            server_ms: how long a rerank server is waited for; None for no limit.

        Raises:
            ModelLoadError: a model cannot be loaded.
            MissingDependencyError: a stage needs an extra that is not installed.
            WorkerError: there are no workers.
            ScoringError: a rerank server does not score.
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
        unbounded = replace(options, on_failure="raise", mono_budget_ms=None, duo_budget_ms=None)
        self.rerank(Ranking(Query("warm", "warm up"), candidates), unbounded, deadline)
        if (vectors := self.first.vectors()) is not None:
            vectors.records.flush()  # its store is open then, too

    def close(self) -> None:
        """Release the models loaded here, and the connections to the cache."""
        self.first.close()
        self._duo.close()

    def lookup(
        self, rankings: Sequence[tuple[Ranking, Rerank]], indices: Sequence[str], deadline: Deadline = NEVER
    ) -> Lookup:
        """Return which of the vectors that the first stage may need are known here, and which are not.

        It is empty if the model has no vectors or cannot be loaded.

        Args:
            rankings: of the first pass, each with the options of the search, with fields.
            indices: of the candidates, in their order.
            deadline: of the call.
        """
        fetched, index_of = FetchedVectors(), dict[bytes, str]()
        source: DocumentVectors | None = None
        for ranking, options in rankings:
            try:
                self._find_workers(options, deadline)
                text_of, vectors = self.text_of(options), self.first.vectors()
            except (ConfigError, ModelLoadError, MissingDependencyError, WorkerError, DeadlineExceeded):
                continue
            assert vectors is not None  # or there would be no texts
            source = vectors.with_fetched(fetched)
            keys = _keys(ranking.candidates[: self.depth(options)], text_of, source)
            index_of |= {key: index for key, index in zip(keys, indices, strict=False) if key is not None}
        known = source.known(list(index_of)) if source else set()
        lacking = {key: index for key, index in index_of.items() if key not in known}
        return Lookup(lacking, fetched, source.label if source else "")

    def _find_workers(self, options: Rerank, deadline: Deadline) -> None:
        if isinstance(options.pipeline, str):
            self.first.model(deadline)  # its loading counts
            if options.compares_pairs:
                with contextlib.suppress(ModelLoadError, MissingDependencyError):  # its stage says so
                    self._duo.model(deadline)
            for model in [self.first, self._duo] if options.compares_pairs else [self.first]:
                model.find_workers(deadline)

    def resolve(self, options: Rerank) -> tuple[str, str]:
        """Return the pipeline that fits the model's kind, and a warning if another one was requested; else "".

        Raises:
            ConfigError: ``vectors`` or feedback was requested, and the model is a cross-encoder.
            ModelLoadError, MissingDependencyError, WorkerError: the model cannot be loaded.
        """
        asked, model = str(options.pipeline), self.first.model()
        own = _stage_name(model)
        first, _, rest = asked.partition("-")
        runs = "-".join(filter(None, (own, rest)))
        if first == "vectors" and own == "mono":
            reason = f"the pipeline {asked} needs a bi-encoder, and {model.model} is a cross-encoder: ask for {runs}"
            raise ConfigError(reason, setting="rerank.pipeline", source="argument")
        if own == "mono" and options.feedback and options.feedback.share:
            reason = f"feedback needs a bi-encoder, and {model.model} is a cross-encoder"
            raise ConfigError(reason, setting="rerank.feedback", source="argument")
        warning = f"the pipeline {asked} ran as {runs}, because {model.model} is a bi-encoder: ask for {runs}"
        return runs, warning if first == "mono" and own == "vectors" else ""

    def _pipeline(
        self, options: Rerank, ranking: Ranking, fetched: FetchedVectors | None
    ) -> tuple[StagePipeline, tuple[str, ...]]:
        """Return the pipeline of the options for a ranking, and warnings."""
        if not isinstance(options.pipeline, str):
            return options.pipeline, ()
        _, warning = self.resolve(options)
        vectors = self.first.vectors()
        if vectors is not None and options.depth == "auto":
            fetched = fetched or FetchedVectors({})  # what is read to find the depth is not read again
        if vectors is not None and fetched is not None:
            vectors = vectors.with_fetched(fetched)
        depth = self._depth(options, ranking, vectors)
        stages: list[Stage] = [self._first_stage(options, vectors, depth)]
        if (blend := blend_of(options, self.first.model(), depth)) is not None:
            stages.append(blend)
        if options.compares_pairs:
            stages.append(self._duo_stage(options, depth))
        return Pipeline(tuple(stages)), (warning,) if warning else ()

    def _depth(self, options: Rerank, ranking: Ranking, vectors: DocumentVectors | None) -> int:
        """Return the first stage's depth; with ``"auto"``, it ends before the first one without a vector."""
        depth = options.least_depth
        if options.depth != "auto" or vectors is None or options.sentences is not None:
            return depth
        keys = _keys(ranking.candidates[depth : options.most_depth], self.text_of(options), vectors)
        known = vectors.known([key for key in keys if key is not None])
        return depth + sum(1 for _ in takewhile(lambda key: key is None or key in known, keys))

    def _first_stage(self, options: Rerank, vectors: DocumentVectors | None, depth: int) -> Stage:
        """Return the stage that compares each document with the query: by its vectors, or by a scorer."""
        budget_ms = options.mono_budget_ms
        if vectors is not None and options.sentences is None:
            return self._vector_stage(options, vectors, depth)
        scorer = EncoderScorer(vectors) if vectors is not None else self.first.scorer(cached=options.cache)
        if options.sentences is not None:
            return SentenceStage(scorer, options.sentences, depth=depth, budget_ms=budget_ms)
        name = _stage_name(scorer)
        if (passages := _passages(options, scorer)) is not None:
            return PassageStage(scorer, passages, depth, name, options.separator, budget_ms)
        return MonoStage(scorer, depth, name, budget_ms)

    def _vector_stage(self, options: Rerank, vectors: DocumentVectors, depth: int = 0) -> VectorStage:
        model, blend = vectors.encoder, blend_of(options, vectors.encoder)
        after = _feedback(options, model), blend.weight if blend and blend.method == "linear" else 0.0
        return VectorStage(vectors, _passages(options, model), depth, options.separator, options.mono_budget_ms, *after)

    def _duo_stage(self, options: Rerank, most: int) -> Stage:
        """Return the stage that compares pairs, after the blend, so that the blend chooses its candidates."""
        depth = min(options.duo_depth, most)
        try:
            scorer = self._duo.scorer(cached=options.cache)
        except (ModelLoadError, MissingDependencyError) as error:
            return FailedStage("duo", depth, error)
        return DuoStage(scorer, depth, options.pairs, options.duo_budget_ms)


def _keys(
    candidates: Sequence[Candidate], text_of: Callable[[Candidate], str | LongText], vectors: DocumentVectors
) -> list[bytes | None]:
    """Return the key of each candidate's vectors; None of those without text."""
    texts = {at: text_of(one) for at, one in enumerate(candidates) if not is_blank(one.text)}
    keys = dict(zip(texts, vectors.keys_of(list(texts.values())), strict=True))
    return [keys.get(at) for at in range(len(candidates))]


def no_vectors(model: str) -> ConfigError:
    """Return the error of a model that has no document vectors."""
    reason = f"{model} has no document vectors: only bi-encoders do"
    return ConfigError(f"{reason}; osrerank export converts one from the hub", setting="model", source="--model")


def _stage_name(model: Scorer | Encoder) -> str:
    """Return the name of the stage that compares each document with the query by a model of this kind."""
    return "vectors" if model.advice.kind == "bi-encoder" else "mono"


def _passages(options: Rerank, model: Scorer | Encoder) -> Passages | None:
    """Return how long documents are cut; None if they are not."""
    advised = BY_WINDOW if model.advice.passages else None
    return advised if options.passages == "auto" else options.passages


def _feedback(options: Rerank, model: Scorer | Encoder) -> Feedback | None:
    """Return how the query moves towards its best candidates; None if it does not."""
    feedback = model.advice.feedback if options.feedback is None else options.feedback
    return feedback if feedback and feedback.share and options.sentences is None and is_encoder(model) else None
