"""Mixedbread's requests (https://www.mixedbread.com/api-reference/endpoints/reranking/rerank-documents)."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from osrerank.server.api.dialects.base import (
    NO_USAGE,
    DocumentIndex,
    Documents,
    Probability,
    RankFieldsRequest,
    Usage,
    document_texts,
    original_json,
)
from osrerank.server.api.service import ScoredQuestion

ALL_RESULTS = -1
"""The value of ``top_k`` that requests all results. Mixedbread documents it as the default."""


class MixedbreadRequest(RankFieldsRequest):
    """A request to Mixedbread's ``/v1/reranking``."""

    input: Documents
    model: str | None = Field(
        None, description="Ignored, because the server has only one model. The response contains its name."
    )
    top_k: Literal[-1] | Annotated[int, Field(ge=1)] | None = Field(
        None, description="The maximum number of results. By default or with -1, all are returned."
    )
    return_input: bool | None = Field(None, description="Whether each result contains its document.")

    def texts(self) -> tuple[str, ...]:
        return document_texts("input", self.input, self.rank_fields)

    def build_response(self, scored_questions: Sequence[ScoredQuestion], model: str) -> Any:
        (scored,) = scored_questions
        order = scored.order if self.top_k == ALL_RESULTS else scored.order[: self.top_k]
        results: list[dict[str, Any]] = [
            {"index": index, "score": scored.probabilities[index], "object": "rank_result"} for index in order
        ]
        if self.return_input:
            results = [{**result, "input": original_json(self.input[result["index"]])} for result in results]
        return {
            "object": "list",
            "model": model,
            "data": results,
            "usage": NO_USAGE,
            "top_k": len(results),
            "return_input": bool(self.return_input),
        }


class MixedbreadResult(BaseModel):
    """A document of the request, with its score."""

    index: DocumentIndex
    score: Probability
    object: Literal["rank_result"]
    input: str | dict[str, Any] | None = Field(None, description="The document as the client sent it.")


class MixedbreadResponse(BaseModel):
    """The response: scored documents, best first."""

    object: Literal["list"]
    model: str
    data: list[MixedbreadResult]
    usage: Usage
    top_k: int
    return_input: bool
