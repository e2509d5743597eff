"""Compute curves of quality against cost, in inferences per query, from the saved scores of one deep run.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 5, Figures 2 to 4.
The run's side file (`evaluation.side_file`) contains monoBERT's scores for the first pass's top k0, and duoBERT's
probabilities p_ij for the pairs of monoBERT's top k1. Rankings at smaller depths are computed without running a model.
In the pipeline ``vectors-mono``, the ranking by document vectors takes the place of the first pass.
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
from osrerank.evaluation.values import score_by_rank
from osrerank.options.pairs import PairAggregation, Pairs
from osrerank.response import FIRST_PASS, FIRST_STAGES
from osrerank.stages.interpolate import VECTORS_BLEND, BlendStage, Method
from osrerank.stages.pairs import aggregate
from osrerank.types import Candidate, Qrels, Query, Ranking, Run, StageScore

SAMPLE_TRIALS = 10
"""The number of random draws whose mean is a point of the aggregation ``sample``, as in the paper."""
BATCH_QUERIES = 50
"""The number of queries whose rankings are in memory at a time."""
Blend = tuple[Method, float]
"""How a run's scores are blended with the first pass: the method and the first pass's weight, ``("linear", 0.5)``."""


@dataclass(frozen=True, slots=True)
class RerankSetting:
    """The depths and options of the rerankers at one point of a curve.

    Attributes:
        k0: the number of top first-pass candidates that monoBERT scores. If it is 0, monoBERT does not run.
        k1: the number of monoBERT's top candidates that duoBERT compares in pairs. If it is below 2, duoBERT does not
            run.
        aggregation: how a candidate's pair probabilities are aggregated.
        sample_size: for ``sample``, the number of rivals drawn for each candidate, without replacement.
        seed: the seed of the draws.
        uses_blend: whether monoBERT's scores are blended with the first pass, as in the run.
    """

    k0: int
    k1: int = 0
    aggregation: PairAggregation = "sum"
    sample_size: int = 0
    seed: int = 0
    uses_blend: bool = False


@dataclass(frozen=True, slots=True)
class QueryScores:
    """The saved scores of a query in a deep run.

    Attributes:
        query_id: the query's id.
        first_pass_ids: the document ids in first-pass order.
        mono: monoBERT's score of each document, higher is better. Documents whose scoring failed are absent.
        mono_depth: the number of top candidates passed to monoBERT.
        pairs: for each pair of document ids (i, j), the probability p_ij that i is better than j.
        first_pass_scores: the first-pass score of each document. Only settings with a blend need it.
        blend: the run's blend, or None if the run has none.
    """

    query_id: str
    first_pass_ids: tuple[str, ...]
    mono: Mapping[str, float]
    mono_depth: int
    pairs: Mapping[tuple[str, str], float]
    first_pass_scores: Mapping[str, float] = field(default_factory=dict)
    blend: Blend | None = None

    @classmethod
    def from_record(cls, record: QueryRecord, blend: Blend | None = None) -> "QueryScores":
        """Extract the scores from a record of a run's side file. The file's first line contains the blend.

        Raises:
            EvaluationError: first-pass candidates are missing, so rankings at smaller depths cannot be computed.
        """
        mono_depth = _read_mono_depth(record)
        pairs = _read_pairs(record)
        if _is_vectors_mono(record):
            ids_by_vectors, mono = _read_vectors_mono(record)
            return cls(record.query_id, first_pass_ids=ids_by_vectors, mono=mono, mono_depth=mono_depth, pairs=pairs)
        candidates = sorted(record.fields["candidates"], key=lambda candidate: int(candidate["first_pass"]["rank"]))
        _validate_ranks(record.query_id, [int(candidate["first_pass"]["rank"]) for candidate in candidates])
        mono = {}
        for candidate in candidates:
            stages = candidate["stages"]
            model_entry = stages.get("vectors") or stages.get("mono")  # the run has one of these stages
            if model_entry:
                mono[candidate["doc_id"]] = float(model_entry["score"])
        scores = {candidate["doc_id"]: float(candidate["first_pass"]["score"]) for candidate in candidates}
        return cls(record.query_id, tuple(scores), mono, mono_depth, pairs, scores, blend)


class QueryDepths(NamedTuple):
    """How many candidates of a query were retrieved, scored and compared.

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
        compared_rows = [row for row in rows if any(probability is not None for probability in row)]
        return cls(len(ranks), _read_mono_depth(record), n_compared=len(compared_rows))


