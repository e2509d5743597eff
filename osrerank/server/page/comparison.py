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
"""The highlighter of the engine puts these characters around query terms. Texts rarely contain them, because Unicode
reserves them for private use."""
MAX_CHARACTERS = 4_000
"""The maximum length of a document's text on the page. If the text is longer, the page shows an excerpt."""
MAX_LEAD_CHARACTERS = 400
"""The maximum number of characters before the best passage in an excerpt, unless the text after it is short."""
CUTOFF = 10
"""The number of documents from which the measures are computed, as in nDCG@10."""
NO_SPAN = (0, 0)
MEASURES = {"nDCG": ndcg, "RR": reciprocal_rank}


class TextPart(BaseModel):
    """A part of a title or text that the page shows in one style. "…" stands for text that is left out."""

    text: str
    marked: bool = Field(description="Whether the part is in the passage that determined the score.")
    is_term: bool = Field(default=False, description="Whether the part is a query term.")


class BestPassage(BaseModel):
    """The passage that determined a document's score."""

    field: str
    start: int = Field(description="The offset of the passage's first character in the field's text, from 0.")
    end: int = Field(description="The offset after the passage's last character.")


class DocumentStageScore(BaseModel):
    """The score that a stage gave a document."""

    stage: str
    score: float = Field(description="The score by which the stage sorted. Higher is better.")
    rank: int = Field(description="The rank after the stage, from 1.")
    probability: float | None = Field(description="The probability of relevance, in [0, 1], if the stage has one.")


class ComparedDocument(BaseModel):
    """A hit as the page shows it, with its rank in both orders."""

    doc_id: str
    index: str
    title: str
    title_parts: list[TextPart] = Field(description="The parts of the title, in order.")
    passage: BestPassage | None = Field(description="The best passage. null if the document was not split.")
    parts: list[TextPart] = Field(description=f"The parts of the text, in order, at most {MAX_CHARACTERS} characters.")
    before: int = Field(description="The rank in the first pass, from 1.")
    after: int = Field(description="The rank after reranking, from 1.")
    first_pass_score: float | None
    score: float | None = Field(description="The document's _score in the reranked response.")
    stages: list[DocumentStageScore]
    failure: str | None = Field(description="Why the document could not be scored.")
    relevance: int | None = Field(description="The relevance grade. null if the document was not judged.")


class ComparedStage(BaseModel):
    """A stage's report, as in `response["rerank"]["stages"]`, such as which model scored how many candidates."""

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
    """The values of a measure, such as nDCG@10, for both orders. Higher is better."""

    name: str
    before: float
    after: float


class QueryMeasures(BaseModel):
    """How good both orders are, according to the query's judgments."""

    query_id: str
    relevant: int = Field(description="The number of relevant documents.")
    found: int = Field(description="The number of relevant documents among the candidates.")
    measures: list[ComparedMeasure]


class ComparedSearch(BaseModel):
    """The hits of one search, with their ranks in both orders, and how they were reranked."""

    query: str
    index: str
    pipeline: str
    depth: int
    total: int | None = Field(description="The number of hits of the first pass. null if it is unknown.")
    total_is_least: bool = Field(description='Whether total is a lower bound, as in "at least 10,000 hits".')
    first_pass_ms: float
    took_ms: float
    applied: bool | str = Field(description='Whether the search was reranked: true, false or "partial".')
    reason: str | None = Field(description="Why the search was not reranked, or only in part.")
    blend: str | None = Field(
        description="The method that blends the first-pass score with the model's, such as rrf. null if none is used."
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
    """Compare the first-pass order of a response's hits with their reranked order.

    Args:
        response: the response to a search with `rerank`. Its hits must be all candidates that were reranked.
        request: the query, index, pipeline and depth, such as ``{"query": "deer", "index": "animals", ...}``.
        fields: the model's input fields, such as ``("title", "body")``.
        judged: the id and judgments of the query, such as ``("7", {"doc1": 2})``, or None if it has no judgments.
        blend: the method that blends the first-pass score with the model's, or None if there is no blend.
    """
    query_id, grades = judged or ("", {})
    title_field = next((name for name in fields if is_title(name)), "")
    report = response["rerank"]
    fields_by_index = report.get("fields_by_index", {})  # only if the indices of the search differ in their fields
    documents = [
        _compare_document(
            hit, rank, fields=fields_by_index.get(hit.get("_index"), fields), title_field=title_field, grades=grades
        )
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
        judged=None if judged is None else _compute_measures(query_id, grades, documents),
    )


def highlight_body() -> dict[str, Any]:
    """Return a search body that requests each text again, with `TERM_START` and `TERM_END` around query terms."""
    tags = {"pre_tags": [TERM_START], "post_tags": [TERM_END]}
    return {"highlight": {"fields": {"*": {}}, **tags, "number_of_fragments": 0}}


def _compare_document(
    hit: Mapping[str, Any], rank: int, *, fields: Sequence[str], title_field: str, grades: Mapping[str, int]
) -> ComparedDocument:
    """Describe the hit at ``rank`` in the reranked order. ``grades`` are the query's, such as ``{"doc1": 2}``."""
    # such as {"first_pass": {"score": 8.5, "rank": 3}, "mono": {"score": 2.1, "rank": 1}, "failure": "..."}
    trace = hit.get("_rerank") or {}
    first_pass = trace.get(FIRST_PASS) or {"score": hit.get("_score"), "rank": rank}
    stages = {name: entry for name, entry in trace.items() if name != FIRST_PASS and isinstance(entry, Mapping)}
    passage = None
    for entry in stages.values():  # the last stage that split the document determined the passage
        passage = entry.get("passage", passage)
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
        relevance=grades.get(hit["_id"]),
    )


