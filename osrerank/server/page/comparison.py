"""Compare the first-pass order of a search with its reranked order, for the comparison page."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, Field

from osrerank.evaluation.basic import ndcg, reciprocal_rank
from osrerank.response import FIRST_PASS, parse_hits, read_sections
from osrerank.retrieval.text_fields import is_title
from osrerank.types import Section

TERM_START, TERM_END = "\ue000", "\ue001"
"""The engine encloses query terms in these private-use characters, which are rare in texts."""
MAX_CHARACTERS = 4_000
"""At most this much of a document's text is shown."""
MAX_LEAD_CHARACTERS = 400
"""If a text is longer than `MAX_CHARACTERS`, at most this much of it is shown before the best passage."""
CUTOFF = 10
NO_SPAN = (0, 0)
MEASURES = {"nDCG": ndcg, "RR": reciprocal_rank}


class TextPart(BaseModel):
    """A part of a text."""

    text: str
    marked: bool = Field(description="Whether it is in the passage that determined the score.")
    is_term: bool = Field(default=False, description="Whether it is a query term.")


class BestPassage(BaseModel):
    """The passage that determined a document's score."""

    field: str
    start: int = Field(description="The offset of its first character in the field's text, from 0.")
    end: int = Field(description="The offset after its last character.")


class DocumentStageScore(BaseModel):
    """The score that a stage gave a document."""

    stage: str
    score: float = Field(description="The score by which the stage sorted; higher is better.")
    rank: int = Field(description="The rank after the stage, from 1.")
    probability: float | None = Field(description="The probability of relevance, in [0, 1], if the stage has one.")


class ComparedDocument(BaseModel):
    """A document with its rank in both orders."""

    doc_id: str
    index: str
    title: str
    title_parts: list[TextPart] = Field(description="The parts of the title, in order.")
    passage: BestPassage | None = Field(description="The best passage; null if the document was not split.")
    parts: list[TextPart] = Field(description=f"The parts of the text, in order, at most {MAX_CHARACTERS} characters.")
    before: int = Field(description="The rank in the first pass, from 1.")
    after: int = Field(description="The rank after reranking, from 1.")
    first_pass_score: float | None
    score: float | None = Field(description="The document's _score in the reranked response.")
    stages: list[DocumentStageScore]
    failure: str | None = Field(description="Why the document could not be scored.")
    relevance: int | None = Field(description="The relevance grade; null if the document was not judged.")


class ComparedStage(BaseModel):
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


class ComparedMeasure(BaseModel):
    """The value of a measure for both orders; higher is better."""

    name: str
    before: float
    after: float


class QueryMeasures(BaseModel):
    """The measures of both orders, computed from the query's judgments."""

    query_id: str
    relevant: int = Field(description="The number of relevant documents.")
    found: int = Field(description="The number of relevant documents among the candidates.")
    measures: list[ComparedMeasure]


class ComparedSearch(BaseModel):
    """Both orders of one search."""

    query: str
    index: str
    pipeline: str
    depth: int
    total: int | None = Field(description="The number of hits of the first pass; null if it is unknown.")
    total_is_least: bool = Field(description="Whether total is a lower bound.")
    first_pass_ms: float
    took_ms: float
    applied: bool | str = Field(description='Whether the search was reranked: true, false or "partial".')
    reason: str | None = Field(description="Why the search was not reranked, or only in part.")
    blend: str | None = Field(
        description="The method that blends the first-pass score with the model's; null if there is no blend."
    )
    stages: list[ComparedStage]
    documents: list[ComparedDocument] = Field(description="The documents, in the reranked order.")
    judged: QueryMeasures | None


def compare(
    response: Mapping[str, Any],
    request: Mapping[str, Any],
    fields: Sequence[str],
    judged: tuple[str, Mapping[str, int]] | None,
    blend: str | None = None,
) -> ComparedSearch:
    """Compare the two orders of a reranked response, which must contain all candidates on one page.

    Args:
        response: the response to a search with `rerank`.
        request: the query, index, pipeline and depth, which `ComparedSearch` repeats.
        fields: the model's input fields.
        judged: the id and judgments of the query, or None if the query has no judgments.
        blend: the method that blends the first-pass score with the model's, or None if there is no blend.
    """
    relevance = {} if judged is None else judged[1]
    title_field = next((name for name in fields if is_title(name)), "")
    report = response["rerank"]
    fields_by_index = report.get("fields_by_index", {})
    documents = [
        _compare_document(hit, rank, fields_by_index.get(hit.get("_index"), fields), title_field, relevance)
        for rank, hit in enumerate(parse_hits(response), start=1)
    ]
    reasons = [reason for reason in (report["reason"], *report.get("warnings", ())) if reason]
    total = response["hits"].get("total") or {}
    return ComparedSearch(
        **request,
        total=total.get("value"),
        total_is_least=total.get("relation") == "gte",
        first_pass_ms=report["first_pass_took_ms"],
        took_ms=response.get("took", 0),
        applied=report["applied"],
        reason="; ".join(reasons) or None,
        blend=blend,
        stages=[ComparedStage.model_validate(stage) for stage in report["stages"]],
        documents=documents,
        judged=None if judged is None else _measure(judged[0], relevance, documents),
    )


