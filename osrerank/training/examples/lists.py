"""A training example: a query, documents, and their relevance."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from osrerank.formats.files import bad_line, write_atomically
from osrerank.formats.lines import numbered_objects


@dataclass(frozen=True, slots=True)
class Example:
    """A query with documents and their relevance.

    Attributes:
        query: the query's text.
        documents: texts, those of a first pass in its order.
        relevance: of each document; above 0 is relevant.
        place: where it was read, for errors.
        scores: of each document, logits of a teacher's; empty where there are none.
    """

    query: str
    documents: tuple[str, ...]
    relevance: tuple[int, ...]
    place: str = ""
    scores: tuple[float, ...] = ()

    @property
    def relevant(self) -> tuple[str, ...]:
        """The relevant documents, in order."""
        return tuple(self.documents[place] for place in self.places(relevant=True))

    @property
    def others(self) -> tuple[str, ...]:
        """The documents that are not relevant, in order."""
        return tuple(self.documents[place] for place in self.places(relevant=False))

    def part(self, places: Sequence[int]) -> "Example":
        """Return the example with some of its documents, in the order of ``places``, counted from 0."""
        return replace(
            self,
            documents=tuple(self.documents[place] for place in places),
            relevance=tuple(self.relevance[place] for place in places),
            scores=tuple(self.scores[place] for place in places) if self.scores else (),
        )

    def places(self, *, relevant: bool) -> list[int]:
        """Return where the relevant documents are, or the others."""
        return [place for place, grade in enumerate(self.relevance) if (grade > 0) == relevant]


def read_examples(path: Path) -> Iterator[Example]:
    """Read JSON lines ``{"query", "documents": [text], "relevance": [whole number], "scores"?: [number]}``, or ``.gz``.

    Raises:
        FormatError: a line is not of that form.
    """
    for number, value in numbered_objects(path):
        try:
            query, documents, relevance = value["query"], tuple(value["documents"]), tuple(value["relevance"])
        except (KeyError, TypeError) as error:
            raise bad_line(path, number, f"expected query, documents and relevance: {error!r}") from None
        if not isinstance(query, str) or not query.strip():
            raise bad_line(path, number, "the query has no text")
        if len(documents) != len(relevance):
            raise bad_line(path, number, f"{len(documents)} documents and {len(relevance)} relevances")
        if not all(isinstance(text, str) for text in documents):
            raise bad_line(path, number, "a document is no text")
        if not all(type(grade) is int for grade in relevance):
            raise bad_line(path, number, "a relevance is no whole number")
        scores = _scores(value.get("scores", ()), len(documents), path, number)
        yield Example(query, documents, relevance, f"{path}, line {number}", scores)


def _scores(values: Any, count: int, path: Path, line: int) -> tuple[float, ...]:
    """Return a teacher's scores, none or one for each document."""
    if not isinstance(values, list | tuple) or not all(
        type(value) in {int, float} and math.isfinite(value) for value in values
    ):
        raise bad_line(path, line, "scores must be numbers, one for each document")
    if values and len(values) != count:
        raise bad_line(path, line, f"{count} documents and {len(values)} scores")
    return tuple(map(float, values))


def write_examples(path: Path, examples: Iterable[Example]) -> int:
    """Write examples as `read_examples` reads them, whole or not at all, and return how many."""
    count = 0

    def lines() -> Iterator[str]:
        nonlocal count
        for count, example in enumerate(examples, start=1):  # noqa: B007 - the last number is the result
            yield f"{json.dumps(as_json(example), ensure_ascii=False)}\n"

    write_atomically(path, lines())
    return count


def as_json(example: Example) -> dict[str, Any]:
    """Return the content of an example's line."""
    content = {"query": example.query, "documents": example.documents, "relevance": example.relevance}
    return {**content, "scores": example.scores} if example.scores else content


def text_of(fields: Mapping[str, Any]) -> str:
    """Return a document as a model reads it: title and text, a space between.

    Raises:
        KeyError: there is no text.
        TypeError: the text is not a string.
    """
    if not isinstance(fields["text"], str):
        raise TypeError("text is no text")
    return f"{fields.get('title') or ''} {fields['text']}".strip()
