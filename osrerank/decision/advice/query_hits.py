"""Search each query once, to the maximum depth, and compute its rankings at other depths and blends from the hits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from osrerank.client import Client
from osrerank.decision.advice.template import QueryTemplate
from osrerank.errors import ConfigError
from osrerank.options.passages import Passages
from osrerank.options.rerank import AUTO_PIPELINE, NO_STAGES, VECTORS, VECTORS_MONO, Rerank
from osrerank.response import FIRST_PASS, FIRST_STAGES, read_hit_text, squash
from osrerank.service import RerankService
from osrerank.stages.interpolate import BlendStage, Method
from osrerank.types import Candidate, Query, Ranking, StageScore

DEPTHS = (10, 20, 50, 100)
WEIGHTS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The first pass's weights to try in a linear blend, relative to the model's logit. 0 means no blend."""
MONO_DEPTHS = (10, 20, 50)
"""The values of ``mono_depth`` to try."""
VECTORS_STAGE, MONO_STAGE = FIRST_STAGES
"""The stages that score by document vectors and by a cross-encoder. Of the pipelines, those in `VECTORS` run the first
stage, and those in `VECTORS_MONO` run both."""
HitsKey = tuple[str, tuple[str, ...], str]
"""The model, its input fields, and the name of the query template: ``("osrerank/e5-small", ("title",), "")``.

The rankings of settings with the same key are computed from the same hits. Another key needs another search.
"""


@dataclass(frozen=True, slots=True)
class SearchSetting:
    """A combination of search options.

    Attributes:
        model: the model's name, as for ``--model``.
        passages: the option ``passages``, such as ``maxp`` or ``off``.
        depth: the number of candidates to rerank.
        blend: ``replace``, ``linear`` or ``rrf``.
        weight: the weight of the first pass in a ``linear`` blend.
        duo_depth: the number of candidates to compare in pairs. Only the current setting can compare pairs.
        pipeline: the search's pipeline. ``none`` is the first pass, which ignores depths and blends.
        mono_depth: the number of top candidates that the cross-encoder scores in ``vectors-mono``.
        fields: the model's input fields. If empty, the model reads the current fields.
        query: the name of the query template, such as ``my-query.json``. Empty if the query's text is searched.
    """

    model: str
    passages: str
    depth: int
    blend: str
    weight: float
    duo_depth: int = 0
    pipeline: str = AUTO_PIPELINE
    mono_depth: int = 0
    fields: tuple[str, ...] = ()
    query: str = ""

    @property
    def hits_key(self) -> HitsKey:
        """The key of the hits from which the setting's rankings are computed."""
        return self.model, self.fields, self.query

    @property
    def is_first_pass(self) -> bool:
        """Whether the setting is the first pass, without reranking."""
        return self.pipeline == NO_STAGES

    def estimate_ms(self, query_hits: "QueryHits") -> float | None:
        """Estimate the time to rerank a query's hits, in milliseconds, from the stages' times at full depth.

        Returns None if these times were not measured, or if the setting compares pairs.
        """
        times = query_hits.stage_ms
        n_candidates = max(1, len(query_hits.candidates))
        if self.is_first_pass:
            return 0.0
        if not times or self.duo_depth:
            return None
        vectors_ms = times.get(VECTORS_STAGE, 0.0)
        if MONO_STAGE not in times or self.pipeline in VECTORS:  # only vectors rerank
            return vectors_ms
        if self.mono_depth:
            return vectors_ms + times[MONO_STAGE] * min(self.mono_depth, n_candidates) / n_candidates
        return times[MONO_STAGE] * min(self.depth, n_candidates) / n_candidates

    def __str__(self) -> str:
        """Describe the setting, such as "depth 50, linear blend 2, model minilm-l6, passages off, fields title"."""
        query_text = f", your query {self.query}" if self.query else ""
        fields_text = ""
        if self.fields and not self.is_first_pass:
            fields_text = f", fields {' and '.join(self.fields)}"
        return self._describe_ranking() + fields_text + query_text

    def _describe_ranking(self) -> str:
        if self.is_first_pass:
            return "the first pass"
        blend_text = f"linear blend {self.weight:g}" if self.blend == "linear" else self.blend
        if self.duo_depth:
            blend_text += f", pairs of the first {self.duo_depth}"
        if self.mono_depth:
            stages_text = f"vectors at depth {self.depth}, cross-encoder at depth {self.mono_depth}"
            return f"{stages_text}, {blend_text}, model {self.model}, passages {self.passages}"
        if self.pipeline in VECTORS:
            return f"vectors at depth {self.depth}, {blend_text}, passages {self.passages}"
        return f"depth {self.depth}, {blend_text}, model {self.model}, passages {self.passages}"

    def options(self) -> dict[str, Any]:
        """Return the search options, as in a settings file."""
        if self.is_first_pass:
            return {"pipeline": NO_STAGES}
        options: dict[str, Any] = {"pipeline": self.pipeline}
        if self.duo_depth:
            options["duo_depth"] = self.duo_depth
        if self.mono_depth:
            options["mono_depth"] = self.mono_depth
        options |= {"depth": self.depth, "blend": self.blend}
        if self.blend == "linear":
            options["blend_weight"] = self.weight
        options["passages"] = self.passages
        if self.fields:
            options["fields"] = list(self.fields)
        return options


