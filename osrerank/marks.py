"""Types for annotating what reranking adds to a response.

``client.search`` returns what opensearch-py's does, which is untyped:

    marks: osrerank.RerankMarks = response["rerank"]
    hit_marks: osrerank.HitMarks = response["hits"]["hits"][0]["_rerank"]
"""

from typing import Any, Literal, NotRequired, TypedDict


class StageMarks(TypedDict):
    """What a stage did: an entry of ``response["rerank"]["stages"]``.

    Attributes:
        name: the stage's name.
        applied: whether it ordered its candidates.
        reason: why not, or not wholly.
        model: the model's name; None where no model scored.
        kind: ``bi-encoder``, ``late-interaction``, ``cross-encoder`` or ``duo``; None likewise.
        candidates: how many it looked at.
        inferences: runs of the model.
        cached: scores that the cache had.
        truncated: documents that were longer than the model reads, those with cached scores among them.
        query_truncated: whether the query was longer than the model reads.
        failed: candidates that could not be scored.
        took_ms: time in milliseconds.
        encoded: documents whose vectors were computed; of encoders.
        known: documents whose vectors were stored already; of encoders.
        lacking: documents that a deadline left without vectors; of encoders.
        reason_code: the kind of the reason, a `ReasonCode`; of a stage that has one.
        pairs: probabilities of pairs, with ``explain``.
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
    """What a threshold did: an entry of ``response["rerank"]["cuts"]``.

    Attributes:
        by: ``min_probability`` or ``precision``.
        value: the option's value.
        hits: how many it removed.
        least_probability: the lowest that a hit needs to stay; None if the threshold has none.
        applied: whether it could be applied.
        reason: why not.
    """

    by: Literal["min_probability", "precision"]
    value: float
    hits: int
    least_probability: float | None
    applied: bool
    reason: str | None


class InterleaveMarks(TypedDict):
    """What interleaving did: ``response["rerank"]["interleave"]``.

    Attributes:
        applied: whether the page is interleaved.
        reason: why not.
        teams: ``A`` (the search's own options) or ``B`` (those of ``with``) for each hit of the page.
        stages: what each stage of team B did; those of team A are in ``response["rerank"]["stages"]``.
        name: the experiment's.
    """

    applied: bool
    reason: str | None
    teams: NotRequired[str]
    stages: NotRequired[list[StageMarks]]
    name: NotRequired[str]


class TrafficMarks(TypedDict):
    """Whether a search is reranked, by the option ``traffic``: ``response["rerank"]["traffic"]``.

    Attributes:
        share: the share of the searches that is reranked, in [0, 1].
        chosen: whether the search is in the share, and so is reranked or, in shadow mode, run again.
        queued: in shadow mode, whether the search is run again with reranking; False if too many wait.
    """

    share: float
    chosen: bool
    queued: NotRequired[bool]


class UbiMarks(TypedDict):
    """Whether the search was recorded for UBI: ``response["rerank"]["ubi"]``.

    Attributes:
        recorded: whether it was.
        reason: why not.
        query_id: the id that links clicks to it.
    """

    recorded: bool
    reason: str | None
    query_id: str


class RerankMarks(TypedDict):
    """What reranking did: ``response["rerank"]``.

    Attributes:
        applied: whether the models determined the order.
        reason: why not, or not wholly.
        reason_code: the kind of that reason, a `ReasonCode`.
        first_pass_took_ms: the first pass's own ``took``, in milliseconds.
        stages: what each stage did.
        warnings: sentences on what was done differently from the request, or is wrong with the named fields.
        fields: the fields that were read; absent where OpenSearch reranked, or nothing did.
        fields_left_out: text fields that were not searched, because nobody named fields and there are more than five.
        fields_by_index: those of each index, where nobody named fields and the indices have different ones.
        below_min_score: reranked hits that ``min_score`` removed, where it was given.
        cuts: what each of the thresholds ``min_probability`` and ``cutoff`` did, where one was given.
        interleave: what interleaving did, where it was asked for.
        traffic: whether the search is in the share that is reranked, where ``traffic`` was given.
        ubi: whether the search was recorded, where its body has ``ext.ubi``.
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
        score: what the stage sorted by; higher is better. None for hits that are sorted without scores.
        rank: rank after the stage, from 1.
        logit: the model's, from stages that have one.
        probability: the probability of relevance, in [0, 1], likewise.
        truncated: True where the model did not read the whole text, else absent.
        text: in ``first_pass``, the score of the query's text part, where the query has boosts; in ``boosts``, the one
            that the hit has by the model's order.
        exact_name: True in ``first_pass`` where the query is the hit's whole name, else absent.
        boost: what the query adds to it, multiplies it by, and so on; a second boost is ``boost_2``.
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
    """How a hit got its rank: ``hit["_rerank"]``, an entry for each stage passed.

    Attributes:
        first_pass: the first pass's score and rank.
        vectors: the bi-encoder's; of a long document, its best passage's.
        mono: the cross-encoder's; likewise.
        sentences: that of the document's best sentences.
        blend: the score of the model and the first pass together.
        vectors_blend: the score of the cross-encoder and the vectors together.
        duo: the score of the comparisons in pairs.
        boosts: the score of the model's order and the query's boosts together.
        exact_name: the score of the hit that it displaced, because the query is its whole name.
        failure: why the hit could not be scored.
        explanation: a sentence for each stage, with ``explain``.
        probability: by the index's calibration, where ``min_probability`` or a precision is asked for.
        team: ``A`` or ``B``, of an interleaved page: which ranking picked the hit.
        team_ranks: its rank in each of the two rankings, from 1.
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
