"""The requests of Cohere and Voyage. Jina, Together, vLLM, Infinity and OpenSearch's ml-commons also use Cohere's."""

import math
import uuid
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from osrerank.server.api.dialects.base import (
    NO_USAGE,
    DialectRequest,
    DocumentIndex,
    Documents,
    Probability,
    QueryText,
    RankFieldsRequest,
    Texts,
    Usage,
    document_texts,
    original_json,
)
from osrerank.server.api.service import Question, ScoredQuestion

DOCUMENTS_PER_UNIT = 100
"""The number of documents that Cohere bills as one search unit."""


class CohereRequest(RankFieldsRequest):
    """A request to Cohere's ``/v1/rerank`` or ``/v2/rerank`` (https://docs.cohere.com/reference/rerank)."""

    documents: Documents
    model: str | None = Field(
        None, description="Ignored, because the server has only one model. The response contains its name."
    )
    top_n: int | None = Field(None, ge=1, description="The maximum number of results. By default, all are returned.")
    return_documents: bool | None = Field(
        None,
        description="Whether each result contains its document. By default, it does if model is one of Jina's, such as "
        "jina-reranker-v2-base-multilingual.",
    )

    def texts(self) -> tuple[str, ...]:
        return document_texts("documents", self.documents, self.rank_fields)

    def build_response(self, scored_questions: Sequence[ScoredQuestion], model: str) -> Any:
        (scored,) = scored_questions
        return_documents = self.return_documents
        if return_documents is None:
            return_documents = _is_jina_model(self.model)
        results: list[dict[str, Any]] = []
        for index in scored.order[: self.top_n or None]:  # `VllmRequest` can have 0, which means all
            result: dict[str, Any] = {"index": index, "relevance_score": scored.probabilities[index]}
            if return_documents:
                result["document"] = self._format_document(index)
            results.append(result)
        units = math.ceil(len(scored.order) / DOCUMENTS_PER_UNIT)
        return {
            "object": "rerank",
            "id": uuid.uuid4().hex,
            "model": model,
            "results": results,
            "usage": NO_USAGE,
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": units}},
        }

    def _format_document(self, index: int) -> Any:
        """Return a document in the format of a result: the text "a cat" becomes {"text": "a cat"}."""
        document = self.documents[index]
        return {"text": document} if isinstance(document, str) else original_json(document)


class VllmRequest(CohereRequest):
    """A request to vLLM's ``/rerank``: Cohere's format, except that 0 for ``top_n`` requests all results."""

    top_n: int | None = Field(
        None, ge=0, description="The maximum number of results. By default or with 0, all are returned."
    )


def _is_jina_model(model: str | None) -> bool:
    """Return whether a model is one of Jina's, whose API returns documents by default."""
    return model is not None and model.lower().startswith(("jina-", "jinaai/", "jina_ai/"))


class InfinityRequest(CohereRequest):
    """A request to Infinity's ``/rerank``: Cohere's format, except that a result has "a cat", not {"text": "a cat"}."""

    def _format_document(self, index: int) -> Any:
        return original_json(self.documents[index])


class CohereResult(BaseModel):
    """A document of the request, with its score."""

    index: DocumentIndex
    relevance_score: Probability
    document: dict[str, Any] | None = Field(
        None, description='The document as the client sent it. The text "a cat" becomes {"text": "a cat"}.'
    )


class CohereVersion(BaseModel):
    """The version of Cohere's API."""

    version: str


class CohereUnits(BaseModel):
    """The search units that Cohere would bill."""

    search_units: int


class CohereMeta(BaseModel):
    """The metadata that Cohere's clients read."""

    api_version: CohereVersion
    billed_units: CohereUnits


class CohereResponse(BaseModel):
    """The response: scored documents, best first."""

    object: Literal["rerank"]
    id: str
    model: str
    results: list[CohereResult]
    usage: Usage
    meta: CohereMeta


class InfinityResult(CohereResult):
    """A document of the request, with its score."""

    document: str | dict[str, Any] | None = Field(None, description="The document as the client sent it.")  # type: ignore[assignment]


class InfinityResponse(CohereResponse):
    """The response: scored documents, best first."""

    results: list[InfinityResult]  # type: ignore[assignment]


class VoyageRequest(DialectRequest):
    """A request to Voyage's ``/v1/rerank`` (https://docs.voyageai.com/reference/reranker-api)."""

    query: QueryText
    documents: Texts = Field(min_length=1)
    model: str | None = Field(
        None, description="Ignored, because the server has only one model. The response contains its name."
    )
    top_k: int | None = Field(None, ge=1, description="The maximum number of results. By default, all are returned.")
    return_documents: bool | None = Field(None, description="Whether each result contains its document.")

    def questions(self) -> list[Question]:
        return [Question(self.query, tuple(self.documents))]

    def build_response(self, scored_questions: Sequence[ScoredQuestion], model: str) -> Any:
        (scored,) = scored_questions
        results: list[dict[str, Any]] = [
            {"index": index, "relevance_score": scored.probabilities[index]} for index in scored.order[: self.top_k]
        ]
        if self.return_documents:
            results = [{**result, "document": self.documents[result["index"]]} for result in results]
        return {"object": "list", "data": results, "model": model, "usage": {"total_tokens": 0}}


class VoyageResult(BaseModel):
    """A document of the request, with its score."""

    index: DocumentIndex
    relevance_score: Probability
    document: str | None = None


class VoyageResponse(BaseModel):
    """The response: scored documents, best first."""

    object: Literal["list"]
    data: list[VoyageResult]
    model: str
    usage: dict[str, int]
