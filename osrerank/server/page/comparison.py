"""One search as two orders, the first pass's and the reranked one, for the comparison page. Knows nothing of HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, Field

from osrerank.evaluation.basic import ndcg, reciprocal_rank
from osrerank.response import FIRST_PASS, hits_of, parse_hit, sections_of
from osrerank.types import Qrels, Query, Section

TITLE = "title"
MOST_CHARACTERS = 4_000
"""Characters of a document's text for the page: around the deciding passage, or the beginning."""
LEAD = 400
"""Characters before that passage, if the text is longer."""
CUTOFF = 10
_MEASURES = (("nDCG", ndcg), ("RR", reciprocal_rank))


class Part(BaseModel):
    """A piece of a text."""

    text: str
    marked: bool = Field(description="Whether the model judged the document by it.")


class StageMark(BaseModel):
    """A stage's score of a document."""

    stage: str
    score: float = Field(description="What the stage sorted by; higher is better.")
    rank: int = Field(description="The place after the stage, from 1.")
    probability: float | None = Field(description="Of relevance, in [0, 1], from stages that say one.")


class ComparedDocument(BaseModel):
    """A document with its rank in both orders."""

    doc_id: str
    index: str
    title: str
    parts: list[Part] = Field(description=f"Its text, at most {MOST_CHARACTERS} characters of it, in order.")
    before: int = Field(description="Its rank in the first pass, from 1.")
    after: int = Field(description="Its rank after reranking, from 1.")
    first_pass_score: float | None
    score: float | None = Field(description="As _score of the reranked response.")
    stages: list[StageMark]
    failure: str | None = Field(description="Why it could not be scored.")
    relevance: int | None = Field(description="As judged; none where it was not, or the query has no judgments.")


class StageLine(BaseModel):
    """A stage's report, as in `response["rerank"]["stages"]`."""

    name: str
    applied: bool | str
    reason: str | None
    model: str | None
    candidates: int
    inferences: int
    cached: int
    took_ms: float


class MeasureLine(BaseModel):
    """A measure of both orders; higher is better."""

    name: str
    before: float
    after: float


class JudgedLine(BaseModel):
    """The measures of both orders by the query's judgments."""

    query_id: str
    relevant: int = Field(description="Documents judged relevant.")
    found: int = Field(description="Of these, among the candidates.")
    measures: list[MeasureLine]


class ComparedSearch(BaseModel):
    """Both orders of one search."""

    query: str
    index: str
    pipeline: str
    depth: int
    total: int | None = Field(description="Hits of the first pass, where it counts them.")
    total_is_least: bool = Field(description="Whether there may be more than that.")
    first_pass_ms: float
    took_ms: float
    applied: bool | str = Field(description='Whether it was reranked: true, false or "partial".')
    reason: str | None = Field(description="Why not, or not wholly.")
    stages: list[StageLine]
    documents: list[ComparedDocument] = Field(description="In the reranked order.")
    judged: JudgedLine | None


@dataclass(frozen=True, slots=True)
class Judgments:
    """Queries to pick from, and their judgments.

    Attributes:
        queries: in the order of the page.
        qrels: judgments; None if there are none.
    """

    queries: tuple[Query, ...] = ()
    qrels: Qrels | None = None

    def of(self, text: str) -> tuple[str, Mapping[str, int]] | None:
        """Return the id and the judgments of the query with this text; None if it has none."""
        if self.qrels is None:
            return None
        wanted = _folded(text)
        for query in self.queries:
            if _folded(query.text) == wanted and query.query_id in self.qrels.judgments:
                return query.query_id, self.qrels.judgments[query.query_id]
        return None


