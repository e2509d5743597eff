"""The dialects that score pairs of a query and a document: those of vLLM's ``/score`` and of text classifiers."""

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, Field, model_validator

from osrerank.server.api.dialects.base import (
    NO_USAGE,
    DialectRequest,
    DocumentIndex,
    Probability,
    QueryText,
    Texts,
    Usage,
    group_by_query,
    pair_probabilities,
)
from osrerank.server.api.service import Question, ScoredQuestion


class ScoreRequest(DialectRequest):
    """A request to vLLM's ``/score``: one query for all documents, or a query for each document."""

    text_1: QueryText | Annotated[list[QueryText], Field(fail_fast=True)] = Field(
        validation_alias=AliasChoices("text_1", "queries", "data_1"),
        description='The queries. The key can also be named "queries" or "data_1".',
    )
    text_2: str | Texts = Field(
        validation_alias=AliasChoices("text_2", "documents", "items", "data_2"),
        description='The documents. The key can also be named "documents", "items" or "data_2".',
    )
    model: str | None = Field(
        None, description="Ignored, because the server has only one model. The response contains its name."
    )

    @model_validator(mode="after")
    def _check_counts(self) -> "ScoreRequest":
        queries, documents = _as_list(self.text_1), _as_list(self.text_2)
        if not documents or len(queries) not in (1, len(documents)):
            reason = f"the request contains {len(queries)} queries for {len(documents)} documents"
            raise ValueError(f"{reason}: send one query, or one per document")
        return self

    def questions(self) -> list[Question]:
        return group_by_query(self._pairs())

    def build_response(self, scored_questions: Sequence[ScoredQuestion], model: str) -> Any:
        scores = pair_probabilities(self._pairs(), scored_questions)
        return {
            "id": uuid.uuid4().hex,
            "object": "list",
            "created": int(time.time()),
            "model": model,
            "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
            "usage": NO_USAGE,
        }

    def _pairs(self) -> list[tuple[str, str]]:
        """Return each query with its document. A single query is repeated for all documents."""
        queries, documents = _as_list(self.text_1), _as_list(self.text_2)
        if len(queries) == 1:
            queries = queries * len(documents)
        return list(zip(queries, documents, strict=True))


def _as_list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


class ScoreItem(BaseModel):
    """A pair's score."""

    index: DocumentIndex
    object: Literal["score"]
    score: Probability


class ScoreResponse(BaseModel):
    """The scores, in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreItem]
    usage: Usage


class TextPair(BaseModel):
    """A query (``text``) and a document (``text_pair``), with the keys that text classifiers use."""

    text: QueryText
    text_pair: str


class ClassifyRequest(DialectRequest):
    """A request to classify pairs, as SageMaker's Hugging Face containers and OpenSearch's tutorials send it."""

    inputs: TextPair | Annotated[list[TextPair], Field(min_length=1, fail_fast=True)]

    def questions(self) -> list[Question]:
        return group_by_query(self._pairs())

    def build_response(self, scored_questions: Sequence[ScoredQuestion], model: str) -> Any:  # noqa: ARG002 - this dialect reports no model
        return [{"label": "LABEL_0", "score": score} for score in pair_probabilities(self._pairs(), scored_questions)]

    def _pairs(self) -> list[tuple[str, str]]:
        pairs = [self.inputs] if isinstance(self.inputs, TextPair) else self.inputs
        return [(pair.text, pair.text_pair) for pair in pairs]


class Label(BaseModel):
    """A pair's score, in the format of a text classifier with one label."""

    label: Literal["LABEL_0"]
    score: Probability
