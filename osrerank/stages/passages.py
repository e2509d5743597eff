"""Rerank long documents by their passages: score each passage, and combine the scores of a document's passages.

FirstP, MaxP and SumP are from Dai, Callan: Deeper text understanding for IR with contextual neural language modeling,
SIGIR 2019, arXiv:1905.09217. K-Max-AvgP is from Chen et al.: ICIP at TREC-2020 Deep Learning Track, section 2.

The log-odds of a passage are the model's number for its relevance, which `Scorer.probabilities` calibrates to a
probability. For most models, they are the logits.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from html import unescape
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank.options.passages import AUTO_PASSAGES, Passages, Windows
from osrerank.options.rerank import Rerank
from osrerank.stages.html import has_html, lacks_text, model_text, read_sections, without_html
from osrerank.stages.ordering import ScoredCandidate, unit_interval_scores
from osrerank.stages.parts import rank_by_parts, score_all_parts
from osrerank.stages.splitting import find_passages, has_fewer_words, is_dense, leaves_out_text, normalize_spaces
from osrerank.types import NEVER, Candidate, Deadline, Encoder, LongText, Ranking, Scorer, Scores, Span
from osrerank.types.scores import single_documents
from osrerank.types.values import BLANK_TEXT

DIGEST_BYTES = 16
"""The length of a long text's digest, by which its stored vectors are found."""
SPLITTING_VERSION = "html, dense"
"""The name of the current rules for splitting HTML and dense texts (`splitting.is_dense`), such as Chinese or code.

It is part of the digests of such texts, so that vectors stored under earlier rules are not found.
"""
window_values = attrgetter(*(option.name for option in fields(Windows)))
"""``window_values(windows)`` returns the values of all options, like `dataclasses.astuple` but without copying them."""
MIN_PROBABILITY, MAX_PROBABILITY = np.finfo(np.float64).tiny, math.nextafter(1.0, 0.0)
"""Probabilities are limited to this range before their log-odds are computed, because log(0) is infinite."""


class DocumentScore(NamedTuple):
    """A document's score, aggregated from its passages' scores.

    Attributes:
        score: the value to sort by. It can be any finite number.
        unit: the score mapped to [0, 1]. If a document has a higher score than another, its ``unit`` is not lower.
        probability: the probability that the document is relevant.
    """

    score: float
    unit: float
    probability: float


Floats = npt.NDArray[np.float64]


def max_p(log_odds: Floats, probabilities: Floats, k: int) -> DocumentScore:  # noqa: ARG001 - all aggregations have the same arguments
    """Score a document by its best passage: the score is the passage's log-odds."""
    best = int(log_odds.argmax())
    best_probability = float(probabilities[best])
    return DocumentScore(float(log_odds[best]), unit=best_probability, probability=best_probability)


def k_max_avg_p(log_odds: Floats, probabilities: Floats, k: int) -> DocumentScore:  # noqa: ARG001 - see max_p
    """Score a document by the mean of its k highest probabilities, or of all if there are fewer than k passages.

    The score is the log-odds of the mean.
    """
    mean = float(np.sort(probabilities)[-k:].mean())
    bounded = min(max(mean, MIN_PROBABILITY), MAX_PROBABILITY)
    return DocumentScore(math.log(bounded) - math.log1p(-bounded), unit=mean, probability=mean)


def sum_p(log_odds: Floats, probabilities: Floats, k: int) -> DocumentScore:  # noqa: ARG001 - see max_p
    """Score a document by the sum s of its passages' probabilities: the score is log(s), and ``unit`` is s / (1 + s).

    The document's probability is that of its best passage.
    """
    total = max(float(probabilities.sum()), MIN_PROBABILITY)
    return DocumentScore(math.log(total), unit=total / (1 + total), probability=float(probabilities.max()))


AggregatePassages = Callable[[Floats, Floats, int], DocumentScore]
"""A function of the log-odds and the probabilities of a document's passages, and of the option ``k``."""
# With "firstp", only the first passage is scored, so it is the best passage.
AGGREGATIONS: dict[str, AggregatePassages] = {"maxp": max_p, "firstp": max_p, "sump": sum_p, "kmaxavgp": k_max_avg_p}


