"""Quality against cost, measured in inferences per query, from one scored pass.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 5, Figures 2 to 4.
Every point of a curve is derived from scores that one deep run has kept: monoBERT's for the top k0 of the first pass,
duoBERT's probabilities p_ij for the pairs of the top k1 of monoBERT. Nothing is scored again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from osrerank.errors import EvaluationError
from osrerank.evaluation.measures import Averaging, Tally
from osrerank.evaluation.records import QueryRecord
from osrerank.evaluation.side_file import read_records, record_at, records_with_offsets
from osrerank.options.pairs import PairAggregation, Pairs
from osrerank.response import FIRST_PASS, FIRST_STAGES
from osrerank.stages.interpolate import BLENDED, BlendStage, Method
from osrerank.stages.pairs import aggregate
from osrerank.types import Candidate, Qrels, Query, Ranking, Run, ScoredDocument, StageScore

SAMPLE_TRIALS = 10
"""Samples that a Sample point is the mean of, as in the paper."""
AT_ONCE = 50
"""Queries whose rankings are in memory at a time."""
Blend = tuple[Method, float]
"""How a run blended in its first pass: the method, and the first pass's weight."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """One operating point.

    Attributes:
        k0: candidates of the first pass that monoBERT scores; 0 is only the first pass.
        k1: candidates of monoBERT that duoBERT compares with each other; 0 or 1 is only monoBERT.
        pairs: how a candidate's probabilities are aggregated.
        sample_size: other candidates drawn for each candidate, without replacement; for ``sample`` only.
        seed: the seed of the draw.
        blended: whether the first pass is blended into monoBERT's order, as in the run.
    """

    k0: int
    k1: int = 0
    pairs: PairAggregation = "sum"
    sample_size: int = 0
    seed: int = 0
    blended: bool = False


@dataclass(frozen=True, slots=True)
class QueryScores:
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
    def of(cls, record: QueryRecord, blend: Blend | None = None) -> "QueryScores":
        """Read a line of a run's side file; the blend is in the file's first line.

        Of ``vectors-mono``, the order of the vectors stands for the first pass's.

        Raises:
            EvaluationError: candidates of the first pass are missing, so that no smaller depth can be derived.
        """
        if _is_after_vectors(record):
            return cls(record.query_id, *_after_vectors(record), _mono_depth(record), _pairs(record))
        candidates = sorted(record.fields["candidates"], key=lambda candidate: int(candidate["first_pass"]["rank"]))
        first_stage = (entry.get("vectors") or entry.get("mono") for entry in (one["stages"] for one in candidates))
        scored = zip(candidates, first_stage, strict=True)
        mono = {one["doc_id"]: float(entry["score"]) for one, entry in scored if entry}
        _check_ranks(record.query_id, [int(one["first_pass"]["rank"]) for one in candidates])
        first = {one["doc_id"]: float(one["first_pass"]["score"]) for one in candidates}
        return cls(record.query_id, tuple(first), mono, _mono_depth(record), _pairs(record), first, blend)


class Reach(NamedTuple):
    """How much of a query was scored.

    Attributes:
        found: candidates of the first pass.
        mono_depth: candidates from the top that monoBERT was given.
        compared: candidates that duoBERT compared with each other.
    """

    found: int
    mono_depth: int
    compared: int

    @classmethod
    def of(cls, record: QueryRecord) -> "Reach":
        """Read a line of a run's side file.

        Raises:
            EvaluationError: as `QueryScores.of`.
        """
        ranks = sorted(int(candidate["first_pass"]["rank"]) for candidate in record.fields["candidates"])
        _check_ranks(record.query_id, ranks)
        rows = (record.fields.get("pairs") or {}).get("probabilities", ())
        compared = sum(any(probability is not None for probability in row) for row in rows)
        return cls(len(ranks), _mono_depth(record), compared)


class ScoredRun:
    """The scores of a run's queries, read from its side file at each pass: they need not fit into memory.

    Args:
        path: the side file; read once here, and checked as a whole.
        blend: in the file's first line.

    Attributes:
        reaches: how much of each query was scored.
        is_blended: whether the first pass was blended in.
        is_after_vectors: whether a cross-encoder read the best of the stage ``vectors``.

    Raises:
        EvaluationError: the file is no side file, or candidates of the first pass are missing.
    """

    def __init__(self, path: Path, blend: Blend | None = None) -> None:
        self._path, self._blend = path, blend
        self._offsets: dict[str, int] = {}
        self.reaches: list[Reach] = []
        self.is_after_vectors = False
        for offset, record in records_with_offsets(path):
            self._offsets[record.query_id] = offset
            self.reaches.append(Reach.of(record))
            self.is_after_vectors |= _is_after_vectors(record)
        self.is_blended = blend is not None and not self.is_after_vectors  # else with the vectors

    def __iter__(self) -> Iterator[QueryScores]:
        return (QueryScores.of(record, self._blend) for record in read_records(self._path))

    def pairs(self, query_id: str) -> Mapping[tuple[str, str], float]:
        """Return a query's pair probabilities; none if it is not in the run."""
        offset = self._offsets.get(query_id)
        return {} if offset is None else _pairs(record_at(self._path, offset, query_id))


