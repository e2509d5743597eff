"""Compare the two orders of a search, the first pass's and the reranked one, for the comparison page."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, Field

from osrerank.evaluation.basic import ndcg, reciprocal_rank
from osrerank.response import FIRST_PASS, hits_of, sections_of
from osrerank.retrieval.text_fields import is_title
from osrerank.types import Section

TERM_BEGINS, TERM_ENDS = "\ue000", "\ue001"
"""The characters around a word that the query matched; they are private-use characters, which are rare in texts."""
MAX_CHARACTERS = 4_000
"""The most characters shown of a document's text: around the passage that decided its score, or from the beginning."""
LEAD = 400
"""The characters shown before that passage, if the text is longer than `MAX_CHARACTERS`."""
CUTOFF = 10
_MEASURES = (("nDCG", ndcg), ("RR", reciprocal_rank))


class TextPart(BaseModel):
    """A part of a text."""

    text: str
    marked: bool = Field(description="Whether it is in the passage that decided the score.")
    is_term: bool = Field(default=False, description="Whether it is a word that the query matched.")


class PassageMark(BaseModel):
    """The passage that decided a document's score."""

    field: str
    start: int = Field(description="Its first character in the field's text, from 0.")
    end: int = Field(description="The character after its last one.")


class StageMark(BaseModel):
    """A stage's score of a document."""

    stage: str
    score: float = Field(description="What the stage sorted by; higher is better.")
    rank: int = Field(description="The rank after the stage, from 1.")
    probability: float | None = Field(description="The probability of relevance, in [0, 1], if the stage has one.")


class ComparedDocument(BaseModel):
    """A document with its rank in both orders."""

    doc_id: str
    index: str
    title: str
    title_parts: list[TextPart] = Field(description="The parts of the title, in order.")
    passage: PassageMark | None = Field(description="None if the document was not split.")
    parts: list[TextPart] = Field(
        description=f"The parts of at most {MAX_CHARACTERS} characters of its text, in order."
    )
    before: int = Field(description="Its rank in the first pass, from 1.")
    after: int = Field(description="Its rank after reranking, from 1.")
    first_pass_score: float | None
    score: float | None = Field(description="The document's _score in the reranked response.")
    stages: list[StageMark]
    failure: str | None = Field(description="Why it could not be scored.")
    relevance: int | None = Field(description="The judged relevance; none if the document or the query was not judged.")


class StageLine(BaseModel):
    """A stage's report, as in `response["rerank"]["stages"]`."""

    name: str
    applied: bool | str
    reason: str | None
    model: str | None
    candidates: int
    inferences: int
    cached: int
    known: int | None = Field(default=None, description="Texts or passages with stored vectors, for a bi-encoder.")
    encoded: int | None = Field(default=None, description="Texts or passages that this search encoded.")
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
    found: int = Field(description="The number of relevant documents among the candidates.")
    measures: list[MeasureLine]


class ComparedSearch(BaseModel):
    """Both orders of one search."""

    query: str
    index: str
    pipeline: str
    depth: int
    total: int | None = Field(description="The number of the first pass's hits, if it counts them.")
    total_is_least: bool = Field(description="Whether there may be more hits than total.")
    first_pass_ms: float
    took_ms: float
    applied: bool | str = Field(description='Whether it was reranked: true, false or "partial".')
    reason: str | None = Field(description="Why it was not reranked, or only in part.")
    blend: str | None = Field(description="How the first-pass score is blended with the model's; none if it is not.")
    stages: list[StageLine]
    documents: list[ComparedDocument] = Field(description="In the reranked order.")
    judged: JudgedLine | None


def compare(
    response: Mapping[str, Any],
    request: Mapping[str, Any],
    fields: Sequence[str],
    judged: tuple[str, Mapping[str, int]] | None,
    blend: str | None = None,
) -> ComparedSearch:
    """Return both orders of a reranked response, which must have all candidates on one page.

    Args:
        response: the response to a search with `rerank`.
        request: the query, index, pipeline and depth, to repeat in the result.
        fields: the fields that the model read.
        judged: the query's id and judgments; None for a query without judgments.
        blend: the method that blends the first-pass score with the model's; None without a blend.
    """
    relevance = {} if judged is None else judged[1]
    hits = hits_of(response)
    title = next((name for name in fields if is_title(name)), "")
    marks = response["rerank"]
    fields_by_index = marks.get("fields_by_index", {})
    documents = [
        _document(hit, rank, fields_by_index.get(hit.get("_index"), fields), title, relevance)
        for rank, hit in enumerate(hits, start=1)
    ]
    total = response["hits"].get("total") or {}
    return ComparedSearch(
        **request,
        total=total.get("value"),
        total_is_least=total.get("relation") == "gte",
        first_pass_ms=marks["first_pass_took_ms"],
        took_ms=response.get("took", 0),
        applied=marks["applied"],
        reason="; ".join(filter(None, (marks["reason"], *marks.get("warnings", ())))) or None,
        blend=blend,
        stages=[StageLine.model_validate(stage) for stage in marks["stages"]],
        documents=documents,
        judged=None if judged is None else _judged_line(judged[0], relevance, documents),
    )


