"""The base classes of all dialects' requests, and the functions that several dialects use.

A dialect is the format of the requests and responses of a rerank API, such as Cohere's.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from osrerank.server.api.numbers import Json
from osrerank.server.api.service import Question, ScoredQuestion


def _refuse_blank(query: str) -> str:
    if not query.strip():
        raise ValueError("a query must not be blank")
    return query


Texts = Annotated[list[str], Field(fail_fast=True)]
"""A list of texts. Validation stops at the first error, because it would take seconds to describe a million errors."""
QueryText = Annotated[str, AfterValidator(_refuse_blank), Field(min_length=1, description="The query.")]
Probability = Annotated[
    float, Field(ge=0, le=1, description="The model's probability that the document is relevant to the query.")
]
DocumentIndex = Annotated[int, Field(ge=0, description="The document's index in the request, from 0.")]


class DialectRequest(BaseModel, ABC):
    """The base of all dialects' requests."""

    timeout_ms: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Time limit of the response, in milliseconds."
    )
    truncate: bool | Literal["END", "NONE"] | None = Field(
        None,
        description="Whether texts longer than the model's input are truncated, which is the default. With false or "
        "NONE, such texts are refused (422).",
    )
    truncation: bool | None = Field(None, description="The same as truncate. This is Voyage's name.")
    truncation_side: Literal["right"] | None = Field(
        None, description="Has no effect: texts are always truncated at the end. This is vLLM's name."
    )
    truncation_direction: Literal["right", "Right"] | None = Field(
        None, description="The same as truncation_side. This is TEI's name."
    )

    @property
    def refuses_truncation(self) -> bool:
        """Whether the request is refused if a text is longer than the model's input."""
        return self.truncation is False or self.truncate in (False, "NONE")

    @abstractmethod
    def questions(self) -> list[Question]:
        """Return each distinct query with its documents."""

    @abstractmethod
    def build_response(self, scored_questions: Sequence[ScoredQuestion], model: str) -> Any:
        """Return the body of the response, which `osrerank.server.api.numbers.encode` turns into JSON.

        Args:
            scored_questions: the scores of each question, in the order of `questions`.
            model: the name of the model.
        """


class RankFieldsRequest(DialectRequest):
    """A request with one query, whose documents are texts or objects with several fields."""

    query: QueryText
    rank_fields: Texts | None = Field(
        None,
        description='The fields of a document that the model reads, such as ["title", "text"]. By default, ["text"].',
    )

    @abstractmethod
    def texts(self) -> tuple[str, ...]:
        """Return the model's input for each document.

        Raises:
            ValueError: a document has no text.
        """

    @model_validator(mode="after")
    def _check_texts(self) -> Self:
        self.texts()
        return self

    def questions(self) -> list[Question]:
        return [Question(self.query, self.texts())]


Documents = Annotated[
    list[str | dict[str, Any]],
    Field(min_length=1, fail_fast=True, description='Texts, or objects with "text" or the fields of rank_fields.'),
]


def document_texts(
    name: str, documents: Sequence[str | Mapping[str, Any]], rank_fields: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the model's input for each document.

    With the rank fields ["title", "year"], the document {"title": "Cats", "year": 1994} becomes "Cats 1994".

    Args:
        name: the request's key for the documents, such as ``documents``, for error messages.
        documents: the documents, which are texts or objects.
        rank_fields: the fields whose values are joined by spaces. None and an empty list mean ["text"].

    Raises:
        ValueError: a field contains a list or an object, or all fields of a document are missing.
    """
    fields = rank_fields or ["text"]
    return tuple(_document_text(document, fields, f"{name}[{index}]") for index, document in enumerate(documents))


def _document_text(document: str | Mapping[str, Any], fields: Sequence[str], path: str) -> str:
    if isinstance(document, str):
        return document
    values = [_field_text(document.get(field), field, path) for field in fields]
    texts = [text for text in values if text is not None]
    if not texts:
        raise ValueError(f"{path} has no text: its fields {', '.join(map(ascii, fields))} are missing or null")
    return " ".join(texts)


def _field_text(value: Any, field: str, path: str) -> str | None:
    """Return a field's value as text, or None if it is missing, null, NaN or infinite.

    ``path`` is the document's place in the request, such as ``documents[3]``.
    """
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    # !a escapes half a surrogate pair, which pydantic does not accept in a message
    raise ValueError(f"{path}.{field!a} is a list or an object: rank_fields must list fields of texts or numbers")


def original_json(document: str | Mapping[str, Any]) -> Json:
    """Return a document as JSON with the values that the client sent, for a response that repeats the document."""
    if isinstance(document, str):
        return Json(json.dumps(document))
    members = (f"{json.dumps(name)}:{_value_json(value)}" for name, value in document.items())
    return Json("{" + ",".join(members) + "}")


def _value_json(value: Any) -> str:
    if isinstance(value, Json):
        return value.text
    if isinstance(value, float) and not math.isfinite(value):
        return "null"  # JSON has no NaN
    return json.dumps(value)


class Usage(BaseModel):
    """The token counts that clients require. All are 0, because osrerank does not count tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


NO_USAGE: Mapping[str, int] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def group_by_query(pairs: Sequence[tuple[str, str]]) -> list[Question]:
    """Return a question for each distinct query, with all its documents. The queries keep the order of the pairs.

    The pairs ("cats", "a dog"), ("birds", "a gull") and ("cats", "a cat") become the questions
    ("cats", ["a dog", "a cat"]) and ("birds", ["a gull"]).
    """
    documents: dict[str, list[str]] = {}
    for query, document in pairs:
        documents.setdefault(query, []).append(document)
    return [Question(query, tuple(texts)) for query, texts in documents.items()]


def pair_probabilities(pairs: Sequence[tuple[str, str]], scored_questions: Sequence[ScoredQuestion]) -> list[float]:
    """Return the probability of each pair, from the scores of the questions that `group_by_query` returned.

    A question has its documents, and so their probabilities, in the order of the query's pairs.
    """
    distinct_queries = dict.fromkeys(query for query, _ in pairs)
    remaining_by_query = {
        query: iter(scored_question.probabilities)
        for query, scored_question in zip(distinct_queries, scored_questions, strict=True)
    }
    return [next(remaining_by_query[query]) for query, _ in pairs]
