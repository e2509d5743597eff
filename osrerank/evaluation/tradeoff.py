"""Quality against cost, measured in inferences per query, from one scored pass.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 5, Figures 2 to 4.
Every point of a curve is derived from scores that one deep run has kept: monoBERT's for the top k0 of the first pass,
duoBERT's probabilities p_ij for the pairs of the top k1 of monoBERT. Nothing is scored again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from osrerank.errors import EvaluationError
from osrerank.evaluation.measures import Averaging, evaluate
from osrerank.evaluation.records import Record
from osrerank.options.pairs import PairAggregation, Pairs
from osrerank.response import FIRST_PASS
from osrerank.stages.interpolate import BlendStage, Method
from osrerank.stages.pairs import aggregate
from osrerank.types import Candidate, Qrels, Query, Ranking, Run, ScoredDocument, StageScore

SAMPLE_TRIALS = 10
"""Samples that a Sample point is the mean of, as in the paper."""
MONO = "mono"
Blend = tuple[Method, float]
"""How a run blended in its first pass: the method, and the first pass's weight."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One operating point.

    Attributes:
        k0: candidates of the first pass that monoBERT scores; 0 is only the first pass.
        k1: candidates of monoBERT that duoBERT compares with each other; 0 or 1 is only monoBERT.
        pairs: how a candidate's probabilities are aggregated.
        sample_size: other candidates drawn for each candidate, without replacement; for ``sample`` only.
        seed: of the draw.
        blended: whether the first pass is blended into monoBERT's order, as in the run.
    """

    k0: int
    k1: int = 0
    pairs: PairAggregation = "sum"
    sample_size: int = 0
    seed: int = 0
    blended: bool = False


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of one deep run for a query.

    Attributes:
        query_id: the query.
        first_pass: document ids in first-pass order.
        mono: document id -> monoBERT's score, higher is better; a document that it could not score is absent.
        mono_depth: how many candidates from the top monoBERT was given.
        pairs: (i, j) -> p_ij in [0, 1], the probability that document i is better than document j.
        first_scores: document id -> the first pass's score; needed for a blended order only.
        blend: the blend's method and weight; None where the run had none.
    """

    query_id: str
    first_pass: tuple[str, ...]
    mono: Mapping[str, float]
    mono_depth: int
    pairs: Mapping[tuple[str, str], float]
    first_scores: Mapping[str, float] = field(default_factory=dict)
    blend: Blend | None = None

    @classmethod
    def of(cls, record: Record, blend: Blend | None = None) -> "Scored":
        """Read a line of a run's side file; the blend is in the file's first line.

        Raises:
            EvaluationError: candidates of the first pass are missing, so that no smaller depth can be derived.
        """
        candidates = sorted(record.fields["candidates"], key=lambda candidate: int(candidate["first_pass"]["rank"]))
        mono = {one["doc_id"]: float(one["stages"][MONO]["score"]) for one in candidates if MONO in one["stages"]}
        depth = next((int(stage["candidates"]) for stage in record.fields["stages"] if stage["name"] == MONO), 0)
        _check_ranks(record.query_id, [int(one["first_pass"]["rank"]) for one in candidates])
        first = {one["doc_id"]: float(one["first_pass"]["score"]) for one in candidates}
        return cls(record.query_id, tuple(first), mono, depth, _pairs(record), first, blend)


@dataclass(frozen=True, slots=True)
class Point:
    """A setting with its cost and its quality.

    Attributes:
        setting: the setting; of ``sample``, the first of its trials.
        inferences: forward passes per query, mean over the queries.
        quality: the measure's value, in the measure's own range.
    """

    setting: Setting
    inferences: float
    quality: float


def derive(scored: Scored, setting: Setting) -> tuple[tuple[str, ...], int]:
    """Return the ranking that a setting would have made, and the inferences it would have taken.

    The top k0 of the first pass in monoBERT's order, the rest below in the old order; of that list the top k1 in the
    order of their aggregated pair probabilities, the rest below. Ties keep the previous order. Inferences are
    min(k0, n) + k1(k1 - 1), and k1 * m in place of the second term where m others are sampled.

    Raises:
        EvaluationError: a score that the setting needs was not kept.
    """
    block = scored.first_pass[: setting.k0]
    if len(block) > scored.mono_depth:
        raise _lacking(scored, f"monoBERT's scores of the top {setting.k0}, only of the top {scored.mono_depth}")
    unscored = [doc_id for doc_id in block if doc_id not in scored.mono]
    ranked = sorted((doc_id for doc_id in block if doc_id in scored.mono), key=lambda doc_id: -scored.mono[doc_id])
    if setting.blended:
        ranked = _blended(scored, ranked)
    ranking = (*ranked, *unscored, *scored.first_pass[len(block) :])
    if setting.k1 < 2:
        return ranking, len(block)
    rivals = ranking[: min(setting.k1, len(block))]
    worth, n_pairs = _worth(scored, rivals, setting)
    return (*sorted(rivals, key=lambda doc_id: -worth[doc_id]), *ranking[len(rivals) :]), len(block) + n_pairs


