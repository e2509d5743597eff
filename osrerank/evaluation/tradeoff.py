"""Compute curves of quality against cost, in inferences per query, from the scores of one deep run.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 5, Figures 2 to 4.
Every point of a curve is derived from the saved scores of one deep run, without scoring again: monoBERT's scores of the
top k0 of the first pass, and duoBERT's probabilities p_ij for the pairs of monoBERT's top k1.
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
"""How many samples a Sample point is the mean of, as in the paper."""
BATCH_QUERIES = 50
"""How many queries' rankings are in memory at a time."""
Blend = tuple[Method, float]
"""How a run blended in its first pass: the method and the first pass's weight."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A setting of depths and aggregation, which is a point of a curve.

    Attributes:
        k0: how many candidates of the first pass monoBERT scores; with 0 there is only the first pass.
        k1: how many of monoBERT's candidates duoBERT compares with each other; with 0 or 1 there is only monoBERT.
        pairs: how a candidate's probabilities are aggregated.
        sample_size: how many other candidates are drawn for each candidate, without replacement; for ``sample`` only.
        seed: the seed of the draw.
        blended: whether the first pass is blended into monoBERT's order, as it was in the run.
    """

    k0: int
    k1: int = 0
    pairs: PairAggregation = "sum"
    sample_size: int = 0
    seed: int = 0
    blended: bool = False


@dataclass(frozen=True, slots=True)
class QueryScores:
    """The saved scores of a query in a deep run.

    Attributes:
        query_id: the query.
        first_pass: the document ids in first-pass order.
        mono: document id -> monoBERT's score, higher is better; documents that it could not score are absent.
        mono_depth: how many candidates from the top monoBERT was given.
        pairs: (i, j) -> p_ij in [0, 1], the probability that document i is better than document j.
        first_scores: document id -> the first pass's score; needed for a blended order only.
        blend: the blend's method and weight; None if the run had no blend.
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
        """Make the scores from a record of a run's side file; the file's first line has the blend.

        If the run's pipeline was ``vectors-mono``, the vectors' order takes the place of the first pass's.

        Raises:
            EvaluationError: candidates of the first pass are missing, so that no smaller depth can be derived.
        """
        if _is_after_vectors(record):
            return cls(record.query_id, *_after_vectors(record), _mono_depth(record), _pairs(record))
        candidates = sorted(record.fields["candidates"], key=lambda candidate: int(candidate["first_pass"]["rank"]))
        first_stage = (
            entry.get("vectors") or entry.get("mono") for entry in (candidate["stages"] for candidate in candidates)
        )
        scored = zip(candidates, first_stage, strict=True)
        mono = {candidate["doc_id"]: float(entry["score"]) for candidate, entry in scored if entry}
        _check_ranks(record.query_id, [int(candidate["first_pass"]["rank"]) for candidate in candidates])
        first_scores = {candidate["doc_id"]: float(candidate["first_pass"]["score"]) for candidate in candidates}
        return cls(record.query_id, tuple(first_scores), mono, _mono_depth(record), _pairs(record), first_scores, blend)


class Reach(NamedTuple):
    """How many candidates of a query were scored and compared.

    Attributes:
        found: how many candidates the first pass found.
        mono_depth: how many candidates from the top monoBERT was given.
        compared: how many candidates duoBERT compared with each other.
    """

    found: int
    mono_depth: int
    compared: int

    @classmethod
    def of(cls, record: QueryRecord) -> "Reach":
        """Count the candidates in a record of a run's side file.

        Raises:
            EvaluationError: as `QueryScores.of`.
        """
        ranks = sorted(int(candidate["first_pass"]["rank"]) for candidate in record.fields["candidates"])
        _check_ranks(record.query_id, ranks)
        rows = (record.fields.get("pairs") or {}).get("probabilities", ())
        compared = sum(any(probability is not None for probability in row) for row in rows)
        return cls(len(ranks), _mono_depth(record), compared)


class ScoredRun:
    """The scores of a run's queries, read from its side file for each iteration, so that they need not fit into memory.

    Args:
        path: the side file; it is read once here, and checked as a whole.
        blend: the blend that the file's first line has; None for no blend.

    Attributes:
        reaches: how many candidates of each query were scored.
        is_blended: whether the first pass was blended in.
        is_after_vectors: whether a cross-encoder read the best candidates of the stage ``vectors``.

    Raises:
        EvaluationError: the file is not a side file, or candidates of the first pass are missing.
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
        # After vectors, the first pass was blended with the vectors' order, not with the cross-encoder's.
        self.is_blended = blend is not None and not self.is_after_vectors

    def __iter__(self) -> Iterator[QueryScores]:
        return (QueryScores.of(record, self._blend) for record in read_records(self._path))

    def pairs(self, query_id: str) -> Mapping[tuple[str, str], float]:
        """Return a query's pair probabilities; empty if the query is not in the run."""
        offset = self._offsets.get(query_id)
        return {} if offset is None else _pairs(record_at(self._path, offset, query_id))


