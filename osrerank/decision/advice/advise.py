"""Test whether reranking helps on an index, and recommend a setting: search judged queries and compare settings.

A setting is a depth, a blend and a pipeline; a sample is the hits of all judged queries from one way of searching.
Depths and blends are computed from one search of each query. Other fields, other models and a query of the caller's own
can be compared, too; each of these searches every query once more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from osrerank.client import Client
from osrerank.decision.advice.choose import Choice, choose, measure_setting
from osrerank.decision.advice.sample import (
    DEPTHS,
    Sample,
    SampledQuery,
    SearchSetting,
    present_setting,
    search_sample,
    settings_to_try,
    vectors_blend,
)
from osrerank.decision.advice.template import QueryTemplate
from osrerank.decision.advice.verdict import MIN_QUERIES, Floats, Verdict, judge, too_few
from osrerank.errors import EvaluationError
from osrerank.evaluation.self_hits import count_self_hits
from osrerank.options.rerank import AUTO_PIPELINE, NO_STAGES, Rerank
from osrerank.types import Qrels, Query

TOP = 10
IDS_AT_ONCE = 1000
"""How many document ids a request looks up when it counts the judged documents that the index lacks."""


@dataclass(frozen=True, slots=True)
class IndexAdvice:
    """Whether reranking helps on an index with its present options, and whether other options are better.

    Attributes:
        index: name of the index.
        measure: name of the measure, as in ir-measures.
        options: the index's present options.
        current: the present options as a setting.
        found: hits of each judged query.
        before: the measure of each query for the first pass, in the order of ``found``.
        values: setting -> the measure of each query, in the same order.
        verdict: the current setting compared with the first pass; if it is the first pass, ``choice``'s verdict.
        choice: the best setting, its promised value on unseen queries, and whether that beats the current setting.
        judged: share of the top ten hits that have a judgment: in the first pass, and reranked.
        others: hits of each judged query with other fields, another model or the caller's own query.
        compared: the best setting of the present sample, then the best setting of each alternative; empty if there
            were no alternatives.
        lacking: the number of documents judged relevant that the index lacks, and the number judged relevant.
        self_hits: the number of queries with their own id among their top ten hits.
    """

    index: str
    measure: str
    options: Rerank
    current: SearchSetting
    found: tuple[SampledQuery, ...]
    before: Floats
    values: Mapping[SearchSetting, Floats]
    verdict: Verdict
    choice: Choice
    judged: tuple[float, float]
    others: Mapping[Sample, tuple[SampledQuery, ...]] = field(default_factory=dict)
    compared: tuple[Choice, ...] = ()
    lacking: tuple[int, int] = (0, 0)
    self_hits: int = 0

    def sample_of(self, setting: SearchSetting) -> tuple[SampledQuery, ...]:
        """The hits of each judged query that a setting is computed from."""
        return self.others.get(setting.sample, self.found)

    @property
    def best(self) -> SearchSetting:
        """The setting with the highest mean."""
        return self.choice.setting

    def took_ms(self, setting: SearchSetting) -> float | None:
        """Return the median time that a setting's stages take for a query with known vectors; None if not measured."""
        sample = self.sample_of(setting)
        times = [took_ms for query_hits in sample if (took_ms := setting.took_ms(query_hits)) is not None]
        return float(np.median(times)) if times else None

    def of_pipelines(self) -> list[SearchSetting]:
        """Return the best setting of each pipeline in the present sample, the first pass first."""
        best: dict[str, SearchSetting] = {}
        for setting in (value for value in self.values if value.sample == self.current.sample):
            best[setting.pipeline] = max(
                best.get(setting.pipeline, setting), setting, key=lambda setting: float(self.values[setting].mean())
            )
        return sorted(best.values(), key=lambda candidate: not candidate.is_first_pass)

    @property
    def recommended(self) -> Mapping[str, Any]:
        """The options to write to a settings file, with ``model`` if another model is better; empty if nothing changes.

        The current setting stays unless another one is better on held-out queries at the 5% level, or reranking hurts.
        """
        if self.choice.verdict.outcome == "helps":
            model = {} if self.best.model == self.current.model else {"model": self.best.model}
            return {**self.best.options(), **model}
        return {"pipeline": NO_STAGES} if self.verdict.outcome == "hurts" else {}


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The fields, models and query to compare with an index's present ones.

    Attributes:
        fields: lists of fields; each list replaces the present fields as model input.
        clients: clients that search the same index with other models.
        template: the caller's own query.
        reader: the client that searches with ``fields``, which has the present model; None uses the client of `advise`.
    """

    fields: Sequence[Sequence[str]] = ()
    clients: Sequence[Client] = ()
    template: QueryTemplate | None = None
    reader: Client | None = None

    def __len__(self) -> int:
        return len(self.fields) + len(self.clients) + (self.template is not None)


NONE = Alternatives()


def advise(
    client: Client,
    index: str,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    measure: str = "nDCG@10",
    depths: Sequence[int] = DEPTHS,
    alternatives: Alternatives = NONE,
    exclude_query_ids: bool = False,
    advance: Callable[[], None] = lambda: None,
) -> IndexAdvice:
    """Search every judged query, and compare depths, weights of the first pass, and the alternatives.

    Args:
        client: client of the index.
        index: name of the index to search.
        queries: query set, as `judged_queries` returns it.
        qrels: judgments.
        measure: name of the measure, as in ir-measures; higher is better.
        depths: depths to try besides the present one.
        alternatives: other fields, models and a query; each searches every query once more.
        exclude_query_ids: whether a hit with the query's own id is left out.
        advance: called after each search.

    Raises:
        ConfigError: the index reranks by sentences or by a custom pipeline, or searches by the template are not
            reranked.
        EvaluationError: there are fewer than ten queries, no query has hits, or the measure is unknown.
    """
    if len(queries) < MIN_QUERIES:
        raise too_few(len(queries))
    current = present_setting(client, index)
    samples: dict[Sample, tuple[SampledQuery, ...]] = {}
    tried: dict[Sample, list[SearchSetting]] = {}

    def add_sample(
        searched: Client, present: SearchSetting, fields: Sequence[str] = (), template: QueryTemplate | None = None
    ) -> None:
        """Search all queries in one way, and note the settings that can be computed from their hits."""
        depth, key = max(*depths, present.depth), present.sample
        samples[key] = tuple(
            search_sample(
                searched,
                index,
                queries,
                depth,
                fields=fields,
                template=template,
                exclude_query_ids=exclude_query_ids,
                advance=advance,
            )
        )
        settings = settings_to_try(present, depths, vectors_blend=vectors_blend(searched, index))
        # Other fields and models leave the first pass as it is.
        has_first_pass = len(samples) == 1 or template is not None
        tried[key] = [setting for setting in settings if has_first_pass or not setting.is_first_pass]

    add_sample(client, current)
    sampled = samples[current.sample]
    if not any(query_hits.candidates for query_hits in sampled):
        raise EvaluationError(f"no query has hits in {index}: are they queries for this index?")
    reranking = replace(current, pipeline=AUTO_PIPELINE) if current.is_first_pass else current
    for fields in alternatives.fields:
        add_sample(alternatives.reader or client, replace(reranking, fields=tuple(fields)), fields)
    for other in alternatives.clients:
        add_sample(other, present_setting(other, index))
    if (template := alternatives.template) is not None:
        add_sample(client, replace(reranking, query=template.name), (), template)
    before = measure_setting(sampled, qrels, measure, None)
    values = {
        setting: measure_setting(samples[key], qrels, measure, setting)
        for key, settings in tried.items()
        for setting in settings
    }
    ids = [query_hits.query.query_id for query_hits in sampled]
    choice = choose(ids, values[current], values)
    compared = [
        choose(ids, values[current], {setting: values[setting] for setting in settings}) for settings in tried.values()
    ]
    return IndexAdvice(
        index,
        measure,
        client.options_of(index),
        current,
        sampled,
        before,
        values,
        choice.verdict if current.is_first_pass else judge(before, values[current]),
        choice,
        (_judged_share(sampled, qrels, None), _judged_share(sampled, qrels, current)),
        {key: sample for key, sample in samples.items() if key != current.sample},
        tuple(compared) if alternatives else (),
        _lacking(client, index, qrels, ids),
        count_self_hits({query_hits.query.query_id: query_hits.order(None) for query_hits in sampled}),
    )


def _lacking(client: Client, index: str, qrels: Qrels, query_ids: Sequence[str]) -> tuple[int, int]:
    """Return the number of documents judged relevant that the index lacks, and the number judged relevant."""
    relevant = sorted(
        {doc_id for query_id in query_ids for doc_id, grade in qrels.judgments[query_id].items() if grade > 0}
    )
    present = 0
    for start in range(0, len(relevant), IDS_AT_ONCE):
        ids = relevant[start : start + IDS_AT_ONCE]
        body = {"query": {"ids": {"values": ids}}, "size": 0, "track_total_hits": True}
        present += min(len(ids), client.search(index=index, body=body)["hits"]["total"]["value"])
    return len(relevant) - present, len(relevant)


def judged_queries(queries: Sequence[Query], qrels: Qrels) -> list[Query]:
    """Return the queries for which a document is judged relevant.

    Raises:
        EvaluationError: there are none.
    """
    judged = [
        query for query in queries if any(grade > 0 for grade in qrels.judgments.get(query.query_id, {}).values())
    ]
    if not judged:
        raise EvaluationError("no query has a document judged relevant: are queries and judgments from the same set?")
    return judged


def _judged_share(sampled: Sequence[SampledQuery], qrels: Qrels, setting: SearchSetting | None) -> float:
    """Return the share of all queries' top ten hits that have a judgment; 1 without hits."""
    flags = [
        doc_id in qrels.judgments[query_hits.query.query_id]
        for query_hits in sampled
        for doc_id in query_hits.order(setting)[:TOP]
    ]
    return float(np.mean(flags)) if flags else 1.0
