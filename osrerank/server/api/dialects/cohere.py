"""Cohere's dialect, which Jina, Together, vLLM and OpenSearch's ml-commons use, too, and Voyage's."""

import math
import uuid
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from osrerank.server.api.dialects.base import (
    UNCOUNTED,
    DialectRequest,
    DocumentIndex,
    Documents,
    Probability,
    QueryText,
    RankFieldsRequest,
    Texts,
    Usage,
    texts_of,
    unchanged,
)
from osrerank.server.api.service import Judgement, Question

SEARCH_UNIT = 100
"""The documents of a query that Cohere bills as one unit."""


class CohereRequest(RankFieldsRequest):
    """A request to Cohere's ``/v1/rerank`` or ``/v2/rerank`` (https://docs.cohere.com/reference/rerank)."""

    documents: Documents
    model: str | None = Field(None, description="Ignored: the server has one model, which the response names.")
    top_n: int | None = Field(None, ge=1, description="How many results to return; all if absent.")
    return_documents: bool | None = Field(
        None,
        description="Whether results contain their documents; by default, only if the request names a model of Jina.",
    )

    def texts(self) -> tuple[str, ...]:
        return texts_of("documents", self.documents, self.rank_fields)

    def build_response(self, judgements: Sequence[Judgement], model: str) -> Any:
        judgement = judgements[0]
        returns_documents = _is_jinas(self.model) if self.return_documents is None else self.return_documents
        results: list[dict[str, Any]] = []
        for index in judgement.order[: self.top_n or None]:
            result: dict[str, Any] = {"index": index, "relevance_score": judgement.probabilities[index]}
            results.append({**result, "document": self._returned(index)} if returns_documents else result)
        units = math.ceil(len(judgement.order) / SEARCH_UNIT)
        return {
            "object": "rerank",
            "id": uuid.uuid4().hex,
            "model": model,
            "results": results,
            "usage": UNCOUNTED,
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": units}},
        }

    def _returned(self, index: int) -> Any:
        """Return a document as results contain it: a text in an object, an object as the client sent it."""
        document = self.documents[index]
        return {"text": document} if isinstance(document, str) else unchanged(document)


class VllmRequest(CohereRequest):
    """A request to vLLM's ``/rerank``: Cohere's, but ``top_n`` may be 0, which is vLLM's default."""

    top_n: int | None = Field(None, ge=0, description="How many results to return; all if absent or 0.")


def _is_jinas(model: str | None) -> bool:
    """Return whether a request names a model of Jina, whose API returns documents by default."""
    return model is not None and model.lower().startswith(("jina-", "jinaai/", "jina_ai/"))


class InfinityRequest(CohereRequest):
    """A request to Infinity's ``/rerank``: Cohere's, but results contain texts as strings, not as objects."""

    def _returned(self, index: int) -> Any:
        return unchanged(self.documents[index])


class CohereResult(BaseModel):
    """A document's score."""

    index: DocumentIndex
    relevance_score: Probability
    document: dict[str, Any] | None = Field(
        None, description="The document as the client sent it; a text as an object with the key text."
    )


class CohereVersion(BaseModel):
    """The version of the interface."""

    version: str


class CohereUnits(BaseModel):
    """The units that Cohere would bill, one per 100 documents or part of 100; osrerank bills nothing."""

    search_units: int


class CohereMeta(BaseModel):
    """The metadata that Cohere's clients read."""

    api_version: CohereVersion
    billed_units: CohereUnits


class CohereResponse(BaseModel):
    """Results, best first."""

    object: Literal["rerank"]
    id: str
    model: str
    results: list[CohereResult]
    usage: Usage
    meta: CohereMeta


class InfinityResult(CohereResult):
    """A document's score."""

    document: str | dict[str, Any] | None = Field(None, description="The document as the client sent it.")  # type: ignore[assignment]


class InfinityResponse(CohereResponse):
    """Results, best first."""

    results: list[InfinityResult]  # type: ignore[assignment]


class VoyageRequest(DialectRequest):
    """A request to Voyage's ``/v1/rerank`` (https://docs.voyageai.com/reference/reranker-api)."""

    query: QueryText
    documents: Texts = Field(min_length=1)
    model: str | None = Field(None, description="Ignored: the server has one model, which the response names.")
    top_k: int | None = Field(None, ge=1, description="How many results to return; all if absent.")
    return_documents: bool | None = Field(None, description="Whether results contain their documents.")

    def questions(self) -> list[Question]:
        return [Question(self.query, tuple(self.documents))]

    def build_response(self, judgements: Sequence[Judgement], model: str) -> Any:
        scores = judgements[0].probabilities
        order = judgements[0].order[: self.top_k]
        results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
        if self.return_documents:
            results = [{**result, "document": self.documents[result["index"]]} for result in results]
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
