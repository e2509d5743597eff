"""Turn long documents into training data: pair and filter passages of relevant and of other documents.

Chen et al.: ICIP at TREC-2020 Deep Learning Track, sections 2.1 and 3: each passage of a relevant document is paired
with a passage of one of the query's other documents. A relevant document then keeps only the five passages that a model
trained on passages scores highest.
"""

import logging
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from osrerank.errors import FormatError
from osrerank.options.passages import Passages
from osrerank.stages.passages import passages_of
from osrerank.training.examples.lists import Example
from osrerank.types import Scorer

logger = logging.getLogger(__name__)
KEEP = 5


def passage_triples(
    examples: Iterable[Example], options: Passages, *, keep: int = KEEP, scorer: Scorer | None = None, seed: int = 1
) -> Iterator[Example]:
    """Yield triples of a relevant document's passage and a passage of the query's other documents.

    Args:
        examples: whole documents.
        options: how documents are cut.
        keep: how many passages of each relevant document to keep, those that the scorer scores highest.
        scorer: a model trained on passages; None to keep all passages.
        seed: the seed of the draws.
    """
    rng = random.Random(seed)  # noqa: S311 - a repeatable draw
    for example in examples:
        other_indices = example.indices(relevant=False)
        pool = [passage for index in other_indices for passage in passages_in(example, index, options)]
        for index in example.indices(relevant=True) if pool else ():
            passages = passages_in(example, index, options)
            chosen_passages = passages if scorer is None else best(scorer, example.query, passages, keep)
            for passage in chosen_passages:
                yield Example(example.query, (passage, rng.choice(pool)), (1, 0), example.location)


def passages_in(example: Example, index: int, options: Passages) -> list[str]:
    """Cut a document of an example into passages, as a search does.

    Raises:
        FormatError: the options sample passages by document ids, but the example has no ids.
    """
    if options.policy == "sampled" and not example.doc_ids:
        fix = "read candidates or a run, whose documents have ids, or set policy=first"
        raise FormatError(f"{example.location}: policy=sampled draws by document ids, and there are none; {fix}")
    return [passage for passage, _span in passages_of(example.candidate(index), options)]


def best(scorer: Scorer, query: str, passages: Sequence[str], keep: int) -> list[str]:
    """Return the passages with the highest scores, in the document's order, without those that could not be scored."""
    if len(passages) <= keep:
        return list(passages)
    return [passages[index] for index in sorted(descending(_values(scorer, query, passages))[:keep])]


def hardest(examples: Iterable[Example], scorer: Scorer, keep: int) -> Iterator[Example]:
    """Yield each example with its relevant documents, then the ``keep`` others with the highest scores, in order."""
    for example in examples:
        other_indices = example.indices(relevant=False)
        values = _values(scorer, example.query, example.select(other_indices).documents)
        yield with_hardest(example, other_indices, values, keep)


def with_hardest(example: Example, other_indices: Sequence[int], values: npt.ArrayLike, keep: int) -> Example:
    """Return an example with its relevant documents, then the others with the highest scores, highest first.

    Args:
        example: the example.
        other_indices: the indices of the documents that are not relevant and were scored.
        values: the scores of these documents ``(other_indices,)``.
        keep: how many of these documents to keep.
    """
    hardest_indices = [other_indices[number] for number in descending(values)[:keep]]
    return example.select((*example.indices(relevant=True), *hardest_indices))


def scored(examples: Iterable[Example], scorer: Scorer) -> Iterator[Example]:
    """Yield each example with the scorer's logits; a document that could not be scored is left out, with a warning."""
    for example in examples:
        values = _values(scorer, example.query, example.documents)
        indices = [int(index) for index in np.flatnonzero(np.isfinite(values))]
        if left_out := len(values) - len(indices):
            logger.warning("%s: %d documents could not be scored, and are left out", example.location, left_out)
        yield replace(example.select(indices), scores=tuple(round(float(values[index]), 4) for index in indices))


def _values(scorer: Scorer, query: str, documents: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return the documents' scores ``(n,)``."""
    return scorer.score(query, documents, [(index,) for index in range(len(documents))]).values


def descending(values: npt.ArrayLike) -> list[int]:
    """Return the indices of the finite scores ``(n,)``, highest score first."""
    scores = np.asarray(values)
    order = np.argsort(-scores, kind="stable")
    return [int(index) for index in order if np.isfinite(scores[index])]