@dataclass(frozen=True, slots=True)
class QueryHits:
    """A query's hits, with the scores of the first pass and of the model.

    Attributes:
        query: the query.
        candidates: the hits in first-pass order. ``trace`` contains the first-pass score, then the model's score if the
            hit was reranked.
        texts: the model's input text of each document, by document id.
        pairwise_order: the document ids in the order of the current setting, if it compares pairs. Otherwise empty.
        vector_candidates: if the model is a cross-encoder, the hits in first-pass order, with the score of the stage
            ``vectors`` in ``trace``. Otherwise empty.
        vectors_weight: the weight of the logit from vectors in ``vectors-mono``, relative to the cross-encoder's logit.
        stage_ms: the time of each stage for all hits, in milliseconds. Empty if the search encoded documents.
    """

    query: Query
    candidates: tuple[Candidate, ...]
    texts: Mapping[str, str]
    pairwise_order: tuple[str, ...] = ()
    vector_candidates: tuple[Candidate, ...] = ()
    vectors_weight: float = 0.0
    stage_ms: Mapping[str, float] = field(default_factory=dict)

    def order(self, setting: SearchSetting | None) -> list[str]:
        """Return the document ids in the order of a search with a setting. For None, return the first-pass order."""
        if setting is None or setting.is_first_pass:
            return [candidate.doc_id for candidate in self.candidates]
        if setting.duo_depth:
            return list(self.pairwise_order)
        if setting.mono_depth:
            return self._order_by_cross_encoder(self._blend(self.vector_candidates, setting), setting.mono_depth)
        uses_vectors = setting.pipeline in VECTORS and self.vector_candidates
        candidates = self.vector_candidates if uses_vectors else self.candidates
        return [candidate.doc_id for candidate in self._blend(candidates, setting)]

    def _blend(self, candidates: Sequence[Candidate], setting: SearchSetting) -> tuple[Candidate, ...]:
        """Order the top ``setting.depth`` candidates by the blend of model and first pass, and return all candidates.

        Candidates that the model did not score come after the scored ones.
        """
        top, tail = candidates[: setting.depth], candidates[setting.depth :]
        scored = [candidate for candidate in top if _is_scored(candidate)]
        scored.sort(key=lambda candidate: (-candidate.score, candidate.rank))
        unscored = [candidate for candidate in top if not _is_scored(candidate)]
        reranked = (*scored, *unscored, *tail)
        if setting.blend == "replace" or not scored:
            return reranked
        ranked = tuple(candidate._replace(rank=rank) for rank, candidate in enumerate(reranked, start=1))
        stage = BlendStage(cast("Method", setting.blend), setting.weight, setting.depth)
        return stage.rerank(Ranking(self.query, ranked)).candidates

    def _order_by_cross_encoder(self, candidates: Sequence[Candidate], mono_depth: int) -> list[str]:
        """Return the document ids with the top ``mono_depth`` candidates in the cross-encoder's order."""
        logits = {candidate.doc_id: candidate.score for candidate in self.candidates if _is_scored(candidate)}
        top, tail = candidates[:mono_depth], candidates[mono_depth:]
        scored = [candidate for candidate in top if candidate.doc_id in logits]
        scored.sort(key=lambda candidate: -(logits[candidate.doc_id] + self.vectors_weight * candidate.score))
        unscored = [candidate for candidate in top if candidate.doc_id not in logits]
        return [candidate.doc_id for candidate in (*scored, *unscored, *tail)]


