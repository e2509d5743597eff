"""A loader: a reader of one published format, and how its documents are searched.

A reader yields its records in the order of the file. A bad record is yielded as the error that describes it, not
raised: the caller decides whether one bad record ends the reading. Errors that nothing can be read past (a truncated
archive, damaged CBOR) are raised.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from osrerank.errors import CorpusFormatError, FormatError
from osrerank.formats.lines import id_problem
from osrerank.formats.sources import SourceFile, malformed, readable
from osrerank.types import Document

Record = Document | FormatError
Read = Callable[[SourceFile], Iterator[Record]]
CONTENTS = "contents"
"""The field that holds all that Anserini indexes of a document, its title and text among it."""


@dataclass(frozen=True, slots=True)
class Loader:
    """A published format: how to read it and how Anserini's regressions search it.

    Attributes:
        name: as on the command line.
        about: one line for the help.
        read: source -> its records, in order.
        files: name patterns of files with documents; applied inside folders and archives, never to a file given by
            name.
        k1: BM25's term frequency saturation, as published for this collection.
        b: BM25's length normalisation, as published for this collection.
        fields: mappings of the metadata fields.
        open_fields: whether other fields may occur and are mapped dynamically.
        is_users: whether it is for collections of one's own, for which k1 and b are published nowhere.
        may_be_left_out: whether a file may have no document of the collection.
        read_contents: as ``read``, with what Anserini indexes in the field ``contents``; title and text when None.
    """

    name: str
    about: str
    read: Read
    files: tuple[str, ...] = ("*",)
    k1: float = 0.9
    b: float = 0.4
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    open_fields: bool = False
    is_users: bool = False
    may_be_left_out: bool = False
    read_contents: Read | None = None


def checked(source: SourceFile, document: Document, line: int | None = None) -> Record:
    """Return a document, or the error for an id that no run can carry."""
    problem = id_problem(document.doc_id)
    return malformed(source, problem, line=line) if problem else document


def joined(read: Read, join: Callable[[Document], str]) -> Read:
    """Return a reader of the same documents with the field ``contents``, which ``join`` makes of each."""

    def read_joined(source: SourceFile) -> Iterator[Record]:
        for record in read(source):
            if isinstance(record, FormatError):
                yield record
            elif CONTENTS in record.metadata:
                reason = f"document {record.doc_id!r} has a field contents of its own; load it without --contents"
                yield malformed(source, reason)
            else:
                yield replace(record, metadata={**record.metadata, CONTENTS: join(record)})

    return read_joined


def title_and_text(document: Document) -> str:
    """Return title and text, a line each."""
    return "\n".join(part for part in (document.title, document.text) if part)


def read_records(loader: Loader, sources: Iterable[SourceFile], *, contents: bool = False) -> Iterator[Record]:
    """Read the records of every source in turn; an empty source counts as a bad record.

    Args:
        loader: the loader of the collection.
        sources: its files.
        contents: whether documents get the field ``contents``.

    Raises:
        CorpusFormatError: a file is truncated or damaged, and nothing after that point can be read.
    """
    try:
        for record in _records(loader, sources, contents=contents):
            yield _of_corpus(record) if isinstance(record, FormatError) else record
    except FormatError as error:
        raise _of_corpus(error) from error


def _records(loader: Loader, sources: Iterable[SourceFile], *, contents: bool) -> Iterator[Record]:
    read = loader.read_contents or joined(loader.read, title_and_text) if contents else loader.read
    for source in sources:
        if source.refused is not None:
            yield source.refused
            continue
        before_first = True
        with readable(source):
            for record in read(source):
                before_first = False
                yield record
        if before_first and not loader.may_be_left_out:
            yield malformed(source, f"holds no record for the loader {loader.name}; is this the right file?")


def _of_corpus(error: FormatError) -> CorpusFormatError:
    return CorpusFormatError(str(error), file=error.file, line=error.line)
