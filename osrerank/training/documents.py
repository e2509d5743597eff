"""Split the documents of training examples into passages, keep the hardest negatives, and add a teacher's scores.

The passages follow Chen et al.: ICIP at TREC-2020 Deep Learning Track, sections 2.1 and 3. Each passage of a relevant
document is paired with a passage of one of the query's negatives. A model trained on passages scores the passages of
each relevant document, and only the best five are kept.
"""

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from osrerank.errors import FormatError
from osrerank.options.passages import Passages
from osrerank.stages.passages import split_into_passages
from osrerank.training.examples.example import Example
from osrerank.types import Scorer
from osrerank.types.scores import single_documents

logger = logging.getLogger(__name__)
DEFAULT_KEEP = 5
"""The number of passages to keep of each relevant document by default, as in ICIP's paper."""


def create_passage_triples(
    examples: Iterable[Example],
    options: Passages,
    *,
    keep: int = DEFAULT_KEEP,
    scorer: Scorer | None = None,
    seed: int = 1,
) -> Iterator[Example]:
    """Turn examples of whole documents into triples: a query, a relevant document's passage and a negative's passage.

    Args:
        examples: examples of whole documents. Those without negatives are skipped.
        options: how documents are split.
        keep: how many passages of each relevant document to keep. Those with the highest scores are kept.
        scorer: a model trained on passages, which computes the scores. If None, all passages are kept.
        seed: the seed of the random choice of a negative's passage for each triple.
    """
    rng = random.Random(seed)  # noqa: S311 - a repeatable draw
    for example in examples:
        negative_passages = [
            passage for index in example.indices(relevant=False) for passage in split_document(example, index, options)
        ]
        if not negative_passages:
            continue
        for index in example.indices(relevant=True):
            passages = split_document(example, index, options)
            if scorer is not None:
                passages = choose_best_passages(scorer, example.query, passages, keep)
            for passage in passages:
                yield Example(example.query, (passage, rng.choice(negative_passages)), (1, 0), example.location)


def split_document(example: Example, index: int, options: Passages) -> list[str]:
    """Split a document of an example into passages, as a search does.

    Raises:
        FormatError: the options sample passages by document id, but the example has no ids.
    """
    if options.policy == "sampled" and not example.doc_ids:
        fix = "read candidates or a run, whose documents have ids, or set policy=first"
        raise FormatError(f"{example.location}: policy=sampled draws by document ids, and the example has none; {fix}")
    return [passage for passage, _span in split_into_passages(example.candidate(index), options)]


def choose_best_passages(scorer: Scorer, query: str, passages: Sequence[str], keep: int) -> list[str]:
    """Return the ``keep`` passages with the highest scores, in the order in which the document contains them.

    Passages that the scorer could not score are left out. If there are no more than ``keep``, none is scored.
    """
    if len(passages) <= keep:
        return list(passages)
    best_indices = indices_by_score(_score_documents(scorer, query, passages))[:keep]
    return [passages[index] for index in sorted(best_indices)]


def keep_hardest(examples: Iterable[Example], scorer: Scorer, keep: int) -> Iterator[Example]:
    """Yield each example with its relevant documents and the ``keep`` negatives that the scorer scores highest."""
    for example in examples:
        negatives = example.indices(relevant=False)
        scores = _score_documents(scorer, example.query, example.select(negatives).documents)
        yield select_hardest(example, negatives, scores, keep)


def select_hardest(example: Example, negatives: Sequence[int], scores: npt.ArrayLike, keep: int) -> Example:
    """Return an example with its relevant documents, followed by the ``keep`` negatives with the highest scores.

    ``negatives`` are the indices of the negatives to choose from, and ``scores`` their scores ``(n,)``.
    """
    hardest = [negatives[index] for index in indices_by_score(scores)[:keep]]
    return example.select((*example.indices(relevant=True), *hardest))


def add_scores(examples: Iterable[Example], scorer: Scorer) -> Iterator[Example]:
    """Yield each example with the scorer's logits. Documents that could not be scored are left out, with a warning."""
    for example in examples:
        scores = _score_documents(scorer, example.query, example.documents)
        indices = [int(index) for index in np.flatnonzero(np.isfinite(scores))]
        if len(indices) < len(scores):
            missing = len(scores) - len(indices)
            logger.warning("%s: %d documents could not be scored, and are left out", example.location, missing)
        yield replace(example.select(indices), scores=tuple(round(float(scores[index]), 4) for index in indices))


def _score_documents(scorer: Scorer, query: str, documents: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return a score for each document ``(n,)``, which is NaN if the document could not be scored."""
    return scorer.score(query, documents, single_documents(len(documents))).values


def indices_by_score(scores: npt.ArrayLike) -> list[int]:
    """Return the indices of the finite scores ``(n,)``, highest score first."""
    values = np.asarray(scores)
    order = np.argsort(-values, kind="stable")
    return [int(index) for index in order if np.isfinite(values[index])]
