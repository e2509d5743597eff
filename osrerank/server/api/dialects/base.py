"""What every dialect's request has, and what several of them share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from osrerank.server.api.service import Judgement, Question


def _has_text(query: str) -> str:
    if not query.strip():
        raise ValueError("a query needs text")
    return query


Texts = Annotated[list[str], Field(fail_fast=True)]
"""Texts, of which the first wrong one ends the validation: a million wrong ones would take seconds to describe."""
QueryText = Annotated[str, AfterValidator(_has_text), Field(min_length=1, description="What is searched for.")]
Probability = Annotated[float, Field(ge=0, le=1, description="The model's probability; higher is better.")]
DocumentIndex = Annotated[int, Field(ge=0, description="The document's index in the request, from 0.")]


class DialectRequest(BaseModel, ABC):
    """The base of all dialects' requests."""

    timeout_ms: float | None = Field(None, gt=0, allow_inf_nan=False, description="Time for the answer.")
    truncate: bool | Literal["END", "NONE"] | None = Field(
        None,
        description="false or NONE: texts longer than the model reads are refused (422); else they lose their end.",
    )
    truncation: bool | None = Field(None, description="As truncate; Voyage's name.")
    truncation_side: Literal["right"] | None = Field(None, description="Texts lose their end; vLLM's name.")
    truncation_direction: Literal["right", "Right"] | None = Field(None, description="The same; TEI's name.")

    @property
    def wants_whole_texts(self) -> bool:
        """Whether a text that would have to be cut is to be refused."""
        return self.truncation is False or self.truncate in (False, "NONE")

    @abstractmethod
    def questions(self) -> list[Question]:
        """Return the request's questions."""

    @abstractmethod
    def answer(self, judgements: Sequence[Judgement], model: str) -> Any:
        """Return the dialect's response from the judgements, in the order of the questions."""


class DocumentObject(BaseModel):
    """A document as an object."""

    text: str


class Usage(BaseModel):
    """Tokens are not counted; the object exists because clients require it."""

    prompt_tokens: int
    total_tokens: int


UNCOUNTED: Mapping[str, int] = {"prompt_tokens": 0, "total_tokens": 0}


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