@dataclass(frozen=True, slots=True)
class PassageStage:
    """Orders the top ``depth`` candidates by the scores of their passages.

    The first passages of all candidates are scored first, then the second passages, and so on. The deadline can pass
    while some candidates have no scored or failed passage. Then only the candidates above the first of these are
    reordered. In the response, a hit's ``passage`` is its best one.

    Attributes:
        scorer: the model, which scores single documents.
        options: the options for splitting documents and aggregating the scores of passages.
        depth: the number of candidates that are scored.
        name: the stage's name in traces and reports: by default that of the stage ``mono``, which this stage replaces.
        separator: the text between the title and a passage.
    """

    scorer: Scorer
    options: Passages = field(default_factory=Passages)
    depth: int = 100
    name: str = "mono"
    separator: str = " "

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
        """Return the ranking with its top ``depth`` candidates sorted by their passages' scores.

        Raises:
            DeadlineExceeded: no passage could be scored in time.
            InferenceError: no candidate could be scored at all, or a score is not a number.
        """
        return rank_by_parts(
            self.scorer,
            ranking,
            partial(split_into_passages, options=self.options, separator=self.separator),
            self._score_candidate,
            stage=self.name,
            depth=self.depth,
            noun="passages",
            deadline=deadline,
            leaves_words_out=partial(leaves_words_out, options=self.options),
        )

    def _score_candidate(
        self,
        candidate: Candidate,
        spans: Sequence[Span | None],
        _logits: npt.NDArray[np.float32],  # passages are compared by log-odds alone
        log_odds: npt.NDArray[np.float32],
    ) -> ScoredCandidate:
        """Return a candidate's score, aggregated from the log-odds of its passages. NaN marks an unscored passage."""
        scored_indices = np.flatnonzero(~np.isnan(log_odds))
        scored_log_odds = log_odds[scored_indices]
        probabilities = self.scorer.probabilities(scored_log_odds)
        aggregate = AGGREGATIONS[self.options.aggregation]
        document_score = aggregate(scored_log_odds.astype(np.float64), probabilities, self.options.k)
        # two different scores can round to the same unit near 0 or 1; this keeps them apart
        (unit,) = unit_interval_scores(np.array([document_score.score]), np.array([document_score.unit]))
        best_index = int(scored_indices[scored_log_odds.argmax()])
        return ScoredCandidate(
            candidate,
            document_score.score,
            unit,
            parts={"logit": float(log_odds[best_index]), "probability": document_score.probability},
            passage=spans[best_index],
        )


def leaves_words_out(candidate: Candidate, spans: Sequence[Span | None], options: Passages) -> bool:
    """Return whether a document has words, apart from its title, outside the spans of its passages."""
    passage_spans = [span for span in spans if span is not None]
    if not passage_spans:  # the document was not split
        return False
    sections = read_sections(without_html(candidate))
    bodies = [section for section in sections if section.field not in options.title_fields]
    return leaves_out_text(bodies, passage_spans)


def prepare_text(candidate: Candidate, options: Passages, separator: str = " ") -> str | LongText:
    """Return the text to encode for a document, or a `LongText` if the text is split into passages.

    The digest of a `LongText` covers everything that decides how the passages read: the texts and the options.

    Args:
        candidate: the document.
        options: the options for splitting a long document.
        separator: the text between the title and a passage.
    """
    is_html = has_html(candidate)
    if not is_html and _is_short(candidate, options):
        return candidate.text or ""
    windows = options.windows
    sections = read_sections(candidate)
    title_fields = options.title_fields
    sample_id = candidate.doc_id if windows.policy == "sampled" else ""  # the id decides which passages are drawn
    # the number of title fields tells where the sections begin
    digested_values = [*window_values(windows), sample_id, separator, len(title_fields), *title_fields]
    digested_values += chain.from_iterable(sections)
    if is_html or any(is_dense(section.text) for section in sections if section.field not in title_fields):
        digested_values.append(SPLITTING_VERSION)
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for value in digested_values:
        # The length of each value is digested, too, so that ("ab", "c") and ("a", "bc") have different digests.
        encoded = str(value).encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return LongText(digest.digest(), partial(split_into_passages, candidate, options, separator))


