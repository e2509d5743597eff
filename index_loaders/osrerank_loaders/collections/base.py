"""A `Loader` says how to read and index the files of a format.

A record is an entry of a file, such as a line of JSON. A reader yields a `Document` for each valid record, and an error
for each invalid one, after which the caller decides whether to go on. A reader raises an error only if it cannot
continue, for instance in a truncated archive.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from osrerank.errors import CorpusFormatError, FormatError
from osrerank.formats.lines import explain_invalid_id
from osrerank.formats.sources import SourceFile, file_errors, record_error
from osrerank.types import Document

Record = Document | FormatError
"""A valid record, or the error of an invalid one."""
Read = Callable[[SourceFile], Iterator[Record]]
CONTENTS = "contents"
"""The name of an optional field with the whole text of a document, as Anserini indexes it."""


@dataclass(frozen=True, slots=True)
class Loader:
    """A published format: how to read its files, and how to index its documents as Anserini's regressions do.

    Attributes:
        name: the loader's name on the command line.
        read: yields the documents and errors of a file in order.
        files: the patterns of the files to read in folders and archives, such as ``collection*.tsv``. A file that the
            command line names is always read.
        k1: BM25's k1 (term frequency saturation), as published for this collection.
        b: BM25's b (length normalisation), as published for this collection.
        fields: the mapping of each metadata field, such as ``{"docid": {"type": "keyword"}}``.
        allows_other_fields: whether documents can have further fields, which are mapped dynamically.
        is_generic: whether the loader reads any user's collection. There are then no published k1 and b.
        allows_empty_files: whether a file may contain no documents of the collection.
        read_contents: a function like ``read`` that also adds the field ``contents``. If None, ``contents`` consists
            of the title and the text.
    """

    name: str
    read: Read
    files: tuple[str, ...] = ("*",)
    k1: float = 0.9
    b: float = 0.4
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    allows_other_fields: bool = False
    is_generic: bool = False
    allows_empty_files: bool = False
    read_contents: Read | None = None


def check_id(source: SourceFile, document: Document, line: int | None = None) -> Record:
    """Return the document, or an error if a TREC run cannot contain its id, for instance because it has a space."""
    reason = explain_invalid_id(document.doc_id)
    return record_error(source, reason, line=line) if reason else document


def add_contents(read: Read, join: Callable[[Document], str]) -> Read:
    """Return a reader like ``read`` that adds the field ``contents``, which ``join`` computes from a document."""

    def read_with_contents(source: SourceFile) -> Iterator[Record]:
        for record in read(source):
            if isinstance(record, FormatError):
                yield record
            elif CONTENTS in record.metadata:
                reason = f"document {record.doc_id!r} already contains a field contents; load it without --contents"
                yield record_error(source, reason)
            else:
                yield replace(record, metadata={**record.metadata, CONTENTS: join(record)})

    return read_with_contents


def title_and_text(document: Document) -> str:
    """Return the title and the text on separate lines, without an empty title or text."""
    return "\n".join(part for part in (document.title, document.text) if part)


def read_records(loader: Loader, sources: Iterable[SourceFile], *, contents: bool = False) -> Iterator[Record]:
    """Yield the documents and errors of all sources, one source after the other.

    A source without records is an error, unless the loader allows empty files. If ``contents`` is set, the documents
    also get the field ``contents``.

    Raises:
        CorpusFormatError: a file is truncated or damaged, so that it cannot be read further.
    """
    try:
        for record in _read_sources(loader, sources, contents=contents):
            yield _corpus_error(record) if isinstance(record, FormatError) else record
    except FormatError as error:
        raise _corpus_error(error) from error


def _read_sources(loader: Loader, sources: Iterable[SourceFile], *, contents: bool) -> Iterator[Record]:
    read = loader.read
    if contents:
        read = loader.read_contents or add_contents(loader.read, title_and_text)
    for source in sources:
        if source.encoding_error is not None:
            yield source.encoding_error
            continue
        is_empty = True
        with file_errors(source):
            for record in read(source):
                is_empty = False
                yield record
        if is_empty and not loader.allows_empty_files:
            yield record_error(source, f"there is no record for the loader {loader.name}; is this the right file?")


def _corpus_error(error: FormatError) -> CorpusFormatError:
    return CorpusFormatError(str(error), file=error.file, line=error.line)
