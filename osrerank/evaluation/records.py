"""The records that `osrerank run` and `osrerank rerank` write beside the TREC run: a JSON object for each query.

::

    {"query_id": "264014",
     "applied": true,                      whether the query was reranked: true, false or "partial"
     "reason": null,                       why it was not reranked, or only in part
     "candidates": [                       in final order
       {"doc_id": "5611210", "score": 1.98,
        "first_pass": {"score": 15.78, "rank": 1},
        "stages": {"mono": {"score": 3.9, "rank": 1, "logit": 3.9, "probability": 0.98}}}],
     "pairs": {"doc_ids": ["5611210", ...],           only if a duo stage ran
               "probabilities": [[null, 0.7, ...], ...]},     row i, column j: P(document i is better than document j)
     "stages": [{"name": "mono", "candidates": 100, "inferences": 100, "cached": 0, "took_ms": 812.5, ...}],
     "took_ms": 830.1}                     wall time of the query, in milliseconds

The same command, repeated, writes the same records except for ``took_ms``.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from osrerank._bad_value import describe_bad_value
from osrerank.errors import EvaluationError
from osrerank.pipeline import find_applied
from osrerank.response import FIRST_PASS, compute_final_score
from osrerank.types import Ranking, ScoredDocument

NON_STAGE_KEYS = {FIRST_PASS, "failure", "explanation", "probability"}
"""The keys of a hit's ``_rerank`` that are not names of reranking stages, such as ``mono``."""


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """A query's record. The module's docstring lists its fields.

    Attributes:
        query_id: the query's id.
        fields: all fields of the JSON object except ``query_id``.
    """

    query_id: str
    fields: Mapping[str, Any]

    @classmethod
    def from_response(cls, query_id: str, response: Mapping[str, Any], began_s: float) -> Self:
        """Create the record of a search from its response.

        ``began_s`` is the time at which the search began, from ``time.perf_counter``.
        """
        candidates = [_candidate_from_hit(hit, rank) for rank, hit in enumerate(response["hits"]["hits"], start=1)]
        summary = response.get("rerank") or {"applied": False, "reason": None, "stages": []}
        return cls.from_parts(
            query_id,
            candidates=candidates,
            stages=summary["stages"],
            applied=summary["applied"],
            reason=summary["reason"],
            began_s=began_s,
        )

    @classmethod
    def from_ranking(cls, query_id: str, ranking: Ranking, began_s: float) -> Self:
        """Create the record of a ranking that the pipeline returned, as `from_response` does."""
        # a candidate's trace begins with the first pass, and the stages follow
        candidates = [
            {
                "doc_id": candidate.doc_id,
                "score": compute_final_score(candidate),
                "first_pass": candidate.trace[0].as_json(),
                "stages": {entry.stage: entry.as_json() for entry in candidate.trace[1:]},
            }
            for candidate in ranking.candidates
        ]
        reasons = [report.reason for report in ranking.reports if report.reason and not report.skipped]
        reason = "; ".join(reasons) or None
        stages = [asdict(report) for report in ranking.reports]
        return cls.from_parts(
            query_id,
            candidates=candidates,
            stages=stages,
            applied=find_applied(ranking.reports),
            reason=reason,
            began_s=began_s,
        )

    @classmethod
    def from_parts(
        cls,
        query_id: str,
        candidates: list[dict[str, Any]],
        stages: Any,
        applied: object,
        reason: object,
        began_s: float,
    ) -> Self:
        """Create a record from its fields, whose meaning is in the module's docstring.

        The pair probabilities are moved from the duo stage's report to the field ``pairs``.
        """
        pairs = next((stage["pairs"] for stage in stages if stage.get("pairs")), None)
        return cls(
            query_id,
            {
                "applied": applied,
                "reason": reason,
                "candidates": candidates,
                **({"pairs": pairs} if pairs else {}),
                "stages": [{name: value for name, value in stage.items() if name != "pairs"} for stage in stages],
                "took_ms": round((time.perf_counter() - began_s) * 1000, 3),
            },
        )

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Create a record from its JSON object.

        Raises:
            EvaluationError: the value is not a record, or a score is not finite.
        """
        try:
            fields = {name: field for name, field in value.items() if name != "query_id"}
            for candidate in fields["candidates"]:
                _validate_scores(candidate)
            return cls(value["query_id"], fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise EvaluationError(f"{describe_bad_value(error)}, so this is not a record of `osrerank run`") from None

    def as_json(self) -> dict[str, Any]:
        """Return the record's JSON object."""
        return {"query_id": self.query_id, **self.fields}

    @property
    def is_partial(self) -> bool:
        """Whether only some candidates were reranked, or only some stages ran."""
        return bool(self.fields["applied"] == "partial")

    @property
    def failure_reason(self) -> str:
        """Why the query was not completely reranked, or "" if it was, or if there were no candidates."""
        if self.fields["applied"] is True or not self.fields["candidates"]:
            return ""
        return str(self.fields["reason"] or "not reranked")

    def remove_document(self, doc_id: str, max_candidates: int) -> "QueryRecord":
        """Return the record without a document, and with at most ``max_candidates`` candidates.

        The candidates below the removed document move up by one rank.
        """
        candidates = self.fields["candidates"]
        removed = next((candidate for candidate in candidates if candidate["doc_id"] == doc_id), None)
        if removed is None:
            return QueryRecord(self.query_id, {**self.fields, "candidates": candidates[:max_candidates]})
        remaining = [candidate for candidate in candidates if candidate is not removed][:max_candidates]
        fields = {**self.fields, "candidates": [_close_rank_gap(candidate, removed) for candidate in remaining]}
        pairs = self.fields.get("pairs")
        if pairs and doc_id in pairs["doc_ids"]:
            fields["pairs"] = _remove_from_pairs(pairs, doc_id)
        return QueryRecord(self.query_id, fields)

    def list_documents(self) -> tuple[ScoredDocument, ...]:
        """Return the candidates with their final scores, as in the TREC run."""
        candidates = self.fields["candidates"]
        return tuple(ScoredDocument(candidate["doc_id"], float(candidate["score"])) for candidate in candidates)