def split_into_passages(candidate: Candidate, options: Passages, separator: str = " ") -> list[tuple[str, Span | None]]:
    """Return the text and span of each passage of a document. There is at least one passage.

    The text is what a model gets in search, training and evaluation: the whole title, and the passage. The span is the
    passage's place in the document's field. A document that is too short to be split is one passage without a span.

    Args:
        candidate: the document. Its title is one of its sections.
        options: the options for splitting it.
        separator: the text between the title and a passage.
    """
    without_tags = without_html(candidate)  # spaces replace the tags, so spans are the same as with tags
    if _is_short(without_tags, options):
        return [(model_text(candidate), None)]
    sections = read_sections(without_tags)
    titles = [section for section in sections if section.field in options.title_fields]
    bodies = [section for section in sections if section.field not in options.title_fields]
    passages = find_passages(bodies, options.windows, candidate.doc_id)
    if not passages and titles:  # no other field has words: the first title becomes the passage
        first, *titles = titles
        passages = [(first, Span(first.field, 0, len(first.text), first.value))]
    elif not passages:  # the document is empty
        first = bodies[0]
        passages = [(first, Span(first.field, 0, 0, first.value))]
    title = separator.join(section.text for section in titles)
    prefix = f"{title}{separator}" if title else ""
    texts = [section.text[span.start : span.end] for section, span in passages]
    if without_tags is not candidate:  # the document has HTML
        texts = [unescape(text) for text in texts]
        prefix = f"{normalize_spaces(unescape(prefix))}{separator}" if prefix else ""
    return [(f"{prefix}{normalize_spaces(text)}", span) for text, (_, span) in zip(texts, passages, strict=True)]


def score_by_passages(
    scorer: Scorer, query: str, documents: Sequence[str], options: Passages, *, deadline: Deadline = NEVER
) -> Scores:
    """Score texts outside a search, each by its best passage.

    In the returned scores, ``reached`` says how far scoring came before the deadline: each of the first ``reached``
    documents has a passage that was scored or failed. It is the number of all documents only if the model has tried
    all passages.

    Args:
        scorer: the model, which scores single documents.
        query: the query's text.
        documents: the documents' texts, at least one.
        options: the options for splitting texts. Their aggregation is ignored: the best passage counts (``maxp``).
        deadline: as for ``Scorer.score``.

    Raises:
        DeadlineExceeded: nothing was scored in time.
        InferenceError: no document could be scored at all, or a score is not a number.
    """
    candidates = [Candidate(doc_id="", text=document, score=0.0, rank=1) for document in documents]
    passage_scores = score_all_parts(
        scorer,
        query,
        candidates,
        partial(split_into_passages, options=options),
        stage="mono",
        deadline=deadline,
        leaves_words_out=partial(leaves_words_out, options=options),
    )
    values = np.array([_find_highest(log_odds) for log_odds in passage_scores.log_odds], dtype=np.float32)
    all_were_split = passage_scores.unread == 0
    all_were_tried = all_were_split and passage_scores.attempted == passage_scores.asked
    return Scores(
        values,
        failures=passage_scores.failed,
        reached=len(documents) if all_were_tried else min(passage_scores.reached, len(documents) - 1),
        identity=passage_scores.identity,
        **passage_scores.counts(),
    )


def score_texts(scorer: Scorer, query: str, documents: Sequence[str], *, deadline: Deadline) -> Scores:
    """Score texts as a search does by default: a long text by its best passage, if the model advises it.

    Blank texts are not scored.

    Raises:
        ScoringError: nothing was scored in time, or no document could be scored.
        WorkerError: the workers did not reply.
    """
    candidates = [Candidate(doc_id="", text=document, score=0.0, rank=1) for document in documents]
    scorable = [index for index, candidate in enumerate(candidates) if not lacks_text(candidate)]
    texts = [model_text(candidates[index]) for index in scorable]
    if not texts:
        scores = Scores(np.empty(0, np.float32))
    elif scorer.advice.passages:
        scores = score_by_passages(scorer, query, texts, AUTO_PASSAGES, deadline=deadline)
    else:
        scores = scorer.score(query, texts, single_documents(len(texts)), deadline=deadline)
    return scores if len(texts) == len(documents) else scores.expand(scorable, len(documents), BLANK_TEXT)


def choose_passage_options(options: Rerank, model: Scorer | Encoder) -> Passages | None:
    """Return the options for splitting long documents: the search's, or for ``"auto"`` what the model recommends.

    None means not to split.
    """
    if options.passages != "auto":
        return options.passages
    return AUTO_PASSAGES if model.advice.passages else None


def _find_highest(log_odds: npt.NDArray[np.float32]) -> float:
    """Return the highest of a document's log-odds, or NaN if all are NaN."""
    return float(np.nanmax(log_odds)) if not np.isnan(log_odds).all() else math.nan


def _is_short(candidate: Candidate, options: Passages) -> bool:
    """Return whether a candidate has too few words to be split into passages."""
    return candidate.text is not None and has_fewer_words(candidate.text, options.least_words)
