"""Rerank by vectors: encode the query with a bi-encoder, and compare its vector with the documents' stored vectors.

A *record* holds the vector of a passage, or the vectors of its tokens. A document that is not split has one record.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, pairwise, takewhile

import numpy as np
import numpy.typing as npt

from osrerank.errors import DeadlineExceeded
from osrerank.metrics import SEARCHED_TEXTS, VECTOR_LABELS
from osrerank.options.passages import Passages
from osrerank.stages.html import lacks_text, model_text
from osrerank.stages.ordering import (
    ScoredCandidate,
    StageAttempt,
    StageOutcome,
    deadline_reason,
    not_scored_reason,
    nothing_scored_error,
    rank_block,
    unit_interval_scores,
)
from osrerank.stages.passages import AGGREGATIONS, leaves_words_out, max_p, prepare_text
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
from osrerank.types.scores import NOT_FINITE
from osrerank.types.vectors import Floats as Float32s
from osrerank.vectors.documents import CompletedRecords, DocumentRecords, DocumentVectors, take_half_the_time
from osrerank.vectors.record import stack_vectors

Float64s = npt.NDArray[np.float64]
UNSPLIT = Passages()
"""The options if documents are not split: each document is one passage."""


@dataclass(frozen=True, slots=True)
class VectorStage:
    """Orders the top ``depth`` candidates by their similarity to the query. Long documents are compared by passages.

    Documents without stored vectors are encoded: the first passages of all documents, then the second passages, and so
    on. If the deadline passes first, only the candidates ranked above the first one without a vector are reordered. The
    others keep their ranks.

    Attributes:
        document_vectors: reads the stored vectors of documents, and encodes texts.
        passages: the options for splitting long documents into passages. None does not split them.
        depth: the number of candidates that are compared.
        separator: the text between the title and a passage.
        name: the stage's name in traces and reports.
    """

    document_vectors: DocumentVectors
    passages: Passages | None = None
    depth: int = 100
    separator: str = " "
    name: str = "vectors"

    def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
        """Return the ranking with its top ``depth`` candidates sorted by their similarity to the query.

        If the ranking has no vectors of this stage's model, the stored vectors are read first.

        Raises:
            DeadlineExceeded: no document had a vector in time.
            InferenceError: no document could be encoded.
        """
        if deadline.passed:
            raise DeadlineExceeded(f'the deadline passed before the stage "{self.name}" began', stage=self.name)
        vectors = ranking.vectors
        if vectors is None or vectors.model_key != self.document_vectors.records.model_key:
            vectors = self.read_vectors(ranking, self.depth, deadline)
        compare = partial(self._compare_block, ranking.query.text, vectors, deadline)
        return rank_block(self.document_vectors.encoder, ranking, compare, stage=self.name, depth=self.depth)

    def read_vectors(self, ranking: Ranking, depth: int, deadline: Deadline = NEVER) -> CandidateVectors:
        """Prepare the texts of the top candidates, and read their stored vectors.

        Args:
            ranking: the ranking before the stage.
            depth: the number of top candidates.
            deadline: the search's deadline. At most half of the remaining time is spent on preparing texts. Candidates
                that are not prepared by then are left out.
        """
        scorable = (candidate for candidate in ranking.candidates[:depth] if not lacks_text(candidate))
        texts = {candidate.doc_id: self.prepare_text(candidate) for candidate in take_half_the_time(scorable, deadline)}
        records = self.document_vectors.records
        keys = dict(zip(texts, records.compute_keys(texts.values()), strict=True))
        return CandidateVectors(records.model_key, texts, keys, records.read_stored(list(keys.values())))

    def find_depth(self, ranking: Ranking, minimum: int, maximum: int) -> int:
        """Return how many candidates to rerank, if the depth depends on the number of stored vectors.

        It is at least ``minimum`` and at most ``maximum``. In between, it ends above the first candidate that must be
        encoded.
        """
        depth, vectors = minimum, ranking.vectors
        if vectors is None:
            return depth
        for candidate in ranking.candidates[minimum:maximum]:
            key = vectors.keys.get(candidate.doc_id)
            is_stored = key is not None and key in vectors.stored_records
            # without a key, the candidate has no text, or there was no time to prepare its text
            needs_no_vector = key is None and lacks_text(candidate)
            if not is_stored and not needs_no_vector:
                break
            depth += 1
        return depth

    def prepare_text(self, candidate: Candidate) -> str | LongText:
        """Return the text to encode for a candidate, or a `LongText` if the text is split into passages."""
        if self.passages is None:
            return model_text(candidate)
        return prepare_text(candidate, self.passages, self.separator)

    def _compare_block(
        self,
        query: str,
        vectors: CandidateVectors,
        deadline: Deadline,
        block: Sequence[Candidate],
        scorable: Sequence[Candidate],
    ) -> StageOutcome:
        """Score candidates for `rank_block`: the ``scorable`` candidates of a ``block`` are those with text."""
        query_future = self.document_vectors.encode_query(query)
        # If the deadline was near, only the texts of the top candidates were prepared.
        doc_ids = list(takewhile(lambda doc_id: doc_id in vectors.texts, [candidate.doc_id for candidate in scorable]))
        texts = [vectors.texts[doc_id] for doc_id in doc_ids]
        keys = [vectors.keys[doc_id] for doc_id in doc_ids]
        completed = self.document_vectors.encode_missing(texts, keys, vectors.stored_records, deadline)
        query_vectors = query_future.result()  # of a batch of one query
        scored = self._score(scorable, completed.documents, query_vectors.rows[0])
        if not scored:
            reasons = (reason for document in completed.documents for reason in document.failures.values())
            failures = dict(enumerate(reasons))  # the error quotes the first reason
            raise nothing_scored_error(self.document_vectors.encoder, failures, stage=self.name)
        outcome = self._make_outcome(block, scorable, completed, scored, query_vectors)
        new_records = {**vectors.new_records, **completed.new_records}
        return outcome._replace(vectors=replace(vectors, new_records=new_records))

    def _score(
        self, scorable: Sequence[Candidate], documents: Sequence[DocumentRecords], query_vector: Float32s
    ) -> list[ScoredCandidate]:
        """Score the candidates that have a vector. In ``documents``, mark passages without a finite logit as failed.

        Args:
            scorable: the candidates with text.
            documents: the records of each candidate's passages.
            query_vector: the query's vector, or one for each of its tokens.
        """
        passages = [  # the index of the document, and the index of the passage in it
            (document_index, passage_index)
            for document_index, document in enumerate(documents)
            for passage_index in sorted(document.records)
        ]
        if not passages:
            return []
        rows = stack_vectors(
            [documents[document_index].records[passage_index] for document_index, passage_index in passages]
        )
        logits = self.document_vectors.encoder.similarity(query_vector, rows)
        is_finite = np.isfinite(logits)
        if not is_finite.all():
            reason = NOT_FINITE.format(model=self.document_vectors.encoder.model)
            for index in np.flatnonzero(~is_finite).tolist():
                document_index, passage_index = passages[index]
                documents[document_index].set_part(passage_index, record=None, failure=reason)
            passages = list(compress(passages, is_finite.tolist()))
            logits = logits[is_finite]
        logit_values = logits.tolist()
        bounds = _find_bounds([document_index for document_index, _ in passages])
        # The index of each document's highest logit. The shortcut is for the many documents with a single passage.
        best_indices = [
            start if end - start == 1 else max(range(start, end), key=logit_values.__getitem__) for start, end in bounds
        ]
        scores, units, probabilities = self._aggregate(logits, bounds, best_indices)
        unit_scores = unit_interval_scores(scores, units)
        columns = zip(best_indices, scores.tolist(), unit_scores, probabilities.tolist(), strict=True)
        scored_candidates = []
        for index, score, unit_score, probability in columns:
            document_index, passage_index = passages[index]
            candidate, document = scorable[document_index], documents[document_index]
            scored_candidates.append(
                ScoredCandidate(
                    candidate,
                    score=score,
                    unit=unit_score,
                    parts={"logit": logit_values[index], "probability": probability},
                    passage=document.spans[passage_index],
                    is_truncated=self._is_truncated(candidate, document),
                )
            )
        return scored_candidates

    def _aggregate(
        self, logits: Float32s, bounds: Sequence[tuple[int, int]], best_indices: Sequence[int]
    ) -> tuple[Float64s, Float64s, Float64s]:
        """Return each document's score ``(n,)``, the score on the unit interval, and the probability of relevance.

        Args:
            logits: the logits of all documents' passages, document by document.
            bounds: the start and end of each document's logits, such as ``[(0, 2), (2, 3)]``.
            best_indices: the index of each document's highest logit, such as ``[1, 2]``.
        """
        probabilities = self.document_vectors.encoder.probabilities(logits)
        options = self.passages or UNSPLIT
        aggregate = AGGREGATIONS[options.aggregation]
        if aggregate is max_p:  # the index of the best passage is known
            best_probabilities = probabilities[best_indices]
            return logits[best_indices].astype(np.float64), best_probabilities, best_probabilities
        exact = logits.astype(np.float64)
        aggregated = [aggregate(exact[start:end], probabilities[start:end], options.k) for start, end in bounds]
        scores, unit_scores, document_probabilities = np.array(aggregated).T
        return scores, unit_scores, document_probabilities

    def _is_truncated(self, candidate: Candidate, document: DocumentRecords) -> bool:
        """Return whether the document has words that its vectors do not represent."""
        if any(record.is_truncated for record in document.records.values()):
            return True
        if self.passages is None or not isinstance(document.text, LongText):
            return False
        return leaves_words_out(candidate, document.spans, self.passages)

    def _make_outcome(
        self,
        block: Sequence[Candidate],
        scorable: Sequence[Candidate],
        completed: CompletedRecords,
        scored: Sequence[ScoredCandidate],
        query_vectors: Vectors,
    ) -> StageOutcome:
        """Return the outcome for `rank_block`, and count the texts for the metrics."""
        documents = completed.documents
        n_reached = len(scorable)
        n_unfinished = 0
        failures: dict[str, str] = {}
        reasons: list[Reason] = []
        has_gaps = len(scored) < len(scorable) or not all(document.has_all_records for document in documents)
        if has_gaps:
            scored_ids = {scored_candidate.candidate.doc_id for scored_candidate in scored}
            failures = {
                candidate.doc_id: next(iter(document.failures.values()))
                # If the deadline was near, there are fewer documents than candidates.
                for candidate, document in zip(scorable, documents, strict=False)
                if document.failures and candidate.doc_id not in scored_ids
            }
            attempted_ids = scored_ids | failures.keys()
            n_reached = len(list(takewhile(lambda candidate: candidate.doc_id in attempted_ids, scorable)))
            n_unprepared = len(scorable) - len(documents)
            n_unfinished = sum(document.has_open_parts for document in documents) + n_unprepared
            reasons = self._explain_gaps(documents, len(scorable))
        counts = {
            "inferences": sum([len(document.records) for document in documents]),
            "encoded": completed.n_encoded,
            "known": completed.n_stored,
            "lacking": n_unfinished,
            "truncated": sum([scored_candidate.is_truncated for scored_candidate in scored]),
            "query_truncated": bool(query_vectors.cut),
        }
        for state in VECTOR_LABELS:
            SEARCHED_TEXTS.labels(state).inc(counts[state])
        attempt = StageAttempt(block, scorable, scored, n_reached, failures)
        return StageOutcome(attempt, counts, reasons)

    def _explain_gaps(self, documents: Sequence[DocumentRecords], n_candidates: int) -> list[Reason]:
        """Return why not all candidates, or not all of their passages, were compared.

        Args:
            documents: the candidates whose texts were prepared before the deadline.
            n_candidates: the number of all candidates with text.
        """
        part_name = "candidates" if self.passages is None else "passages"
        n_unprepared = n_candidates - len(documents)  # each counts as one passage
        n_passages = sum(len(document.spans) for document in documents) + n_unprepared
        n_failed = sum(len(document.failures) for document in documents)
        n_attempted = sum(len(document.records.keys() | document.failures.keys()) for document in documents)
        # a document with stored records was split when they were stored
        n_not_split = n_candidates - sum(bool(document.parts or document.records) for document in documents)
        reasons = []
        if n_not_split and self.passages is not None:
            how_far = f"after {n_attempted} passages; {n_not_split} candidates were not split into passages"
            reasons.append(deadline_reason(how_far))
        elif n_attempted < n_passages:
            reasons.append(deadline_reason(f"after {n_attempted} of {n_passages} {part_name}"))
        if n_failed and self.passages is not None:
            reasons.append(not_scored_reason(f"{n_failed} of {n_passages} passages"))
        return reasons


def _find_bounds(document_indices: Sequence[int]) -> list[tuple[int, int]]:
    """Return the start and end of each document's passages, such as ``[(0, 2), (2, 3)]`` for ``[4, 4, 7]``.

    Args:
        document_indices: the index of each passage's document, in ascending order.
    """
    starts = [
        index
        for index, document_index in enumerate(document_indices)
        if index == 0 or document_index != document_indices[index - 1]
    ]
    return list(pairwise([*starts, len(document_indices)]))
