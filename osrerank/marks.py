"""Types of the entries that reranking adds to a response, its *marks*: ``response["rerank"]`` and a hit's ``_rerank``.

``client.search`` returns an untyped response, as opensearch-py does, so a caller annotates the entries:

    marks: osrerank.RerankMarks = response["rerank"]
    hit_marks: osrerank.HitMarks = response["hits"]["hits"][0]["_rerank"]
"""

from typing import Any, Literal, NotRequired, TypedDict


class StageMarks(TypedDict):
    """The report of a stage: an entry of ``response["rerank"]["stages"]``.

    Attributes:
        name: the stage's name.
        applied: whether the stage reordered its candidates; ``"partial"`` if it reordered a part of them.
        reason: why the stage reordered no candidates, or only a part of them. None if it reordered all.
        model: the model's name, or None if the stage has no model.
        kind: the model's kind, or None if the stage has no model.
        candidates: the number of candidates that the stage received.
        inferences: the number of forward passes.
        cached: the number of scores from the cache.
        truncated: the number of documents longer than the model's input, including those with cached scores.
        query_truncated: whether the query was longer than the model's input.
        failed: the number of candidates that could not be scored.
        took_ms: the time of the stage, in milliseconds.
        encoded: the number of documents whose vectors this search computed. Only for encoders.
        known: the number of documents whose vectors were already stored. Only for encoders.
        lacking: the number of documents that still had no vector when the deadline passed. Only for encoders.
        reason_code: the kind of the reason, such as ``deadline``. Only with a reason.
        pairs: the probability that document i is more relevant than document j, such as ``{"doc_ids": ["a", "b"],
            "probabilities": [[None, 0.8], [0.2, None]]}``. Only with ``explain``.
    """

    name: str
    applied: bool | Literal["partial"]
    reason: str | None
    model: str | None
    kind: Literal["bi-encoder", "late-interaction", "cross-encoder", "duo"] | None
    candidates: int
    inferences: int
    cached: int
    truncated: int
    query_truncated: bool
    failed: int
    took_ms: float
    reason_code: NotRequired[str]
    encoded: NotRequired[int]
    known: NotRequired[int]
    lacking: NotRequired[int]
    pairs: NotRequired[dict[str, Any]]


class CutMarks(TypedDict):
    """The effect of a threshold that removes hits: an entry of ``response["rerank"]["cuts"]``.

    Attributes:
        by: the option that sets the threshold: ``min_probability``, or ``precision`` in ``cutoff``.
        value: the option's value.
        hits: the number of removed hits.
        least_probability: the minimum probability of the remaining hits, or None if the threshold sets no minimum.
        applied: whether the threshold was applied.
        reason: why the threshold was not applied, or None if it was.
    """

    by: Literal["min_probability", "precision"]
    value: float
    hits: int
    least_probability: float | None
    applied: bool
    reason: str | None


class InterleaveMarks(TypedDict):
    """The effect of interleaving two rankings: ``response["rerank"]["interleave"]``.

    Ranking A has the search's options, and ranking B has those in the option ``interleave``, under ``with``. A hit's
    team is the ranking that the hit was picked from.

    Attributes:
        applied: whether the page is interleaved.
        reason: why the page is not interleaved, or None if it is.
        teams: the team of each hit of the page, such as ``"ABBA"``.
        stages: the reports of the stages of ranking B. Those of ranking A are in ``response["rerank"]["stages"]``.
        name: the experiment's name.
    """

    applied: bool
    reason: str | None
    teams: NotRequired[str]
    stages: NotRequired[list[StageMarks]]
    name: NotRequired[str]


class TrafficMarks(TypedDict):
    """Whether the option ``traffic`` chose this search for reranking: ``response["rerank"]["traffic"]``.

    Attributes:
        share: the fraction of searches that are chosen, in [0, 1].
        chosen: whether this search was chosen. If so, it is reranked or, in shadow mode, repeated with reranking.
        queued: whether this search will be repeated. False if too many searches are waiting. Only in shadow mode.
    """

    share: float
    chosen: bool
    queued: NotRequired[bool]


class UbiMarks(TypedDict):
    """Whether the search was recorded for User Behavior Insights: ``response["rerank"]["ubi"]``.

    Attributes:
        recorded: whether the search was recorded.
        reason: why the search was not recorded, or None if it was.
        query_id: the id by which click events refer to the search.
    """

    recorded: bool
    reason: str | None
    query_id: str


