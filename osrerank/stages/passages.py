"""Reranking long documents by their passages: each passage is scored, and the document gets the best of their scores.

Chen et al.: ICIP at TREC-2020 Deep Learning Track, section 2 (MaxP, K-Max-AvgP); FirstP, MaxP and SumP are Dai and
Callan's: Deeper text understanding for IR with contextual neural language modeling, SIGIR 2019, arXiv:1905.09217.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from osrerank.options.passages import Passages
from osrerank.stages.ordering import BELOW_ONE, Judged
from osrerank.stages.slices import rank_by_slices
from osrerank.stages.splitting import passage_spans, readable
from osrerank.types import NEVER, Candidate, Deadline, Ranking, Scorer, Section, Span

ABOVE_ZERO = np.finfo(np.float64).tiny


@dataclass(frozen=True, slots=True)
class DocumentScore:
    """The score of a document from its passages'.

    Attributes:
        score: to sort by; comparable to a logit.
        unit: a non-decreasing map of it to [0, 1].
        probability: of the document's relevance.
    """

    score: float
    unit: float
    probability: float


Floats = npt.NDArray[np.float64]


def max_p(logits: Floats, probabilities: Floats, k: int) -> DocumentScore:  # noqa: ARG001 - one form for all
    """Return the best passage's logit and probability."""
    best = int(np.argmax(logits))
    return DocumentScore(float(logits[best]), float(probabilities[best]), float(probabilities[best]))


def k_max_avg_p(logits: Floats, probabilities: Floats, k: int) -> DocumentScore:  # noqa: ARG001 - see max_p
    """Return the mean of the k highest probabilities, or of all if there are fewer; sorted by its log-odds."""
    mean = float(np.sort(probabilities)[-k:].mean())
    inside = min(max(mean, ABOVE_ZERO), BELOW_ONE)
    return DocumentScore(math.log(inside) - math.log1p(-inside), mean, mean)


def sum_p(logits: Floats, probabilities: Floats, k: int) -> DocumentScore:  # noqa: ARG001 - see max_p
    """Return the sum s of the probabilities, sorted by its logarithm: s / (1 + s) is the logistic function of that."""
    total = max(float(probabilities.sum()), ABOVE_ZERO)
    return DocumentScore(math.log(total), total / (1 + total), float(probabilities.max()))


AggregatePassages = Callable[[Floats, Floats, int], DocumentScore]
# of `firstp` one passage is scored, so the best is the first
_AGGREGATIONS: dict[str, AggregatePassages] = {"maxp": max_p, "firstp": max_p, "sump": sum_p, "kmaxavgp": k_max_avg_p}


@dataclass(frozen=True, slots=True)
class PassageStage:
    """monoBERT over passages: one forward pass for each passage of the top ``depth`` candidates, in one call.

    The hit's ``passage`` is the one with the highest score. First passages of all candidates are scored before second
    ones; when the deadline cuts the stage short, candidates without a scored passage stay below.

    Attributes:
        scorer: scores ``(i,)`` tuples.
        options: how documents are cut and their passages' scores aggregated.
        depth: how many candidates are scored (k0).
        name: how the stage is called in traces and reports.
        separator: between the title and a passage.
        budget_ms: time for the stage, in milliseconds, within the deadline of the call; None for no limit of its own.
    """

    scorer: Scorer
    options: Passages = field(default_factory=Passages)
    depth: int = 100
    name: str = "mono"
    separator: str = " "
    budget_ms: float | None = None

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
        """Return the ranking with its top ``depth`` in the order of their passages' scores.

        Raises:
            DeadlineExceeded: no passage could be scored in time.
            InferenceError: no candidate could be scored at all, or a score is not a number.
        """
        return rank_by_slices(
            self.scorer,
            ranking,
            self.passages_of,
            self._judge,
            stage=self.name,
            depth=self.depth,
            unit="passages",
            deadline=deadline.within_ms(self.budget_ms),
        )

    def passages_of(self, candidate: Candidate) -> list[tuple[str, Span | None]]:
        """Return a candidate's passages as the model reads them, at least one, each with its place in the source.

        A document of fewer words than are cut is a passage without a place.
        """
        if candidate.text is not None and len(candidate.text.split()) < self.options.least_words:
            return [(candidate.text, None)]
        sections = candidate.sections or (Section("text", candidate.text or ""),)
        titles = [section for section in sections if section.field in self.options.title_fields]
        bodies = [section for section in sections if section.field not in self.options.title_fields]
        found = passage_spans(bodies, self.options.windows, candidate.doc_id)
        if not found:  # a document that is empty, or only a title
            alone = [(section, Span(section.field, 0, len(section.text), section.value)) for section in titles[:1]]
            found = alone or [(bodies[0], Span(bodies[0].field, 0, 0, bodies[0].value))]
            titles = titles[1:]
        title = self.separator.join(section.text for section in titles)
        prefix = f"{title}{self.separator}" if title else ""
        return [(f"{prefix}{readable(section.text[span.start : span.end])}", span) for section, span in found]

    def _judge(self, candidate: Candidate, spans: Sequence[Span | None], logits: npt.NDArray[np.float32]) -> Judged:
        there = np.flatnonzero(~np.isnan(logits))
        probabilities = self.scorer.probabilities(logits[there])
        put_together = _AGGREGATIONS[self.options.aggregation]
        document = put_together(logits[there].astype(np.float64), probabilities, self.options.k)
        best = int(there[np.argmax(logits[there])])
        return Judged(
            candidate,
            score=document.score,
            unit=min(document.unit, BELOW_ONE),
            parts={"logit": float(logits[best]), "probability": document.probability},
            passage=spans[best],
        )