def _candidate_from_hit(hit: Mapping[str, Any], rank: int) -> dict[str, Any]:
    explanation = hit.get("_rerank") or {FIRST_PASS: {"score": hit["_score"], "rank": rank}}
    return {
        "doc_id": hit["_id"],
        "score": hit["_score"],
        "first_pass": explanation[FIRST_PASS],
        "stages": {name: entry for name, entry in explanation.items() if name not in NON_STAGE_KEYS},
    }


def _close_rank_gap(candidate: Mapping[str, Any], removed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a candidate whose ranks count as if the removed candidate had never been there."""

    def move_up(entry: Mapping[str, Any], removed_entry: Mapping[str, Any] | None) -> dict[str, Any]:
        was_below = removed_entry is not None and removed_entry["rank"] < entry["rank"]
        return {**entry, "rank": entry["rank"] - 1} if was_below else dict(entry)

    stages = {name: move_up(entry, removed["stages"].get(name)) for name, entry in candidate["stages"].items()}
    return {**candidate, "first_pass": move_up(candidate["first_pass"], removed["first_pass"]), "stages": stages}


def _remove_from_pairs(pairs: Mapping[str, Any], doc_id: str) -> dict[str, Any]:
    """Return a record's ``pairs`` without the row and the column of a document."""
    remaining = [index for index, other_id in enumerate(pairs["doc_ids"]) if other_id != doc_id]
    rows = [[pairs["probabilities"][row][column] for column in remaining] for row in remaining]
    return {**pairs, "doc_ids": [pairs["doc_ids"][index] for index in remaining], "probabilities": rows}


def _validate_scores(candidate: Mapping[str, Any]) -> None:
    if not isinstance(candidate["doc_id"], str):
        raise EvaluationError(f"the document id {candidate['doc_id']!r} is not a string")
    entries = [candidate, candidate["first_pass"], *candidate["stages"].values()]
    if not all(math.isfinite(entry["score"]) for entry in entries):
        raise EvaluationError(f"a score of document {candidate['doc_id']!r} is not a finite number")