class RerankMarks(TypedDict):
    """The report of reranking: ``response["rerank"]``.

    Attributes:
        applied: whether the models determined the order; ``"partial"`` if they determined a part of it.
        reason: why the models did not determine the whole order. None if they did.
        reason_code: the kind of the reason, such as ``deadline``. None without a reason.
        first_pass_took_ms: the ``took`` of the first pass, in milliseconds.
        stages: the report of each stage.
        warnings: sentences about what was done otherwise than requested, or about wrong field names.
        fields: the fields whose texts the model scored. Absent if OpenSearch reranked, or if nothing was reranked.
        fields_left_out: text fields that were not read. Only if no fields are set and there are more than five.
        fields_by_index: the scored fields of each index, such as ``{"news": ["title", "body"]}``. Only if no fields are
            set and the indices' fields differ.
        below_min_score: the number of reranked hits that ``min_score`` removed. Only with ``min_score``.
        cuts: the effect of each threshold. Only with ``min_probability`` or ``cutoff``.
        interleave: the effect of interleaving. Only with ``interleave``.
        traffic: whether the search was chosen for reranking. Only with ``traffic``.
        ubi: whether the search was recorded. Only if its body contains ``ext.ubi``.
    """

    applied: bool | Literal["partial"]
    reason: str | None
    reason_code: str | None
    first_pass_took_ms: int
    stages: list[StageMarks]
    warnings: list[str]
    fields: NotRequired[list[str]]
    fields_left_out: NotRequired[list[str]]
    fields_by_index: NotRequired[dict[str, list[str]]]
    below_min_score: NotRequired[int]
    cuts: NotRequired[list[CutMarks]]
    interleave: NotRequired[InterleaveMarks]
    traffic: NotRequired[TrafficMarks]
    ubi: NotRequired[UbiMarks]


class StageScoreMarks(TypedDict):
    """A stage's score of a hit.

    Attributes:
        score: the value that the stage sorted by; higher is better. None if the search sets its own sort order.
        rank: the rank after the stage, from 1.
        logit: the model's logit. Only from stages that compute one.
        probability: the probability of relevance, in [0, 1]. Only from stages that compute one.
        truncated: True if the text was longer than the model's input. Absent otherwise.
        text: the score without boosts. In ``first_pass``, it is the score of the query's text clauses, if the query has
            boosts. In ``boosts``, it is the text score that belongs to the hit's place in the model's order.
        exact_name: True in ``first_pass`` if the query is exactly the hit's name. Absent otherwise.
        boost: the value of the query's boost, for example a number that is added to the text score. A second boost has
            the key ``boost_2``.
    """

    score: float | None
    rank: int
    logit: NotRequired[float]
    probability: NotRequired[float]
    truncated: NotRequired[bool]
    text: NotRequired[float]
    exact_name: NotRequired[bool]
    boost: NotRequired[float]


class HitMarks(TypedDict, total=False):
    """How a hit got its rank: ``hit["_rerank"]``, with an entry for each stage that scored the hit.

    Attributes:
        first_pass: the score and rank of the first pass.
        vectors: the bi-encoder's score and rank. A long document gets the score of its best passage.
        mono: the cross-encoder's score and rank. A long document gets the score of its best passage.
        sentences: the score and rank from the document's best sentences.
        blend: the score and rank after blending the model's scores with the first pass.
        vectors_blend: the score and rank after blending the cross-encoder's scores with the bi-encoder's.
        duo: the score and rank from comparisons of pairs.
        boosts: the score and rank from the model's order and the query's boosts.
        exact_name: the score of the hit whose place this hit took. Only if this hit was moved up because the query is
            exactly its name.
        failure: why the hit could not be scored.
        explanation: a sentence for each stage. Only with ``explain``.
        probability: the calibrated probability. Only with ``min_probability`` or ``cutoff``.
        team: the ranking that the hit of an interleaved page was picked from, ``A`` or ``B``.
        team_ranks: the hit's rank in each of the two rankings, from 1, such as ``{"A": 1, "B": 4}``.
    """

    first_pass: StageScoreMarks
    vectors: StageScoreMarks
    mono: StageScoreMarks
    sentences: StageScoreMarks
    blend: StageScoreMarks
    vectors_blend: StageScoreMarks
    duo: StageScoreMarks
    boosts: StageScoreMarks
    exact_name: StageScoreMarks
    failure: str
    explanation: list[str]
    probability: float
    team: Literal["A", "B"]
    team_ranks: dict[str, int]


__all__ = [
    "CutMarks", "HitMarks", "InterleaveMarks", "RerankMarks", "StageMarks", "StageScoreMarks", "TrafficMarks",
    "UbiMarks",
]  # fmt: skip
