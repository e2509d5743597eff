"""Read ir_datasets collections like files, under the path ``ir_datasets:NAME``.

MacAvaney et al.: Simplified data wrangling with ir_datasets, SIGIR 2021, arXiv 2103.02280. The package downloads a
collection on first use. Records are converted to lines in formats that osrerank's readers accept.
"""

import io
import json
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Any, Literal, cast

from osrerank._optional import require
from osrerank.errors import LoaderError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PREFIX = "ir_datasets:"
Part = Literal["docs", "queries", "qrels", "scoreddocs"]
"""A part of a collection: its documents, queries, judgments, or the candidates published with it."""
_PART_NAMES: dict[Part, str] = {
    "docs": "documents",
    "queries": "queries",
    "qrels": "judgments",
    "scoreddocs": "candidates",
}
_TEXT_FIELDS = ("text", "body", "contents")


def is_dataset(path: object) -> bool:
    """Return whether a path is an ir_datasets collection, ``ir_datasets:NAME``."""
    return str(path).startswith(PREFIX)


def load_dataset(name: str, part: Part) -> Any:
    """Load a collection, and check that it contains a part.

    Raises:
        LoaderError: the collection does not exist or does not contain the part.
        MissingDependencyError: ir_datasets is not installed.
    """
    library = require("ir_datasets", extra="ir-datasets")
    collection = name.removeprefix(PREFIX)
    try:
        dataset = library.load(collection)
    except KeyError:
        reason = (
            f"{name}: ir_datasets has no collection {collection!r}; see https://ir-datasets.com for its collections"
        )
        raise LoaderError(reason, file=name) from None
    if not getattr(dataset, f"has_{part}")():
        reason = f"{name}: this collection has no {_PART_NAMES[part]} in ir_datasets; name one that has, or a file"
        raise LoaderError(reason, file=name)
    return dataset


def open_part(name: str, part: Part) -> IO[bytes]:
    """Open a part of a collection as a stream of lines: documents and queries as JSON, other parts in TREC's columns.

    Raises:
        LoaderError: the collection does not exist or does not contain the part.
        MissingDependencyError: ir_datasets is not installed.
    """
    lines = _encode_lines(name, part, load_dataset(name, part))
    return cast("IO[bytes]", io.BufferedReader(IteratorStream(lines)))


def extract_fields(document: Any) -> dict[str, Any]:
    """Return a document's fields. ``text`` is its main text field or, if it has none, all its text."""
    fields = {name: value for name, value in document._asdict().items() if _is_json_value(value)}
    for name in _TEXT_FIELDS:
        if isinstance(fields.get(name), str):
            text = fields.pop(name)
            return {**fields, "text": text}
    return {**fields, "text": document.default_text()}


def _encode_lines(name: str, part: Part, dataset: Any) -> Iterator[bytes]:
    try:
        yield from (f"{line}\n".encode() for line in _format_records(part, dataset))
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise LoaderError(f"{name}: ir_datasets cannot read the collection: {reason}", file=name) from error


def _format_records(part: Part, dataset: Any) -> Iterator[str]:
    if part == "docs":
        yield from (json.dumps(extract_fields(document)) for document in dataset.docs_iter())
    elif part == "queries":
        for query in dataset.queries_iter():
            yield json.dumps({"query_id": query.query_id, "text": query.default_text()})
    elif part == "qrels":
        yield from (
            f"{judgment.query_id} 0 {judgment.doc_id} {judgment.relevance}" for judgment in dataset.qrels_iter()
        )
    else:
        yield from (
            f"{candidate.query_id} Q0 {candidate.doc_id} 0 {candidate.score} ir_datasets"
            for candidate in dataset.scoreddocs_iter()
        )


def _is_json_value(value: object) -> bool:
    return isinstance(value, str | int | float) or (
        isinstance(value, list | tuple) and all(isinstance(element, str) for element in value)
    )


class IteratorStream(io.RawIOBase):
    """Reads bytes from an iterator of chunks. An empty chunk would end the stream."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._remainder = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer).cast("B")
        chunk = self._remainder or memoryview(next(self._chunks, b""))
        size = min(len(chunk), len(view))
        view[:size] = chunk[:size]
        self._remainder = chunk[size:]
        return size