def curve(
    scored: Sequence[Scored],
    settings: Sequence[Setting],
    qrels: Qrels,
    measure: str,
    averaging: Averaging | None = None,
) -> list[Point]:
    """Return a point for each setting.

    Args:
        scored: one for each query of the deep run; one that found nothing is left out, as it has no line in a run.
        settings: the points; a Sample point is the mean of ten draws.
        qrels: the judgments.
        measure: as ``measures.evaluate`` takes it.
        averaging: likewise.
    """
    found = [one for one in scored if one.first_pass]
    return [_point(found, setting, qrels, measure, averaging) for setting in settings]


def join_pairs(scored: Sequence[Scored], *others: Sequence[Scored]) -> list[Scored]:
    """Return a run's scores of each query, with the pairs of other runs added.

    A run of another k0 compared other candidates: the top k1 of another monoBERT ranking.
    """
    pairs = {one.query_id: dict(one.pairs) for one in scored}
    for other in others:
        for one in other:
            pairs.setdefault(one.query_id, {}).update(one.pairs)
    return [replace(one, pairs=pairs[one.query_id]) for one in scored]


def deepest(scored: Sequence[Scored]) -> int:
    """Return the greatest k0 for which every query's scores were kept."""
    limits = [one.mono_depth for one in scored if one.mono_depth < len(one.first_pass)]
    return min(limits, default=max((len(one.first_pass) for one in scored), default=0))


def widest(scored: Sequence[Scored]) -> int:
    """Return the number of candidates whose pairs were kept for every query; 0 when no duo stage ran."""
    return min((len({first for first, _second in one.pairs}) for one in scored if one.first_pass), default=0)


def _point(
    scored: Sequence[Scored], setting: Setting, qrels: Qrels, measure: str, averaging: Averaging | None
) -> Point:
    trials = SAMPLE_TRIALS if setting.pairs == "sample" and setting.k1 > 1 else 1
    costs: list[float] = []
    values: list[float] = []
    for trial in range(trials):
        tried = replace(setting, seed=setting.seed + trial)
        derived = {one.query_id: derive(one, tried) for one in scored}
        costs.append(fmean(cost for _ranking, cost in derived.values()))
        run = Run({query_id: _documents(ranking) for query_id, (ranking, _cost) in derived.items()}, name="derived")
        values.extend(evaluate(qrels, run, [measure], averaging).overall.values())
    return Point(setting, fmean(costs), fmean(values))


def _worth(scored: Scored, rivals: Sequence[str], setting: Setting) -> tuple[dict[str, float], int]:
    """Return each rival's aggregated score, and the pairs that it took."""
    compared = Pairs(setting.pairs, setting.sample_size or 1, setting.seed).rivals(rivals)
    worth = {}
    for doc_id, others in zip(rivals, compared, strict=True):
        try:
            worth[doc_id] = aggregate([scored.pairs[doc_id, rivals[other]] for other in others], setting.pairs)
        except KeyError:
            raise _lacking(scored, f"duoBERT's probabilities for the pairs of the top {setting.k1}") from None
    return worth, sum(map(len, compared))


def _blended(scored: Scored, ranked: Sequence[str]) -> list[str]:
    """Return monoBERT's order with the first pass blended in, by the stage that a search uses.

    The stage reads monoBERT's score from the candidate; the trace entry only has to exist.
    """
    if scored.blend is None:
        raise _lacking(scored, "how the first pass was blended in")
    method, weight = scored.blend
    kept = set(ranked)
    order = (*ranked, *(doc_id for doc_id in scored.first_pass if doc_id not in kept))
    passed = {
        doc_id: StageScore(FIRST_PASS, scored.first_scores[doc_id], place, 0.0)
        for place, doc_id in enumerate(scored.first_pass, start=1)
    }
    candidates = [
        Candidate(doc_id, None, scored.mono[doc_id], rank, (passed[doc_id], StageScore(MONO, 0.0, rank, 0.0)))
        if doc_id in kept
        else Candidate(doc_id, None, passed[doc_id].score, rank, (passed[doc_id],))
        for rank, doc_id in enumerate(order, start=1)
    ]
    ranking = Ranking(Query(scored.query_id, "derived"), tuple(candidates))
    blended = BlendStage(method, weight, depth=len(ranked)).rerank(ranking)
    return [candidate.doc_id for candidate in blended.candidates[: len(ranked)]]


def _check_ranks(query_id: str, ranks: Sequence[int]) -> None:
    if list(ranks) != list(range(1, len(ranks) + 1)):
        raise EvaluationError(
            f"query {query_id}: the run lacks candidates of the first pass (its {len(ranks)} documents have ranks up "
            f"to {max(ranks)}); run it again with --hits at least --depth"
        )


def _pairs(record: Record) -> dict[tuple[str, str], float]:
    kept = record.fields.get("pairs")
    if kept is None:
        return {}
    doc_ids = kept["doc_ids"]
    return {
        (first, second): float(probability)
        for first, row in zip(doc_ids, kept["probabilities"], strict=True)
        for second, probability in zip(doc_ids, row, strict=True)
        if probability is not None
    }


def _documents(ranking: Sequence[str]) -> tuple[ScoredDocument, ...]:
    return tuple(ScoredDocument(doc_id, float(-rank)) for rank, doc_id in enumerate(ranking, start=1))


def _lacking(scored: Scored, what: str) -> EvaluationError:
    return EvaluationError(
        f"query {scored.query_id}: the run did not keep {what}; run it again at the greatest depth wanted"
    )