class ScoredRun:
    """The scores of a run's queries. Iterating over it reads them from the side file, so they need not fit into memory.

    Args:
        path: the side file. The constructor reads it once, to validate it.
        blend: the run's blend, from the file's first line, or None if the run has none.

    Attributes:
        depths: the depths of each query.
        is_blended: whether monoBERT's scores were blended with the first pass.
        is_vectors_mono: whether the run used the pipeline ``vectors-mono``.

    Raises:
        EvaluationError: the file is not a side file, or first-pass candidates are missing.
    """

    def __init__(self, path: Path, blend: Blend | None = None) -> None:
        self._path = path
        self._blend = blend
        self._offsets: dict[str, int] = {}
        self.depths: list[QueryDepths] = []
        self.is_vectors_mono = False
        for offset, record in read_records_with_offsets(path):
            self._offsets[record.query_id] = offset
            self.depths.append(QueryDepths.from_record(record))
            self.is_vectors_mono |= _is_vectors_mono(record)
        # In vectors-mono, the first pass is blended with the vectors' scores, not with the cross-encoder's.
        self.is_blended = blend is not None and not self.is_vectors_mono

    def __iter__(self) -> Iterator[QueryScores]:
        return (QueryScores.from_record(record, self._blend) for record in read_records(self._path))

    def read_pairs(self, query_id: str) -> Mapping[tuple[str, str], float]:
        """Return a query's pair probabilities, or an empty mapping if the query is not in the run."""
        offset = self._offsets.get(query_id)
        return {} if offset is None else _read_pairs(read_record_at(self._path, offset, query_id))


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve.

    Attributes:
        setting: the depths and options of the rerankers.
        inferences: the cost, which is the mean number of forward passes per query.
        quality: the value of the measure.
    """

    setting: RerankSetting
    inferences: float
    quality: float


def derive_ranking(scored: QueryScores, setting: RerankSetting) -> tuple[tuple[str, ...], int]:
    """Return the ranking with a setting as document ids, best first, and the number of inferences that it takes.

    MonoBERT's scores order the first pass's top k0. Aggregated pair probabilities then order the top k1. Documents
    below these depths and ties keep their previous order. A query with n hits takes min(k0, n) + k1(k1 - 1) inferences.
    If m rivals are sampled for each candidate, the second term is k1 * m.

    Raises:
        EvaluationError: the run does not contain a score that the setting needs.
    """
    top_ids = scored.first_pass_ids[: setting.k0]
    if len(top_ids) > scored.mono_depth:
        raise _missing_scores_error(scored, f"monoBERT's scores below rank {scored.mono_depth}")
    unscored_ids = [doc_id for doc_id in top_ids if doc_id not in scored.mono]
    scored_ids = [doc_id for doc_id in top_ids if doc_id in scored.mono]
    mono_ids = sorted(scored_ids, key=lambda doc_id: -scored.mono[doc_id])
    if setting.uses_blend:
        mono_ids = _blend_with_first_pass(scored, mono_ids)
    ranking = (*mono_ids, *unscored_ids, *scored.first_pass_ids[len(top_ids) :])
    if setting.k1 < 2:
        return ranking, len(top_ids)
    compared_ids = ranking[: min(setting.k1, len(top_ids))]
    duo_scores, n_pairs = _aggregate_pairs(scored, compared_ids, setting)
    duo_ids = sorted(compared_ids, key=lambda doc_id: -duo_scores[doc_id])
    return (*duo_ids, *ranking[len(compared_ids) :]), len(top_ids) + n_pairs


def compute_curve(
    scored: Iterable[QueryScores],
    settings: Sequence[RerankSetting],
    qrels: Qrels,
    measure: str,
    averaging: Averaging | None = None,
) -> list[Point]:
    """Return the cost and quality with each setting.

    The scores are read once. Queries without hits are left out, because a run file contains no lines for them. With the
    aggregation ``sample``, each point is the mean of ten draws.
    """
    # trec_eval's rounding to 32 bits concerns models' scores; the derived rankings have the scores n, n-1, ..., 1
    averaging = replace(averaging or Averaging(), single_precision=False)
    trials_by_setting = []  # one trial for each setting, or ten with different seeds
    for setting in settings:
        seeded_settings = _vary_seed(setting)
        trials = [_Trial(seeded, Evaluator(qrels, [measure], averaging)) for seeded in seeded_settings]
        trials_by_setting.append(trials)
    scored_with_hits = (query_scores for query_scores in scored if query_scores.first_pass_ids)
    while batch := list(islice(scored_with_hits, BATCH_QUERIES)):
        for trial in chain.from_iterable(trials_by_setting):
            trial.add(batch)
    return [_average_trials(setting, trials) for setting, trials in zip(settings, trials_by_setting, strict=True)]


def add_pairs(scored: Iterable[QueryScores], *other_runs: ScoredRun) -> Iterator[QueryScores]:
    """Add the pair probabilities of other runs to each query's scores.

    A run contains only the pairs for its k0, because another k0 can put other candidates into the top k1.
    """
    for query_scores in scored:
        pairs = dict(query_scores.pairs)
        for other_run in other_runs:
            pairs.update(other_run.read_pairs(query_scores.query_id))
        yield replace(query_scores, pairs=pairs)


def find_max_k0(depths: Sequence[QueryDepths]) -> int:
    """Return the maximum k0 for which all queries have monoBERT's scores. A query can have fewer than k0 hits."""
    limits = [query.mono_depth for query in depths if query.mono_depth < query.n_hits]
    if limits:
        return min(limits)
    return max((query.n_hits for query in depths), default=0)  # monoBERT scored all hits


