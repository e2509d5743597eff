"""Test on judged queries whether reranking helps on an index, and recommend a setting.

A *setting* (`SearchSetting`) is a combination of search options. Every judged query is searched once, and the rankings
at all depths and blends are computed from these hits. An *alternative*, such as another model, other fields or another
form of query, changes the hits or their scores, so every query is searched again for it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from osrerank.client import Client
from osrerank.decision.advice.choose import Choice, choose, measure_setting
from osrerank.decision.advice.query_hits import (
    DEPTHS,
    HitsKey,
    QueryHits,
    SearchSetting,
    current_setting,
    read_vectors_blend,
    search_queries,
    settings_to_try,
)
from osrerank.decision.advice.template import QueryTemplate
from osrerank.decision.advice.verdict import MIN_QUERIES, Floats, Verdict, decide, too_few_queries_error
from osrerank.errors import EvaluationError
from osrerank.evaluation.self_hits import count_self_hits
from osrerank.options.rerank import AUTO_PIPELINE, NO_STAGES, Rerank
from osrerank.types import Qrels, Query

TOP_HITS = 10
"""The number of top hits that are checked for judgments and shown in the report."""
MAX_IDS_PER_REQUEST = 1000


@dataclass(frozen=True, slots=True)
class IndexAdvice:
    """Whether reranking helps on an index with its current options, and whether other options are better.

    Attributes:
        index: the index's name.
        measure: the measure's name in ir-measures.
        options: the index's current options.
        current: the current options as a setting.

        verdict: the comparison of the current setting with the first pass. If the index is not reranked, it is
            ``choice.verdict``.
        choice: the best setting of all, and ``choice.verdict``, its comparison with the current setting.
        best_by_hits: the best setting with the current hits, then the best with those of each alternative. Empty if
            there are no alternatives.

        current_hits: the hits of each judged query with the current model, fields and form of query.
        alternative_hits: the hits with other fields, another model or the query template, by `HitsKey`.
        first_pass_values: the measure of each query in the first pass ``(queries,)``, in the order of ``current_hits``.
        values: for each setting, the measure of each query ``(queries,)``, in the same order.

        judged_fractions: the fractions of the top ten hits that are judged, as (first pass, reranked).
        missing_counts: the numbers of documents judged relevant, as (not in the index, all).
        n_queries_with_own_hit: the number of queries whose top ten hits contain a document with the query's id.
    """

    index: str
    measure: str
    options: Rerank
    current: SearchSetting

    verdict: Verdict
    choice: Choice
    best_by_hits: tuple[Choice, ...]

    current_hits: tuple[QueryHits, ...]
    alternative_hits: Mapping[HitsKey, tuple[QueryHits, ...]]
    first_pass_values: Floats
    values: Mapping[SearchSetting, Floats]

    judged_fractions: tuple[float, float]
    missing_counts: tuple[int, int]
    n_queries_with_own_hit: int

    def find_hits(self, setting: SearchSetting) -> tuple[QueryHits, ...]:
        """Return the hits from which a setting's rankings are computed."""
        return self.alternative_hits.get(setting.hits_key, self.current_hits)

    @property
    def best(self) -> SearchSetting:
        """The best setting of all: the one with the highest mean over the queries."""
        return self.choice.setting

    def took_ms(self, setting: SearchSetting) -> float | None:
        """Return the median time per query of a setting's stages in milliseconds, with all vectors stored.

        Returns None if the time was not measured.
        """
        estimates = [setting.estimate_ms(query_hits) for query_hits in self.find_hits(setting)]
        times = [estimate for estimate in estimates if estimate is not None]
        return float(np.median(times)) if times else None

    def best_by_pipeline(self) -> list[SearchSetting]:
        """Return the best setting of each pipeline with the current hits, starting with the first pass."""
        best: dict[str, SearchSetting] = {}
        for setting, values in self.values.items():
            if setting.hits_key != self.current.hits_key:
                continue
            previous = best.get(setting.pipeline)
            if previous is None or values.mean() > self.values[previous].mean():
                best[setting.pipeline] = setting
        return sorted(best.values(), key=lambda setting: not setting.is_first_pass)

    @property
    def recommended(self) -> Mapping[str, Any]:
        """The options to write to a settings file, such as ``{"pipeline": "auto", "depth": 50, ...}``.

        ``model`` is one of them if another model is better. They are empty if the current setting should stay: no other
        is significantly better on held-out queries, and reranking does not hurt.
        """
        if self.choice.verdict.outcome == "helps":
            model = {} if self.best.model == self.current.model else {"model": self.best.model}
            return {**self.best.options(), **model}
        return {"pipeline": NO_STAGES} if self.verdict.outcome == "hurts" else {}


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The fields, models and query to compare with an index's current ones.

    Attributes:
        fields: the field lists to compare as the model's input, such as ``[("title",), ("title", "body")]``.
        clients: clients that search the same index with other models.
        template: the query template. If None, only the queries' texts are searched.
        fields_client: the client that searches with ``fields``. If None, the client passed to `advise` does.
    """

    fields: Sequence[Sequence[str]] = ()
    clients: Sequence[Client] = ()
    template: QueryTemplate | None = None
    fields_client: Client | None = None

    def __len__(self) -> int:
        return len(self.fields) + len(self.clients) + (self.template is not None)


NO_ALTERNATIVES = Alternatives()


def advise(
    client: Client,
    index: str,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    measure: str = "nDCG@10",
    depths: Sequence[int] = DEPTHS,
    alternatives: Alternatives = NO_ALTERNATIVES,
    exclude_query_ids: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> IndexAdvice:
    """Search every judged query, and compare depths, blends, pipelines and the alternatives.

    Args:
        client: the client that searches with the current settings.
        index: the index's name.
        queries: the queries, from `judged_queries`.
        qrels: the judgments.
        measure: the name in ir-measures of a measure for which higher is better.
        depths: the depths to try besides the current one.
        alternatives: the fields, models and query template to compare.
        exclude_query_ids: whether the hit with the query's id is removed.
        advance: a function to call after each search, which shows the progress.

    Raises:
        ConfigError: the index reranks sentences or has a custom pipeline, or a search by the template is not reranked.
        EvaluationError: there are fewer than ten queries, no query has hits, or the measure is unknown.
    """
    if len(queries) < MIN_QUERIES:
        raise too_few_queries_error(len(queries))
    current = current_setting(client, index)
    hits_by_key: dict[HitsKey, tuple[QueryHits, ...]] = {}
    settings_by_key: dict[HitsKey, list[SearchSetting]] = {}

    def search_and_store(
        search_client: Client,
        setting: SearchSetting,
        *,
        fields: Sequence[str] = (),
        template: QueryTemplate | None = None,
    ) -> None:
        """Search all queries once, and store their hits and the settings that can be computed from them."""
        key = setting.hits_key
        hits_by_key[key] = tuple(
            search_queries(
                search_client,
                index,
                queries,
                depth=max(*depths, setting.depth),
                fields=fields,
                template=template,
                exclude_query_ids=exclude_query_ids,
                advance=advance,
            )
        )
        settings = settings_to_try(setting, depths, vectors_blend=read_vectors_blend(search_client, index))
        is_alternative = key != current.hits_key
        if is_alternative and template is None:  # other fields and models do not change the first pass
            settings = [candidate for candidate in settings if not candidate.is_first_pass]
        settings_by_key[key] = settings

    search_and_store(client, current)
    current_hits = hits_by_key[current.hits_key]
    if not any(query_hits.candidates for query_hits in current_hits):
        raise EvaluationError(f"no query has hits in the index {index}; pass queries that are meant for this index")
    reranked_setting = replace(current, pipeline=AUTO_PIPELINE) if current.is_first_pass else current
    for fields in alternatives.fields:
        setting = replace(reranked_setting, fields=tuple(fields))
        search_and_store(alternatives.fields_client or client, setting, fields=fields)
    for model_client in alternatives.clients:
        search_and_store(model_client, current_setting(model_client, index))
    if alternatives.template is not None:
        setting = replace(reranked_setting, query=alternatives.template.name)
        search_and_store(client, setting, template=alternatives.template)
    first_pass_values = measure_setting(current_hits, qrels, measure, setting=None)
    values = {}
    for key, settings in settings_by_key.items():
        for setting in settings:
            values[setting] = measure_setting(hits_by_key[key], qrels, measure, setting)
    query_ids = [query_hits.query.query_id for query_hits in current_hits]
    choice = choose(query_ids, values[current], values)
    best_by_hits = [
        choose(query_ids, values[current], {setting: values[setting] for setting in settings})
        for settings in settings_by_key.values()
    ]
    return IndexAdvice(
        index=index,
        measure=measure,
        options=client.options_of(index),
        current=current,
        verdict=choice.verdict if current.is_first_pass else decide(first_pass_values, values[current]),
        choice=choice,
        best_by_hits=tuple(best_by_hits) if alternatives else (),
        current_hits=current_hits,
        alternative_hits={key: hits for key, hits in hits_by_key.items() if key != current.hits_key},
        first_pass_values=first_pass_values,
        values=values,
        judged_fractions=(
            _judged_fraction(current_hits, qrels, setting=None),
            _judged_fraction(current_hits, qrels, setting=current),
        ),
        missing_counts=_count_missing_documents(client, index, qrels, query_ids),
        n_queries_with_own_hit=count_self_hits({hits.query.query_id: hits.order(None) for hits in current_hits}),
    )


def _count_missing_documents(client: Client, index: str, qrels: Qrels, query_ids: Sequence[str]) -> tuple[int, int]:
    """Return the numbers of documents judged relevant: those that are not in the index, and all."""
    relevant_ids = set()
    for query_id in query_ids:
        relevant_ids |= {doc_id for doc_id, grade in qrels.judgments[query_id].items() if grade > 0}
    sorted_ids = sorted(relevant_ids)
    n_present = 0
    for start in range(0, len(sorted_ids), MAX_IDS_PER_REQUEST):
        ids = sorted_ids[start : start + MAX_IDS_PER_REQUEST]
        body = {"query": {"ids": {"values": ids}}, "size": 0, "track_total_hits": True}
        n_hits = client.search(index=index, body=body)["hits"]["total"]["value"]
        n_present += min(len(ids), n_hits)  # an alias can find an id in several indices
    return len(sorted_ids) - n_present, len(sorted_ids)


def judged_queries(queries: Sequence[Query], qrels: Qrels) -> list[Query]:
    """Return the queries for which a document is judged relevant.

    Raises:
        EvaluationError: there is no such query.
    """
    queries_with_relevant = []
    for query in queries:
        grades = qrels.judgments.get(query.query_id, {}).values()
        if any(grade > 0 for grade in grades):
            queries_with_relevant.append(query)
    if not queries_with_relevant:
        raise EvaluationError("no query has a document judged relevant; pass queries and judgments of the same set")
    return queries_with_relevant


def _judged_fraction(all_hits: Sequence[QueryHits], qrels: Qrels, setting: SearchSetting | None) -> float:
    """Return the fraction of the queries' top ten hits that are judged, or 1 if there are no hits.

    The setting None means the first pass.
    """
    is_judged: list[bool] = []
    for query_hits in all_hits:
        judged = qrels.judgments[query_hits.query.query_id]
        is_judged += [doc_id in judged for doc_id in query_hits.order(setting)[:TOP_HITS]]
    return float(np.mean(is_judged)) if is_judged else 1.0
