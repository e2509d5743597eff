"""The requests and responses of the HTTP dialects, one class for each dialect's request.

A request becomes questions, and their judgements become the dialect's response. Unknown keys are ignored, as every
server of these dialects does. Responses are plain JSON content, which the ``...Response`` classes describe.
"""

import math
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, Discriminator, Field, Tag, model_validator

from osrerank.server.api.service import Judgement, Question

SEARCH_UNIT = 100
"""Documents of one query in Cohere's unit."""


def _has_text(query: str) -> str:
    if not query.strip():
        raise ValueError("a query needs text")
    return query


Texts = Annotated[list[str], Field(fail_fast=True)]
"""Texts, of which the first wrong one ends the validation: a million wrong ones would take seconds to describe."""
QueryText = Annotated[str, AfterValidator(_has_text), Field(min_length=1, description="What is searched for.")]
Probability = Annotated[float, Field(ge=0, le=1, description="The model's probability; higher is better.")]
Place = Annotated[int, Field(ge=0, description="The document's place in the request, from 0.")]


class Request(BaseModel, ABC):
    """The base of all dialects' requests."""

    timeout_ms: float | None = Field(None, gt=0, allow_inf_nan=False, description="Time for the answer.")

    @abstractmethod
    def questions(self) -> list[Question]:
        """Return the request's questions."""

    @abstractmethod
    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:
        """Return the dialect's response from the judgements, in the order of the questions."""


class Text(BaseModel):
    """A document as an object."""

    text: str


class CohereRequest(Request):
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
        return tuple(_text_of(document, fields, place) for place, document in enumerate(self.documents))

    def questions(self) -> list[Question]:
        return [Question(self.query, self.texts())]

    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:
        judged = judgements[0]
        wanted = _is_jinas(self.model) if self.return_documents is None else self.return_documents
        texts = self.texts() if wanted else None
        results: list[dict[str, Any]] = []
        for place in judged.order[: self.top_n or None]:
            item: dict[str, Any] = {"index": place, "relevance_score": judged.probabilities[place]}
            results.append(item if texts is None else {**item, "document": {"text": texts[place]}})
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


def _text_of(document: str | Mapping[str, Any], fields: Sequence[str], place: int) -> str:
    if isinstance(document, str):
        return document
    values = [document[field] for field in fields if field in document]
    if not values or not all(isinstance(value, str) for value in values):
        names = ", ".join(ascii(field) for field in fields)  # pydantic refuses half a surrogate pair in a message
        raise ValueError(f"documents[{place}] has no text in {names}")
    return " ".join(values)


class Usage(BaseModel):
    """Tokens are not counted; the object exists because clients require it."""

    prompt_tokens: int
    total_tokens: int


UNCOUNTED: Mapping[str, int] = {"prompt_tokens": 0, "total_tokens": 0}


class CohereResult(BaseModel):
    """A document's score."""

    index: Place
    relevance_score: Probability
    document: Text | None = None


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


class VoyageRequest(Request):
    """Voyage's ``/v1/rerank`` (https://docs.voyageai.com/reference/reranker-api)."""

    query: QueryText
    documents: list[str] = Field(min_length=1)
    model: str | None = Field(None, description="Any: this server has one model, and names it in the answer.")
    top_k: int | None = Field(None, ge=0, description="How many results to return; all when absent or 0.")
    return_documents: bool | None = Field(None, description="Whether results carry their documents.")
    truncation: bool | None = Field(None, description="Any: texts are always cut to fit the model, never the query.")

    def questions(self) -> list[Question]:
        return [Question(self.query, tuple(self.documents))]

    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:
        scores = judgements[0].probabilities
        order = judgements[0].order[: self.top_k or None]
        results: list[dict[str, Any]] = [{"index": place, "relevance_score": scores[place]} for place in order]
        if self.return_documents:
            results = [{**one, "document": self.documents[one["index"]]} for one in results]
        return {"object": "list", "data": results, "model": model, "usage": {"total_tokens": 0}}


class VoyageResult(BaseModel):
    """A document's score."""

    index: Place
    relevance_score: Probability
    document: str | None = None


class VoyageResponse(BaseModel):
    """Results, best first."""

    object: Literal["list"]
    data: list[VoyageResult]
    model: str
    usage: dict[str, int]


class TeiRequest(Request):
    """Text-embeddings-inference's ``/rerank``."""

    query: QueryText
    texts: Texts = Field(min_length=1)
    raw_scores: bool | None = Field(None, description="Whether scores are logits instead of probabilities.")
    return_text: bool | None = Field(None, description="Whether results carry their texts.")
    truncate: bool | None = Field(None, description="Any: texts are always cut to fit the model, never the query.")
    truncation_direction: Literal["right", "Right"] | None = Field(None, description="Texts lose their end.")

    def questions(self) -> list[Question]:
        return [Question(self.query, tuple(self.texts))]

    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:  # noqa: ARG002 - this dialect names none
        values = judgements[0].logits if self.raw_scores else judgements[0].probabilities
        return _tei_results(judgements[0].order, values, self.texts if self.return_text else None)


def _tei_results(order: Sequence[int], values: Sequence[float], texts: Sequence[str] | None) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = [{"index": place, "score": values[place]} for place in order]
    if texts is not None:
        for result in results:
            result["text"] = texts[result["index"]]
    return results


class TeiResult(BaseModel):
    """A text's score: a probability, or a logit if raw scores were requested."""

    index: Place
    score: float
    text: str | None = None