def _is_scored(candidate: Candidate) -> bool:
    return len(candidate.trace) > 1  # the first entry is the first pass's


def current_setting(client: Client, index: str) -> SearchSetting:
    """Return the setting of a search of the index with ``rerank=True``."""
    options = client.options_of(index)
    passages = options.passages.aggregation if isinstance(options.passages, Passages) else options.passages or "off"
    options_without_pairs = options  # the blend comes before the pairs are compared
    if options.pipeline not in (*VECTORS, *VECTORS_MONO):
        options_without_pairs = replace(options, pipeline=AUTO_PIPELINE)
    with client.searcher.service_for(index) as service:
        blend, weight = _parse_blend(service.identity(options_without_pairs)["blend"])
        model = service.settings.model
        is_cross_encoder = _is_cross_encoder(service)
    setting = SearchSetting(model, passages, options.min_depth, blend, weight)
    if options.is_first_pass:
        return replace(setting, pipeline=NO_STAGES)
    if options.pipeline in VECTORS_MONO:
        setting = replace(setting, pipeline="vectors-mono", mono_depth=min(options.mono_depth, options.min_depth))
    elif is_cross_encoder and options.pipeline in VECTORS:
        setting = replace(setting, pipeline=VECTORS_STAGE)
    if _compares_pairs(options):
        return replace(setting, duo_depth=options.duo_depth, pipeline=str(options.pipeline))
    return setting


def _is_cross_encoder(service: RerankService) -> bool:
    return service.resolve_pipeline(Rerank())[0] == MONO_STAGE


def read_vectors_blend(client: Client, index: str) -> tuple[str, float] | None:
    """Return the blend after the stage ``vectors`` if the model is a cross-encoder, otherwise None.

    The blend is a pair of method and first-pass weight, such as ``("linear", 0.5)``.
    """
    options = client.options_of(index)
    if options.pipeline not in VECTORS_MONO:
        options = replace(options, pipeline="vectors-mono", blend="card", blend_weight=None)  # the model card's blend
    with client.searcher.service_for(index) as service:
        return _parse_blend(service.identity(options)["blend"]) if _is_cross_encoder(service) else None


def _parse_blend(blend: object) -> tuple[str, float]:
    """Return method and weight: ``("linear", 0.5)`` for ``["linear", 0.5]``, and ``("replace", 0.0)`` for None."""
    return (str(blend[0]), float(blend[1])) if isinstance(blend, list) else ("replace", 0.0)


