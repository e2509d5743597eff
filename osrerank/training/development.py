"""Score with a network during training, and measure it on a development set."""

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
from osrerank.training.documents import passages_in
from osrerank.training.examples.batches import WIDTHS, plan, runs
from osrerank.training.examples.lists import Example
from osrerank.training.losses import raw_scores
from osrerank.training.objective import to_device
from osrerank.training.weights.models import Trainee

MEASURES = {"nDCG": ndcg, "RR": reciprocal_rank, "AP": average_precision}
BY_BEST = ("maxp", "firstp")
"""Aggregations that need only the passages' raw scores, no probabilities."""
SHARE = 0.1
"""The maximum share of the training time for measuring, unless the recipe sets ``evaluate_every``."""
MEASUREMENTS, MIN_MEASUREMENTS = 10, 2
MIN_QUERIES = 10
"""The minimum number of queries that distinguish better weights from worse ones."""
TENTH = "measuring may take at most a tenth of the time"
FIX = "set evaluate_every=STEPS in the recipe to measure all of them after every STEPS steps"
TOKEN_CHARACTERS = 5
"""How many characters an English word piece has, with the space after it; used to estimate cost."""


@dataclass(frozen=True, slots=True)
class NetworkScorer:
    """Scores sequences and documents with a network during training.

    Attributes:
        device: the network's device.
        budget_tokens: maximum number of padded tokens in a batch.
        autocast: returns a context in which matrix products have the training's precision.
    """

    device: torch.device
    budget_tokens: int
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext

    def scores(self, trainee: Trainee, sequences: Sequence[Tokens]) -> list[float]:
        """Return one raw score per sequence, without dropout; higher is better."""
        scores = np.zeros(len(sequences))
        was_training = trainee.network.training
        trainee.network.eval()
        with torch.inference_mode(), self.autocast():
            for indices in plan([[tokens] for tokens in sequences], self.budget_tokens, multiple=WIDTHS):
                batch_sequences = [sequences[index] for index in indices]
                batch = pad(batch_sequences, trainee.pad_id, multiple=WIDTHS, max_width=trainee.card.max_tokens)
                logits = trainee.network(**to_device(self.device, batch)).float()
                scores[indices] = raw_scores(logits, trainee.card.head).cpu().numpy()
        trainee.network.train(was_training)
        return [float(score) for score in scores]

    def documents(self, trainee: Trainee, examples: Iterable[Example]) -> Iterator[list[float]]:
        """Yield the scores of each example's documents; a duo model's are sums over the pairs of documents."""
        for example in examples:
            query = trainee.builder.query(example.query)
            if trainee.card.kind != "duo":
                texts = trainee.builder.documents(example.documents, query)
                yield self.scores(trainee, [trainee.builder.mono(query, text) for text in texts])
            else:
                yield self._sums(trainee, example)

    def _sums(self, trainee: Trainee, example: Example) -> list[float]:
        """Return s_i = sum over j of p_ij (arXiv 1910.14424, eq. 3)."""
        from osrerank.training.examples.duo import ordered_pairs  # noqa: PLC0415 - that module imports this one

        pairs, sequences = ordered_pairs(trainee.builder, example.query, example.documents)
        sums = [0.0] * len(example.documents)
        for (first, _), score in zip(pairs, self.scores(trainee, sequences), strict=True):
            sums[first] += float(1 / (1 + np.exp(-np.clip(score, -700, 700))))
        return sums