def find_max_k1(depths: Sequence[QueryDepths]) -> int:
    """Return the maximum k1 for which all queries have pair probabilities, or 0 if no duo stage ran.

    A query can have fewer than k1 hits.
    """
    with_pairs = [query for query in depths if query.n_hits > 1]
    limits = [query.n_compared for query in with_pairs if query.n_compared < query.n_hits]
    if limits:
        return min(limits)
    return max((query.n_compared for query in depths), default=0)  # duoBERT compared all hits


class _Trial:
    """Measures the rankings with a setting, one batch of queries at a time."""

    def __init__(self, setting: RerankSetting, evaluator: Evaluator) -> None:
        self._setting = setting
        self._evaluator = evaluator
        self._n_inferences = 0
        self._n_queries = 0

    def add(self, scored: Iterable[QueryScores]) -> None:
        rankings = {}
        for query_scores in scored:
            ranking, cost = derive_ranking(query_scores, self._setting)
            rankings[query_scores.query_id] = score_by_rank(ranking)
            self._n_inferences += cost
            self._n_queries += 1
        self._evaluator.add(Run(rankings, name="derived"))

    def mean_inferences(self) -> float:
        return self._n_inferences / self._n_queries

    def values(self) -> list[float]:
        """Return the measure's value, or several values if the name is an alias of several measures."""
        return list(self._evaluator.summarise("derived").overall.values())


def _vary_seed(setting: RerankSetting) -> Iterator[RerankSetting]:
    """Yield the setting with seeds for ten random draws, or unchanged if nothing is drawn."""
    n_trials = SAMPLE_TRIALS if setting.aggregation == "sample" and setting.k1 > 1 else 1
    return (replace(setting, seed=setting.seed + number) for number in range(n_trials))


def _average_trials(setting: RerankSetting, trials: Sequence[_Trial]) -> Point:
    values = list(chain.from_iterable(trial.values() for trial in trials))
    return Point(setting, fmean(trial.mean_inferences() for trial in trials), fmean(values))


def _aggregate_pairs(
    scored: QueryScores, doc_ids: Sequence[str], setting: RerankSetting
) -> tuple[dict[str, float], int]:
    """Return each document's aggregated pair probability, and the number of pairs."""
    # for each document, the indices of the documents that it is compared with
    rivals = Pairs(setting.aggregation, setting.sample_size or 1, setting.seed).choose_rivals(doc_ids)
    aggregated = {}
    for doc_id, rival_indices in zip(doc_ids, rivals, strict=True):
        try:
            probabilities = [scored.pairs[doc_id, doc_ids[index]] for index in rival_indices]
        except KeyError:
            reason = f"duoBERT's probabilities for the pairs of the top {setting.k1}"
            raise _missing_scores_error(scored, reason) from None
        aggregated[doc_id] = aggregate(probabilities, setting.aggregation)
    n_pairs = sum(len(rival_indices) for rival_indices in rivals)
    return aggregated, n_pairs