@dataclass(frozen=True, slots=True)
class Point:
    """A setting with its cost and its quality.

    Attributes:
        setting: the setting; for ``sample``, that of the first trial.
        inferences: how many forward passes a query takes, in the mean over the queries.
        quality: the measure's value, in the measure's own range.
    """

    setting: OperatingPoint
    inferences: float
    quality: float


def derive(scored: QueryScores, setting: OperatingPoint) -> tuple[tuple[str, ...], int]:
    """Return the ranking that a setting would have made, and the inferences it would have taken.

    The ranking has the top k0 of the first pass in monoBERT's order, and the rest below in the old order. The top k1 of
    that list are then put in the order of their aggregated pair probabilities. Ties keep the previous order. Inferences
    are min(k0, n) + k1(k1 - 1), with k1 * m in place of the second term if m others are sampled.

    Raises:
        EvaluationError: the run did not save a score that the setting needs.
    """
    block = scored.first_pass[: setting.k0]
    if len(block) > scored.mono_depth:
        raise _missing_scores(scored, f"monoBERT's scores below rank {scored.mono_depth}")
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
        scored: the scores of each query of the deep run, read once; a query without hits is left out, because it has no
            line in a run.
        settings: the points' settings; a Sample point is the mean of ten draws.
        qrels: the judgments.
        measure: the measure's name, as for ``measures.evaluate``.
        averaging: how rankings are cut and averaged, as for ``measures.evaluate``.
    """
    averaging = replace(averaging or Averaging(), single_precision=False)  # a derived score is a small whole number
    trials = [[_Trial(draw, Tally(qrels, [measure], averaging)) for draw in _draws(setting)] for setting in settings]
    with_hits = (query_scores for query_scores in scored if query_scores.first_pass)
    while batch := list(islice(with_hits, BATCH_QUERIES)):
        for trial in chain.from_iterable(trials):
            trial.add(batch)
    return [_point(setting, draws) for setting, draws in zip(settings, trials, strict=True)]


def join_pairs(scored: Iterable[QueryScores], *other_runs: ScoredRun) -> Iterator[QueryScores]:
    """Yield a run's scores of each query, with pair probabilities of other runs added.

    A run with another k0 compared other candidates, since its top k1 come from another monoBERT ranking.
    """
    for query_scores in scored:
        added = chain.from_iterable(other_run.pairs(query_scores.query_id).items() for other_run in other_runs)
        yield replace(query_scores, pairs={**query_scores.pairs, **dict(added)}) if other_runs else query_scores


def deepest(reaches: Sequence[Reach]) -> int:
    """Return the maximum k0 for which every query's scores were saved."""
    limits = [reach.mono_depth for reach in reaches if reach.mono_depth < reach.found]
    return min(limits, default=max((reach.found for reach in reaches), default=0))


def widest(reaches: Iterable[Reach]) -> int:
    """Return the number of candidates whose pairs were saved for every query; 0 if no duo stage ran."""
    return min((reach.compared for reach in reaches if reach.found), default=0)


class _Trial:
    """A draw of a setting, measured a few queries at a time."""

    def __init__(self, setting: OperatingPoint, tally: Tally) -> None:
        self._setting, self._tally = setting, tally
        self._inferences = self._queries = 0

    def add(self, scored: Iterable[QueryScores]) -> None:
        """Derive the queries' rankings, measure them, and keep only the values."""
        rankings = {}
        for query_scores in scored:
            ranking, cost = derive(query_scores, self._setting)
            rankings[query_scores.query_id] = _documents(ranking)
            self._inferences += cost
            self._queries += 1
        self._tally.add(Run(rankings, name="derived"))

    def inferences(self) -> float:
        """Return the mean number of inferences over the queries."""
        return self._inferences / self._queries

    def values(self) -> list[float]:
        """Return the measure's value, or the values of all measures that its name stands for."""
        return list(self._tally.evaluation("derived").overall.values())