def highlight_body() -> dict[str, Any]:
    """Return a search body that makes the engine enclose query terms in `TERM_START` and `TERM_END`."""
    tags = {"pre_tags": [TERM_START], "post_tags": [TERM_END]}
    return {"highlight": {"fields": {"*": {}}, **tags, "number_of_fragments": 0}}


def _compare_document(
    hit: Mapping[str, Any], rank: int, fields: Sequence[str], title_field: str, relevance: Mapping[str, int]
) -> ComparedDocument:
    trace = hit.get("_rerank") or {}
    first_pass = trace.get(FIRST_PASS) or {"score": hit.get("_score"), "rank": rank}
    stages = {name: entry for name, entry in trace.items() if name != FIRST_PASS and isinstance(entry, Mapping)}
    passage = next((entry["passage"] for entry in reversed(stages.values()) if "passage" in entry), None)
    sections = read_sections(hit, fields) or ()
    titles = [section for section in sections if section.field == title_field]
    body = [section for section in sections if section.field != title_field]
    term_spans = _find_terms(hit.get("highlight") or {})
    return ComparedDocument(
        doc_id=hit["_id"],
        index=hit.get("_index", ""),
        title=" ".join(section.text for section in titles),
        title_parts=_split_sections(titles, None, term_spans),
        passage=None if passage is None else BestPassage.model_validate(passage),
        parts=_split_sections(body, passage, term_spans),
        before=first_pass["rank"],
        after=rank,
        first_pass_score=first_pass["score"],
        score=hit.get("_score"),
        stages=[
            DocumentStageScore(
                stage=name, score=entry["score"], rank=entry["rank"], probability=entry.get("probability")
            )
            for name, entry in stages.items()
        ],
        failure=trace.get("failure"),
        relevance=relevance.get(hit["_id"]),
    )


def _find_terms(highlight: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Return the offsets ``(start, end)`` of the query terms in each text, by field and text."""
    spans_by_text = {}
    for field, values in highlight.items():
        for value in values:
            spans = []
            text = ""
            for segment in value.split(TERM_START):
                term, has_end, following = segment.partition(TERM_END)
                if has_end:
                    spans.append((len(text), len(text) + len(term)))
                text += term + following
            spans_by_text[field, text] = spans
    return spans_by_text


def _split_sections(
    sections: Sequence[Section],
    passage: Mapping[str, Any] | None,
    term_spans: Mapping[tuple[str, str], Sequence[tuple[int, int]]],
) -> list[TextPart]:
    """Split the texts of sections into parts, at the borders of the best passage and of the query terms."""
    parts: list[TextPart] = []
    remaining = MAX_CHARACTERS
    for section in sections:
        span = NO_SPAN
        if passage is not None and (section.field, section.value) == (passage["field"], passage.get("value")):
            span = (passage["start"], passage["end"])
        section_parts = _split_text(section.text, span, remaining, term_spans.get((section.field, section.text), ()))
        remaining -= sum(len(part.text) for part in section_parts)
        if parts and section_parts:
            parts.append(TextPart(text=" ", marked=False))
        parts += section_parts
    return parts


def _split_text(
    text: str, span: tuple[int, int], max_characters: int, term_spans: Sequence[tuple[int, int]]
) -> list[TextPart]:
    """Split a text into parts, at the borders of the best passage's span and of the query terms.

    If the text is longer than ``max_characters``, the parts are an excerpt around the span.
    """
    if max_characters <= 0:
        return []
    start = 0
    if len(text) > max_characters:
        start = max(min(span[0] - MAX_LEAD_CHARACTERS, len(text) - max_characters), 0)
    end = min(start + max_characters, len(text))
    borders = [offset for bounds in (span, *term_spans) for offset in bounds if start < offset < end]
    offsets = sorted({start, end, *borders})
    parts = [
        TextPart(
            text=text[first:stop],
            marked=span[0] <= first < span[1],
            is_term=any(term_start <= first < term_end for term_start, term_end in term_spans),
        )
        for first, stop in pairwise(offsets)
    ]
    if start:
        parts.insert(0, TextPart(text="…", marked=False))
    if end < len(text):
        parts.append(TextPart(text="…", marked=False))
    return parts


def _measure(query_id: str, relevance: Mapping[str, int], documents: Sequence[ComparedDocument]) -> QueryMeasures:
    relevant = {doc_id for doc_id, grade in relevance.items() if grade > 0}
    after = [document.doc_id for document in documents]
    before = [document.doc_id for document in sorted(documents, key=lambda document: document.before)]
    return QueryMeasures(
        query_id=query_id,
        relevant=len(relevant),
        found=len(relevant.intersection(after)),
        measures=[
            ComparedMeasure(
                name=f"{name}@{CUTOFF}",
                before=measure(before, relevance, CUTOFF),
                after=measure(after, relevance, CUTOFF),
            )
            for name, measure in MEASURES.items()
        ],
    )
