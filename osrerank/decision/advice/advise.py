"""Say whether reranking helps on an index: search judged queries, test the current setting, recommend a better one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from osrerank.client import Client
from osrerank.decision.advice.choose import Choice, choose, measured
from osrerank.decision.advice.sample import (
    DEPTHS,
    SampledQuery,
    SearchSetting,
    present_setting,
    search_sample,
    settings_to_try,
    vectors_blend,
)
from osrerank.decision.advice.verdict import Floats, Verdict, judge
from osrerank.errors import EvaluationError
from osrerank.options.rerank import NO_STAGES, Rerank
from osrerank.types import Qrels, Query

TOP = 10


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

    @property
    def best(self) -> SearchSetting:
        """The setting with the highest mean."""
        return self.choice.setting

    def took_ms(self, setting: SearchSetting) -> float | None:
        """Return the median time that a setting's stages take for a query with known vectors; None if not measured."""
        times = [took_ms for one in self.found if (took_ms := setting.took_ms(one)) is not None]
        return float(np.median(times)) if times else None

    def of_pipelines(self) -> list[SearchSetting]:
        """The best setting of each pipeline, the first pass first; those of one model's depths are one pipeline."""
        best: dict[str, SearchSetting] = {}
        for setting in self.values:
            best[setting.pipeline] = max(
                best.get(setting.pipeline, setting), setting, key=lambda one: float(self.values[one].mean())
            )
        return sorted(best.values(), key=lambda one: not one.is_first_pass)

    @property
    def recommended(self) -> Mapping[str, Any]:
        """The options to write to a settings file; empty if the current setting stays.

        It stays unless another one is better on held-out queries at the 5% level, or it hurts.
        """
        if self.choice.verdict.outcome == "helps":
            return self.best.options()
        return {"pipeline": NO_STAGES} if self.verdict.outcome == "hurts" else {}


def advise(
    client: Client,
    index: str,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    measure: str = "nDCG@10",
    depths: Sequence[int] = DEPTHS,
    advance: Callable[[], None] = lambda: None,
) -> IndexAdvice:
    """Search every judged query once, and compare depths and weights of the first pass.

    Args:
        client: client of the index.
        index: its name.
        queries: query set, as `judged_queries` returns it.
        qrels: judgments.
        measure: name of the measure, as in ir-measures; higher is better.
        depths: depths to try besides the present one.
        advance: called after each query.

    Raises:
        ConfigError: the index reranks by sentences or by a custom pipeline.
        EvaluationError: there are fewer than ten queries, no query has hits, or the measure is unknown.
    """
    current = present_setting(client, index)
    found = search_sample(client, index, queries, max(*depths, current.depth), advance=advance)
    if not any(one.candidates for one in found):
        raise EvaluationError(f"no query has hits in {index}: are they queries for this index?")
    before = measured(found, qrels, measure, None)
    tried = settings_to_try(current, depths, vectors_blend=vectors_blend(client, index))
    values = {setting: measured(found, qrels, measure, setting) for setting in tried}
    choice = choose([one.query.query_id for one in found], values[current], values)
    return IndexAdvice(
        index,
        measure,
        client.options_of(index),
        current,
        tuple(found),
        before,
        values,
        choice.verdict if current.is_first_pass else judge(before, values[current]),
        choice,
        (_judged_share(found, qrels, None), _judged_share(found, qrels, current)),
    )


def judged_queries(queries: Sequence[Query], qrels: Qrels) -> list[Query]:
    """Return the queries for which a document is judged relevant.

    Raises:
        EvaluationError: there are none.
    """
    judged = [one for one in queries if any(grade > 0 for grade in qrels.judgments.get(one.query_id, {}).values())]
    if not judged:
        raise EvaluationError("no query has a document judged relevant: are queries and judgments from the same set?")
    return judged


def _judged_share(found: Sequence[SampledQuery], qrels: Qrels, setting: SearchSetting | None) -> float:
    """Return the share of all queries' top ten hits that have a judgment; 1 without hits."""
    flags = [doc_id in qrels.judgments[one.query.query_id] for one in found for doc_id in one.order(setting)[:TOP]]
    return float(np.mean(flags)) if flags else 1.0
