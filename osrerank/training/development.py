"""Measure a network on a development set during training, so that the best weights can be chosen.

`plan_schedule` decides how often the network is measured, and on how many of the set's queries.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch

from osrerank.errors import ConfigError, EvaluationError
from osrerank.evaluation.basic import average_precision, ndcg, reciprocal_rank
from osrerank.options.passages import Passages
from osrerank.scoring.card import Kind, logistic
from osrerank.scoring.inputs import Tokens, pad
from osrerank.stages.passages import AGGREGATIONS
from osrerank.training.documents import split_document
from osrerank.training.examples.batches import WIDTH_MULTIPLE, plan_batches, split_by_counts
from osrerank.training.examples.duo import build_ordered_pairs
from osrerank.training.examples.example import Example
from osrerank.training.losses import raw_scores
from osrerank.training.objective import move_to_device
from osrerank.training.weights.models import Trainee

MEASURES = {"nDCG": ndcg, "RR": reciprocal_rank, "AP": average_precision}
RAW_SCORE_AGGREGATIONS = ("maxp", "firstp")
"""Passage aggregations that need only raw scores, not probabilities."""
MAX_MEASURING_FRACTION = 0.1
"""The fraction of the whole time that measuring may take, unless the recipe sets ``evaluate_every``."""
MAX_MEASUREMENTS = 10
MIN_MEASUREMENTS = 2
MIN_QUERIES = 10
"""The minimum number of queries to measure. With fewer queries, chance would decide which weights seem best."""
HOW_TO_MEASURE_ALL = "set evaluate_every=STEPS in the recipe to measure all of them after every STEPS steps"
CHARACTERS_PER_TOKEN = 5
"""The assumed number of characters in a token, which is that of English text."""


@dataclass(frozen=True, slots=True)
class NetworkScorer:
    """Scores sequences and documents with a network during training.

    Attributes:
        device: the network's device.
        budget_tokens: the maximum number of tokens in a batch, including padding.
        autocast: returns a context in which matrix products have the training's precision.
    """

    device: torch.device
    budget_tokens: int
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext

    def score_sequences(self, trainee: Trainee, sequences: Sequence[Tokens]) -> list[float]:
        """Return a raw score for each sequence, without dropout; higher is better."""
        scores = np.zeros(len(sequences))
        was_training = trainee.network.training
        trainee.network.eval()
        with torch.inference_mode(), self.autocast():
            for indices in plan_batches(
                [[tokens] for tokens in sequences], self.budget_tokens, multiple=WIDTH_MULTIPLE
            ):
                batch_sequences = [sequences[index] for index in indices]
                batch = pad(batch_sequences, trainee.pad_id, multiple=WIDTH_MULTIPLE, max_width=trainee.card.max_tokens)
                logits = trainee.network(**move_to_device(self.device, batch)).float()
                scores[indices] = raw_scores(logits, trainee.card.head).cpu().numpy()
        trainee.network.train(was_training)
        return [float(score) for score in scores]

    def score_documents(self, trainee: Trainee, examples: Iterable[Example]) -> Iterator[list[float]]:
        """Yield the scores of each example's documents. A duo model's scores are sums over pairs of documents."""
        for example in examples:
            if trainee.card.kind == "duo":
                yield self._sum_pairs(trainee, example)
            else:
                query = trainee.builder.tokenise_query(example.query)
                texts = trainee.builder.tokenise_documents(example.documents, query)
                yield self.score_sequences(trainee, [trainee.builder.build_mono(query, text) for text in texts])

    def _sum_pairs(self, trainee: Trainee, example: Example) -> list[float]:
        """Return for each document the sum of the probabilities that it is more relevant than each other document.

        This is equation 3 of arXiv 1910.14424.
        """
        pairs, sequences = build_ordered_pairs(trainee.builder, example.query, example.documents)
        probabilities = logistic(np.array(self.score_sequences(trainee, sequences), dtype=np.float32))
        sums = np.zeros(len(example.documents))
        np.add.at(sums, [first for first, _ in pairs], probabilities)
        return [float(value) for value in sums]


@dataclass(frozen=True, slots=True)
class DevelopmentSet:
    """Queries with judged candidates, to measure the network during training.

    Attributes:
        examples: each query's candidates, in the first pass's order, with their relevance.
        measure: ``nDCG@k``, ``RR@k``, ``AP@k`` or ``AP``. Relevant documents that are not candidates count as missed.
        depth: the number of candidates of each query that are reordered. The others keep their ranks.
        passages: the options for splitting documents and aggregating their passages' scores. If None, documents are not
            split.
    """

    examples: Sequence[Example]
    measure: str
    depth: int = 1000
    passages: Passages | None = None

    def __post_init__(self) -> None:
        name, separator, cutoff = self.measure.partition("@")
        has_cutoff = bool(separator) and cutoff.isdecimal() and int(cutoff) >= 1
        if self.measure != "AP" and not (name in MEASURES and has_cutoff):
            names = f"{', '.join(f'{name}@10' for name in MEASURES)} or AP"
            raise ConfigError(f"recipe: measure is {self.measure!r}; it must be {names}", setting="recipe.measure")
        if not any(example.relevant_documents for example in self.examples):
            raise EvaluationError(
                "the development set has no relevant document among its candidates; pass judgments of these"
            )

    def measure_network(self, trainee: Trainee, scorer: NetworkScorer) -> float:
        """Return the mean of the measure over the queries. A query without a relevant candidate counts as 0.

        Raises:
            ConfigError: see `check_aggregation`.
        """
        self.check_aggregation(trainee.card.kind)
        passages_by_example = [self.split_documents(example) for example in self.examples]
        passage_examples = []
        for example, passages_by_document in zip(self.examples, passages_by_example, strict=True):
            passages = tuple(itertools.chain.from_iterable(passages_by_document))
            no_relevance = (0,) * len(passages)  # scoring does not use it
            passage_examples.append(Example(example.query, passages, no_relevance))
        all_scores = scorer.score_documents(trainee, passage_examples)
        values = []
        for example, passages_by_document, scores in zip(self.examples, passages_by_example, all_scores, strict=True):
            passage_counts = [len(passages) for passages in passages_by_document]
            scores_by_document = split_by_counts(passage_counts, scores)
            document_scores = [self._aggregate(passage_scores, trainee) for passage_scores in scores_by_document]
            values.append(self._measure_order(example, document_scores))
        return float(np.mean(values))

    def measure_first_pass(self) -> float:
        """Return the mean of the measure for the candidates in their original order."""
        return float(np.mean([self._measure_order(example, []) for example in self.examples]))

    def check_aggregation(self, kind: Kind) -> None:
        """Raise `ConfigError` if a duo model's passages would be aggregated by probabilities, which it lacks."""
        if self.passages and self.passages.aggregation not in RAW_SCORE_AGGREGATIONS and kind == "duo":
            reason = f"dev-passages: {self.passages.aggregation} needs probabilities; for a duo model, set maxp"
            raise ConfigError(reason, setting="dev-passages")

    def list_texts(self) -> list[tuple[str, ...]]:
        """Return, for each query, the texts to score: whole documents, or all passages of all documents."""
        return [tuple(itertools.chain.from_iterable(self.split_documents(example))) for example in self.examples]

    def split_documents(self, example: Example) -> list[list[str]]:
        """Return the passages of each candidate that is reordered."""
        if self.passages is None:
            return [[text] for text in example.documents[: self.depth]]
        depth = min(self.depth, len(example.documents))
        return [split_document(example, index, self.passages) for index in range(depth)]

    def _aggregate(self, scores: Sequence[float], trainee: Trainee) -> float:
        """Return a document's score from the scores of its passages."""
        if self.passages is None or self.passages.aggregation in RAW_SCORE_AGGREGATIONS:
            return max(scores)  # for firstp, of a single passage
        calibration = trainee.card.calibration
        logits = calibration.scale * np.asarray(scores, dtype=np.float32) + calibration.offset
        probabilities = logistic(logits)
        aggregate = AGGREGATIONS[self.passages.aggregation]
        return aggregate(logits.astype(np.float64), probabilities, self.passages.k).score

    def _measure_order(self, example: Example, scores: Sequence[float]) -> float:
        """Return the measure of a query after ordering its first ``len(scores)`` candidates by the scores."""
        order = sorted(range(len(scores)), key=lambda index: -scores[index])  # stable: ties keep the first pass's order
        ranked = [str(index) for index in (*order, *range(len(scores), len(example.documents)))]
        relevance = {str(index): grade for index, grade in enumerate(example.relevance)}
        relevance |= {f"missed {number}": 1 for number in range(example.missed)}  # relevant, but not candidates
        name, _, cutoff = self.measure.partition("@")
        return MEASURES[name](ranked, relevance, int(cutoff or len(ranked)))


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often the network is measured, and on which queries.

    Attributes:
        development: the queries to measure on: all of the development set or a sample. If None, nothing is measured.
        max_measurements: the maximum number of measurements.
        measures_untrained: whether the network is also measured before the first step.
        note: a sentence about the schedule for the user. It is empty if the recipe sets the schedule.
    """

    development: DevelopmentSet | None
    max_measurements: int
    measures_untrained: bool
    note: str


def estimate_cost(query: str, documents: Sequence[str], n_sequences: int, kind: Kind, max_tokens: int) -> float:
    """Estimate the number of characters in ``n_sequences`` sequences, which tells how long scoring them takes.

    Each sequence consists of the query and one of the documents or, for a duo model, two of them.
    """
    if not documents:
        return 0.0
    documents_per_sequence = 2 if kind == "duo" else 1
    document_characters = sum(map(len, documents)) / len(documents) * documents_per_sequence
    return n_sequences * min(len(query) + document_characters, max_tokens * CHARACTERS_PER_TOKEN)


def plan_schedule(development: DevelopmentSet, training_cost: float, kind: Kind, max_tokens: int) -> Schedule:
    """Choose a schedule whose measurements take at most a tenth of the time.

    The time is estimated from numbers of characters, not from the clock, so that repeated trainings measure at the same
    steps. ``training_cost`` is the sum of `estimate_cost` over the whole training. Measuring takes less time than
    estimated, because it has no backward pass.

    If time allows, all queries are measured two to ten times. Otherwise, some queries with a relevant candidate, evenly
    spaced in the set, are measured twice. If fewer than ten could be measured, nothing is measured.
    """
    costs = []
    for example, texts in zip(development.examples, development.list_texts(), strict=True):
        n_ordered_pairs = len(texts) * (len(texts) - 1)
        n_sequences = n_ordered_pairs if kind == "duo" else len(texts)
        costs.append(estimate_cost(example.query, texts, n_sequences, kind, max_tokens))
    # a tenth of the cost of training and measuring together
    max_cost = MAX_MEASURING_FRACTION / (1 - MAX_MEASURING_FRACTION) * training_cost
    total_cost = sum(costs)
    n_queries = len(costs)
    if total_cost * (MAX_MEASUREMENTS + 1) <= max_cost:  # one is before the first step
        note = f"{n_queries} queries choose the best weights"
        return Schedule(development, MAX_MEASUREMENTS, measures_untrained=True, note=note)
    limit = "measuring is limited to a tenth of the time"
    n_measurements = min(int(max_cost // total_cost), MAX_MEASUREMENTS)
    if n_measurements >= MIN_MEASUREMENTS:
        note = f"{n_queries} queries choose the best weights, measured {n_measurements} times: {limit}"
        return Schedule(development, n_measurements, measures_untrained=False, note=note)
    relevant_indices = [index for index, example in enumerate(development.examples) if example.relevant_documents]
    sample = _sample_affordable(relevant_indices, costs, max_cost / MIN_MEASUREMENTS)
    min_size = min(MIN_QUERIES, len(relevant_indices))
    if len(sample) < min_size:
        reason = f"a tenth of the time is too short to measure even {min_size} of {n_queries} queries"
        note = f"the last weights are kept: {reason}; {HOW_TO_MEASURE_ALL}"
        return Schedule(None, MIN_MEASUREMENTS, measures_untrained=False, note=note)
    sampled_set = replace(development, examples=tuple(development.examples[index] for index in sample))
    times = f"measured {MIN_MEASUREMENTS} times: {limit}"
    note = f"{len(sample)} of {n_queries} queries choose the best weights, {times}; {HOW_TO_MEASURE_ALL}"
    return Schedule(sampled_set, MIN_MEASUREMENTS, measures_untrained=False, note=note)


def _sample_affordable(indices: Sequence[int], costs: Sequence[float], max_cost: float) -> list[int]:
    """Return evenly spaced ``indices``, as many as can be measured for a total cost of at most ``max_cost``."""
    mean_cost = sum(costs[index] for index in indices) / len(indices)
    size = min(len(indices), int(max_cost / mean_cost))
    while size:
        sample = [indices[number * len(indices) // size] for number in range(size)]
        if sum(costs[index] for index in sample) <= max_cost:
            return sample
        size -= 1
    return []
