"""What is learnt from: a query, documents, and which of them are relevant."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.errors import CorpusFormatError
from osrerank.evaluation.files import numbered_lines, write_atomically


@dataclass(frozen=True, slots=True)
class Example:
    """A query with documents and their relevance.

    Attributes:
        query: the query's text.
        documents: texts, those of a first pass in its order.
        relevance: of each document; above 0 is relevant.
        place: where it was read, for errors.
    """

    query: str
    documents: tuple[str, ...]
    relevance: tuple[int, ...]
    place: str = ""

    @property
    def relevant(self) -> tuple[str, ...]:
        """The relevant documents, in order."""
        return tuple(text for text, grade in zip(self.documents, self.relevance, strict=True) if grade > 0)

    @property
    def others(self) -> tuple[str, ...]:
        """The documents that are not relevant, in order."""
        return tuple(text for text, grade in zip(self.documents, self.relevance, strict=True) if grade <= 0)


def malformed(path: Path, line: int, problem: str) -> CorpusFormatError:
    """Return the error of a line."""
    return CorpusFormatError(f"{path}, line {line}: {problem}", file=str(path), line=line)


def read_examples(path: Path) -> Iterator[Example]:
    """Read JSON lines ``{"query", "documents": [text], "relevance": [whole number]}``, plain or ``.gz``.

    Raises:
        CorpusFormatError: a line is not of that form.
    """
    for number, value in json_lines(path):
        try:
            query, documents, relevance = value["query"], tuple(value["documents"]), tuple(value["relevance"])
        except (KeyError, TypeError) as error:
            raise malformed(path, number, f"expected query, documents and relevance: {error!r}") from None
        if not isinstance(query, str) or not query.strip():
            raise malformed(path, number, "the query has no text")
        if len(documents) != len(relevance):
            raise malformed(path, number, f"{len(documents)} documents and {len(relevance)} relevances")
        if not all(isinstance(text, str) for text in documents):
            raise malformed(path, number, "a document is no text")
        if not all(type(grade) is int for grade in relevance):
            raise malformed(path, number, "a relevance is no whole number")
        yield Example(query, documents, relevance, f"{path}, line {number}")


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
    return {"query": example.query, "documents": example.documents, "relevance": example.relevance}


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the values of a JSON lines file with their line numbers, blank lines left out.

    Raises:
        CorpusFormatError: a line is not JSON.
    """
    for number, line in numbered_lines(path):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise malformed(path, number, f"not JSON: {error}") from None


def text_of(fields: Mapping[str, Any]) -> str:
    """Return a document as a model reads it: title and text, a space between.

    Raises:
        KeyError: there is no text.
        TypeError: it is no text.
    """
    if not isinstance(fields["text"], str):
        raise TypeError("text is no text")
    return f"{fields.get('title') or ''} {fields['text']}".strip()