class WeaviateRequest(Request):
    """Weaviate's module ``reranker-transformers``."""

    query: QueryText
    documents: Texts = Field(min_length=1)
    property: str = Field(description="Tells this dialect from Cohere's; not read.")

    def questions(self) -> list[Question]:
        return [Question(self.query, tuple(self.documents))]

    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:  # noqa: ARG002 - this dialect names none
        pairs = zip(self.documents, judgements[0].probabilities, strict=True)
        return {"query": self.query, "scores": [{"document": text, "score": value} for text, value in pairs]}


class WeaviateScore(BaseModel):
    """A document and its score."""

    document: str
    score: Probability


class WeaviateResponse(BaseModel):
    """Scores in the order of the documents."""

    query: str
    scores: list[WeaviateScore]


class HuggingFaceRequest(Request):
    """Elasticsearch's ``hugging_face`` service: texts under either name, with text-embeddings-inference's response."""

    query: QueryText
    texts: Texts = Field(
        min_length=1,
        validation_alias=AliasChoices("texts", "documents"),
        description='"documents" will do as well.',
    )
    top_n: int | None = Field(None, ge=0, description="How many results to return; all when absent or 0.")
    return_text: bool | None = Field(
        None,
        validation_alias=AliasChoices("return_text", "return_documents"),
        description='"return_documents" will do as well.',
    )

    def questions(self) -> list[Question]:
        return [Question(self.query, tuple(self.texts))]

    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:  # noqa: ARG002 - this dialect names none
        order = judgements[0].order[: self.top_n or None]
        return _tei_results(order, judgements[0].probabilities, self.texts if self.return_text else None)


class ScoreRequest(Request):
    """vLLM's ``/score``: one text with many, or pairs of equally many texts."""

    text_1: QueryText | Annotated[list[QueryText], Field(fail_fast=True)] = Field(
        validation_alias=AliasChoices("text_1", "queries", "data_1"), description='Or "queries", or "data_1".'
    )
    text_2: str | Texts = Field(
        validation_alias=AliasChoices("text_2", "documents", "items", "data_2"),
        description='Or "documents", "items" or "data_2".',
    )
    model: str | None = Field(None, description="Any: this server has one model, and names it in the answer.")

    @model_validator(mode="after")
    def _are_pairs(self) -> "ScoreRequest":
        queries, documents = _listed(self.text_1), _listed(self.text_2)
        if not documents or len(queries) not in (1, len(documents)):
            raise ValueError(f"{len(queries)} texts cannot be paired with {len(documents)}: give one, or as many")
        return self

    def questions(self) -> list[Question]:
        return grouped(self._pairs())

    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:
        scores = ungrouped(self._pairs(), judgements)
        return {
            "id": uuid.uuid4().hex,
            "object": "list",
            "created": int(time.time()),
            "model": model,
            "data": [{"index": place, "object": "score", "score": score} for place, score in enumerate(scores)],
            "usage": UNCOUNTED,
        }

    def _pairs(self) -> list[tuple[str, str]]:
        queries, documents = _listed(self.text_1), _listed(self.text_2)
        return list(zip(queries * len(documents) if len(queries) == 1 else queries, documents, strict=True))


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


class ScoreItem(BaseModel):
    """A pair's score."""

    index: Place
    object: Literal["score"]
    score: Probability


class ScoreResponse(BaseModel):
    """Scores in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreItem]
    usage: Usage


class TextPair(BaseModel):
    """A query and a document in the names of text classification."""

    text: QueryText
    text_pair: str


class ClassifyRequest(Request):
    """Text classification of pairs: SageMaker's Hugging Face containers, and OpenSearch's tutorials for them."""

    inputs: TextPair | Annotated[list[TextPair], Field(min_length=1, fail_fast=True)]

    def questions(self) -> list[Question]:
        return grouped(self._pairs())

    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:  # noqa: ARG002 - this dialect names none
        return [{"label": "LABEL_0", "score": score} for score in ungrouped(self._pairs(), judgements)]

    def _pairs(self) -> list[tuple[str, str]]:
        pairs = [self.inputs] if isinstance(self.inputs, TextPair) else self.inputs
        return [(pair.text, pair.text_pair) for pair in pairs]


class Label(BaseModel):
    """A pair's score, named as the first label of a classifier."""

    label: Literal["LABEL_0"]
    score: Probability


def grouped(pairs: Sequence[tuple[str, str]]) -> list[Question]:
    """Return one question for each query, in the order of their first pairs."""
    documents: dict[str, list[str]] = {}
    for query, document in pairs:
        documents.setdefault(query, []).append(document)
    return [Question(query, tuple(texts)) for query, texts in documents.items()]


def ungrouped(pairs: Sequence[tuple[str, str]], judgements: Sequence[Judgement]) -> list[float]:
    """Return the probabilities of the pairs, from the judgements of their groups."""
    queries = dict.fromkeys(query for query, _ in pairs)
    left = {query: iter(judged.probabilities) for query, judged in zip(queries, judgements, strict=True)}
    return [next(left[query]) for query, _ in pairs]


def _dialect(*keys: str) -> Callable[[Any], str]:
    """Return a body's dialect: that of the first known key, else Cohere's."""

    def tell(body: Any) -> str:
        return next((key for key in keys if isinstance(body, Mapping) and key in body), "documents")

    return tell


Cohere = Annotated[CohereRequest, Tag("documents")]
Tei = Annotated[TeiRequest, Tag("texts")]
Weaviate = Annotated[WeaviateRequest, Tag("property")]
Classify = Annotated[ClassifyRequest, Tag("inputs")]
RerankRequest = Annotated[Cohere | Tei | Weaviate, Discriminator(_dialect("texts", "property"))]
InvocationRequest = Annotated[
    Cohere | Tei | Weaviate | Classify, Discriminator(_dialect("inputs", "texts", "property"))
]
RerankResponse = CohereResponse | list[TeiResult] | WeaviateResponse
InvocationResponse = RerankResponse | list[Label]
