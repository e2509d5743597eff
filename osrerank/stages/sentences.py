"""Reranking documents by their best sentences and the first pass.

Akkalyoncu Yilmaz, Yang, Zhang, Lin: Cross-domain modeling of sentence-level evidence for document retrieval, EMNLP 2019
(Birch), section 3: s_f = a s_doc + (1 - a) sum_i w_i s_i, with s_doc the first pass's score and s_i that of the i-th
best sentence. Neither side is normalised. The released code sums logits, the paper says probabilities; both are
options.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt

from osrerank.errors import DeadlineExceeded
from osrerank.options.sentences import Sentences
from osrerank.scoring.passages import chunks_of
from osrerank.stages.ordering import BELOW_ONE, Judged
from osrerank.stages.sentence_splitting import cleaned, is_ready, sentence_blocks
from osrerank.stages.slices import rank_by_slices
from osrerank.stages.splitting import readable
from osrerank.types import NEVER, Candidate, Deadline, Ranking, Scorer, Section, Span
from osrerank.types.values import is_blank

KEPT = 3
"""How many of the best sentences' values are kept beside the score: as many as Birch weighs."""
Floats = npt.NDArray[np.float64]


def interpolate(first_pass: Floats, best: Floats, a: float, weights: Sequence[float]) -> Floats:
    """Return a s_doc + (1 - a) sum_i w_i s_i.

    Args:
        first_pass: ``(n_documents,)``.
        best: ``(n_documents, n_best)`` of each document's best sentences, the best first; NaN where it has fewer.
        a: share of the first pass.
        weights: of the best sentences; those beyond ``n_best`` count for nothing.
    """
    used = min(best.shape[1], len(weights))
    evidence = np.nan_to_num(best[:, :used]) @ np.asarray(weights[:used], dtype=np.float64)
    mixed: Floats = a * first_pass + (1 - a) * evidence
    return mixed


@dataclass(frozen=True, slots=True)
class SentenceStage:
    """Birch: one forward pass for each sentence of the top ``depth`` candidates, in one call.

    The hit's ``passage`` is its best sentence. Under a deadline the first sentences of all candidates are scored first.

    Attributes:
        scorer: scores ``(i,)`` tuples.
        options: how documents are split and the scores combined.
        depth: how many candidates are scored.
        name: how the stage is called in traces and reports.
        budget_ms: time for the stage, in milliseconds, within the deadline of the call; None for no limit of its own.
    """

    scorer: Scorer
    options: Sentences = field(default_factory=Sentences)
    depth: int = 100
    name: str = "sentences"
    budget_ms: float | None = None

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
        """Return the ranking with its top ``depth`` in the interpolated order.

        Raises:
            ConfigError: sentences are to be split by tokens, and the scorer has no tokenizer here.
            MissingDependencyError: the sentence splitter is not installed.
            DeadlineExceeded: no sentence could be scored in time.
            InferenceError: no candidate could be scored at all, or a score is not a number.
        """
        deadline = deadline.within_ms(self.budget_ms)
        if not is_ready(self.options, deadline):
            raise DeadlineExceeded(
                "the sentence splitter is still being loaded when the deadline passes", stage=self.name
            )
        return rank_by_slices(
            self.scorer,
            ranking,
            partial(self.sentences_of, query=ranking.query.text),
            self._judge,
            stage=self.name,
            depth=self.depth,
            unit="sentences",
            deadline=deadline,
        )

    def sentences_of(self, candidate: Candidate, query: str) -> Iterator[tuple[str, Span]]:
        """Yield a candidate's sentences as the model reads them, at least one, each with its place in the source."""
        sections = candidate.sections or (Section("text", candidate.text or ""),)
        found = islice(self._spoken(sections, query), self.options.limit)
        yield next(found, ("", Span(sections[0].field, 0, 0, sections[0].value)))
        yield from found

    def _spoken(self, sections: Sequence[Section], query: str) -> Iterator[tuple[str, Span]]:
        """Yield the sentences that are not blank."""
        for section in sections:
            clean = cleaned(section.text)
            for block in sentence_blocks(clean, self.options):
                for start, end in self._chunks(clean, block, query):
                    if not is_blank(clean[start:end]):
                        yield readable(clean[start:end]), Span(section.field, start, end, section.value)

    def _chunks(self, clean: str, spans: Sequence[tuple[int, int]], query: str) -> Sequence[tuple[int, int]]:
        """Return spans, those of long sentences split by tokens where that is asked for."""
        if self.options.chunks == "words":
            return spans
        chunks = chunks_of(self.scorer, query, [clean[start:end] for start, end in spans])
        return [
            (start + first, start + last)
            for (start, _), inside in zip(spans, chunks, strict=True)
            for first, last in inside
        ]

    def _judge(
        self,
        candidate: Candidate,
        spans: Sequence[Span | None],
        logits: npt.NDArray[np.float32],
        log_odds: npt.NDArray[np.float32],
    ) -> Judged:
        there = np.flatnonzero(~np.isnan(logits))
        order, by_odds = (there[np.argsort(-scores[there], kind="stable")] for scores in (logits, log_odds))
        most = max(KEPT, len(self.options.weights))
        best, probabilities = logits[order[:most]], self.scorer.probabilities(log_odds[by_odds[:most]])
        is_logit = self.options.scores == "logit"
        values = best.astype(np.float64) if is_logit else probabilities
        first_pass = np.array([candidate.trace[0].score])
        key = float(interpolate(first_pass, values[None, :], self.options.a, self.options.weights)[0])
        parts = {}
        for place in range(min(KEPT, len(best))):
            number = f"_{place + 1}" if place else ""
            parts[f"logit{number}"] = float(best[place])
            parts[f"probability{number}"] = float(probabilities[place])
        # softsign: unlike the logistic function it does not round large sums to 1
        unit = min((1 + key / (1 + abs(key))) / 2, BELOW_ONE)
        decisive = spans[int((order if is_logit else by_odds)[0])]
        return Judged(candidate, score=key, unit=unit, parts=parts, passage=decisive)