@dataclass(frozen=True, slots=True)
class Point:
    """A setting with its cost and its quality.

    Attributes:
        setting: the setting; of ``sample``, the first of its trials.
        inferences: forward passes per query, mean over the queries.
        quality: the measure's value, in the measure's own range.
    """

    setting: OperatingPoint
    inferences: float
    quality: float


def derive(scored: QueryScores, setting: OperatingPoint) -> tuple[tuple[str, ...], int]:
    """Return the ranking that a setting would have made, and the inferences it would have taken.

    The top k0 of the first pass in monoBERT's order, the rest below in the old order; of that list the top k1 in the
    order of their aggregated pair probabilities, the rest below. Ties keep the previous order. Inferences are
    min(k0, n) + k1(k1 - 1), and k1 * m in place of the second term where m others are sampled.

    Raises:
        EvaluationError: a score that the setting needs was not kept.
    """
    block = scored.first_pass[: setting.k0]
    if len(block) > scored.mono_depth:
        raise _lacking(scored, f"monoBERT's scores below rank {scored.mono_depth}")
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
    scored: Iterable[QueryScores],
    settings: Sequence[OperatingPoint],
    qrels: Qrels,
    measure: str,
    averaging: Averaging | None = None,
) -> list[Point]:
    """Return a point for each setting.

    Args:
        scored: one for each query of the deep run, read once; one that found nothing is left out, as it has no line in
            a run.
        settings: the points; a Sample point is the mean of ten draws.
        qrels: the judgments.
        measure: as ``measures.evaluate`` takes it.
        averaging: likewise.
    """
    averaging = replace(averaging or Averaging(), single_precision=False)  # a derived score is a small whole number
    trials = [[_Trial(one, Tally(qrels, [measure], averaging)) for one in _draws(setting)] for setting in settings]
    found = (one for one in scored if one.first_pass)
    while some := list(islice(found, AT_ONCE)):
        for trial in chain.from_iterable(trials):
            trial.add(some)
    return [_point(setting, own) for setting, own in zip(settings, trials, strict=True)]


def join_pairs(scored: Iterable[QueryScores], *others: ScoredRun) -> Iterator[QueryScores]:
    """Yield a run's scores of each query, with the pairs of other runs added.

    A run of another k0 compared other candidates: the top k1 of another monoBERT ranking.
    """
    for one in scored:
        added = chain.from_iterable(other.pairs(one.query_id).items() for other in others)
        yield replace(one, pairs={**one.pairs, **dict(added)}) if others else one


def deepest(reaches: Sequence[Reach]) -> int:
    """Return the greatest k0 for which every query's scores were kept."""
    limits = [reach.mono_depth for reach in reaches if reach.mono_depth < reach.found]
    return min(limits, default=max((reach.found for reach in reaches), default=0))


def widest(reaches: Iterable[Reach]) -> int:
    """Return the number of candidates whose pairs were kept for every query; 0 when no duo stage ran."""
    return min((reach.compared for reach in reaches if reach.found), default=0)


class _Trial:
    """One draw of a setting, measured a few queries at a time."""

    def __init__(self, setting: OperatingPoint, tally: Tally) -> None:
        self._setting, self._tally = setting, tally
        self._inferences = self._queries = 0

    def add(self, scored: Iterable[QueryScores]) -> None:
        """Derive these queries' rankings, measure them and forget them."""
        rankings = {}
        for one in scored:
            ranking, cost = derive(one, self._setting)
            rankings[one.query_id] = _documents(ranking)
            self._inferences += cost
            self._queries += 1
        self._tally.add(Run(rankings, name="derived"))

    def inferences(self) -> float:
        """Return the mean over the queries."""
        return self._inferences / self._queries

    def values(self) -> list[float]:
        """Return the measure's value, or the values of all measures that its name stands for."""
        return list(self._tally.evaluation("derived").overall.values())