def _blend_with_first_pass(scored: QueryScores, mono_ids: Sequence[str]) -> list[str]:
    """Return the order after blending monoBERT's scores with the first pass, by the same stage as in a search.

    The stage blends only candidates with a second entry in ``trace``, which are those that a model scored.
    """
    if scored.blend is None:
        raise _missing_scores_error(scored, "a blend with the first pass")
    method, weight = scored.blend
    scored_ids = set(mono_ids)
    order = (*mono_ids, *(doc_id for doc_id in scored.first_pass_ids if doc_id not in scored_ids))
    first_pass = {}
    for rank, doc_id in enumerate(scored.first_pass_ids, start=1):
        first_pass[doc_id] = StageScore(FIRST_PASS, scored.first_pass_scores[doc_id], rank, unit=0.0)
    candidates = []
    for rank, doc_id in enumerate(order, start=1):
        if doc_id in scored_ids:
            score = scored.mono[doc_id]
            model_entry = StageScore("model", score=0.0, rank=rank, unit=0.0)  # the stage does not read its values
            trace: tuple[StageScore, ...] = (first_pass[doc_id], model_entry)
        else:
            score = first_pass[doc_id].score
            trace = (first_pass[doc_id],)
        candidates.append(Candidate(doc_id, None, score, rank, trace))
    ranking = Ranking(Query(scored.query_id, "derived"), tuple(candidates))
    blended = BlendStage(method, weight, depth=len(mono_ids)).rerank(ranking)
    return [candidate.doc_id for candidate in blended.candidates[: len(mono_ids)]]


def _read_mono_depth(record: QueryRecord) -> int:
    """Return the number of candidates of the stage ``mono``, or of ``vectors`` if only that ran, or 0 if none ran."""
    for stage in reversed(record.fields["stages"]):
        if stage["name"] in FIRST_STAGES:
            return int(stage["candidates"])
    return 0


def _is_vectors_mono(record: QueryRecord) -> bool:
    """Return whether both ``vectors`` and ``mono`` ran. Other pipelines have only one of these stages."""
    return {stage["name"] for stage in record.fields["stages"]} >= set(FIRST_STAGES)


def _read_vectors_mono(record: QueryRecord) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return the document ids in the order of the stage ``vectors``, and the cross-encoder's scores by document id."""
    ranks: dict[str, int] = {}
    scores: dict[str, float] = {}
    for candidate in record.fields["candidates"]:
        stages = candidate["stages"]
        # "blend" is the first pass with the vectors, and VECTORS_BLEND is the vectors with the cross-encoder.
        if vectors_stage := stages.get("blend") or stages.get("vectors"):
            ranks[candidate["doc_id"]] = int(vectors_stage["rank"])
        if cross_encoder_stage := stages.get(VECTORS_BLEND) or stages.get("mono"):
            scores[candidate["doc_id"]] = float(cross_encoder_stage["score"])
    doc_ids = [candidate["doc_id"] for candidate in record.fields["candidates"]]
    return tuple(sorted(doc_ids, key=lambda doc_id: ranks.get(doc_id, len(doc_ids) + 1))), scores


def _validate_ranks(query_id: str, ranks: Sequence[int]) -> None:
    if list(ranks) != list(range(1, len(ranks) + 1)):
        raise EvaluationError(
            f"the run does not contain all candidates of query {query_id} (its {len(ranks)} documents have ranks up to "
            f"{max(ranks)}); create it again by osrerank run with --hits at least as high as --depth"
        )


def _read_pairs(record: QueryRecord) -> dict[tuple[str, str], float]:
    """Return the probabilities of a record's pairs, such as ``{("d1", "d2"): 0.7, ("d2", "d1"): 0.3}``."""
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


def _missing_scores_error(scored: QueryScores, missing: str) -> EvaluationError:
    return EvaluationError(
        f"the run does not contain {missing} for query {scored.query_id}; run it again at the maximum depth to compare"
    )
