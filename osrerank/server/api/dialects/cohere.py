"""Cohere's dialect, which Jina, vLLM and OpenSearch's ml-commons speak too, and Voyage's."""

import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from osrerank.server.api.dialects.base import (
    UNCOUNTED,
    DialectRequest,
    DocumentIndex,
    DocumentObject,
    Probability,
    QueryText,
    Texts,
    Usage,
)
from osrerank.server.api.service import Judgement, Question

SEARCH_UNIT = 100
"""Documents of one query in Cohere's unit."""


class CohereRequest(DialectRequest):
    """Cohere, Jina, vLLM, OpenSearch's ml-commons and other clients of ``/v1/rerank``."""

    query: QueryText
    documents: Annotated[list[str | dict[str, Any]], Field(fail_fast=True)] = Field(
        min_length=1, description='Texts, or objects with "text".'
    )
    model: str | None = Field(None, description="Any: this server has one model, and names it in the answer.")
    top_n: int | None = Field(None, ge=0, description="How many results to return; all when absent or 0.")
    return_documents: bool | None = Field(
        None, description="Whether results carry their documents' texts; by default those of a Jina model do."
    )
    rank_fields: Texts | None = Field(None, min_length=1, description="Which fields of objects are read.")

    @model_validator(mode="after")
    def _have_text(self) -> "CohereRequest":
        self.texts()
        return self

    def texts(self) -> tuple[str, ...]:
        """Return the text of each document for the model."""
        fields = self.rank_fields or ["text"]
        return tuple(_text_of(document, fields, index) for index, document in enumerate(self.documents))

    def questions(self) -> list[Question]:
        return [Question(self.query, self.texts())]

    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:
        judged = judgements[0]
        wanted = _is_jinas(self.model) if self.return_documents is None else self.return_documents
        texts = self.texts() if wanted else None
        results: list[dict[str, Any]] = []
        for index in judged.order[: self.top_n or None]:
            item: dict[str, Any] = {"index": index, "relevance_score": judged.probabilities[index]}
            results.append(item if texts is None else {**item, "document": {"text": texts[index]}})
        units = math.ceil(len(judged.order) / SEARCH_UNIT)
        return {
            "id": uuid.uuid4().hex,
            "model": model,
            "results": results,
            "usage": UNCOUNTED,
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": units}},
        }


def _is_jinas(model: str | None) -> bool:
    """Return whether a request names a model of Jina's, whose API returns documents unless told otherwise."""
    return model is not None and model.lower().startswith(("jina-", "jinaai/", "jina_ai/"))


def _text_of(document: str | Mapping[str, Any], fields: Sequence[str], index: int) -> str:
    if isinstance(document, str):
        return document
    values = [document[field] for field in fields if field in document]
    if not values or not all(isinstance(value, str) for value in values):
        names = ", ".join(ascii(field) for field in fields)  # pydantic refuses half a surrogate pair in a message
        raise ValueError(f"documents[{index}] has no text in {names}")
    return " ".join(values)


class InfinityRequest(CohereRequest):
    """Infinity's ``/rerank``: Cohere's, but for documents in the answer, which are strings."""

    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:
        content = super().answer(judgements, model)
        results = [
            one | {"document": one["document"]["text"]} if "document" in one else one for one in content["results"]
        ]
        return {"object": "rerank", **content, "results": results}


class CohereResult(BaseModel):
    """A document's score."""

    index: DocumentIndex
    relevance_score: Probability
    document: DocumentObject | None = None


class CohereVersion(BaseModel):
    """The version of the interface."""

    version: str


class CohereUnits(BaseModel):
    """One for each 100 documents or part of that, as Cohere counts; nothing is billed."""

    search_units: int


class CohereMeta(BaseModel):
    """The metadata that Cohere's clients read."""

    api_version: CohereVersion
    billed_units: CohereUnits


class CohereResponse(BaseModel):
    """Results, best first."""

    id: str
    model: str
    results: list[CohereResult]
    usage: Usage
    meta: CohereMeta


class InfinityResult(CohereResult):
    """A document's score."""

    document: str | None = None  # type: ignore[assignment]


class InfinityResponse(CohereResponse):
    """Results, best first."""

    object: Literal["rerank"]
    results: list[InfinityResult]  # type: ignore[assignment]


class VoyageRequest(DialectRequest):
    """Voyage's ``/v1/rerank`` (https://docs.voyageai.com/reference/reranker-api)."""

    query: QueryText
    documents: list[str] = Field(min_length=1)
    model: str | None = Field(None, description="Any: this server has one model, and names it in the answer.")
    top_k: int | None = Field(None, ge=0, description="How many results to return; all when absent or 0.")
    return_documents: bool | None = Field(None, description="Whether results carry their documents.")

    def questions(self) -> list[Question]:
        return [Question(self.query, tuple(self.documents))]

    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:
        scores = judgements[0].probabilities
        order = judgements[0].order[: self.top_k or None]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
        if self.return_documents:
            results = [{**one, "document": self.documents[one["index"]]} for one in results]
        return {"object": "list", "data": results, "model": model, "usage": {"total_tokens": 0}}


class VoyageResult(BaseModel):
    """A document's score."""

    index: DocumentIndex
    relevance_score: Probability
    document: str | None = None


class VoyageResponse(BaseModel):
    """Results, best first."""

    object: Literal["list"]
    data: list[VoyageResult]
    model: str
    usage: dict[str, int]