def compare(
    response: Mapping[str, Any],
    asked: Mapping[str, Any],
    fields: Sequence[str],
    judged: tuple[str, Mapping[str, int]] | None,
) -> ComparedSearch:
    """Return both orders of a reranked response that has all candidates as one page.

    Args:
        response: of a search with `rerank`.
        asked: query, index, pipeline and depth, to repeat in the result.
        fields: the fields that the model read.
        judged: the id and the judgments of the query, if it has any.
    """
    relevance = {} if judged is None else judged[1]
    hits = hits_of(response)
    documents = [_document(hit, rank, fields, relevance) for rank, hit in enumerate(hits, start=1)]
    marks = response["rerank"]
    total = response["hits"].get("total") or {}
    return ComparedSearch(
        **asked,
        total=total.get("value"),
        total_is_least=total.get("relation") == "gte",
        first_pass_ms=marks["first_pass_took_ms"],
        took_ms=response.get("took", 0),
        applied=marks["applied"],
        reason=marks["reason"],
        stages=[StageLine(**{name: stage[name] for name in StageLine.model_fields}) for stage in marks["stages"]],
        documents=documents,
        judged=None if judged is None else _judged_line(judged[0], relevance, documents),
    )


def _document(
    raw: Mapping[str, Any], rank: int, fields: Sequence[str], relevance: Mapping[str, int]
) -> ComparedDocument:
    marks = raw.get("_rerank") or {}
    first_pass = marks.get(FIRST_PASS) or {"score": raw.get("_score"), "rank": rank}
    stages = [(name, mark) for name, mark in marks.items() if name != FIRST_PASS and isinstance(mark, Mapping)]
    sections = sections_of(parse_hit(raw), fields) or ()
    passage = next((mark["passage"] for _, mark in reversed(stages) if "passage" in mark), None)
    return ComparedDocument(
        doc_id=raw["_id"],
        index=raw.get("_index", ""),
        title=" ".join(section.text for section in sections if section.field == TITLE),
        parts=_parts([section for section in sections if section.field != TITLE], passage),
        before=first_pass["rank"],
        after=rank,
        first_pass_score=first_pass["score"],
        score=raw.get("_score"),
        stages=[
            StageMark(stage=name, score=mark["score"], rank=mark["rank"], probability=mark.get("probability"))
            for name, mark in stages
        ],
        failure=marks.get("failure"),
        relevance=relevance.get(raw["_id"]),
    )


def _parts(sections: Sequence[Section], passage: Mapping[str, Any] | None) -> list[Part]:
    """Return the texts of the sections, with the deciding passage marked."""
    parts: list[Part] = []
    left = MOST_CHARACTERS
    for section in sections:
        is_marked = passage is not None and (section.field, section.value) == (passage["field"], passage.get("value"))
        span = (passage["start"], passage["end"]) if passage is not None and is_marked else (0, 0)
        pieces = _cut(section.text, span, left)
        left -= sum(len(piece.text) for piece in pieces)
        if parts and pieces:
            parts.append(Part(text=" ", marked=False))
        parts += pieces
    return parts


def _cut(text: str, span: tuple[int, int], length: int) -> list[Part]:
    """Return at most `length` characters of a text in up to three parts, the span in the middle marked."""
    if length <= 0:
        return []
    begin = max(min(span[0] - LEAD, len(text) - length), 0) if len(text) > length else 0
    end = min(begin + length, len(text))
    places = [begin, *(min(max(place, begin), end) for place in span), end]
    ellipses = ("…" if begin else "", "…" if end < len(text) else "")
    pieces = [text[start:stop] for start, stop in pairwise(places)]
    texts = (ellipses[0] + pieces[0], pieces[1], pieces[2] + ellipses[1])
    return [Part(text=piece, marked=place == 1) for place, piece in enumerate(texts) if piece]


def _judged_line(query_id: str, relevance: Mapping[str, int], documents: Sequence[ComparedDocument]) -> JudgedLine:
    relevant = {doc_id for doc_id, grade in relevance.items() if grade > 0}
    after = [document.doc_id for document in documents]
    before = [document.doc_id for document in sorted(documents, key=lambda document: document.before)]
    return JudgedLine(
        query_id=query_id,
        relevant=len(relevant),
        found=len(relevant.intersection(after)),
        measures=[
            MeasureLine(
                name=f"{name}@{CUTOFF}",
                before=measure(before, relevance, CUTOFF),
                after=measure(after, relevance, CUTOFF),
            )
            for name, measure in _MEASURES
        ],
    )


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
