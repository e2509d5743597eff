"""Compute curves of quality against cost, in inferences per query, from one run's saved scores.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 5, Figures 2 to 4.
A run's side file (`evaluation.side_file`) contains monoBERT's scores for the first pass's top k0, and duoBERT's
probabilities p_ij for the pairs of monoBERT's top k1. Rankings at smaller depths are computed without running a model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from osrerank.errors import EvaluationError
from osrerank.evaluation.measures import Averaging, Evaluator
from osrerank.evaluation.records import QueryRecord
from osrerank.evaluation.side_file import read_record_at, read_records, read_records_with_offsets
from osrerank.options.pairs import PairAggregation, Pairs
from osrerank.response import FIRST_PASS, FIRST_STAGES
from osrerank.stages.interpolate import BLENDED, BlendStage, Method
from osrerank.stages.pairs import aggregate
from osrerank.types import Candidate, Qrels, Query, Ranking, Run, ScoredDocument, StageScore

SAMPLE_TRIALS = 10
"""The number of random samples over which a point of the aggregation ``sample`` is averaged, as in the paper."""
BATCH_QUERIES = 50
"""The number of queries whose rankings are in memory at a time."""
Blend = tuple[Method, float]
"""How a run blends scores with the first pass, and the weight of the first pass."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The depths and aggregation of one point of a curve.

    Attributes:
        k0: the number of top first-pass candidates that monoBERT scores. 0 leaves the first pass unchanged.
        k1: the number of monoBERT's top candidates that duoBERT compares in pairs. Below 2, duoBERT does not run.
        pairs: the aggregation of a candidate's pair probabilities.
        sample_size: for ``sample``, the number of rivals drawn for each candidate, without replacement.
        seed: the seed of the draws.
        blended: whether monoBERT's scores are blended with the first pass, as in the run.
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
        query_id: the query's id.
        first_pass: the document ids in first-pass order.
        mono: document id -> monoBERT's score, higher is better. Documents whose scoring failed are absent.
        mono_depth: the number of top candidates passed to monoBERT.
        pairs: (i, j) -> p_ij in [0, 1], the probability that document i is better than document j.
        first_scores: document id -> first-pass score, which only blended settings need.
        blend: the run's blend, or None if the run is not blended.
    """

    query_id: str
    first_pass: tuple[str, ...]
    mono: Mapping[str, float]
    mono_depth: int
    pairs: Mapping[tuple[str, str], float]
    first_scores: Mapping[str, float] = field(default_factory=dict)
    blend: Blend | None = None

    @classmethod
    def from_record(cls, record: QueryRecord, blend: Blend | None = None) -> "QueryScores":
        """Extract the scores from a record of a run's side file. The file's first line contains the blend.

        In a run of the pipeline ``vectors-mono``, the order by vectors takes the place of the first pass.

        Raises:
            EvaluationError: first-pass candidates are missing, so rankings at smaller depths cannot be computed.
        """
        if _is_after_vectors(record):
            return cls(record.query_id, *_vectors_order_and_scores(record), _mono_depth(record), _pairs(record))
        candidates = sorted(record.fields["candidates"], key=lambda candidate: int(candidate["first_pass"]["rank"]))
        _validate_ranks(record.query_id, [int(candidate["first_pass"]["rank"]) for candidate in candidates])
        mono = {}
        for candidate in candidates:
            stages = candidate["stages"]
            if entry := stages.get("vectors") or stages.get("mono"):
                mono[candidate["doc_id"]] = float(entry["score"])
        first_scores = {candidate["doc_id"]: float(candidate["first_pass"]["score"]) for candidate in candidates}
        return cls(record.query_id, tuple(first_scores), mono, _mono_depth(record), _pairs(record), first_scores, blend)


class QueryDepths(NamedTuple):
    """The numbers of a query's candidates that were retrieved, scored and compared.

    Attributes:
        n_hits: the number of hits of the first pass.
        mono_depth: the number of top candidates passed to monoBERT.
        n_compared: the number of candidates that duoBERT compared in pairs.
    """

    n_hits: int
    mono_depth: int
    n_compared: int

    @classmethod
    def from_record(cls, record: QueryRecord) -> "QueryDepths":
        """Count the candidates in a record of a run's side file.

        Raises:
            EvaluationError: first-pass candidates are missing.
        """
        ranks = sorted(int(candidate["first_pass"]["rank"]) for candidate in record.fields["candidates"])
        _validate_ranks(record.query_id, ranks)
        rows = (record.fields.get("pairs") or {}).get("probabilities", ())
        n_compared = sum(any(probability is not None for probability in row) for row in rows)
        return cls(len(ranks), _mono_depth(record), n_compared)


class ScoredRun:
    """An iterable of the scores of a run's queries, which are read from the side file on each iteration.

    Args:
        path: the side file. The constructor reads it once, to validate it.
        blend: the run's blend, from the file's first line, or None if the run is not blended.

    Attributes:
        depths: the depths of each query.
        is_blended: whether monoBERT's scores were blended with the first pass.
        is_after_vectors: whether a cross-encoder scored the top candidates of the stage ``vectors``.

    Raises:
        EvaluationError: the file is not a side file, or first-pass candidates are missing.
    """

    def __init__(self, path: Path, blend: Blend | None = None) -> None:
        self._path, self._blend = path, blend
        self._offsets: dict[str, int] = {}
        self.depths: list[QueryDepths] = []
        self.is_after_vectors = False
        for offset, record in read_records_with_offsets(path):
            self._offsets[record.query_id] = offset
            self.depths.append(QueryDepths.from_record(record))
            self.is_after_vectors |= _is_after_vectors(record)
        # In vectors-mono, the first pass is blended with the vectors' scores, not with the cross-encoder's.
        self.is_blended = blend is not None and not self.is_after_vectors

    def __iter__(self) -> Iterator[QueryScores]:
        return (QueryScores.from_record(record, self._blend) for record in read_records(self._path))

    def read_pairs(self, query_id: str) -> Mapping[tuple[str, str], float]:
        """Return a query's pair probabilities, or none if the query is not in the run."""
        offset = self._offsets.get(query_id)
        return {} if offset is None else _pairs(read_record_at(self._path, offset, query_id))


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve: a setting with its cost and quality.

    Attributes:
        setting: the setting. For the aggregation ``sample``, the setting of the first sample.
        inferences: the mean number of forward passes per query.
        quality: the value of the measure.
    """

    setting: OperatingPoint
    inferences: float
    quality: float


def derive_ranking(scored: QueryScores, setting: OperatingPoint) -> tuple[tuple[str, ...], int]:
    """Return a setting's ranking as document ids, best first, and the number of inferences that it takes.

    MonoBERT's scores order the first pass's top k0. Aggregated pair probabilities then order the top k1. Lower ranks
    and ties keep their previous order. With n hits, the inferences are min(k0, n) + k1(k1 - 1). If m rivals are
    sampled for each candidate, the second term is k1 * m.

    Raises:
        EvaluationError: the run does not contain a score that the setting needs.
    """
    block = scored.first_pass[: setting.k0]
    if len(block) > scored.mono_depth:
        raise _missing_scores_error(scored, f"monoBERT's scores below rank {scored.mono_depth}")
    unscored_ids = [doc_id for doc_id in block if doc_id not in scored.mono]
    ranked_ids = sorted((doc_id for doc_id in block if doc_id in scored.mono), key=lambda doc_id: -scored.mono[doc_id])
    if setting.blended:
        ranked_ids = _blend_with_first_pass(scored, ranked_ids)
    ranking = (*ranked_ids, *unscored_ids, *scored.first_pass[len(block) :])
    if setting.k1 < 2:
        return ranking, len(block)
    rivals = ranking[: min(setting.k1, len(block))]
    duo_scores, n_pairs = _aggregate_pairs(scored, rivals, setting)
    by_duo = sorted(rivals, key=lambda doc_id: -duo_scores[doc_id])
    return (*by_duo, *ranking[len(rivals) :]), len(block) + n_pairs


def compute_curve(
    scored: Iterable[QueryScores],
    settings: Sequence[OperatingPoint],
    qrels: Qrels,
    measure: str,
    averaging: Averaging | None = None,
) -> list[Point]:
    """Return a point for each setting.

    Args:
        scored: each query's scores, which are read once. Queries without hits are left out, because a run file contains
            no lines for them.
        settings: the settings. With the aggregation ``sample``, a point is the mean of ten samples.
        qrels: the judgments.
        measure: the measure's name, as for `measures.evaluate`.
        averaging: the documents and queries to measure, as for `measures.evaluate`.
    """
    averaging = replace(averaging or Averaging(), single_precision=False)  # scores are small integers
    trials = [
        [_Trial(sample, Evaluator(qrels, [measure], averaging)) for sample in _sample_settings(setting)]
        for setting in settings
    ]
    scored_with_hits = (query_scores for query_scores in scored if query_scores.first_pass)
    while batch := list(islice(scored_with_hits, BATCH_QUERIES)):
        for trial in chain.from_iterable(trials):
            trial.add(batch)
    return [_average_trials(setting, samples) for setting, samples in zip(settings, trials, strict=True)]


def join_pairs(scored: Iterable[QueryScores], *other_runs: ScoredRun) -> Iterator[QueryScores]:
    """Add the pair probabilities of other runs to each query's scores.

    Runs with different k0 have different pairs, since their top k1 come from different monoBERT rankings.
    """
    for query_scores in scored:
        pairs = dict(query_scores.pairs)
        for other_run in other_runs:
            pairs.update(other_run.read_pairs(query_scores.query_id))
        yield replace(query_scores, pairs=pairs)


def max_k0(depths: Sequence[QueryDepths]) -> int:
    """Return the maximum k0 for which all queries have monoBERT's scores."""
    limits = [query.mono_depth for query in depths if query.mono_depth < query.n_hits]
    return min(limits, default=max((query.n_hits for query in depths), default=0))


