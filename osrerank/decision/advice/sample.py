"""Search each query once, to the greatest depth, and compute from it the order of every other depth and blend."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.options.passages import Passages
from osrerank.options.rerank import AUTO_PIPELINE, NO_STAGES, Rerank
from osrerank.response import FIRST_PASS, FIRST_STAGES, squash, text_of
from osrerank.stages.interpolate import BlendStage, Method
from osrerank.types import Candidate, Query, Ranking, StageScore

DEPTHS = (10, 20, 50, 100)
WEIGHTS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Weights of the first pass in a linear blend, in logits; 0 leaves it out."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A combination of search options that is compared with others.

    Attributes:
        model: the model's name, as for ``--model``; the same in all settings.
        passages: the option ``passages``, as in a settings file; the same in all settings.
        depth: candidates that are reranked.
        blend: ``replace``, ``linear``, ``weighted`` or ``rrf``.
        weight: weight of the first pass in the blend.
        duo_depth: candidates that are then compared in pairs; 0 for none. Only the present setting may have it above 0.
        pipeline: of the search; with ``none``, the first pass, the other attributes have no effect.
    """

    model: str
    passages: str
    depth: int
    blend: str
    weight: float
    duo_depth: int = 0
    pipeline: str = AUTO_PIPELINE

    @property
    def is_first_pass(self) -> bool:
        """Whether the setting is the first pass, without reranking."""
        return self.pipeline == NO_STAGES

    def __str__(self) -> str:
        if self.is_first_pass:
            return "the first pass"
        blend = f"linear blend {self.weight:g}" if self.blend == "linear" else self.blend
        pairs = f", pairs of the first {self.duo_depth}" if self.duo_depth else ""
        return f"depth {self.depth}, {blend}{pairs}, model {self.model}, passages {self.passages}"

    def options(self) -> dict[str, Any]:
        """Return the options of a search, as a settings file has them."""
        if self.is_first_pass:
            return {"pipeline": NO_STAGES}
        weight = {} if self.blend in ("replace", "rrf") else {"blend_weight": self.weight}
        pairs = {"duo_depth": self.duo_depth} if self.duo_depth else {}
        depths = {"pipeline": self.pipeline, **pairs, "depth": self.depth}
        return {**depths, "blend": self.blend, **weight, "passages": self.passages}


@dataclass(frozen=True, slots=True)
class Found:
    """A query's hits, with the scores of the first pass and of the model.

    Attributes:
        query: the query.
        candidates: hits in first-pass order; ``trace`` has the first pass's score, then the model's if there is one.
        texts: id -> text of the hit, as the model reads it.
        with_pairs: ids in the order of the present setting if that compares pairs; otherwise empty.
    """

    query: Query
    candidates: tuple[Candidate, ...]
    texts: Mapping[str, str]
    with_pairs: tuple[str, ...] = ()

    def order(self, setting: Setting | None) -> list[str]:
        """Return the ids in the order that a search with this setting gives; None is the first pass."""
        if setting is None or setting.is_first_pass:
            return [one.doc_id for one in self.candidates]
        if setting.duo_depth:
            return list(self.with_pairs)
        block, rest = self.candidates[: setting.depth], self.candidates[setting.depth :]
        scored = sorted((one for one in block if len(one.trace) > 1), key=lambda one: (-one.score, one.rank))
        ordered = (*scored, *(one for one in block if len(one.trace) == 1), *rest)
        if setting.blend == "replace" or not scored:
            return [one.doc_id for one in ordered]
        ranked = tuple(replace(one, rank=rank) for rank, one in enumerate(ordered, start=1))
        method: Method = setting.blend  # type: ignore[assignment]  # one of its methods
        blended = BlendStage(method, setting.weight, setting.depth).rerank(Ranking(self.query, ranked))
        return [one.doc_id for one in blended.candidates]


def present_setting(client: Client, index: str) -> Setting:
    """Return the setting that a search of the index with ``rerank=True`` has now."""
    options = client.options_of(index)
    with client.searcher.serving(index) as service:
        model, blend = service.settings.model, service.identity(replace(options, pipeline=AUTO_PIPELINE))["blend"]
    method, weight = blend if isinstance(blend, list) else ("replace", 0.0)
    passages = options.passages.aggregation if isinstance(options.passages, Passages) else options.passages or "off"
    pairs = (options.duo_depth, str(options.pipeline)) if _compares_pairs(options) else (0, AUTO_PIPELINE)
    pairs = (0, NO_STAGES) if options.is_first_pass else pairs
    return Setting(model, passages, options.least_depth, str(method), float(weight), *pairs)


