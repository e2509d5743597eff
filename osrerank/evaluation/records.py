"""The records that `osrerank run` and `osrerank rerank` keep besides the TREC run: a JSON object for each query.

::

    {"query_id": "264014",
     "applied": true, whether models made the order: true, false or "partial"
     "reason": null,                       why models did not make it, or only a part
     "candidates": [                       in final order
       {"doc_id": "5611210", "score": 1.98,           what the run's scores are made of
        "first_pass": {"score": 15.78, "rank": 1},
        "stages": {"mono": {"score": 3.9, "rank": 1, "logit": 3.9, "probability": 0.98}}}],
     "pairs": {"doc_ids": ["5611210", ...],           where a duo stage ran: p_ij, row i better than column j
               "probabilities": [[null, 0.7, ...], ...]},
     "stages": [{"name": "mono", "candidates": 100, "inferences": 100, "cached": 0, "took_ms": 812.5, ...}],
     "took_ms": 830.1}                     wall time of the query, in milliseconds

A repeated run has the same lines, except for the ``took_ms`` values.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from osrerank.errors import EvaluationError
from osrerank.pipeline import applied
from osrerank.response import FIRST_PASS, final_score
from osrerank.types import Ranking, ScoredDocument

NOT_STAGES = {FIRST_PASS, "failure", "explanation", "probability"}


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """One query's line in a side file.

    Attributes:
        query_id: the query.
        fields: the line's other fields, which the module's docstring lists.
    """

    query_id: str
    fields: Mapping[str, Any]

    @classmethod
    def from_response(cls, query_id: str, response: Mapping[str, Any], started_s: float) -> Self:
        """Make the record of a search response.

        Args:
            query_id: the query.
            response: the response of ``client.search``.
            started_s: when the search began, by ``time.perf_counter``, in seconds.
        """
        candidates = [_from_hit(hit, rank) for rank, hit in enumerate(response["hits"]["hits"], start=1)]
        summary = response.get("rerank") or {"applied": False, "reason": None, "stages": []}
        return cls.make(query_id, candidates, summary["stages"], summary["applied"], summary["reason"], started_s)

    @classmethod
    def from_ranking(cls, query_id: str, ranking: Ranking, started_s: float) -> Self:
        """Make the record of a ranking; the other arguments are those of `from_response`."""
        candidates = [
            {
                "doc_id": candidate.doc_id,
                "score": final_score(candidate),
                "first_pass": candidate.trace[0].as_json(),
                "stages": {entry.stage: entry.as_json() for entry in candidate.trace[1:]},
            }
            for candidate in ranking.candidates
        ]
        reason = "; ".join(report.reason for report in ranking.reports if report.reason and not report.skipped) or None
        stages = [asdict(report) for report in ranking.reports]
        return cls.make(query_id, candidates, stages, applied(ranking.reports), reason, started_s)

    @classmethod
    def make(
        cls,
        query_id: str,
        candidates: list[dict[str, Any]],
        stages: Any,
        reranked: object,
        reason: object,
        started_s: float,
    ) -> Self:
        """Make a record from its parts; the pairs that a stage compared move from the stage's report to the record."""
        pairs = next((stage["pairs"] for stage in stages if stage.get("pairs")), None)
        return cls(
            query_id,
            {
                "applied": reranked,
                "reason": reason,
                "candidates": candidates,
                **({"pairs": pairs} if pairs else {}),
                "stages": [{name: value for name, value in stage.items() if name != "pairs"} for stage in stages],
                "took_ms": round((time.perf_counter() - started_s) * 1000, 3),
            },
        )

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Make a record from a line's JSON object.

        Raises:
            EvaluationError: the line is not a record.
        """
        try:
            fields = {name: field for name, field in value.items() if name != "query_id"}
            for candidate in fields["candidates"]:
                _check(candidate)
            return cls(value["query_id"], fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise EvaluationError(f"not a record of `osrerank run`: {type(error).__name__} {error}") from None

    def as_json(self) -> dict[str, Any]:
        """Return the record as the JSON object of its line."""
        return {"query_id": self.query_id, **self.fields}

    @property
    def is_partial(self) -> bool:
        """Whether only a part of the candidates was reranked, or only some of the stages ran."""
        return bool(self.fields["applied"] == "partial")

    @property
    def problem(self) -> str:
        """Why a reranked query failed; empty if it did not fail, or if it had no candidates."""
        if self.fields["applied"] is True or not self.fields["candidates"]:
            return ""
        return str(self.fields["reason"] or "not reranked")

    def without(self, doc_id: str, max_candidates: int) -> "QueryRecord":
        """Return the record as if a document had not been found, with at most ``max_candidates`` candidates."""
        removed = next((candidate for candidate in self.fields["candidates"] if candidate["doc_id"] == doc_id), None)
        kept = [candidate for candidate in self.fields["candidates"] if candidate is not removed][:max_candidates]
        fields = {
            **self.fields,
            "candidates": kept if removed is None else [_closed_up(candidate, removed) for candidate in kept],
        }
        if (pairs := self.fields.get("pairs")) and doc_id in pairs["doc_ids"]:
            fields["pairs"] = _pairs_without(pairs, doc_id)
        return QueryRecord(self.query_id, fields)

    def documents(self) -> tuple[ScoredDocument, ...]:
        """Return the query's lines of the TREC run."""
        candidates = self.fields["candidates"]
        return tuple(ScoredDocument(candidate["doc_id"], float(candidate["score"])) for candidate in candidates)


def _from_hit(hit: Mapping[str, Any], rank: int) -> dict[str, Any]:
    marks = hit.get("_rerank") or {FIRST_PASS: {"score": hit["_score"], "rank": rank}}
    return {
        "doc_id": hit["_id"],
        "score": hit["_score"],
        "first_pass": marks[FIRST_PASS],
        "stages": {name: values for name, values in marks.items() if name not in NOT_STAGES},
    }


def _closed_up(candidate: Mapping[str, Any], removed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a candidate with the ranks that it has once another candidate is removed."""

    def close_gap(values: Mapping[str, Any], removed_values: Mapping[str, Any] | None) -> dict[str, Any]:
        was_above = removed_values is not None and removed_values["rank"] < values["rank"]
        return {**values, "rank": values["rank"] - 1 if was_above else values["rank"]}

    stages = {name: close_gap(values, removed["stages"].get(name)) for name, values in candidate["stages"].items()}
    return {**candidate, "first_pass": close_gap(candidate["first_pass"], removed["first_pass"]), "stages": stages}


def _pairs_without(pairs: Mapping[str, Any], doc_id: str) -> dict[str, Any]:
    kept = [index for index, other_id in enumerate(pairs["doc_ids"]) if other_id != doc_id]
    rows = [[pairs["probabilities"][row][column] for column in kept] for row in kept]
    return {**pairs, "doc_ids": [pairs["doc_ids"][index] for index in kept], "probabilities": rows}


def _check(candidate: Mapping[str, Any]) -> None:
    """Refuse a candidate whose numbers cannot be used."""
    scored = [candidate, candidate["first_pass"], *candidate["stages"].values()]
    if not isinstance(candidate["doc_id"], str) or not all(math.isfinite(part["score"]) for part in scored):
        raise EvaluationError(f"document {candidate['doc_id']!r} has a score that is not a finite number")
