"""What a loader is: a reader of one published format, and how its documents are searched.

A reader yields its records in the order of the file. A record that is not what the format says is yielded as the error
that describes it, not raised: whoever asked for the records decides whether one bad record ends the reading. What
cannot be read past (a truncated archive, damaged CBOR) is raised.
"""

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from osrerank.errors import CorpusFormatError
from osrerank.formats.sources import Source, malformed
from osrerank.types import Document

Record = Document | CorpusFormatError


@dataclass(frozen=True, slots=True)
class Loader:
    """A published format: how to read it and how Anserini's regressions search it.

    Attributes:
        name: as on the command line.
        about: one line for the help.
        read: source -> its records, in order.
        files: patterns of the file names that hold documents; applied inside folders and archives, never to a file
            given by name.
        k1: BM25's term frequency saturation, as published for this collection.
        b: BM25's length normalisation, as published for this collection.
        fields: mappings of the metadata fields.
        open_fields: whether fields unknown here may occur and are mapped as they come.
    """

    name: str
    about: str
    read: Callable[[Source], Iterator[Record]]
    files: tuple[str, ...] = ("*",)
    k1: float = 0.9
    b: float = 0.4
    fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    open_fields: bool = False


def read_records(loader: Loader, sources: Iterable[Source]) -> Iterator[Record]:
    """Read the records of every source in turn; a source without any is a bad record itself.

    Raises:
        CorpusFormatError: a file is truncated or damaged, so that nothing after that place can be read.
    """
    for source in sources:
        before_first = True
        for record in _readable(source, loader.read(source)):
            before_first = False
            yield record
        if before_first:
            yield malformed(source, f"holds no record for the loader {loader.name}; is this the right file?")


def _readable(source: Source, records: Iterator[Record]) -> Iterator[Record]:
    """Name the file in what the decompressors raise."""
    try:
        yield from records
    except (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise malformed(source, f"is truncated or damaged ({error}); fetch it again") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise malformed(source, f"is truncated or damaged ({error}); fetch it again") from error
