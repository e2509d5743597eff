"""Read TREC-CAR's CBOR files of paragraphs, pages and outlines.

An item of a file is a paragraph, a page or an outline, which is a page without paragraphs. In version 1.5, a file is a
sequence of items. In version 2.0, it consists of a header and one list of items. The skeleton of a page is the list of
its parts, such as sections and paragraphs.

Dietz and Gamari, TREC CAR data releases, http://trec-car.cs.unh.edu/datareleases/.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Any

from osrerank._optional import require
from osrerank.formats.sources import SourceFile, record_error
from osrerank.types import Document
from osrerank_loaders.collections.base import Loader, Record, check_id

PAGES = "pages"
OUTLINES = "outlines"
PARAGRAPHS = "paragraphs"
_KINDS = (PAGES, OUTLINES, PARAGRAPHS)
"""The kinds of items. A file's header contains the index of a kind in this tuple."""
_LIST_BEGIN, _LIST_END = b"\x9f", b"\xff"
_TEXT_TAG = 0
"""The tag of text in a paragraph. Links have another tag."""
SECTION_TAG = 0
"""The tag of a section in a page."""
PARAGRAPH_TAG = 1
"""The tag of a paragraph in a page. Images, lists and boxes have other tags."""
_BLOCK_BYTES = 1 << 20
"""The number of bytes that are read from a file at a time."""


def read_paragraphs(source: SourceFile) -> Iterator[Record]:
    """Read paragraphs as documents. As in Anserini, the text includes the anchor texts of links."""
    for number, item in enumerate(read_items(source, kinds=(PARAGRAPHS,)), 1):
        try:
            yield check_id(source, parse_paragraph(item))
        except (TypeError, ValueError, IndexError, AttributeError):
            yield record_error(
                source, f"item {number} is not a paragraph [0, id, bodies]; is this the paragraph corpus?"
            )


def parse_paragraph(item: Sequence[Any]) -> Document:
    """Convert a paragraph ``[0, id, [body, ...]]`` to a document.

    A body is a text, ``[0, text]``, or a link, ``[1, [tag, page, [section?], page id, anchor]]``.

    Raises:
        ValueError, TypeError, IndexError, AttributeError: the item is not of this form.
    """
    _tag, paragraph_id, bodies = item
    texts = [content if tag == _TEXT_TAG else content[-1] for tag, content in bodies]
    return Document(paragraph_id.decode(), "".join(texts))


def read_pages(source: SourceFile) -> Iterator[Record]:
    """Read pages as documents, whose texts consist of the paragraphs, one per line, without headings or lists."""
    for number, item in enumerate(read_items(source, kinds=(PAGES,)), 1):
        try:
            name, page_id, skeleton = item[1], item[2].decode(), item[3]
            yield check_id(source, Document(page_id, "\n".join(_paragraph_texts(skeleton)), name))
        except (TypeError, ValueError, IndexError, AttributeError):
            yield record_error(source, f"item {number} is not a page [tag, name, id, skeleton]; is this a page file?")


def _paragraph_texts(skeleton: Sequence[Any]) -> Iterator[str]:
    """Yield the texts of all paragraphs in a skeleton, including those in its sections."""
    for part in skeleton:
        if part[0] == PARAGRAPH_TAG:  # [tag, paragraph]
            yield parse_paragraph(part[1]).text
        elif part[0] == SECTION_TAG:  # [tag, heading, heading id, skeleton]
            yield from _paragraph_texts(part[3])


def read_items(source: SourceFile, *, kinds: Sequence[str]) -> Iterator[Any]:
    """Yield the file's items, one at a time.

    ``kinds`` are the accepted kinds of items, such as ``("pages",)``. Only files of version 2.0 state their kind.

    Raises:
        FormatError: the header states another kind, or the CBOR is damaged and cannot be read further.
    """
    decoder = _CborDecoder(source.stream)
    try:
        has_header = _skip_header(source, decoder, kinds)
        next_byte = decoder.peek()
        while next_byte and not (has_header and next_byte == _LIST_END):
            yield decoder.decode()
            next_byte = decoder.peek()
    except (decoder.error, UnicodeDecodeError) as error:
        raise record_error(source, f"the file is damaged ({error}); fetch it again", byte=decoder.offset) from error
    if has_header and not next_byte:
        raise record_error(
            source, "the file is truncated: its list of items does not end; fetch it again", byte=decoder.offset
        )


class _CborDecoder:
    """Decodes the items of a stream, which is read in large blocks.

    cbor2 reads a few bytes at a time. From a block in memory, this takes a tenth of the time.

    Attributes:
        error: the class of cbor2's errors.
    """

    def __init__(self, stream: io.BufferedReader) -> None:
        self._cbor2 = require("cbor2", extra="loaders")
        self.error: type[Exception] = self._cbor2.CBORDecodeError
        self._stream = stream
        self._block_offset = 0
        self._set_block(b"")

    def _set_block(self, block: bytes) -> None:
        self._block = block
        self._file = io.BytesIO(block)
        self._decode = self._cbor2.CBORDecoder(self._file).decode

    @property
    def offset(self) -> int:
        """The offset of the next byte in the stream."""
        return self._block_offset + self._file.tell()

    def peek(self) -> bytes:
        """Return the next byte without consuming it. Returns empty bytes at the end of the stream."""
        begin = self._file.tell()
        if begin == len(self._block) and self._read_more(begin):
            begin = 0
        return self._block[begin : begin + 1]

    def read_byte(self) -> bytes:
        """Consume the next byte and return it. Returns empty bytes at the end of the stream."""
        return self._file.read(1) if self.peek() else b""

    def decode(self) -> Any:
        """Decode the next item. If it ends beyond the block, read more bytes and decode it from its beginning again."""
        begin = self._file.tell()
        while True:
            try:
                return self._decode()
            except self._cbor2.CBORDecodeEOF:
                if not self._read_more(begin):
                    self._file.seek(begin)
                    raise
                begin = 0

    def _read_more(self, begin: int) -> bool:
        """Drop the bytes before ``begin``, append the stream's next bytes, and return whether there were any."""
        remaining = self._block[begin:]
        next_bytes = self._stream.read(max(_BLOCK_BYTES, len(remaining)))  # doubles the block if an item is long
        if next_bytes:
            self._block_offset += begin
            self._set_block(remaining + next_bytes)
        return bool(next_bytes)


def _skip_header(source: SourceFile, decoder: _CborDecoder, kinds: Sequence[str]) -> bool:
    """Skip the header ``["CAR", [kind, ...], ...]`` and the list's first byte, and return whether there is a header."""
    if b"cCAR" not in source.stream.peek(16)[:6]:  # CBOR writes "c" before a string of three bytes
        return False
    header = decoder.decode()
    kind = _KINDS[header[1][0]]
    if kind not in kinds:
        raise record_error(source, f"this file contains {kind}, not {' or '.join(kinds)}", byte=0)
    if decoder.read_byte() != _LIST_BEGIN:
        raise record_error(
            source, "the file is damaged: no list of items follows the header; fetch it again", byte=decoder.offset - 1
        )
    return True


TREC_CAR = Loader(
    name="trec-car",
    read=read_paragraphs,
    files=("*.cbor", "*.paragraphs", "*paragraphs*.cbor*"),
)
TREC_CAR_PAGES = Loader(
    name="trec-car-pages",
    read=read_pages,
    files=("*fold-?-base.train.cbor", "*fold?.cbor", "*.pages.cbor", "*.test200.cbor"),
)