def settings_to_try(
    current: SearchSetting, depths: Sequence[int] = DEPTHS, *, vectors_blend: tuple[str, float] | None = None
) -> list[SearchSetting]:
    """Return the settings to compare: the current one, the first pass, then other settings by increasing depth.

    The caller chooses the first of equally good settings. ``vectors_blend`` comes from `read_vectors_blend`.
    """
    current_weight = current.weight if current.blend == "linear" else 0.0
    weights = dict.fromkeys((current_weight, *WEIGHTS))  # the current weight first, and none twice
    blends = [("linear", weight) if weight else ("replace", 0.0) for weight in weights]
    blends.append(("rrf", 0.0))
    all_depths = sorted({*depths, current.depth})
    base = replace(current, duo_depth=0, mono_depth=0, pipeline=AUTO_PIPELINE)
    settings = [
        replace(base, depth=depth, blend=blend, weight=weight) for depth in all_depths for blend, weight in blends
    ]
    if vectors_blend is not None:  # the model is a cross-encoder, so vectors can replace or precede it
        settings += [replace(setting, pipeline=VECTORS_STAGE) for setting in settings]
        blend, weight = vectors_blend
        two_stage = replace(base, depth=all_depths[-1], blend=blend, weight=weight, pipeline="vectors-mono")
        settings += [replace(two_stage, mono_depth=depth) for depth in MONO_DEPTHS if depth < two_stage.depth]
    first_pass = replace(current, duo_depth=0, mono_depth=0, pipeline=NO_STAGES)
    return list(dict.fromkeys([current, first_pass, *settings]))


