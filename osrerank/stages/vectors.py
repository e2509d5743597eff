"""Rerank by stored vectors: encode the query, and compare its vector with the documents'."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from osrerank.errors import DeadlineExceeded
from osrerank.metrics import SEARCHED_TEXTS, VECTOR_COUNTS
from osrerank.options.passages import Passages
from osrerank.scoring.encoder_scorer import NOT_FINITE
from osrerank.stages.html import lacks_text, model_text
from osrerank.stages.ordering import (
    ScoredCandidate,
    StageAttempt,
    StageOutcome,
    late,
    not_scored,
    nothing_scored,
    rank_block,
    units_of,
)
from osrerank.stages.passages import AGGREGATIONS, lacks_words, max_p, text_to_encode
from osrerank.types import (
    NEVER,
    Candidate,
    Deadline,
    LongText,
    Ranking,
    Vectors,
)
from osrerank.types.candidate_vectors import CandidateVectors
from osrerank.types.reasons import Reason
from osrerank.types.vectors import Floats
from osrerank.vectors.documents import DocumentRecords, DocumentVectors, FoundRecords, in_half
from osrerank.vectors.record import rows_of

Doubles = npt.NDArray[np.float64]
CUT = attrgetter("cut")
WHOLE = Passages()
"""The options for documents that are not split: each is its only passage."""


@dataclass(frozen=True, slots=True)
class VectorStage:
    """Orders the top ``depth`` candidates by similarity to the query: long documents by that of their passages.

    Documents without vectors are encoded, first passages of all before second ones. When the deadline cuts the stage
    short, the candidates up to the first without a vector are put in order.

    Attributes:
        vectors: the source of the documents' vectors.
        passages: how long documents are split and their passages' scores aggregated; None if they are not split.
        depth: how many candidates are compared (k0).
        separator: between the title and a passage.
        name: how the stage is called in traces and reports.
    """

    vectors: DocumentVectors
    passages: Passages | None = None
    depth: int = 100
    separator: str = " "
    name: str = "vectors"

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
        """Return the ranking with its top ``depth`` in the order of their similarities.

        If the ranking has no vectors of this stage's model, those that are stored are read first.

        Raises:
            DeadlineExceeded: no document has a vector in time.
            InferenceError: no candidate has a vector at all, because its text cannot be encoded.
        """
        if deadline.passed:
            raise DeadlineExceeded(f"the deadline passed before stage {self.name} began", stage=self.name)
        vectors = ranking.vectors
        if vectors is None or vectors.model_key != self.vectors.records.model_key:
            vectors = self.stored(ranking, self.depth, deadline)
        compare = partial(self._compare, ranking.query.text, vectors, deadline)
        return rank_block(self.vectors.encoder, ranking, compare, stage=self.name, depth=self.depth)

    def stored(self, ranking: Ranking, depth: int, deadline: Deadline = NEVER) -> CandidateVectors:
        """Return the text that is encoded of each of a ranking's top candidates, its key, and the record if it is here.

        The records are those of this machine's store.

        Args:
            ranking: the ranking so far.
            depth: how many candidates are read.
            deadline: when half of the time left before it has passed, no more texts are prepared.
        """
        block = ranking.candidates[:depth]
        readable = (candidate for candidate in block if not lacks_text(candidate))
        prepared = dict(in_half(map(self._prepared, readable), deadline))
        keys = self.vectors.keys_of(list(prepared.values()))
        by_id = dict(zip(prepared, keys, strict=True))
        return CandidateVectors(self.vectors.records.model_key, prepared, by_id, self.vectors.known(keys))

    def known_depth(self, ranking: Ranking, least: int, most: int) -> int:
        """Return a depth between two: it ends before the first candidate whose record is not known."""
        if (vectors := ranking.vectors) is None:
            return least
        pairs = ((candidate, vectors.keys.get(candidate.doc_id)) for candidate in ranking.candidates[least:most])
        is_known = (key in vectors.known if key is not None else lacks_text(candidate) for candidate, key in pairs)
        return least + sum(1 for _ in takewhile(bool, is_known))

    def text_of(self, candidate: Candidate) -> str | LongText:
        """Return what is encoded of a candidate: its text, or a `LongText` if it is cut into passages."""
        if self.passages is None:
            return model_text(candidate)
        return text_to_encode(candidate, self.passages, self.separator)

    def _prepared(self, candidate: Candidate) -> tuple[str, str | LongText]:
        return candidate.doc_id, self.text_of(candidate)

    def _compare(
        self,
        query: str,
        vectors: CandidateVectors,
        deadline: Deadline,
        block: Sequence[Candidate],
        readable: Sequence[Candidate],
    ) -> StageOutcome:
        encoding = self.vectors.encoded_query(query)
        read = [candidate.doc_id for candidate in takewhile(lambda one: one.doc_id in vectors.texts, readable)]
        texts, keys = [vectors.texts[doc_id] for doc_id in read], [vectors.keys[doc_id] for doc_id in read]
        found = self.vectors.completed(texts, keys, vectors.known, deadline)
        encoded = encoding.result()
        judged = self._judge(readable, found.documents, encoded.rows[0])
        if not judged:
            failures = {at: why for at, records in enumerate(found.documents) for why in records.failures.values()}
            raise nothing_scored(self.vectors.encoder, failures, stage=self.name)
        outcome = self._outcome(block, readable, found, judged, encoded)
        return outcome._replace(vectors=replace(vectors, made={**vectors.made, **found.made}))

    def _judge(
        self, readable: Sequence[Candidate], documents: Sequence[DocumentRecords], query: Floats
    ) -> list[ScoredCandidate]:
        """Return the scores of the candidates that have a vector."""
        there = [(at, turn) for at, document in enumerate(documents) for turn in sorted(document.records)]
        if not there:
            return []
        rows = rows_of([documents[at].records[turn] for at, turn in there])
        logits = self.vectors.encoder.similarity(query, rows)
        by_document: dict[int, list[int]] = {}
        for number, ((at, turn), is_finite) in enumerate(zip(there, np.isfinite(logits).tolist(), strict=True)):
            if is_finite:
                by_document.setdefault(at, []).append(number)
            else:
                documents[at].note(turn, None, NOT_FINITE.format(model=self.vectors.encoder.model))
        values = logits.tolist()
        best = [max(own, key=values.__getitem__) if own[1:] else own[0] for own in by_document.values()]
        scores, units, probabilities = self._aggregated(logits, by_document.values(), best)
        pairs = zip(logits[best].tolist(), probabilities.tolist(), strict=True)
        parts = [{"logit": logit, "probability": probability} for logit, probability in pairs]
        each = zip(by_document, best, scores.tolist(), units_of(scores, units), parts, strict=True)
        return [
            ScoredCandidate(
                readable[at],
                score,
                unit,
                own,
                documents[at].spans[there[number][1]],
                self._is_cut(readable[at], documents[at]),
            )
            for at, number, score, unit, own in each
        ]

    def _aggregated(
        self, logits: Floats, by_document: Collection[Sequence[int]], best: Sequence[int]
    ) -> tuple[Doubles, Doubles, Doubles]:
        """Return the score of each document ``(n,)``, a non-decreasing map of it to [0, 1], and its probability.

        Args:
            logits: logits of the passages of all documents.
            by_document: for each document, the indices of its passages' logits.
            best: for each document, the index of its best passage's logit.
        """
        probabilities, options = self.vectors.encoder.probabilities(logits), self.passages or WHOLE
        if AGGREGATIONS[options.aggregation] is max_p:
            return logits[best].astype(np.float64), probabilities[best], probabilities[best]
        aggregate = AGGREGATIONS[options.aggregation]
        each = [aggregate(logits[own].astype(np.float64), probabilities[own], options.k) for own in by_document]
        scores, units, chances = np.array(each).T
        return scores, units, chances

    def _is_cut(self, candidate: Candidate, document: DocumentRecords) -> bool:
        if any(map(CUT, document.records.values())):
            return True
        return self.passages is not None and lacks_words(candidate, document.spans, self.passages)

    def _outcome(
        self,
        block: Sequence[Candidate],
        readable: Sequence[Candidate],
        found: FoundRecords,
        judged: Sequence[ScoredCandidate],
        query: Vectors,
    ) -> StageOutcome:
        documents, reached, lacking = found.documents, len(readable), 0
        failures, reasons = dict[str, str](), list[Reason]()
        if len(judged) < len(readable) or not all(document.is_whole for document in documents):
            scored = {item.candidate.doc_id for item in judged}
            failures = {
                candidate.doc_id: next(iter(document.failures.values()))
                for candidate, document in zip(readable, documents, strict=False)  # a deadline may leave fewer
                if document.failures and candidate.doc_id not in scored
            }
            dealt_with = scored | failures.keys()
            reached = next((at for at, item in enumerate(readable) if item.doc_id not in dealt_with), len(readable))
            lacking = sum(document.is_cut_off for document in documents) + len(readable) - len(documents)
            reasons = self._reasons(documents, len(readable))
        counts = {
            "inferences": sum([len(document.records) for document in documents]),
            "encoded": found.encoded,
            "known": found.known,
            "lacking": lacking,
            "truncated": sum([item.cut for item in judged]),
            "query_truncated": bool(query.cut),
        }
        for state in VECTOR_COUNTS:
            SEARCHED_TEXTS.labels(state).inc(counts[state])
        attempt = StageAttempt(block, readable, judged, reached, failures)
        return StageOutcome(attempt, counts, reasons)

    def _reasons(self, documents: Sequence[DocumentRecords], size: int) -> list[Reason]:
        """Return why not all documents, or not all of their passages, were compared."""
        unit = "candidates" if self.passages is None else "passages"
        asked = sum(len(document.spans) for document in documents) + size - len(documents)
        failed = sum(len(document.failures) for document in documents)
        attempted = len({(at, turn) for at, one in enumerate(documents) for turn in (*one.records, *one.failures)})
        uncut = size - sum(bool(document.parts or document.records) for document in documents)
        reasons = [late(f"after {attempted} of {asked} {unit}")] if attempted < asked else []
        if uncut and self.passages is not None:
            reasons = [late(f"after {attempted} passages; {uncut} candidates were not cut into passages")]
        if failed and self.passages is not None:
            reasons.append(not_scored(f"{failed} of {asked} passages"))
        return reasons
