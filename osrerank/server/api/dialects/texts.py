"""The requests of text-embeddings-inference (TEI), Weaviate, and Elasticsearch's service ``hugging_face``."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import AliasChoices, BaseModel, Field, model_validator

from osrerank.server.api.dialects.base import DialectRequest, DocumentIndex, Probability, QueryText, Texts
from osrerank.server.api.service import Question, ScoredQuestion


class TeiRequest(DialectRequest):
    """A request to text-embeddings-inference's ``/rerank``."""

    query: QueryText
    texts: Texts = Field(min_length=1)
    raw_scores: bool | None = Field(None, description="Whether scores are logits instead of probabilities.")
    return_text: bool | None = Field(None, description="Whether each result contains its text.")
    top_n: int | None = Field(
        None,
        ge=0,
        description="The maximum number of results. By default or with 0, all are returned. TEI has no such key, but "
        "gateways send it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _check_documents(cls, body: Any) -> Any:
        """Refuse a body whose ``texts`` and ``documents`` differ. Gateways send the same list under both keys."""
        if isinstance(body, Mapping):
            texts, documents = body.get("texts"), body.get("documents")
            if texts is not None and documents is not None and texts != documents:
                raise ValueError("texts and documents differ: send one of them")
        return body

    def questions(self) -> list[Question]:
        return [Question(self.query, tuple(self.texts))]

    def build_response(self, scored_questions: Sequence[ScoredQuestion], model: str) -> Any:  # noqa: ARG002 - this dialect reports no model
        (scored,) = scored_questions
        values = scored.logits if self.raw_scores else scored.probabilities
        results: list[dict[str, Any]] = []
        for index in scored.order[: self.top_n or None]:  # 0 means all
            result: dict[str, Any] = {"index": index, "score": values[index]}
            if self.return_text:
                result["text"] = self.texts[index]
            results.append(result)
        return results


class TeiResult(BaseModel):
    """A text's score: a probability, or a logit if raw scores were requested."""

    index: DocumentIndex
    score: float
    text: str | None = None


class WeaviateRequest(DialectRequest):
    """A request of Weaviate's module ``reranker-transformers``."""

    query: QueryText
    documents: Texts = Field(min_length=1)
    property: str = Field(description="The value is ignored. The server recognises Weaviate's requests by this key.")

    def questions(self) -> list[Question]:
        return [Question(self.query, tuple(self.documents))]

    def build_response(self, scored_questions: Sequence[ScoredQuestion], model: str) -> Any:  # noqa: ARG002 - this dialect reports no model
        (scored,) = scored_questions
        scores = [
            {"document": document, "score": probability}
            for document, probability in zip(self.documents, scored.probabilities, strict=True)
        ]
        return {"query": self.query, "scores": scores}


class WeaviateScore(BaseModel):
    """A document and its score."""

    document: str
    score: Probability


class WeaviateResponse(BaseModel):
    """The scores, in the order of the documents."""

    query: str
    scores: list[WeaviateScore]


class HuggingFaceRequest(TeiRequest):
    """A request of Elasticsearch's service ``hugging_face``: TEI's format with a second name for two keys."""

    texts: Texts = Field(
        min_length=1,
        validation_alias=AliasChoices("texts", "documents"),
        description='The texts. The key can also be named "documents".',
    )
    return_text: bool | None = Field(
        None,
        validation_alias=AliasChoices("return_text", "return_documents"),
        description='Whether each result contains its text. The key can also be named "return_documents".',
    )
