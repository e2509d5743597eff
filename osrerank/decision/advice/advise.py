"""Say whether reranking helps on an index: search judged queries, test the current setting, recommend a better one.

Besides depth and blend, which are computed from one search of each query, other fields, other models and a query of the
caller's own are compared: each takes searches of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from osrerank.client import Client
from osrerank.decision.advice.choose import Choice, choose, measured
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
from osrerank.decision.advice.verdict import LEAST_QUERIES, Floats, Verdict, judge, too_few
from osrerank.errors import EvaluationError
from osrerank.evaluation.own_ids import own_hits
from osrerank.options.rerank import AUTO_PIPELINE, NO_STAGES, Rerank
from osrerank.types import Qrels, Query

TOP = 10
IDS_AT_ONCE = 1000
"""How many documents are asked for at a time, whether they are there."""


@dataclass(frozen=True, slots=True)
class IndexAdvice:
    """Whether reranking helps on an index with its present options, and whether others are better.

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
        compared: for the present sample, then for each of the others, the best of its settings, and its promised value.
        lacking: how many documents that are judged relevant the index lacks, and how many there are.
        own_hits: how many queries have a hit with their own id on top.
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
    own_hits: int = 0

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
        times = [took_ms for one in sample if (took_ms := setting.took_ms(one)) is not None]
        return float(np.median(times)) if times else None

    def of_pipelines(self) -> list[SearchSetting]:
        """The present sample's best setting of each pipeline, the first pass first; all depths are one pipeline."""
        best: dict[str, SearchSetting] = {}
        for setting in (value for value in self.values if value.sample == self.current.sample):
            best[setting.pipeline] = max(
                best.get(setting.pipeline, setting), setting, key=lambda one: float(self.values[one].mean())
            )
        return sorted(best.values(), key=lambda one: not one.is_first_pass)

    @property
    def recommended(self) -> Mapping[str, Any]:
        """The options to write to a settings file, with ``model`` if another is better; empty if all stays.

        The current setting stays unless another one is better on held-out queries at the 5% level, or it hurts.
        """
        if self.choice.verdict.outcome == "helps":
            model = {} if self.best.model == self.current.model else {"model": self.best.model}
            return {**self.best.options(), **model}
        return {"pipeline": NO_STAGES} if self.verdict.outcome == "hurts" else {}


@dataclass(frozen=True, slots=True)
class Alternatives:
    """What is compared with an index's present fields, model and query.

    Attributes:
        fields: lists of fields to read.
        clients: clients of the same index with other models.
        template: the caller's own query.
        reader: a client with the present model that reads other fields; the present one when None.
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
    """Search every judged query, and compare depths and weights of the first pass, and what else is named.

    Args:
        client: client of the index.
        index: its name.
        queries: query set, as `judged_queries` returns it.
        qrels: judgments.
        measure: name of the measure, as in ir-measures; higher is better.
        depths: depths to try besides the present one.
        alternatives: other fields, models and a query; each takes one more search of every query.
        exclude_query_ids: whether a hit with the query's own id is left out.
        advance: called after each search.

    Raises:
        ConfigError: the index reranks by sentences or by a custom pipeline, or a template cannot be reranked.
        EvaluationError: there are fewer than ten queries, no query has hits, or the measure is unknown.
    """
    if len(queries) < LEAST_QUERIES:
        raise too_few(len(queries))
    current = present_setting(client, index)
    samples: dict[Sample, tuple[SampledQuery, ...]] = {}
    tried: dict[Sample, list[SearchSetting]] = {}

    def look(
        searched: Client, present: SearchSetting, fields: Sequence[str] = (), template: QueryTemplate | None = None
    ) -> None:
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
        has_first_pass = len(samples) == 1 or template is not None  # of the same query, it is the same
        tried[key] = [setting for setting in settings if has_first_pass or not setting.is_first_pass]

    look(client, current)
    found = samples[current.sample]
    if not any(one.candidates for one in found):
        raise EvaluationError(f"no query has hits in {index}: are they queries for this index?")
    reranking = replace(current, pipeline=AUTO_PIPELINE) if current.is_first_pass else current
    for fields in alternatives.fields:
        look(alternatives.reader or client, replace(reranking, fields=tuple(fields)), fields)
    for other in alternatives.clients:
        look(other, present_setting(other, index))
    if (template := alternatives.template) is not None:
        look(client, replace(reranking, query=template.name), (), template)
    before = measured(found, qrels, measure, None)
    values = {
        setting: measured(samples[key], qrels, measure, setting)
        for key, settings in tried.items()
        for setting in settings
    }
    ids = [one.query.query_id for one in found]
    choice = choose(ids, values[current], values)
    compared = [
        choose(ids, values[current], {setting: values[setting] for setting in settings}) for settings in tried.values()
    ]
    return IndexAdvice(
        index,
        measure,
        client.options_of(index),
        current,
        found,
        before,
        values,
        choice.verdict if current.is_first_pass else judge(before, values[current]),
        choice,
        (_judged_share(found, qrels, None), _judged_share(found, qrels, current)),
        {key: sample for key, sample in samples.items() if key != current.sample},
        tuple(compared) if alternatives else (),
        _lacking(client, index, qrels, ids),
        own_hits({one.query.query_id: one.order(None) for one in found}),
    )


def _lacking(client: Client, index: str, qrels: Qrels, query_ids: Sequence[str]) -> tuple[int, int]:
    """Return how many documents that are judged relevant to the queries the index lacks, and how many there are."""
    relevant = sorted(
        {doc_id for query_id in query_ids for doc_id, grade in qrels.judgments[query_id].items() if grade > 0}
    )
    there = 0
    for start in range(0, len(relevant), IDS_AT_ONCE):
        ids = relevant[start : start + IDS_AT_ONCE]
        body = {"query": {"ids": {"values": ids}}, "size": 0, "track_total_hits": True}
        there += min(len(ids), client.search(index=index, body=body)["hits"]["total"]["value"])
    return len(relevant) - there, len(relevant)


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


def _judged_share(found: Sequence[SampledQuery], qrels: Qrels, setting: SearchSetting | None) -> float:
    """Return the share of all queries' top ten hits that have a judgment; 1 without hits."""
    flags = [doc_id in qrels.judgments[one.query.query_id] for one in found for doc_id in one.order(setting)[:TOP]]
    return float(np.mean(flags)) if flags else 1.0