def max_k1(depths: Iterable[QueryDepths]) -> int:
    """Return the maximum k1 for which all queries have pair probabilities. It is 0 if no duo stage ran."""
    return min((query.n_compared for query in depths if query.n_hits), default=0)


class _Trial:
    """Measures the rankings of a setting, one batch of queries at a time."""

    def __init__(self, setting: OperatingPoint, evaluator: Evaluator) -> None:
        self._setting, self._evaluator = setting, evaluator
        self._inferences = 0
        self._queries = 0

    def add(self, scored: Iterable[QueryScores]) -> None:
        """Derive and measure the rankings of a batch of queries."""
        rankings = {}
        for query_scores in scored:
            ranking, cost = derive_ranking(query_scores, self._setting)
            rankings[query_scores.query_id] = _documents(ranking)
            self._inferences += cost
            self._queries += 1
        self._evaluator.add(Run(rankings, name="derived"))

    def inferences(self) -> float:
        """Return the mean number of inferences over the queries."""
        return self._inferences / self._queries

    def values(self) -> list[float]:
        """Return the measure's value, or several values if the name is an alias of several measures."""
        return list(self._evaluator.evaluation("derived").overall.values())


def _sample_settings(setting: OperatingPoint) -> Iterator[OperatingPoint]:
    """Yield the setting with the seed of each sample over which a point is averaged."""
    trials = SAMPLE_TRIALS if setting.pairs == "sample" and setting.k1 > 1 else 1
    return (replace(setting, seed=setting.seed + trial) for trial in range(trials))


