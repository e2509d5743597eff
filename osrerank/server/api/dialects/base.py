"""The base class of all dialects' requests, and types and functions that several dialects share."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from osrerank.server.api.numbers import Json
from osrerank.server.api.service import Judgement, Question


def _has_text(query: str) -> str:
    if not query.strip():
        raise ValueError("a query needs text")
    return query


Texts = Annotated[list[str], Field(fail_fast=True)]
"""A list of texts. The first error ends its validation, because describing a million errors would take seconds."""
QueryText = Annotated[str, AfterValidator(_has_text), Field(min_length=1, description="The query.")]
Probability = Annotated[float, Field(ge=0, le=1, description="The model's probability; higher is better.")]
DocumentIndex = Annotated[int, Field(ge=0, description="The document's index in the request, from 0.")]


class DialectRequest(BaseModel, ABC):
    """The base of all dialects' requests."""

    timeout_ms: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Time limit of the answer, in milliseconds."
    )
    truncate: bool | Literal["END", "NONE"] | None = Field(
        None,
        description="false or NONE refuses texts longer than the model reads (422); else their ends are cut off.",
    )
    truncation: bool | None = Field(None, description="The same as truncate, in Voyage's dialect.")
    truncation_side: Literal["right"] | None = Field(
        None, description="Where texts are cut: at their ends; vLLM's name."
    )
    truncation_direction: Literal["right", "Right"] | None = Field(
        None, description="The same as truncation_side, in TEI's dialect."
    )

    @property
    def wants_whole_texts(self) -> bool:
        """Whether the client refuses cut texts."""
        return self.truncation is False or self.truncate in (False, "NONE")

    @abstractmethod
    def questions(self) -> list[Question]:
        """Return the request's questions."""

    @abstractmethod
    def build_response(self, judgements: Sequence[Judgement], model: str) -> Any:
        """Return the dialect's response from the judgements, in the order of the questions."""


class RankFieldsRequest(DialectRequest):
    """A request whose documents are texts, or objects with fields to read."""

    query: QueryText
    rank_fields: Texts | None = Field(None, description="The fields of objects to read; text if absent or empty.")

    @abstractmethod
    def texts(self) -> tuple[str, ...]:
        """Return the text of each document for the model.

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


def texts_of(
    name: str, documents: Sequence[str | Mapping[str, Any]], rank_fields: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the text of each document that the model reads.

    Args:
        name: the name of the documents in the dialect, for errors.
        documents: the documents, texts or objects.
        rank_fields: the fields of objects to read, in order; None or empty for ``text``.

    Raises:
        ValueError: a field is a list or an object, or a document has none of the fields.
    """
    fields = rank_fields or ["text"]
    return tuple(_text_of(document, fields, f"{name}[{index}]") for index, document in enumerate(documents))


def _text_of(document: str | Mapping[str, Any], fields: Sequence[str], name: str) -> str:
    if isinstance(document, str):
        return document
    texts = [_field_text(document.get(field), field, name) for field in fields]
    present = [text for text in texts if text is not None]
    if not present:
        raise ValueError(f"{name} has no text: its fields {', '.join(map(ascii, fields))} are missing or null")
    return " ".join(present)


def _field_text(value: Any, field: str, name: str) -> str | None:
    """Return a field's value as text: a number or boolean as in JSON, None if the field is missing or null."""
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    # ascii: pydantic refuses half a surrogate pair in a message
    raise ValueError(f"{name}.{field!a} is a list or an object: rank by fields of texts or numbers")


def unchanged(document: str | Mapping[str, Any]) -> Json:
    """Return a document as the client sent it."""
    if isinstance(document, str):
        return Json(json.dumps(document))
    members = (f"{json.dumps(name)}:{_member(value)}" for name, value in document.items())
    return Json("{" + ",".join(members) + "}")


def _member(value: Any) -> str:
    if isinstance(value, Json):
        return value.text
    is_number = not isinstance(value, float) or math.isfinite(value)
    return json.dumps(value if is_number else None)  # JSON has no NaN


class Usage(BaseModel):
    """An object that clients require; tokens are not counted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


UNCOUNTED: Mapping[str, int] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def group_by_query(pairs: Sequence[tuple[str, str]]) -> list[Question]:
    """Return one question per query with all its documents, in the order in which the queries first occur."""
    documents: dict[str, list[str]] = {}
    for query, document in pairs:
        documents.setdefault(query, []).append(document)
    return [Question(query, tuple(texts)) for query, texts in documents.items()]


def probabilities_of(pairs: Sequence[tuple[str, str]], judgements: Sequence[Judgement]) -> list[float]:
    """Return the pairs' probabilities in order, from the judgements of the questions of `group_by_query`."""
    queries = dict.fromkeys(query for query, _ in pairs)
    remaining = {query: iter(judged.probabilities) for query, judged in zip(queries, judgements, strict=True)}
    return [next(remaining[query]) for query, _ in pairs]