def _draws(setting: OperatingPoint) -> Iterator[OperatingPoint]:
    """Yield the settings whose mean is the point."""
    trials = SAMPLE_TRIALS if setting.pairs == "sample" and setting.k1 > 1 else 1
    return (replace(setting, seed=setting.seed + trial) for trial in range(trials))


def _point(setting: OperatingPoint, trials: Sequence[_Trial]) -> Point:
    values = list(chain.from_iterable(trial.values() for trial in trials))
    return Point(setting, fmean(trial.inferences() for trial in trials), fmean(values))


def _worth(scored: QueryScores, rivals: Sequence[str], setting: OperatingPoint) -> tuple[dict[str, float], int]:
    """Return each rival's aggregated score, and the pairs that it took."""
    compared = Pairs(setting.pairs, setting.sample_size or 1, setting.seed).rivals(rivals)
    worth = {}
    for doc_id, others in zip(rivals, compared, strict=True):
        try:
            worth[doc_id] = aggregate([scored.pairs[doc_id, rivals[other]] for other in others], setting.pairs)
        except KeyError:
            raise _lacking(scored, f"duoBERT's probabilities for the pairs of the top {setting.k1}") from None
    return worth, sum(map(len, compared))


def _blended(scored: QueryScores, ranked: Sequence[str]) -> list[str]:
    """Return monoBERT's order with the first pass blended in, by the stage that a search uses.

    The stage reads monoBERT's score from the candidate; the trace entry only has to exist.
    """
    if scored.blend is None:
        raise _lacking(scored, "the way that the first pass was blended in")
    method, weight = scored.blend
    kept = set(ranked)
    order = (*ranked, *(doc_id for doc_id in scored.first_pass if doc_id not in kept))
    passed = {
        doc_id: StageScore(FIRST_PASS, scored.first_scores[doc_id], rank, 0.0)
        for rank, doc_id in enumerate(scored.first_pass, start=1)
    }
    candidates = [
        Candidate(doc_id, None, scored.mono[doc_id], rank, (passed[doc_id], StageScore("model", 0.0, rank, 0.0)))
        if doc_id in kept
        else Candidate(doc_id, None, passed[doc_id].score, rank, (passed[doc_id],))
        for rank, doc_id in enumerate(order, start=1)
    ]
    ranking = Ranking(Query(scored.query_id, "derived"), tuple(candidates))
    blended = BlendStage(method, weight, depth=len(ranked)).rerank(ranking)
    return [candidate.doc_id for candidate in blended.candidates[: len(ranked)]]


def _mono_depth(record: QueryRecord) -> int:
    stages = record.fields["stages"]
    return next((int(stage["candidates"]) for stage in reversed(stages) if stage["name"] in FIRST_STAGES), 0)


def _is_after_vectors(record: QueryRecord) -> bool:
    """Return whether a cross-encoder read the best of the stage ``vectors``."""
    return {stage["name"] for stage in record.fields["stages"]} >= set(FIRST_STAGES)


def _after_vectors(record: QueryRecord) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return the document ids in the order of the vectors, and the scores of those that the cross-encoder read."""
    ranks, scores = dict[str, int](), dict[str, float]()
    for one in record.fields["candidates"]:
        stages = one["stages"]
        if before := stages.get("blend") or stages.get("vectors"):
            ranks[one["doc_id"]] = int(before["rank"])
        if read := stages.get(BLENDED) or stages.get("mono"):
            scores[one["doc_id"]] = float(read["score"])
    found = [one["doc_id"] for one in record.fields["candidates"]]
    return tuple(sorted(found, key=lambda doc_id: ranks.get(doc_id, len(found) + 1))), scores


def _check_ranks(query_id: str, ranks: Sequence[int]) -> None:
    if list(ranks) != list(range(1, len(ranks) + 1)):
        raise EvaluationError(
            f"query {query_id}: the run lacks candidates of the first pass (its {len(ranks)} documents have ranks up "
            f"to {max(ranks)}); run it again with --hits at least --depth"
        )


def _pairs(record: QueryRecord) -> dict[tuple[str, str], float]:
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


def _lacking(scored: QueryScores, what: str) -> EvaluationError:
    return EvaluationError(
        f"query {scored.query_id}: the run lacks {what}; run it again with the greatest depth that you want to compare"
    )