def _average_trials(setting: OperatingPoint, trials: Sequence[_Trial]) -> Point:
    values = list(chain.from_iterable(trial.values() for trial in trials))
    return Point(setting, fmean(trial.inferences() for trial in trials), fmean(values))


def _aggregate_pairs(
    scored: QueryScores, doc_ids: Sequence[str], setting: OperatingPoint
) -> tuple[dict[str, float], int]:
    """Return document id -> aggregated pair probability, and the number of pairs."""
    rivals = Pairs(setting.pairs, setting.sample_size or 1, setting.seed).rivals(doc_ids)
    aggregated = {}
    for doc_id, rival_indices in zip(doc_ids, rivals, strict=True):
        try:
            probabilities = [scored.pairs[doc_id, doc_ids[index]] for index in rival_indices]
        except KeyError:
            reason = f"duoBERT's probabilities for the pairs of the top {setting.k1}"
            raise _missing_scores_error(scored, reason) from None
        aggregated[doc_id] = aggregate(probabilities, setting.pairs)
    return aggregated, sum(map(len, rivals))


def _blend_with_first_pass(scored: QueryScores, ranked: Sequence[str]) -> list[str]:
    """Return monoBERT's order after blending with the first pass in the same stage as in a search.

    The stage uses the candidate's score, which is monoBERT's, and only requires a model's entry in the trace.
    """
    if scored.blend is None:
        raise _missing_scores_error(scored, "a blend with the first pass")
    method, weight = scored.blend
    scored_ids = set(ranked)
    order = (*ranked, *(doc_id for doc_id in scored.first_pass if doc_id not in scored_ids))
    first_pass = {
        doc_id: StageScore(FIRST_PASS, scored.first_scores[doc_id], rank, 0.0)
        for rank, doc_id in enumerate(scored.first_pass, start=1)
    }
    candidates = [
        Candidate(doc_id, None, scored.mono[doc_id], rank, (first_pass[doc_id], StageScore("model", 0.0, rank, 0.0)))
        if doc_id in scored_ids
        else Candidate(doc_id, None, first_pass[doc_id].score, rank, (first_pass[doc_id],))
        for rank, doc_id in enumerate(order, start=1)
    ]
    ranking = Ranking(Query(scored.query_id, "derived"), tuple(candidates))
    blended = BlendStage(method, weight, depth=len(ranked)).rerank(ranking)
    return [candidate.doc_id for candidate in blended.candidates[: len(ranked)]]


