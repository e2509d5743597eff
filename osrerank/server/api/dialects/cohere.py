"""Cohere's dialect, which Jina, Together, vLLM and OpenSearch's ml-commons speak too, and Voyage's."""

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
    as_passed,
    texts_of,
)
from osrerank.server.api.service import Judgement, Question

SEARCH_UNIT = 100
"""Documents of one query in Cohere's unit."""


class CohereRequest(RankFieldsRequest):
    """Cohere's ``/v1/rerank`` and ``/v2/rerank`` (https://docs.cohere.com/reference/rerank), and those who copy it."""

    documents: Documents
    model: str | None = Field(None, description="Any: this server has one model, and names it in the answer.")
    top_n: int | None = Field(None, ge=1, description="How many results to return; all when absent.")
    return_documents: bool | None = Field(
        None, description="Whether results carry their documents; by default those of a Jina model do."
    )

    def texts(self) -> tuple[str, ...]:
        return texts_of("documents", self.documents, self.rank_fields)

    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:
        judged = judgements[0]
        wanted = _is_jinas(self.model) if self.return_documents is None else self.return_documents
        results: list[dict[str, Any]] = []
        for index in judged.order[: self.top_n or None]:
            item: dict[str, Any] = {"index": index, "relevance_score": judged.probabilities[index]}
            results.append({**item, "document": self._returned(index)} if wanted else item)
        units = math.ceil(len(judged.order) / SEARCH_UNIT)
        return {
            "object": "rerank",
            "id": uuid.uuid4().hex,
            "model": model,
            "results": results,
            "usage": UNCOUNTED,
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": units}},
        }

    def _returned(self, index: int) -> Any:
        """Return a document for the answer: a text as an object, an object as it was passed."""
        document = self.documents[index]
        return {"text": document} if isinstance(document, str) else as_passed(document)


class VllmRequest(CohereRequest):
    """vLLM's ``/rerank``: Cohere's, but for a ``top_n`` of 0, which is vLLM's default."""

    top_n: int | None = Field(None, ge=0, description="How many results to return; all when absent or 0.")


def _is_jinas(model: str | None) -> bool:
    """Return whether a request names a model of Jina's, whose API returns documents unless told otherwise."""
    return model is not None and model.lower().startswith(("jina-", "jinaai/", "jina_ai/"))


class InfinityRequest(CohereRequest):
    """Infinity's ``/rerank``: Cohere's, but for texts in the answer, which are strings."""

    def _returned(self, index: int) -> Any:
        return as_passed(self.documents[index])


class CohereResult(BaseModel):
    """A document's score."""

    index: DocumentIndex
    relevance_score: Probability
    document: dict[str, Any] | None = Field(None, description="As it was passed; a text under the key text.")


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

    object: Literal["rerank"]
    id: str
    model: str
    results: list[CohereResult]
    usage: Usage
    meta: CohereMeta


class InfinityResult(CohereResult):
    """A document's score."""

    document: str | dict[str, Any] | None = Field(None, description="As it was passed.")  # type: ignore[assignment]


class InfinityResponse(CohereResponse):
    """Results, best first."""

    results: list[InfinityResult]  # type: ignore[assignment]


class VoyageRequest(DialectRequest):
    """Voyage's ``/v1/rerank`` (https://docs.voyageai.com/reference/reranker-api)."""

    query: QueryText
    documents: Texts = Field(min_length=1)
    model: str | None = Field(None, description="Any: this server has one model, and names it in the answer.")
    top_k: int | None = Field(None, ge=1, description="How many results to return; all when absent.")
    return_documents: bool | None = Field(None, description="Whether results carry their documents.")

    def questions(self) -> list[Question]:
        return [Question(self.query, tuple(self.documents))]

    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:
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
