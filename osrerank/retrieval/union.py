"""The hits of a first pass and of a search by vectors as one list, without doubles."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from osrerank.response import Sourced, hits_of, parse_hit, squash, text_of, without_fields
from osrerank.retrieval.vector_field import VectorField
from osrerank.types import AT_MOST, VECTORS, StageScore


@dataclass(frozen=True, slots=True)
class Union:
    """What both searches found.

    Attributes:
        response: the first pass's, with the hits that only the search by vectors found behind its first ones.
        sources: what found each hit; empty where the first pass is the only search.
        stale: hits by vectors that were left out, because the vector is not of today's text.
    """

    response: Mapping[str, Any]
    sources: tuple[Sourced, ...] = ()
    stale: int = 0

    @property
    def only(self) -> int:
        """How many hits the first pass's first ones lack."""
        return sum(one.rank is None for one in self.sources)

    @property
    def both(self) -> int:
        """How many hits both searches found."""
        return sum(one.vectors is not None for one in self.sources) - self.only


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a search's candidates came from.

    Attributes:
        union: what both searches found; None where there was no search by vectors.
        reason: why there was none; empty where there was one.
    """

    union: Union | None = None
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return ``response["rerank"]["candidates"]``."""
        if self.union is None:
            return {"vectors": 0, "reason": self.reason}
        found = {"vectors": self.union.both + self.union.only, "vectors_only": self.union.only}
        stale = {"stale": self.union.stale} if self.union.stale else {}
        return {**found, **stale, "reason": None}


def united(
    first: Mapping[str, Any], second: Mapping[str, Any], field: VectorField, depth: int, added: tuple[str, ...] = ()
) -> Union:
    """Return the hits of both searches: the first pass's first ones, those by vectors alone, the first pass's rest.

    Whether a document is among the first ones does not depend on the page: one that the first pass has further down is
    found by its vector alone.

    Args:
        first: the first pass's response.
        second: the response of the search by vectors.
        field: that has the vectors: a hit whose vector is not of its text is left out.
        depth: how many of the first pass's hits are its first ones.
        added: names to remove from the ``fields`` of the hits by vectors.

    Raises:
        ResponseFormatError: a response is not a search's.
    """
    own, nearest = hits_of(first), hits_of(second)
    current = [hit for hit in nearest if field.is_current(hit, _text(hit, field))]
    head = {_id(hit) for hit in own[:depth]}
    bound = float(own[depth - 1].get("_score") or 0.0) if len(own) >= depth > 0 else 0.0
    found = {_id(hit): _score(hit, rank) for rank, hit in enumerate(current, start=1)}
    only = [hit for hit in current if _id(hit) not in head]
    moved = {_id(hit) for hit in only}
    ranked = list(enumerate(own, start=1))
    hits = [
        *((hit, Sourced(rank, found.get(_id(hit)))) for rank, hit in ranked[:depth]),
        *((without_fields(hit, added), Sourced(None, _with_bound(found[_id(hit)], bound))) for hit in only),
        *((hit, Sourced(rank, None)) for rank, hit in ranked[depth:] if _id(hit) not in moved),
    ]
    response = {**first, "hits": {**first["hits"], "hits": [hit for hit, _ in hits]}}
    return Union(response, tuple(source for _, source in hits), len(nearest) - len(current))


def _score(hit: Mapping[str, Any], rank: int) -> StageScore:
    score = float(hit.get("_score") or 0.0)
    return StageScore(VECTORS, score, rank, squash(score))


def _with_bound(found: StageScore, bound: float) -> StageScore:
    """Return a trace entry that says what the first pass's score can be at most."""
    return replace(found, parts={AT_MOST: bound})


def _id(hit: Mapping[str, Any]) -> tuple[str, str]:
    return str(hit.get("_index", "")), hit["_id"]


def _text(hit: Mapping[str, Any], field: VectorField) -> str | None:
    return text_of(parse_hit(hit), field.fields, field.separator) if field.fields else None