def _mono_depth(record: QueryRecord) -> int:
    stages = record.fields["stages"]
    return next((int(stage["candidates"]) for stage in reversed(stages) if stage["name"] in FIRST_STAGES), 0)


def _is_after_vectors(record: QueryRecord) -> bool:
    """Return whether a cross-encoder scored the top candidates of the stage ``vectors``."""
    return {stage["name"] for stage in record.fields["stages"]} >= set(FIRST_STAGES)


def _vectors_order_and_scores(record: QueryRecord) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return the document ids in the order of the stage ``vectors``, and document id -> cross-encoder score."""
    ranks: dict[str, int] = {}
    scores: dict[str, float] = {}
    for candidate in record.fields["candidates"]:
        stages = candidate["stages"]
        if vectors_stage := stages.get("blend") or stages.get("vectors"):
            ranks[candidate["doc_id"]] = int(vectors_stage["rank"])
        if cross_encoder_stage := stages.get(BLENDED) or stages.get("mono"):
            scores[candidate["doc_id"]] = float(cross_encoder_stage["score"])
    doc_ids = [candidate["doc_id"] for candidate in record.fields["candidates"]]
    return tuple(sorted(doc_ids, key=lambda doc_id: ranks.get(doc_id, len(doc_ids) + 1))), scores


def _validate_ranks(query_id: str, ranks: Sequence[int]) -> None:
    if list(ranks) != list(range(1, len(ranks) + 1)):
        raise EvaluationError(
            f"the run does not contain all candidates of query {query_id} (its {len(ranks)} documents have ranks up to "
            f"{max(ranks)}); run it again with --hits at least --depth"
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


def _missing_scores_error(scored: QueryScores, missing: str) -> EvaluationError:
    return EvaluationError(
        f"the run does not contain {missing} for query {scored.query_id}; run it again at the maximum depth to compare"
    )
