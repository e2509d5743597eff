"""Mixedbread's dialect (https://www.mixedbread.com/api-reference/endpoints/reranking/rerank-documents)."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from osrerank.server.api.dialects.base import (
    UNCOUNTED,
    DocumentIndex,
    Documents,
    Probability,
    RankFieldsRequest,
    Usage,
    as_passed,
    texts_of,
)
from osrerank.server.api.service import Judgement

ALL = -1
"""The default of ``top_k``, as documented."""


class MixedbreadRequest(RankFieldsRequest):
    """Mixedbread's ``/v1/reranking``."""

    input: Documents
    model: str | None = Field(None, description="Any: this server has one model, and names it in the answer.")
    top_k: Literal[-1] | Annotated[int, Field(ge=1)] | None = Field(
        None, description="How many results to return; all when absent or -1."
    )
    return_input: bool | None = Field(None, description="Whether results carry their documents.")

    def texts(self) -> tuple[str, ...]:
        return texts_of("input", self.input, self.rank_fields)

    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:
        scores = judgements[0].probabilities
        order = judgements[0].order if self.top_k in (None, ALL) else judgements[0].order[: self.top_k]
        results: list[dict[str, Any]] = [
            {"index": index, "score": scores[index], "object": "rank_result"} for index in order
        ]
        if self.return_input:
            results = [{**result, "input": as_passed(self.input[result["index"]])} for result in results]
        return {
            "object": "list",
            "model": model,
            "data": results,
            "usage": UNCOUNTED,
            "top_k": len(results),
            "return_input": bool(self.return_input),
        }


class MixedbreadResult(BaseModel):
    """A document's score."""

    index: DocumentIndex
    score: Probability
    object: Literal["rank_result"]
    input: str | dict[str, Any] | None = Field(None, description="As it was passed.")


class MixedbreadResponse(BaseModel):
    """Results, best first."""

    object: Literal["list"]
    model: str
    data: list[MixedbreadResult]
    usage: Usage
    top_k: int
    return_input: bool
