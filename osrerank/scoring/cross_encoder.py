"""Cross-encoders (monoBERT) read a query and a document together, and compute one logit.

Nogueira, Cho: Passage Re-ranking with BERT, 2019, arXiv:1901.04085, section 2.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from osrerank.scoring.batcher import CallOutcome, Row
from osrerank.scoring.inputs import Pieces, Tokens
from osrerank.scoring.local import LocalModel
from osrerank.types import NEVER, Deadline, Scores
from osrerank.types.scores import NOT_FINITE, QUERY_TRUNCATED_BIT

MAX_SEQUENCES = 4096
"""Maximum number of sequences in memory at a time."""
MAX_IDS = MAX_SEQUENCES * 512
"""Maximum number of token ids in memory at a time (32 MiB). Long sequences are scored in smaller groups."""


class CrossEncoder(LocalModel):
    """Scores pairs of query and document: ``[CLS] q [SEP] d [SEP]``.

    ``Scores.values`` are calibrated logits in float32: ``scale * raw + offset``, by default with scale 1 and offset 0.
    ``Scores.inferences`` counts tuples. What raw is depends on the head:

    - ``logit1`` has one logit, which is raw.
    - ``logits2`` has two, z0 and z1. Raw is z1 - z0, which gives the same order as ``log_softmax[1]``.
    - ``next-sentence`` has two as well. Raw is z1, and the calibrated z1 - z0 is in ``Scores.log_odds``.
    """

    documents_per_tuple = 1
    """Number of documents in an input of the model."""
    tuple_size_message = "a cross-encoder scores single documents; pairs of documents need a duo model"

    @functools.cached_property
    def identity(self) -> str:
        """A string that differs whenever the same texts might get another score."""
        # the constant "standard" keeps the keys of existing caches
        suffix = "/log-odds" if self._has_log_odds else ""
        return f"{self._digest(self.backend.files)}/{self.backend.precision}/standard/{self._length_policy}{suffix}"

    def score(
        self, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]], *, deadline: Deadline = NEVER
    ) -> Scores:
        """Score tuples in groups, so that a long list needs little memory; see `Scorer.score`."""
        if any(len(indices) != self.documents_per_tuple for indices in tuples):
            raise ValueError(self.tuple_size_message)
        query_pieces = self._builder.tokenise_query(query)
        pieces_by_index: dict[int, Pieces] = {}
        group_size = max(1, min(MAX_SEQUENCES, MAX_IDS // self.card.max_tokens))
        values = np.full(len(tuples), np.nan, dtype=np.float32)
        log_odds = values.copy() if self._has_log_odds else None
        failures: dict[int, str] = {}
        reached = 0
        while reached < len(tuples):
            group = tuples[reached : reached + group_size]
            outcome = self._compute(query_pieces, documents, pieces_by_index, group, deadline)
            n_attempted = outcome.count_reached(len(group))
            for index in range(n_attempted):
                row = outcome.outputs.get(index)
                logit = math.nan if row is None else self._logit(row)
                if row is not None and math.isfinite(logit):
                    values[reached + index] = logit
                    if log_odds is not None:
                        log_odds[reached + index] = self._calibrate(_log_odds(row))
                else:
                    reason = NOT_FINITE.format(model=self.model)
                    failures[reached + index] = outcome.failures.get(index, reason)
            reached += n_attempted
            if n_attempted < len(group):
                break
        cuts = _find_truncated_texts(query_pieces, pieces_by_index, tuples[:reached], len(tuples))
        scores = Scores(
            values,
            failures,
            reached,
            odds=log_odds,
            cuts=cuts,
            inferences=reached,
            query_truncated=query_pieces.is_truncated,
        )
        return replace(scores, truncated=len(scores.truncated_documents(tuples)))

    def _compute(
        self,
        query: Pieces,
        documents: Sequence[str],
        pieces_by_index: dict[int, Pieces],
        tuples: Sequence[tuple[int, ...]],
        deadline: Deadline,
    ) -> CallOutcome:
        """Compute the head's outputs for tuples. Tokenise new documents into ``pieces_by_index``."""
        with self._batcher.call(deadline) as call:
            lengths = [sum(len(documents[index]) for index in indices) for indices in tuples]
            for group in self.tokenisation_groups(lengths):
                if deadline.passed:
                    break
                group_tuples = tuples[group]
                group_indices = dict.fromkeys(index for indices in group_tuples for index in indices)
                new_indices = [index for index in group_indices if index not in pieces_by_index]
                new_documents = self._builder.tokenise_documents([documents[index] for index in new_indices], query)
                pieces_by_index |= zip(new_indices, new_documents, strict=True)
                call.add(
                    [self._sequence(query, *(pieces_by_index[index] for index in indices)) for indices in group_tuples]
                )
            return call.result()

    def _sequence(self, query: Pieces, *documents: Pieces) -> Tokens:
        return self._builder.build_mono(query, *documents)

    def _logit(self, row: Row) -> float:
        """Return the calibrated logit of a head's outputs ``(labels,)``, as the class describes."""
        raw = _log_odds(row) if self.card.head == "logits2" else row[-1]
        return self._calibrate(raw)

    @property
    def _has_log_odds(self) -> bool:
        return self.card.head == "next-sentence"

    def _calibrate(self, raw: float) -> float:
        return float(self.card.calibration.scale * raw + self.card.calibration.offset)


def _log_odds(row: Row) -> float:
    return float(row[1] - row[0])


def _find_truncated_texts(
    query: Pieces, pieces_by_index: dict[int, Pieces], tuples: Sequence[tuple[int, ...]], size: int
) -> npt.NDArray[np.uint8]:
    """Return `Scores.cuts` ``(size,)`` for the reached tuples, and 0 for the others.

    Bit i is set if the tuple's document i was truncated, and `QUERY_TRUNCATED_BIT` if the query was.
    """
    cuts = np.zeros(size, dtype=np.uint8)
    for row, indices in enumerate(tuples):
        cuts[row] = sum(pieces_by_index[index].is_truncated << bit for bit, index in enumerate(indices))
    if query.is_truncated:
        cuts[: len(tuples)] |= QUERY_TRUNCATED_BIT
    return cuts