@dataclass(frozen=True, slots=True)
class Development:
    """A development set and its measure.

    Attributes:
        examples: each query's candidates, in the first pass's order, with their relevance.
        measure: ``nDCG@k``, ``RR@k``, ``AP@k`` or ``AP``. A relevant document that is not among the candidates counts
            as missed.
        depth: how many candidates from the top are reordered; the candidates below keep their ranks.
        passages: how long documents are cut into passages, and how the passages' scores are aggregated; None if
            documents are scored whole.
    """

    examples: Sequence[Example]
    measure: str
    depth: int = 1000
    passages: Passages | None = None

    def __post_init__(self) -> None:
        name, separator, cutoff = self.measure.partition("@")
        if self.measure != "AP" and (name not in MEASURES or not separator or not cutoff.isdigit() or int(cutoff) < 1):
            names = f"{', '.join(f'{name}@10' for name in MEASURES)} or AP"
            raise ConfigError(f"recipe: measure is {self.measure!r}; it must be {names}", setting="recipe.measure")
        if not any(example.relevant for example in self.examples):
            raise EvaluationError("the development set has no relevant document among its candidates")

    def value(self, trainee: Trainee, scoring: NetworkScorer) -> float:
        """Return the mean of the measure over the queries; 0 for a query without a relevant candidate.

        Raises:
            ConfigError: as `check`.
        """
        self.check(trainee.card.kind)
        cut = [self._cut(example) for example in self.examples]
        texts = self.texts()
        passages = [
            Example(example.query, query_texts, (0,) * len(query_texts))
            for example, query_texts in zip(self.examples, texts, strict=True)
        ]
        values = []
        for example, document, scores in zip(self.examples, cut, scoring.documents(trainee, passages), strict=True):
            of_documents = runs([len(document_passages) for document_passages in document], scores)
            values.append(
                self._measure(example, [self._aggregate(passage_scores, trainee) for passage_scores in of_documents])
            )
        return float(np.mean(values))

    def check(self, kind: Kind) -> None:
        """Refuse a passage aggregation that does not work with a kind of model.

        Raises:
            ConfigError: the aggregation needs probabilities, but the scores of a duo model are sums.
        """
        if self.passages and self.passages.aggregation not in BY_BEST and kind == "duo":
            reason = f"dev-passages: {self.passages.aggregation} needs probabilities, which a duo model lacks; set maxp"
            raise ConfigError(reason, setting="dev-passages")

    def texts(self) -> list[tuple[str, ...]]:
        """Return the texts to score for each query: the documents that are reordered, or all of their passages."""
        return [
            tuple(passage for document_passages in self._cut(example) for passage in document_passages)
            for example in self.examples
        ]

    def first_pass(self) -> float:
        """Return the mean measure of the candidates in the order in which they were read."""
        return float(np.mean([self._measure(example, []) for example in self.examples]))

    def _cut(self, example: Example) -> list[list[str]]:
        """Return, for each document that is reordered, its passages."""
        if self.passages is None:
            return [[text] for text in example.documents[: self.depth]]
        depth = min(self.depth, len(example.documents))
        return [passages_in(example, index, self.passages) for index in range(depth)]

    def _aggregate(self, scores: Sequence[float], trainee: Trainee) -> float:
        """Return a document's score, aggregated from its passages' scores."""
        if self.passages is None or self.passages.aggregation in BY_BEST:
            return max(scores)
        calibration = trainee.card.calibration
        logits = calibration.scale * np.asarray(scores, dtype=np.float32) + calibration.offset
        probabilities = logistic(logits)
        aggregate = AGGREGATIONS[self.passages.aggregation]
        return aggregate(logits.astype(np.float64), probabilities, self.passages.k).score

    def _measure(self, example: Example, scores: Sequence[float]) -> float:
        order = sorted(range(len(scores)), key=lambda index: -scores[index])  # stable: ties keep the first pass's order
        ranked = [str(index) for index in (*order, *range(len(scores), len(example.documents)))]
        relevance = {str(index): grade for index, grade in enumerate(example.relevance)}
        relevance |= {f"missed {number}": 1 for number in range(example.missed)}
        name, _, cutoff = self.measure.partition("@")
        return MEASURES[name](ranked, relevance, int(cutoff or len(ranked)))


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often, and on which queries, a training is measured.

    Attributes:
        development: the development set, or a part of it; None if the training is not measured.
        measurements: how often to measure at most.
        before: whether the model is also measured before the training.
        says: a sentence for the user on this schedule and how to get another one; empty if the recipe sets the
            schedule.
    """

    development: Development | None
    measurements: int
    before: bool
    says: str


def cost(query: str, documents: Sequence[str], sequences: int, kind: Kind, max_tokens: int) -> float:
    """Estimate how many characters a network reads in sequences of a query with a document, or with a pair of them."""
    if not documents:
        return 0.0
    mean_characters = sum(map(len, documents)) / len(documents) * (2 if kind == "duo" else 1)
    return sequences * min(len(query) + mean_characters, max_tokens * TOKEN_CHARACTERS)


def schedule(development: Development, training: float, kind: Kind, max_tokens: int) -> Schedule:
    """Return how often to measure, and on how many queries, so that measuring takes at most a tenth of the time.

    The time is estimated from the characters that the network reads, not measured, so that the same training is always
    measured at the same steps. A character is taken to cost as much in measuring as in training; that is an
    overestimate, since measuring has no backward pass. If time allows, all queries are measured two to ten times.
    Otherwise a part of the queries with a relevant candidate, evenly spaced in the set, is measured twice, or nothing
    if the part would have fewer than ten queries.

    Args:
        development: the whole set.
        training: the cost of the training's sequences, as `cost` estimates it.
        kind: the kind of the model.
        max_tokens: maximum number of tokens in a sequence.
    """
    costs = [
        cost(example.query, texts, len(texts) * (len(texts) - 1 if kind == "duo" else 1), kind, max_tokens)
        for example, texts in zip(development.examples, development.texts(), strict=True)
    ]
    max_cost, total_cost, count = SHARE / (1 - SHARE) * training, sum(costs), len(costs)
    if total_cost * (MEASUREMENTS + 1) <= max_cost:
        return Schedule(development, MEASUREMENTS, before=True, says=f"{count} queries choose the best weights")
    if (times := int(max_cost // total_cost)) >= MIN_MEASUREMENTS:
        times = min(times, MEASUREMENTS)
        says = f"{count} queries choose the best weights, measured {times} times: {TENTH}"
        return Schedule(development, times, before=False, says=says)
    able = [index for index, example in enumerate(development.examples) if example.relevant]
    mean = sum(costs[index] for index in able) / len(able)
    query_count = min(len(able), int(max_cost / (MIN_MEASUREMENTS * mean)))
    while query_count and MIN_MEASUREMENTS * sum(costs[index] for index in _spread(able, query_count)) > max_cost:
        query_count -= 1
    if query_count < (least := min(MIN_QUERIES, len(able))):
        says = f"the last weights are kept: a tenth of the time is too little to measure even {least} of {count}"
        return Schedule(None, MIN_MEASUREMENTS, before=False, says=f"{says} queries; {FIX}")
    subset = replace(development, examples=tuple(development.examples[index] for index in _spread(able, query_count)))
    says = (
        f"{query_count} of {count} queries choose the best weights, measured {MIN_MEASUREMENTS} times: {TENTH}; {FIX}"
    )
    return Schedule(subset, MIN_MEASUREMENTS, before=False, says=says)


def _spread(indices: Sequence[int], query_count: int) -> list[int]:
    """Return ``query_count`` of the indices, evenly spaced."""
    return [indices[number * len(indices) // query_count] for number in range(query_count)]
