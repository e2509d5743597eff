"""A loader: a reader of one published format, and how its documents are searched.

A reader yields its records in the order of the file. A bad record is yielded as the error that describes it, not
raised: the caller decides whether one bad record ends the reading. Errors that nothing can be read past (a truncated
archive, damaged CBOR) are raised.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from osrerank.errors import CorpusFormatError, FormatError
from osrerank.formats.sources import Source, malformed, readable
from osrerank.types import Document

Record = Document | FormatError


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
    """

    name: str
    about: str
    read: Callable[[Source], Iterator[Record]]
    files: tuple[str, ...] = ("*",)
    k1: float = 0.9
    b: float = 0.4
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    open_fields: bool = False
    is_users: bool = False
    may_be_left_out: bool = False


def read_records(loader: Loader, sources: Iterable[Source]) -> Iterator[Record]:
    """Read the records of every source in turn; an empty source counts as a bad record.

    Raises:
        CorpusFormatError: a file is truncated or damaged, and nothing after that place can be read.
    """
    try:
        for record in _records(loader, sources):
            yield _of_corpus(record) if isinstance(record, FormatError) else record
    except FormatError as error:
        raise _of_corpus(error) from error


def _records(loader: Loader, sources: Iterable[Source]) -> Iterator[Record]:
    for source in sources:
        before_first = True
        with readable(source):
            for record in loader.read(source):
                before_first = False
                yield record
        if before_first and not loader.may_be_left_out:
            yield malformed(source, f"holds no record for the loader {loader.name}; is this the right file?")


def _of_corpus(error: FormatError) -> CorpusFormatError:
    return CorpusFormatError(str(error), file=error.file, line=error.line)
