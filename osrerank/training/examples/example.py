"""Define training examples, each a query with documents and their relevance, and read and write them as JSON lines."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from osrerank._bad_value import describe_bad_value
from osrerank.formats.common_layout import format_json_line, write_lines
from osrerank.formats.files import line_error
from osrerank.formats.lines import read_numbered_objects
from osrerank.types import Candidate, Section


class TitledText(NamedTuple):
    """A document's text.

    Attributes:
        full_text: the model's input: title and text, with a space between them.
        title: the document's title, or "" if it has none.
    """

    full_text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """A query with documents and their relevance.

    Attributes:
        query: the query's text.
        documents: the documents' texts. If they come from a search, they are in its order.
        relevance: each document's grade. Documents with a grade above 0 are relevant. The others are called negatives.
        location: the file and line of the example, for error messages.
        scores: a teacher's logit for each document, or empty if no teacher has scored the documents.
        titles: the title with which each document's text begins, or empty if no document has a title. When a document
            is split into passages, its title stays separate.
        doc_ids: the documents' ids, or empty if they are unknown.
        missed: the number of the query's relevant documents that are not in the example.
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
    def from_texts(
        cls,
        query: str,
        texts: Iterable[TitledText],
        relevance: Iterable[int],
        location: str,
        *,
        doc_ids: Iterable[str] = (),
        missed: int = 0,
    ) -> "Example":
        """Create an example from texts with or without titles."""
        titled_texts = tuple(texts)
        titles = tuple(text.title for text in titled_texts)
        return cls(
            query,
            tuple(text.full_text for text in titled_texts),
            tuple(relevance),
            location,
            titles=titles if any(titles) else (),
            doc_ids=tuple(doc_ids),
            missed=missed,
        )

    @property
    def relevant_documents(self) -> tuple[str, ...]:
        """The texts of the relevant documents."""
        return tuple(self.documents[index] for index in self.indices(relevant=True))

    @property
    def negatives(self) -> tuple[str, ...]:
        """The texts of the documents that are not relevant."""
        return tuple(self.documents[index] for index in self.indices(relevant=False))

    def select(self, indices: Sequence[int]) -> "Example":
        """Return the example with only the documents at the indices, in the order of the indices."""
        return replace(
            self,
            documents=tuple(self.documents[index] for index in indices),
            relevance=tuple(self.relevance[index] for index in indices),
            scores=tuple(self.scores[index] for index in indices) if self.scores else (),
            titles=tuple(self.titles[index] for index in indices) if self.titles else (),
            doc_ids=tuple(self.doc_ids[index] for index in indices) if self.doc_ids else (),
        )

    def indices(self, *, relevant: bool) -> list[int]:
        """Return the indices of the relevant documents, or of the negatives."""
        return [index for index, grade in enumerate(self.relevance) if (grade > 0) == relevant]

    def candidate(self, index: int) -> Candidate:
        """Return a document as if a search had found it, with its title and text as separate sections."""
        text = self.documents[index]
        title = self.titles[index] if self.titles else ""
        fields = {"title": title, "text": text.removeprefix(title.strip())}
        sections = tuple(Section(name, value) for name, value in fields.items() if value)
        doc_id = self.doc_ids[index] if self.doc_ids else ""
        return Candidate(doc_id, text, score=0.0, rank=index + 1, sections=sections)


def read_examples(path: Path) -> Iterator[Example]:
    """Read JSON lines ``{"query", "documents": [text], "relevance": [whole number]}``, gzipped or not.

    The optional fields are ``"scores": [number]``, ``"titles": [text]``, ``"doc_ids": [text]`` and ``"missed": whole
    number``. `Example` describes them.

    Raises:
        FormatError: a line does not have this form.
    """
    for number, value in read_numbered_objects(path):
        try:
            query = value["query"]
            documents = tuple(value["documents"])
            relevance = tuple(value["relevance"])
        except (KeyError, TypeError) as error:
            reason = f"{describe_bad_value(error)}; expected a query, a list of documents and a list of relevances"
            raise line_error(path, number, reason) from None
        if not isinstance(query, str) or not query.strip():
            raise line_error(path, number, "the query has no text")
        try:
            _check_documents(documents, relevance)
            scores = tuple(map(float, _read_list(value, "scores", _is_number, "numbers")))
            titles = _read_list(value, "titles", _is_text, "texts")
            doc_ids = _read_list(value, "doc_ids", _is_text, "texts")
        except ValueError as error:
            raise line_error(path, number, str(error)) from None
        for document_number, (title, text) in enumerate(zip(titles, documents, strict=False), start=1):
            if not text.startswith(title.strip()):
                raise line_error(
                    path, number, f"the text of document {document_number} must begin with its title, {title!r}"
                )
        missed = value.get("missed", 0)
        if type(missed) is not int or missed < 0:
            raise line_error(path, number, f"missed is {missed!r}; it must be a whole number from 0 on")
        yield Example(
            query,
            documents,
            relevance,
            location=f"{path}, line {number}",
            scores=scores,
            titles=titles,
            doc_ids=doc_ids,
            missed=missed,
        )


def _check_documents(documents: Sequence[Any], relevance: Sequence[Any]) -> None:
    """Raise a `ValueError` unless the documents are strings, and each has a whole number as its relevance."""
    if len(documents) != len(relevance):
        raise ValueError(f"{len(documents)} documents have {len(relevance)} relevances; give each document one")
    for number, (text, grade) in enumerate(zip(documents, relevance, strict=True), start=1):
        if not isinstance(text, str):
            raise ValueError(f"document {number} is not a string")  # noqa: TRY004 - bad data, not misuse
        if type(grade) is not int:
            raise ValueError(f"the relevance of document {number} is not a whole number")


def _read_list(value: Mapping[str, Any], name: str, is_valid: Callable[[Any], bool], kind: str) -> tuple[Any, ...]:
    """Return the optional field ``name`` of a line, or () if it is missing. Raise a `ValueError` if it is not valid."""
    entries = value.get(name, ())
    if not isinstance(entries, list | tuple) or not all(is_valid(entry) for entry in entries):
        raise ValueError(f"{name} must be {kind}, one for each document")
    if entries and len(entries) != len(value["documents"]):
        raise ValueError(
            f"{len(value['documents'])} documents have {len(entries)} {name}; give each document one, or none"
        )
    return tuple(entries)


def _is_text(entry: Any) -> bool:
    return isinstance(entry, str)


def _is_number(entry: Any) -> bool:
    return type(entry) in {int, float} and math.isfinite(entry)


def write_examples(path: Path, examples: Iterable[Example]) -> int:
    """Write examples as JSON lines, completely or not at all, and return their number."""
    return write_lines((format_json_line(as_json(example)) for example in examples), path)


def as_json(example: Example) -> dict[str, Any]:
    """Return the JSON object of an example's line, without empty optional fields."""
    content = {"query": example.query, "documents": example.documents, "relevance": example.relevance}
    optional = {name: getattr(example, name) for name in ("scores", "titles", "doc_ids", "missed")}
    return {**content, **{name: value for name, value in optional.items() if value}}


def join_title(fields: Mapping[str, Any]) -> TitledText:
    """Join the ``title``, if any, and the ``text`` of a document.

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