def settings_to_try(present: Setting, depths: Sequence[int] = DEPTHS) -> list[Setting]:
    """Return the settings to compare; of equally good ones, the first is preferred.

    The current one comes first, then the first pass, then the others from the lowest depth up.
    """
    weights = dict.fromkeys((present.weight if present.blend == "linear" else 0.0, *WEIGHTS))
    blends = [("linear", weight) if weight else ("replace", 0.0) for weight in weights] + [("rrf", 0.0)]
    tried = [
        Setting(present.model, present.passages, depth, *blend)
        for depth in sorted({*depths, present.depth})
        for blend in blends
    ]
    return list(dict.fromkeys([present, replace(present, duo_depth=0, pipeline=NO_STAGES), *tried]))


def search_sample(
    client: Client, index: str, queries: Sequence[Query], depth: int, *, advance: Callable[[], None] = lambda: None
) -> list[Found]:
    """Search each query with the options of the index, but to the given depth and without blend, limits and cuts.

    Queries without hits are returned too, without candidates.

    Args:
        client: client of the index.
        index: its name.
        queries: queries to search.
        depth: candidates that are reranked.
        advance: called after each query.

    Raises:
        ConfigError: the index reranks by sentences or by a custom pipeline.
    """
    options = client.options_of(index)
    alone = sampling_options(options, depth)

    def hits_of(query: Query, asked: Rerank) -> list[dict[str, Any]]:
        hits: list[dict[str, Any]] = client.search(query.text, index=index, size=depth, rerank=asked)["hits"]["hits"]
        return hits

    found = []
    for query in queries:
        hits = hits_of(query, alone)
        texts = {hit["_id"]: text_of(hit, options.fields or ()) or "" for hit in hits}
        candidates = sorted((_candidate(hit, texts[hit["_id"]]) for hit in hits), key=lambda one: one.rank)
        paired = hits_of(query, _with_pairs(alone, options)) if _compares_pairs(options) else []
        found.append(Found(query, tuple(candidates), texts, tuple(hit["_id"] for hit in paired)))
        advance()
    return found


def sampling_options(options: Rerank, depth: int) -> Rerank:
    """Return options for a search that scores ``depth`` candidates with the first model and does nothing else.

    Raises:
        ConfigError: the options rerank by sentences or by a custom pipeline.
    """
    if not isinstance(options.pipeline, str) or options.sentences is not None:
        reason = "advise compares depths of one model: remove the option sentences and your own pipeline"
        raise ConfigError(reason, setting="rerank", source="settings file")
    return replace(
        options,
        pipeline=AUTO_PIPELINE,
        depth=depth,
        blend="replace",
        cache=False,
        deadline_ms=None,
        mono_budget_ms=None,
        min_score=None,
        min_probability=None,
        cutoff=None,
        interleave=None,
        explain=False,
        on_failure="raise",
    )


def _compares_pairs(options: Rerank) -> bool:
    return options.compares_pairs and options.duo_depth > 1


def _with_pairs(alone: Rerank, options: Rerank) -> Rerank:
    """Return the sampling options with the pipeline, depth and blend of the index."""
    depth, blend = options.least_depth, options.blend
    return replace(alone, pipeline=options.pipeline, depth=depth, blend=blend, duo_budget_ms=None)


def _candidate(hit: Mapping[str, Any], text: str) -> Candidate:
    """Return a hit as a candidate at its first-pass rank."""
    first = hit.get("_rerank", {}).get(FIRST_PASS) or {"score": hit["_score"] or 0.0, "rank": 1}
    trace = [StageScore(FIRST_PASS, first["score"], first["rank"], squash(first["score"]))]
    for stage, model in hit.get("_rerank", {}).items():
        if stage in FIRST_STAGES:
            trace.append(StageScore(stage, model["score"], model["rank"], 0.0, level=1))
    return Candidate(hit["_id"], text, trace[-1].score, first["rank"], tuple(trace))
