"""Rerank documents by the scores of their best sentences, combined with their first-pass scores (Birch).

A document's score is s_f = a s_doc + (1 - a) sum_i w_i s_i, where s_doc is its first-pass score and s_i is the score of
its i-th best sentence (Akkalyoncu Yilmaz, Yang, Zhang, Lin: Cross-domain modeling of sentence-level evidence for
document retrieval, EMNLP 2019, section 3). No score is normalised. The authors' paper sums probabilities, and their
code sums logits. The options allow both.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt

from osrerank.errors import StillLoading
from osrerank.options.sentences import Sentences
from osrerank.scoring.passages import split_into_chunks
from osrerank.stages.html import read_sections
from osrerank.stages.ordering import ScoredCandidate
from osrerank.stages.parts import rank_by_parts
from osrerank.stages.sentence_splitting import blank_markup, split_into_sentences, wait_until_loaded
from osrerank.stages.splitting import normalize_spaces
from osrerank.types import NEVER, Candidate, Deadline, Ranking, Scorer, Section, Span
from osrerank.types.values import BM25_SCORE, MAX_UNIT, is_blank

REPORTED_SENTENCES = 3
"""The number of best sentences whose logits and probabilities are reported. It is the number that Birch sums."""
Floats = npt.NDArray[np.float64]


def interpolate(first_pass: Floats, best: Floats, a: float, weights: Sequence[float]) -> Floats:
    """Return each document's score ``(n_documents,)``: a s_doc + (1 - a) sum_i w_i s_i.

    Args:
        first_pass: the documents' first-pass scores s_doc ``(n_documents,)``.
        best: the scores of each document's best sentences ``(n_documents, n_best)``, best first. If a document has
            fewer sentences, the rest is NaN.
        a: the weight of the first pass.
        weights: the weights of the best sentences. Weights beyond ``n_best`` are ignored.
    """
    n_used = min(best.shape[1], len(weights))
    evidence = np.nan_to_num(best[:, :n_used]) @ np.asarray(weights[:n_used], dtype=np.float64)
    mixed: Floats = a * first_pass + (1 - a) * evidence
    return mixed


@dataclass(frozen=True, slots=True)
class SentenceStage:
    """Orders the top ``depth`` candidates by the scores of their best sentences and their first-pass scores.

    All sentences are scored in one call, with a forward pass for each. The first sentences of all candidates are scored
    first, in case the deadline passes. A hit's ``passage`` is its best sentence.

    Attributes:
        scorer: the model, which scores single documents.
        options: the options for splitting documents and combining the scores.
        depth: the number of candidates that are scored.
        name: the stage's name in traces and reports.
    """

    scorer: Scorer
    options: Sentences = field(default_factory=Sentences)
    depth: int = 100
    name: str = "sentences"

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
        """Return the ranking with its top ``depth`` candidates sorted by their interpolated scores.

        Raises:
            ConfigError: the options split long sentences by tokens, but the scorer has no tokenizer in this process.
            MissingDependencyError: the sentence splitter is not installed.
            DeadlineExceeded: no sentence could be scored in time.
            StillLoading: the sentence splitter was not loaded in time.
            InferenceError: no candidate could be scored at all, or a score is not a number.
        """
        if not wait_until_loaded(self.options, deadline):
            raise StillLoading("the sentence splitter was still loading when the deadline passed", stage=self.name)
        return rank_by_parts(
            self.scorer,
            ranking,
            partial(self.split_candidate, query=ranking.query.text),
            self._score_candidate,
            stage=self.name,
            depth=self.depth,
            noun="sentences",
            deadline=deadline,
        )

    def split_candidate(self, candidate: Candidate, query: str) -> Iterator[tuple[str, Span]]:
        """Yield the text and span of each of a candidate's sentences. If there is none, yield an empty sentence."""
        sections = read_sections(candidate)
        empty_sentence = "", Span(sections[0].field, start=0, end=0, value=sections[0].value)
        sentences = islice(self._read_sentences(sections, query), self.options.limit)
        yield next(sentences, empty_sentence)
        yield from sentences

    def _read_sentences(self, sections: Sequence[Section], query: str) -> Iterator[tuple[str, Span]]:
        """Yield the text, as the model reads it, and the span of each sentence that is not blank."""
        for section in sections:
            clean = blank_markup(section.text)  # of the same length, so that spans are those of the original text
            for spans in split_into_sentences(clean, self.options):
                for start, end in self._split_long_sentences(clean, spans, query):
                    if not is_blank(clean[start:end]):
                        yield normalize_spaces(clean[start:end]), Span(section.field, start, end, section.value)

    def _split_long_sentences(
        self, clean: str, spans: Sequence[tuple[int, int]], query: str
    ) -> Sequence[tuple[int, int]]:
        """Return the sentences' spans. If the options say so, sentences with many tokens are split further."""
        if self.options.chunks == "words":  # `split_into_sentences` has split them
            return spans
        chunks = split_into_chunks(self.scorer, query, [clean[start:end] for start, end in spans])
        return [
            (start + first, start + last)
            for (start, _), chunk_spans in zip(spans, chunks, strict=True)
            for first, last in chunk_spans  # offsets in the sentence
        ]

    def _score_candidate(
        self,
        candidate: Candidate,
        spans: Sequence[Span | None],
        logits: npt.NDArray[np.float32],
        log_odds: npt.NDArray[np.float32],
    ) -> ScoredCandidate:
        """Return a candidate's interpolated score. In ``logits`` and ``log_odds``, NaN marks an unscored sentence."""
        # A next-sentence head's logits are not log-odds, so the best sentences by the two can differ.
        scored_indices = np.flatnonzero(~np.isnan(logits))
        indices_by_logit = scored_indices[np.argsort(-logits[scored_indices], kind="stable")]
        indices_by_log_odds = scored_indices[np.argsort(-log_odds[scored_indices], kind="stable")]
        n_best = max(REPORTED_SENTENCES, len(self.options.weights))
        best_logits = logits[indices_by_logit[:n_best]]
        best_probabilities = self.scorer.probabilities(log_odds[indices_by_log_odds[:n_best]])
        uses_logits = self.options.scores == "logit"
        best_scores = best_logits.astype(np.float64) if uses_logits else best_probabilities
        # BM25 without the engine's factor, if the engine has one
        first_pass = np.array([candidate.trace[0].parts.get(BM25_SCORE, candidate.text_score)])
        (mixed,) = interpolate(first_pass, best_scores[np.newaxis], self.options.a, self.options.weights)
        score = float(mixed)
        parts = {}
        for index in range(min(REPORTED_SENTENCES, len(best_logits))):
            suffix = f"_{index + 1}" if index else ""  # logit, logit_2, logit_3
            parts[f"logit{suffix}"] = float(best_logits[index])
            parts[f"probability{suffix}"] = float(best_probabilities[index])
        # softsign, because the logistic function would round large scores to 1
        unit = min((1 + score / (1 + abs(score))) / 2, MAX_UNIT)
        best_index = int(indices_by_logit[0] if uses_logits else indices_by_log_odds[0])
        return ScoredCandidate(candidate, score=score, unit=unit, parts=parts, passage=spans[best_index])