def _find_terms(highlight: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Return the offsets ``(start, end)`` of the query terms in each text, with the field and text as the key.

    With "<" for `TERM_START` and ">" for `TERM_END`, ``{"body": ["a <deer> runs"]}`` becomes
    ``{("body", "a deer runs"): [(2, 6)]}``.
    """
    spans_by_text = {}
    for field, marked_texts in highlight.items():
        for marked_text in marked_texts:
            spans = []
            text = ""
            for segment in marked_text.split(TERM_START):
                term, term_end, following = segment.partition(TERM_END)
                if term_end:
                    spans.append((len(text), len(text) + len(term)))
                text += term + following
            spans_by_text[field, text] = spans
    return spans_by_text


def _split_sections(
    sections: Sequence[Section],
    passage: Mapping[str, Any] | None,
    term_spans: Mapping[tuple[str, str], Sequence[tuple[int, int]]],
) -> list[TextPart]:
    """Split the texts of sections into parts, at the borders of the best passage and of the query terms.

    Args:
        sections: the sections of the title, or of the rest of the document.
        passage: the best passage, such as ``{"field": "body", "start": 40, "end": 90}``, or None. Its ``value`` is the
            index of the value that contains it, if the field has several.
        term_spans: the offsets of query terms, as `_find_terms` returns them.

    Returns:
        The parts, with at most `MAX_CHARACTERS` characters of the sections. A space separates two sections.
    """
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

    For "a deer runs", the span (0, 6) and the term (2, 6), the parts are "a ", "deer" and " runs". If the text is
    longer than ``max_characters``, the parts are an excerpt that contains the beginning of the span.
    """
    if max_characters <= 0:
        return []
    passage_start, passage_end = span
    start = 0
    if len(text) > max_characters:
        last_start = len(text) - max_characters  # an excerpt that starts later would be shorter than it may be
        start = max(min(passage_start - MAX_LEAD_CHARACTERS, last_start), 0)
    end = min(start + max_characters, len(text))
    borders = {start, end}
    for bounds in (span, *term_spans):
        borders.update(offset for offset in bounds if start < offset < end)
    parts = [
        TextPart(
            text=text[part_start:part_end],
            marked=passage_start <= part_start < passage_end,
            is_term=any(term_start <= part_start < term_end for term_start, term_end in term_spans),
        )
        for part_start, part_end in pairwise(sorted(borders))
    ]
    if start:
        parts.insert(0, TextPart(text="…", marked=False))
    if end < len(text):
        parts.append(TextPart(text="…", marked=False))
    return parts


def _compute_measures(query_id: str, grades: Mapping[str, int], documents: Sequence[ComparedDocument]) -> QueryMeasures:
    """Compute the measures of both orders from the grades, such as ``{"doc1": 2}``, and the reranked documents."""
    relevant_ids = {doc_id for doc_id, grade in grades.items() if grade > 0}
    reranked_ids = [document.doc_id for document in documents]
    first_pass_ids = [document.doc_id for document in sorted(documents, key=lambda document: document.before)]
    return QueryMeasures(
        query_id=query_id,
        relevant=len(relevant_ids),
        found=len(relevant_ids.intersection(reranked_ids)),
        measures=[
            ComparedMeasure(
                name=f"{name}@{CUTOFF}",
                before=measure(first_pass_ids, grades, CUTOFF),
                after=measure(reranked_ids, grades, CUTOFF),
            )
            for name, measure in MEASURES.items()
        ],
    )
