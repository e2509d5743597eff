"""Read TREC-CAR's CBOR files of paragraphs, pages and outlines: version 1.5 (bare items) and 2.0 (a header and a list).

Dietz and Gamari, TREC CAR data releases, http://trec-car.cs.unh.edu/datareleases/.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any

from osrerank._optional import require
from osrerank.formats.sources import SourceFile, record_error
from osrerank.types import Document
from osrerank_loaders.collections.base import Loader, Record, checked

PAGES, OUTLINES, PARAGRAPHS = "pages", "outlines", "paragraphs"
_KINDS = (PAGES, OUTLINES, PARAGRAPHS)
_LIST_BEGINS, _LIST_ENDS = b"\x9f", b"\xff"
_TEXT = 0
SECTION, PARAGRAPH = 0, 1
"""Kinds of a page's parts; others are images, lists and boxes."""
_WINDOW_BYTES = 1 << 20


def read_paragraphs(source: SourceFile) -> Iterator[Record]:
    """Read paragraphs; a text is the bodies and link anchors joined without separators, as Anserini does."""
    for number, item in enumerate(read_items(source, kinds=(PARAGRAPHS,)), 1):
        try:
            yield checked(source, paragraph(item))
        except (TypeError, ValueError, IndexError, AttributeError):
            yield record_error(
                source, f"item {number} is not a paragraph [0, id, bodies]; is this the paragraph corpus?"
            )


def paragraph(item: Sequence[Any]) -> Document:
    """Return the document of ``[0, id, [body, ...]]``.

    A body is ``[0, text]`` or a link, ``[1, [tag, page, [section?], page id, anchor]]``.

    Raises:
        ValueError, TypeError, IndexError, AttributeError: the item has another shape.
    """
    _tag, paragraph_id, bodies = item
    texts = [content if tag == _TEXT else content[-1] for tag, content in bodies]
    return Document(paragraph_id.decode(), "".join(texts))


def read_pages(source: SourceFile) -> Iterator[Record]:
    """Read pages; a text is the page's paragraphs on lines of their own, without headings, lists, images and boxes."""
    for number, item in enumerate(read_items(source, kinds=(PAGES,)), 1):
        try:
            name, page_id, skeleton = item[1], item[2].decode(), item[3]
            yield checked(source, Document(page_id, "\n".join(_texts(skeleton)), name))
        except (TypeError, ValueError, IndexError, AttributeError):
            yield record_error(source, f"item {number} is not a page [tag, name, id, skeleton]; is this a page file?")


def _texts(skeleton: Sequence[Any]) -> Iterator[str]:
    """Yield the texts of the paragraphs of a page or section, including those of its subsections."""
    for part in skeleton:
        if part[0] == PARAGRAPH:
            yield paragraph(part[1]).text
        elif part[0] == SECTION:
            yield from _texts(part[3])


def read_items(source: SourceFile, *, kinds: Sequence[str]) -> Iterator[Any]:
    """Yield the file's items, one at a time.

    Args:
        source: the file.
        kinds: the accepted kinds, for files whose header names one.

    Raises:
        FormatError: the header names another kind, or the CBOR is damaged, so that the rest cannot be read.
    """
    window = _Window(source.stream)
    try:
        inside_list = _skip_header(source, window, kinds)
        while (ahead := window.ahead()) and not (inside_list and ahead == _LIST_ENDS):
            yield window.item()
    except (window.damage, UnicodeDecodeError) as error:
        raise record_error(source, f"damaged CBOR ({error})", byte=window.position) from error
    if inside_list and not ahead:
        raise record_error(source, "the list of items does not end: the file is truncated", byte=window.position)


class _Window:
    """The part of a file that is in memory; it moves on when an item does not end in it.

    The decoder reads a few bytes at a time, which is ten times as fast from memory as from a stream.
    """

    def __init__(self, stream: io.BufferedReader) -> None:
        self._cbor2 = require("cbor2", extra="loaders")
        self._stream = stream
        self._begin = 0
        self._hold(b"")

    def _hold(self, block: bytes) -> None:
        self._block = block
        self._file = io.BytesIO(block)
        self._decode = self._cbor2.CBORDecoder(self._file).decode

    @property
    def damage(self) -> type[Exception]:
        """The class of the decoder's errors."""
        kind: type[Exception] = self._cbor2.CBORDecodeError
        return kind

    @property
    def position(self) -> int:
        """The next byte's offset in the file."""
        return self._begin + self._file.tell()

    def ahead(self) -> bytes:
        """Return the next byte without consuming it; empty bytes at the end of the file."""
        offset = self._file.tell()
        if offset < len(self._block) or self._move(offset):
            offset = self._file.tell()
            return self._block[offset : offset + 1]
        return b""

    def take(self) -> bytes:
        """Consume the next byte and return it."""
        return self._file.read(1) if self.ahead() else b""

    def item(self) -> Any:
        """Decode the next item, however long it is."""
        offset = self._file.tell()
        while True:
            try:
                return self._decode()
            except self._cbor2.CBORDecodeEOF:
                if not self._move(offset):
                    self._file.seek(offset)
                    raise
                offset = 0

    def _move(self, offset: int) -> bool:
        """Drop the bytes before an offset and read more, at least as many as remain; return whether there were any."""
        remaining = self._block[offset:]
        next_bytes = self._stream.read(max(_WINDOW_BYTES, len(remaining)))
        if next_bytes:
            self._begin += offset
            self._hold(remaining + next_bytes)
        return bool(next_bytes)


def _skip_header(source: SourceFile, window: _Window, kinds: Sequence[str]) -> bool:
    """Skip version 2.0's header ``["CAR", [kind, ...], ...]`` and the list's begin; return whether there was one."""
    if b"cCAR" not in source.stream.peek(16)[:6]:
        return False
    kind = _KINDS[window.item()[1][0]]
    if kind not in kinds:
        raise record_error(source, f"this file holds {kind}, not {' or '.join(kinds)}", byte=0)
    if window.take() != _LIST_BEGINS:
        raise record_error(source, "no list of items after the header", byte=window.position - 1)
    return True


TREC_CAR = Loader(
    name="trec-car",
    about="TREC-CAR paragraphs: CBOR of versions 1.5 and 2.0, or their archives",
    read=read_paragraphs,
    files=("*.cbor", "*.paragraphs", "*paragraphs*.cbor*"),
)
TREC_CAR_PAGES = Loader(
    name="trec-car-pages",
    about="TREC-CAR pages as whole documents, such as the training folds: CBOR of versions 1.5 and 2.0",
    read=read_pages,
    files=("*fold-?-base.train.cbor", "*fold?.cbor", "*.pages.cbor", "*.test200.cbor"),
)
