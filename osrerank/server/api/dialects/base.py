"""The base classes of all dialects' requests, and what several dialects share."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from osrerank.server.api.numbers import Json
from osrerank.server.api.service import Question, ScoredQuestion


def _has_text(query: str) -> str:
    if not query.strip():
        raise ValueError("a query must not be blank")
    return query


Texts = Annotated[list[str], Field(fail_fast=True)]
"""A list of texts. Validation stops at the first error, because describing a million errors would take seconds."""
QueryText = Annotated[str, AfterValidator(_has_text), Field(min_length=1, description="The query.")]
Probability = Annotated[float, Field(ge=0, le=1, description="The model's probability; higher is better.")]
DocumentIndex = Annotated[int, Field(ge=0, description="The document's index in the request, from 0.")]


class DialectRequest(BaseModel, ABC):
    """The base of all dialects' requests."""

    timeout_ms: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Time limit of the response, in milliseconds."
    )
    truncate: bool | Literal["END", "NONE"] | None = Field(
        None, description="Texts longer than the model's input are truncated; false or NONE refuses them (422)."
    )
    truncation: bool | None = Field(None, description="Voyage's name for truncate.")
    truncation_side: Literal["right"] | None = Field(None, description="Texts are truncated at the end; vLLM's name.")
    truncation_direction: Literal["right", "Right"] | None = Field(None, description="TEI's name for truncation_side.")

    @property
    def refuses_truncation(self) -> bool:
        """Whether texts that the model would truncate are refused."""
        return self.truncation is False or self.truncate in (False, "NONE")

    @abstractmethod
    def questions(self) -> list[Question]:
        """Return each query with its documents."""

    @abstractmethod
    def build_response(self, scored_questions: Sequence[ScoredQuestion], model: str) -> Any:
        """Return the response.

        Args:
            scored_questions: the scores of each question, in the order of `questions`.
            model: the name of the model.
        """


class RankFieldsRequest(DialectRequest):
    """A request with one query, whose documents are texts or objects with several fields."""

    query: QueryText
    rank_fields: Texts | None = Field(
        None, description="The fields of documents that form the model's input; text if absent or empty."
    )

    @abstractmethod
    def texts(self) -> tuple[str, ...]:
        """Return the model's input for each document.

        Raises:
            ValueError: a document has no text.
        """

    @model_validator(mode="after")
    def _have_text(self) -> Self:
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

    Args:
        name: the request's key for the documents, for error messages.
        documents: the documents, which are texts or objects.
        rank_fields: the fields whose values are joined to a text. If it is None or empty, the field is ``text``.

    Raises:
        ValueError: a field contains a list or an object, or all fields of a document are missing.
    """
    fields = rank_fields or ["text"]
    return tuple(_document_text(document, fields, f"{name}[{index}]") for index, document in enumerate(documents))


def _document_text(document: str | Mapping[str, Any], fields: Sequence[str], name: str) -> str:
    if isinstance(document, str):
        return document
    values = [_field_text(document.get(field), field, name) for field in fields]
    texts = [text for text in values if text is not None]
    if not texts:
        raise ValueError(f"{name} has no text: its fields {', '.join(map(ascii, fields))} are missing or null")
    return " ".join(texts)


def _field_text(value: Any, field: str, name: str) -> str | None:
    """Return a field's value as text, or None if it is missing, null or not finite."""
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    # !a, because pydantic accepts no half of a surrogate pair in a message
    raise ValueError(f"{name}.{field!a} is a list or an object: rank_fields must list fields of texts or numbers")


def original_json(document: str | Mapping[str, Any]) -> Json:
    """Return a document as the JSON that the client sent."""
    if isinstance(document, str):
        return Json(json.dumps(document))
    members = (f"{json.dumps(name)}:{_original_value(value)}" for name, value in document.items())
    return Json("{" + ",".join(members) + "}")


def _original_value(value: Any) -> str:
    if isinstance(value, Json):
        return value.text
    if isinstance(value, float) and not math.isfinite(value):
        return "null"  # JSON has no NaN
    return json.dumps(value)


class Usage(BaseModel):
    """The token counts that clients require. They are 0, because osrerank does not count tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


NO_USAGE: Mapping[str, int] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def group_by_query(pairs: Sequence[tuple[str, str]]) -> list[Question]:
    """Return a question for each distinct query, with all its documents, in the order of the queries' first pairs."""
    documents: dict[str, list[str]] = {}
    for query, document in pairs:
        documents.setdefault(query, []).append(document)
    return [Question(query, tuple(texts)) for query, texts in documents.items()]


def pair_probabilities(pairs: Sequence[tuple[str, str]], scored_questions: Sequence[ScoredQuestion]) -> list[float]:
    """Return the probability of each pair, from the scores of the questions that `group_by_query` returned."""
    queries = dict.fromkeys(query for query, _ in pairs)
    remaining = {
        query: iter(scored_question.probabilities)
        for query, scored_question in zip(queries, scored_questions, strict=True)
    }
    return [next(remaining[query]) for query, _ in pairs]
