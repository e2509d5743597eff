"""TREC-CAR: CBOR files of paragraphs, pages and outlines, versions 1.5 (bare items) and 2.0 (a header, then a list).

Dietz and Gamari, TREC CAR data releases, http://trec-car.cs.unh.edu/datareleases/.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any

from index_loaders.base import Loader, Record, Source, malformed
from osrerank._optional import require
from osrerank.types import Document

PAGES, OUTLINES, PARAGRAPHS = "pages", "outlines", "paragraphs"
_KINDS = (PAGES, OUTLINES, PARAGRAPHS)
_LIST_BEGINS, _LIST_ENDS = b"\x9f", b"\xff"
_TEXT = 0


def read_paragraphs(source: Source) -> Iterator[Record]:
    """Read paragraphs; the text is that of the bodies and link anchors, joined without separators (Anserini's form)."""
    for number, item in enumerate(read_items(source, kinds=(PARAGRAPHS,)), 1):
        try:
            yield paragraph(item)
        except (TypeError, ValueError, IndexError, AttributeError):
            yield malformed(source, f"item {number} is no paragraph [0, id, bodies]; is this the paragraph corpus?")


def paragraph(item: Sequence[Any]) -> Document:
    """Return the document of ``[0, id, [body, ...]]``.

    A body is ``[0, text]`` or a link, ``[1, [tag, page, [section?], page id, anchor]]``.

    Raises:
        ValueError: (or another of Python's own) the item has another shape.
    """
    _tag, paragraph_id, bodies = item
    pieces = [content if tag == _TEXT else content[-1] for tag, content in bodies]
    return Document(paragraph_id.decode(), "".join(pieces))


def read_items(source: Source, *, kinds: Sequence[str]) -> Iterator[Any]:
    """Yield the file's items, one at a time.

    Args:
        source: the file.
        kinds: which files are acceptable, where a header tells.

    Raises:
        CorpusFormatError: the header names another kind, or the CBOR is damaged; what follows cannot be read.
    """
    cbor2 = require("cbor2", extra="loaders")
    stream = _Tracked(source.stream)
    decoder = cbor2.CBORDecoder(stream)
    inside_list = _skip_header(source, stream, decoder, kinds)
    try:
        while (ahead := source.stream.peek(1)[:1]) and not (inside_list and ahead == _LIST_ENDS):
            yield decoder.decode()
    except (cbor2.CBORDecodeError, UnicodeDecodeError) as error:
        raise malformed(source, f"damaged CBOR ({error})", byte=stream.position) from error
    if inside_list and not ahead:
        raise malformed(source, "the list of items does not end: the file is truncated", byte=stream.position)


class _Tracked(io.RawIOBase):
    """A stream that knows how many bytes it gave; not seekable, so that the decoder takes exactly what it needs."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self.position = 0
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        taken = self._stream.read(size)
        self.position += len(taken)
        return taken


def _skip_header(source: Source, stream: _Tracked, decoder: Any, kinds: Sequence[str]) -> bool:
    """Read version 2.0's header, where there is one: ``["CAR", [kind, ...], ...]`` and the beginning of a list."""
    if b"cCAR" not in source.stream.peek(16)[:6]:
        return False
    header = decoder.decode()
    kind = _KINDS[header[1][0]]
    if kind not in kinds:
        raise malformed(source, f"this file holds {kind}, not {' or '.join(kinds)}", byte=0)
    if stream.read(1) != _LIST_BEGINS:
        raise malformed(source, "no list of items behind the header", byte=stream.position - 1)
    return True


TREC_CAR = Loader(
    name="trec-car",
    about="TREC-CAR paragraphs: CBOR of versions 1.5 and 2.0, or their archives",
    read=read_paragraphs,
    files=("*.cbor", "*.paragraphs", "*paragraphs*.cbor*"),
)