def _draws(setting: OperatingPoint) -> Iterator[OperatingPoint]:
    """Yield the settings over whose values a point is the mean."""
    trials = SAMPLE_TRIALS if setting.pairs == "sample" and setting.k1 > 1 else 1
    return (replace(setting, seed=setting.seed + trial) for trial in range(trials))


def _point(setting: OperatingPoint, trials: Sequence[_Trial]) -> Point:
    values = list(chain.from_iterable(trial.values() for trial in trials))
    return Point(setting, fmean(trial.inferences() for trial in trials), fmean(values))


def _worth(scored: QueryScores, rivals: Sequence[str], setting: OperatingPoint) -> tuple[dict[str, float], int]:
    """Return each rival's aggregated score, and how many pairs were compared for all of them."""
    compared = Pairs(setting.pairs, setting.sample_size or 1, setting.seed).rivals(rivals)
    worth = {}
    for doc_id, other_indices in zip(rivals, compared, strict=True):
        try:
            worth[doc_id] = aggregate([scored.pairs[doc_id, rivals[index]] for index in other_indices], setting.pairs)
        except KeyError:
            raise _missing_scores(scored, f"duoBERT's probabilities for the pairs of the top {setting.k1}") from None
    return worth, sum(map(len, compared))


def _blended(scored: QueryScores, ranked: Sequence[str]) -> list[str]:
    """Return monoBERT's order with the first pass blended in, by the stage that a search uses.

    The stage reads monoBERT's score from the candidate; the trace entry only has to exist.
    """
    if scored.blend is None:
        raise _missing_scores(scored, "the way that the first pass was blended in")
    method, weight = scored.blend
    scored_ids = set(ranked)
    order = (*ranked, *(doc_id for doc_id in scored.first_pass if doc_id not in scored_ids))
    passed = {
        doc_id: StageScore(FIRST_PASS, scored.first_scores[doc_id], rank, 0.0)
        for rank, doc_id in enumerate(scored.first_pass, start=1)
    }
    candidates = [
        Candidate(doc_id, None, scored.mono[doc_id], rank, (passed[doc_id], StageScore("model", 0.0, rank, 0.0)))
        if doc_id in scored_ids
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
    """Return whether a cross-encoder read the best candidates of the stage ``vectors``."""
    return {stage["name"] for stage in record.fields["stages"]} >= set(FIRST_STAGES)


def _after_vectors(record: QueryRecord) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return the document ids in the vectors' order, and the scores of the documents that the cross-encoder read."""
    ranks, scores = dict[str, int](), dict[str, float]()
    for candidate in record.fields["candidates"]:
        stages = candidate["stages"]
        if vectors_stage := stages.get("blend") or stages.get("vectors"):
            ranks[candidate["doc_id"]] = int(vectors_stage["rank"])
        if cross_encoder_stage := stages.get(BLENDED) or stages.get("mono"):
            scores[candidate["doc_id"]] = float(cross_encoder_stage["score"])
    doc_ids = [candidate["doc_id"] for candidate in record.fields["candidates"]]
    return tuple(sorted(doc_ids, key=lambda doc_id: ranks.get(doc_id, len(doc_ids) + 1))), scores


def _check_ranks(query_id: str, ranks: Sequence[int]) -> None:
    if list(ranks) != list(range(1, len(ranks) + 1)):
        raise EvaluationError(
            f"query {query_id}: the run lacks candidates of the first pass (its {len(ranks)} documents have ranks up "
            f"to {max(ranks)}); run it again with --hits at least --depth"
        )


def _pairs(record: QueryRecord) -> dict[tuple[str, str], float]:
    matrix = record.fields.get("pairs")
    if matrix is None:
        return {}
    doc_ids = matrix["doc_ids"]
    return {
        (first, second): float(probability)
        for first, row in zip(doc_ids, matrix["probabilities"], strict=True)
        for second, probability in zip(doc_ids, row, strict=True)
        if probability is not None
    }


def _documents(ranking: Sequence[str]) -> tuple[ScoredDocument, ...]:
    return tuple(ScoredDocument(doc_id, float(-rank)) for rank, doc_id in enumerate(ranking, start=1))


def _missing_scores(scored: QueryScores, missing: str) -> EvaluationError:
    return EvaluationError(
        f"query {scored.query_id}: the run lacks {missing}; run it again with the greatest depth to compare"
    )