def search_queries(
    client: Client,
    index: str,
    queries: Sequence[Query],
    depth: int,
    *,
    fields: Sequence[str] = (),
    template: QueryTemplate | None = None,
    exclude_query_ids: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> list[QueryHits]:
    """Search each query with the index's options, but with another depth and without blend, deadline and cutoffs.

    Without ``fields``, the model reads the fields in the index's options. Without a ``template``, the query's text is
    searched. With ``exclude_query_ids``, the hit with the query's id is removed. ``advance`` is called after each
    query.

    Raises:
        ConfigError: the index reranks sentences or has a custom pipeline, or a search by the template is not reranked.
    """
    options = client.options_of(index)
    if fields:
        options = replace(options, fields=tuple(fields))
    text_fields = options.fields or ()
    if template is not None and not fields:  # a search with a body uses the input fields in the settings
        options = replace(options, fields=client.searcher.defaults.options_for(index).fields)
    search_options = scoring_options(options, depth)
    vectors_weight = 0.0
    model_stages: tuple[str, ...] = FIRST_STAGES
    with client.searcher.service_for(index) as service:
        is_cross_encoder = _is_cross_encoder(service)
        if is_cross_encoder:  # the same searches also score by the vectors of another model
            search_options = replace(search_options, pipeline="vectors-mono")
            vectors_weight = cast("float", service.identity(search_options)["vectors_weight"])
            model_stages = (MONO_STAGE,)

    searcher = _QuerySearcher(client, index, depth, template, exclude_query_ids)
    all_hits = []
    for query in queries:
        response = searcher.search(query, search_options)
        hits = response["hits"]["hits"]
        texts = {hit["_id"]: read_hit_text(hit, text_fields) or "" for hit in hits}
        query_hits = QueryHits(query, _candidates(hits, texts, model_stages), texts, stage_ms=_stage_times(response))
        if is_cross_encoder:
            vector_candidates = _candidates(hits, texts, (VECTORS_STAGE,))
            query_hits = replace(query_hits, vector_candidates=vector_candidates, vectors_weight=vectors_weight)
        if _compares_pairs(options):
            pairwise_hits = searcher.search(query, _pairwise_options(search_options, options))["hits"]["hits"]
            query_hits = replace(query_hits, pairwise_order=tuple(hit["_id"] for hit in pairwise_hits))
        all_hits.append(query_hits)
        advance()
    return all_hits


@dataclass(frozen=True, slots=True)
class _QuerySearcher:
    """Searches the index by a query's text or by the template. `search_queries` describes the attributes."""

    client: Client
    index: str
    depth: int
    template: QueryTemplate | None
    exclude_query_ids: bool

    def search(self, query: Query, options: Rerank) -> dict[str, Any]:
        """Return a query's response, with at most ``depth`` hits."""
        size = self.depth + 1 if self.exclude_query_ids else self.depth
        response = self._request(query, options, size)
        hits = response["hits"]["hits"]
        if self.exclude_query_ids:
            hits = [hit for hit in hits if hit["_id"] != query.query_id]
        return {**response, "hits": {**response["hits"], "hits": hits[: self.depth]}}

    def _request(self, query: Query, options: Rerank, size: int) -> Any:
        if self.template is None:
            return self.client.search(query.text, index=self.index, size=size, rerank=options)
        body = self.template.fill(query.text, size)
        response = self.client.search(index=self.index, body=body, rerank=replace(options, query=query.text))
        if response["hits"]["hits"] and not response["rerank"]["applied"]:
            reason = f"searches with the template {self.template.name} are not reranked: {response['rerank']['reason']}"
            raise ConfigError(reason, setting="template", source="flag")
        return response


def _stage_times(response: Mapping[str, Any]) -> dict[str, float]:
    """Return each stage's time in milliseconds, such as ``{"vectors": 3.1, "mono": 240.0}``.

    The times are left out if a stage encoded documents. Later searches are faster, because the vectors are then stored.
    """
    stages = response["rerank"]["stages"]
    if any(stage.get("encoded") for stage in stages):
        return {}
    return {stage["name"]: stage["took_ms"] for stage in stages}


def scoring_options(options: Rerank, depth: int) -> Rerank:
    """Return options that score ``depth`` candidates with one model, without blend, cutoffs and deadline.

    Raises:
        ConfigError: the options rerank sentences or have a custom pipeline.
    """
    if not isinstance(options.pipeline, str) or options.sentences is not None:
        reason = "advise compares depths without the rerank option sentences and a pipeline of your own; remove them"
        raise ConfigError(reason, setting="rerank", source="settings file")
    return replace(
        options,
        pipeline=AUTO_PIPELINE,
        depth=depth,
        mono_depth=depth,
        blend="replace",
        blend_weight=None,
        deadline_ms=None,
        min_score=None,
        min_probability=None,
        cutoff=None,
        interleave=None,
        explain=False,
        on_failure="raise",
    )


def _compares_pairs(options: Rerank) -> bool:
    return options.compares_pairs and options.duo_depth > 1


def _pairwise_options(search_options: Rerank, options: Rerank) -> Rerank:
    """Return the options of a search that compares pairs, with the index's pipeline, depths and blend."""
    names = ("pipeline", "mono_depth", "blend", "blend_weight")
    index_options: dict[str, Any] = {name: getattr(options, name) for name in names}
    return replace(search_options, **index_options, depth=options.min_depth)


def _candidates(
    hits: Sequence[Mapping[str, Any]], texts: Mapping[str, str], stages: Sequence[str]
) -> tuple[Candidate, ...]:
    """Return hits as candidates in first-pass order, with the scores of the given stages that ran."""
    candidates = [_candidate(hit, texts[hit["_id"]], stages) for hit in hits]
    return tuple(sorted(candidates, key=lambda candidate: candidate.rank))


def _candidate(hit: Mapping[str, Any], text: str, stages: Sequence[str]) -> Candidate:
    entries = hit.get("_rerank", {})  # such as {"first_pass": {"score": 15.8, "rank": 3}, "mono": {...}}
    # The hits of a search that was not reranked have no entries. With equal ranks, they keep their order when sorted.
    first_pass = entries.get(FIRST_PASS) or {"score": hit["_score"] or 0.0, "rank": 1}
    score, rank = first_pass["score"], first_pass["rank"]
    trace = [StageScore(FIRST_PASS, score, rank, unit=squash(score))]
    for stage, entry in entries.items():
        if stage in stages:
            trace.append(StageScore(stage, entry["score"], entry["rank"], unit=0.0, level=1))
    return Candidate(hit["_id"], text, trace[-1].score, rank, tuple(trace))