def highlighting() -> dict[str, Any]:
    """Return the part of a search body that makes the engine mark the words that the query matched."""
    marks = {"pre_tags": [TERM_BEGINS], "post_tags": [TERM_ENDS], "number_of_fragments": 0}
    return {"highlight": {"fields": {"*": {}}, **marks}}


def _document(
    raw: Mapping[str, Any], rank: int, fields: Sequence[str], title: str, relevance: Mapping[str, int]
) -> ComparedDocument:
    reranking = raw.get("_rerank") or {}
    first_pass = reranking.get(FIRST_PASS) or {"score": raw.get("_score"), "rank": rank}
    stages = [(name, mark) for name, mark in reranking.items() if name != FIRST_PASS and isinstance(mark, Mapping)]
    sections = sections_of(raw, fields) or ()
    passage = next((mark["passage"] for _, mark in reversed(stages) if "passage" in mark), None)
    terms = _terms(raw.get("highlight") or {})
    titles = [section for section in sections if section.field == title]
    return ComparedDocument(
        doc_id=raw["_id"],
        index=raw.get("_index", ""),
        title=" ".join(section.text for section in titles),
        title_parts=_parts(titles, None, terms),
        passage=None if passage is None else PassageMark.model_validate(passage),
        parts=_parts([section for section in sections if section.field != title], passage, terms),
        before=first_pass["rank"],
        after=rank,
        first_pass_score=first_pass["score"],
        score=raw.get("_score"),
        stages=[
            StageMark(stage=name, score=mark["score"], rank=mark["rank"], probability=mark.get("probability"))
            for name, mark in stages
        ],
        failure=reranking.get("failure"),
        relevance=relevance.get(raw["_id"]),
    )


def _terms(highlight: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Return (field, text) -> the start and end of each word that the query matched, in characters."""
    spans_by_text = {}
    for field, values in highlight.items():
        for value in values:
            spans, text = [], ""
            for segment in value.split(TERM_BEGINS):
                word, ends, after = segment.partition(TERM_ENDS)
                if ends:
                    spans.append((len(text), len(text) + len(word)))
                text += word + after
            spans_by_text[field, text] = spans
    return spans_by_text


def _parts(
    sections: Sequence[Section],
    passage: Mapping[str, Any] | None,
    terms: Mapping[tuple[str, str], Sequence[tuple[int, int]]],
) -> list[TextPart]:
    """Return the texts of the sections in parts; the passage that decided and the query's words are marked."""
    parts: list[TextPart] = []
    remaining = MAX_CHARACTERS
    for section in sections:
        is_marked = passage is not None and (section.field, section.value) == (passage["field"], passage.get("value"))
        span = (passage["start"], passage["end"]) if passage is not None and is_marked else (0, 0)
        pieces = _cut(section.text, span, remaining, terms.get((section.field, section.text), ()))
        remaining -= sum(len(piece.text) for piece in pieces)
        if parts and pieces:
            parts.append(TextPart(text=" ", marked=False))
        parts += pieces
    return parts


def _cut(text: str, span: tuple[int, int], length: int, terms: Sequence[tuple[int, int]]) -> list[TextPart]:
    """Return at most `length` characters of a text in parts; the span and the terms are marked."""
    if length <= 0:
        return []
    begin = max(min(span[0] - LEAD, len(text) - length), 0) if len(text) > length else 0
    end = min(begin + length, len(text))
    boundaries = [offset for bounds in (span, *terms) for offset in bounds if begin < offset < end]
    offsets = sorted({begin, end, *boundaries})
    starts = {start for first, last in terms for start in offsets if first <= start < last}
    parts = [
        TextPart(text=text[start:stop], marked=span[0] <= start < span[1], is_term=start in starts)
        for start, stop in pairwise(offsets)
    ]
    if begin:
        parts.insert(0, TextPart(text="…", marked=False))
    if end < len(text):
        parts.append(TextPart(text="…", marked=False))
    return parts


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
