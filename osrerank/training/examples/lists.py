"""A training example: a query, documents, and their relevance."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from osrerank.formats.files import bad_line, write_atomically
from osrerank.formats.lines import numbered_objects
from osrerank.types import Candidate, Section


class TitledText(NamedTuple):
    """A document's text.

    Attributes:
        full_text: the text as a model reads it: title and text with a space between them.
        title: the title, as it was read; empty if the document has no title.
    """

    full_text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """A query with documents and their relevance.

    Attributes:
        query: the query's text.
        documents: the documents' texts, in the first pass's order if they come from one.
        relevance: each document's grade; above 0 is relevant.
        location: the file and line that the example was read from, for errors.
        scores: a teacher's logit for each document; empty without a teacher.
        titles: the titles with which the documents begin, needed to cut them into passages; empty if none has a title.
        doc_ids: the documents' ids; empty if they are not known.
        missed: how many relevant documents are not among these documents.
    """

    query: str
    documents: tuple[str, ...]
    relevance: tuple[int, ...]
    location: str = ""
    scores: tuple[float, ...] = ()
    titles: tuple[str, ...] = ()
    doc_ids: tuple[str, ...] = ()
    missed: int = 0

    @classmethod
    def of(
        cls,
        query: str,
        texts: Iterable[TitledText],
        relevance: Iterable[int],
        location: str,
        *,
        doc_ids: Iterable[str] = (),
        missed: int = 0,
    ) -> "Example":
        """Make an example from texts that may have titles."""
        documents, titles = zip(*titled_texts, strict=True) if (titled_texts := tuple(texts)) else ((), ())
        example_titles = titles if any(titles) else ()
        return cls(
            query, documents, tuple(relevance), location, titles=example_titles, doc_ids=tuple(doc_ids), missed=missed
        )

    @property
    def relevant(self) -> tuple[str, ...]:
        """The relevant documents, in order."""
        return tuple(self.documents[index] for index in self.indices(relevant=True))

    @property
    def not_relevant(self) -> tuple[str, ...]:
        """The documents that are not relevant, in order."""
        return tuple(self.documents[index] for index in self.indices(relevant=False))

    def select(self, indices: Sequence[int]) -> "Example":
        """Return the example with only the documents at these indices, counted from 0, in their order."""
        return replace(
            self,
            documents=tuple(self.documents[index] for index in indices),
            relevance=tuple(self.relevance[index] for index in indices),
            scores=tuple(self.scores[index] for index in indices) if self.scores else (),
            titles=tuple(self.titles[index] for index in indices) if self.titles else (),
            doc_ids=tuple(self.doc_ids[index] for index in indices) if self.doc_ids else (),
        )

    def indices(self, *, relevant: bool) -> list[int]:
        """Return the indices of the relevant documents, or of the others."""
        return [index for index, grade in enumerate(self.relevance) if (grade > 0) == relevant]

    def candidate(self, index: int) -> Candidate:
        """Return a document as a search's candidate, with title and text as separate sections to cut passages from."""
        text = self.documents[index]
        title = self.titles[index] if self.titles else ""
        fields = {"title": title, "text": text.removeprefix(title.strip())}
        sections = tuple(Section(name, value) for name, value in fields.items() if value)
        return Candidate(self.doc_ids[index] if self.doc_ids else "", text, 0.0, index + 1, sections=sections)


def read_examples(path: Path) -> Iterator[Example]:
    """Read JSON lines ``{"query", "documents": [text], "relevance": [whole number]}``, or ``.gz``.

    A line may also have ``"scores": [number]``, ``"titles": [text]``, with which the documents begin, ``"doc_ids":
    [text]`` and ``"missed": whole number``.

    Raises:
        FormatError: a line has another form; the message names file and line.
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
            raise bad_line(path, number, "a document is not a string")
        if not all(type(grade) is int for grade in relevance):
            raise bad_line(path, number, "a relevance is not a whole number")
        scores = _scores(value.get("scores", ()), len(documents), path, number)
        titles = _texts(value, "titles", len(documents), path, number)
        for position, (title, text) in enumerate(zip(titles, documents, strict=False), start=1):
            if not text.startswith(title.strip()):
                raise bad_line(path, number, f"document {position} does not begin with its title")
        doc_ids, missed = _texts(value, "doc_ids", len(documents), path, number), value.get("missed", 0)
        if type(missed) is not int or missed < 0:
            raise bad_line(path, number, f"missed is {missed!r}; it must be a whole number from 0 on")
        yield Example(query, documents, relevance, f"{path}, line {number}", scores, titles, doc_ids, missed)


def _texts(value: Mapping[str, Any], name: str, count: int, path: Path, line: int) -> tuple[str, ...]:
    """Return an optional field that has a text for each document; empty if the line lacks it."""
    texts = value.get(name, ())
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise bad_line(path, line, f"{name} must be texts, one for each document")
    if texts and len(texts) != count:
        raise bad_line(path, line, f"{count} documents and {len(texts)} {name}")
    return tuple(texts)


def _scores(values: Any, count: int, path: Path, line: int) -> tuple[float, ...]:
    """Return a teacher's scores, one for each document; empty if the line has no scores."""
    if not isinstance(values, list | tuple) or not all(
        type(value) in {int, float} and math.isfinite(value) for value in values
    ):
        raise bad_line(path, line, "scores must be numbers, one for each document")
    if values and len(values) != count:
        raise bad_line(path, line, f"{count} documents and {len(values)} scores")
    return tuple(map(float, values))


def write_examples(path: Path, examples: Iterable[Example]) -> int:
    """Write the file of examples, whole or not at all, and return how many examples it has."""
    count = 0

    def lines() -> Iterator[str]:
        nonlocal count
        for count, example in enumerate(examples, start=1):  # noqa: B007 - the last number is the result
            yield f"{json.dumps(as_json(example), ensure_ascii=False)}\n"

    write_atomically(path, lines())
    return count


def as_json(example: Example) -> dict[str, Any]:
    """Return an example as the JSON object of its line; empty optional fields are left out."""
    content = {"query": example.query, "documents": example.documents, "relevance": example.relevance}
    optional = {name: getattr(example, name) for name in ("scores", "titles", "doc_ids", "missed")}
    return {**content, **{name: value for name, value in optional.items() if value}}


def text_of(fields: Mapping[str, Any]) -> str:
    """Return title and text of a document as a model reads them; raises what `titled` raises."""
    return titled(fields).full_text


def titled(fields: Mapping[str, Any]) -> TitledText:
    """Join a document's ``title`` and ``text``.

    Raises:
        KeyError: the document has no text.
        TypeError: text or title is not a string.
    """
    title = fields.get("title") or ""
    if not isinstance(fields["text"], str):
        raise TypeError("text is not a string")
    if not isinstance(title, str):
        raise TypeError("title is not a string")
    return TitledText(f"{title} {fields['text']}".strip(), title)
