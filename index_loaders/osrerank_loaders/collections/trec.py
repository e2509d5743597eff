"""Read the collections of TREC's news tracks. The name and the beginning of a file show its format.

- SGML: files of ``<DOC>`` elements, as on TREC disks 4 and 5.
- New York Times: one NITF XML file per article.
- Washington Post: JSON lines.
- HTML: one file per document. The id is the file's name without its extension.

As in Anserini, the whole text of an HTML file is read, but only some elements of the other formats.

The loader ``robust04`` reads TREC disks 4 and 5 without the Congressional Record, in ISO 8859-1. The loader ``trec``
accepts only UTF-8.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import PurePath
from typing import Any, NamedTuple

from osrerank.errors import FormatError
from osrerank.formats.lines import quote_start, read_json_lines
from osrerank.formats.markup import extract_elements, strip_tags
from osrerank.formats.sources import BUFFER_BYTES, SourceFile, record_error
from osrerank.types import Document
from osrerank_loaders.collections.base import CONTENTS, Loader, Record, add_contents, check_id, title_and_text

_TITLE_TAGS = ("HEADLINE", "HEAD", "TITLE", "TTL", "HL")
_TEXT_TAGS = ("TEXT", "LEADPARA", "LP")
_CONTENTS_TAGS = (*_TITLE_TAGS, *_TEXT_TAGS, "DATE", "DD")
"""The elements that Anserini's ``TrecCollection`` indexes, including the elements inside of them."""
_POST_TEXT_TYPES = frozenset({"sanitized_html", "tweet"})
"""The types of the parts of a Washington Post article that contain its text."""
_CONGRESSIONAL_RECORD = "CR93"
"""The prefix of the document ids of the Congressional Record, such as ``CR93E-1``."""
_DOC_TAGS = re.compile(rb"<(?:DOC(?:\s[^<>]*)?>(?P<begin>)|/DOC\s*>(?P<end>))", re.IGNORECASE)
"""Matches a start tag or an end tag. Which of the empty groups matches, ``begin`` or ``end``, tells them apart."""
_MAX_TAG_BYTES = 4096
"""The maximum length of a ``<DOC>`` tag."""
_MAX_GAP_BYTES = 1 << 20
"""The text between two documents is checked in parts of this size, to limit the memory."""
_BETWEEN_DOCUMENTS = re.compile(rb"(?:[\s\0\x1a]++|\xef\xbb\xbf|<!--.*?-->|<[!?][^>]*>|</?[A-Za-z][^>]*>)*+", re.DOTALL)
"""Matches what is allowed between documents. DOS files end with 0x1A, and joined files contain byte order marks."""
_DOCNO = re.compile(r"<DOCNO(?:\s[^>]*)?>", re.IGNORECASE)
_DOC_ID = re.compile(r'<DOC\s+id="([^"]*)"', re.IGNORECASE)


def read_trec(source: SourceFile, *, contents: bool = False) -> Iterator[Record]:
    """Read a file in any of the formats. If ``contents`` is set, each document gets the field that Anserini indexes."""
    head = source.stream.peek(512)[:512].lstrip().lower()
    if PurePath(source.name).suffix.lower() in {".html", ".htm"}:
        read = add_contents(_read_html, title_and_text) if contents else _read_html
        return read(source)
    if head.startswith(b"{"):
        return _read_washington_post(source, contents=contents)
    if b"<nitf" in head:
        return _read_new_york_times(source, contents=contents)
    return _read_sgml(source, contents=contents)


def read_robust04(source: SourceFile, *, contents: bool = False) -> Iterator[Record]:
    """Read the SGML documents of TREC disks 4 and 5, without the Congressional Record.

    A file that contains only the Congressional Record yields nothing. A file without documents yields an error.
    """
    is_empty = True
    for record in _read_sgml(source, "iso-8859-1", contents=contents):
        is_empty = False
        if isinstance(record, FormatError) or not record.doc_id.startswith(_CONGRESSIONAL_RECORD):
            yield record
    if is_empty:
        yield record_error(source, "there is no record for the loader robust04; is this the right file?")


def doc_blocks(
    source: SourceFile, encoding: str = "utf-8", *, tags: re.Pattern[bytes] = _DOC_TAGS
) -> Iterator[tuple[int, str | FormatError]]:
    """Yield each ``<DOC>`` element, or an error, with the number of its first line. Tags can be anywhere in a line.

    Only one document at a time is in memory. Comments and other tags between documents are skipped, but text between
    documents is an error.

    Args:
        source: the file.
        encoding: the encoding of the documents.
        tags: matches a start tag with the group ``begin``, or an end tag with the group ``end``.
    """
    gap_checker = _GapChecker(source)
    block: list[bytes] = []
    line = 1
    block_line = 0  # 0 between documents
    for piece in _pieces(source, tags):
        if block_line:
            block.append(piece.text)
        else:
            error = gap_checker.check(piece, line)
            if error is not None:
                yield error.line or line, error
        line += _count_line_ends(piece.text)
        if piece.terminator == "begin":
            if block_line:
                yield block_line, record_error(source, "a <DOC> without </DOC>", line=block_line)
            block, block_line = [piece.tag], line
        elif piece.terminator == "end" and block_line:
            yield block_line, _decode(source, b"".join([*block, piece.tag]), block_line, encoding)
            block, block_line = [], 0
        elif piece.terminator == "end":
            yield line, record_error(source, "a </DOC> without <DOC>", line=line)
        line += _count_line_ends(piece.tag)
    if block_line:
        yield block_line, record_error(source, "the file ends inside a <DOC>: it is truncated", line=block_line)


class _Piece(NamedTuple):
    """A part of a file: text without ``<DOC>`` tags, and the tag that follows it.

    Attributes:
        text: the text, in bytes.
        tag: the tag after the text. It is empty if no tag follows.
        terminator: what follows the text: "begin" for a start tag, "end" for an end tag, "file" for the end of the
            file, or "" if the text continues in the next piece.
    """

    text: bytes
    tag: bytes
    terminator: str


def _pieces(source: SourceFile, tags: re.Pattern[bytes]) -> Iterator[_Piece]:
    """Divide a file at its ``<DOC>`` and ``</DOC>`` tags."""
    buffer = bytearray()
    while True:
        match = tags.search(buffer)
        while match is not None:
            kind = match.lastgroup or ""
            begin, end = match.span()
            match = None  # a bytearray cannot be resized while a match refers to it
            yield _Piece(bytes(buffer[:begin]), bytes(buffer[begin:end]), kind)
            del buffer[:end]
            match = tags.search(buffer)
        chunk = source.stream.read(BUFFER_BYTES)
        if not chunk:
            yield _Piece(bytes(buffer), b"", "file")
            return
        # The last bytes stay in the buffer, because they might contain the beginning of a tag.
        safe_length = max(0, len(buffer) - _MAX_TAG_BYTES)
        yield _Piece(bytes(buffer[:safe_length]), b"", "")
        del buffer[:safe_length]
        buffer += chunk


class _GapChecker:
    """Checks that the gaps between documents contain only white space, comments and tags."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._unchecked = b""
        self._unchecked_line = 0
        self._has_reported_gap = False

    def check(self, piece: _Piece, line: int) -> FormatError | None:
        """Add a piece to the gap, and return an error if the gap contains text. A gap has at most one error.

        The gap is checked at its end, or after each `_MAX_GAP_BYTES`.
        """
        if not self._unchecked:
            self._unchecked_line = line
        self._unchecked += piece.text
        if not piece.terminator and len(self._unchecked) < _MAX_GAP_BYTES:
            return None
        gap, self._unchecked = self._unchecked, b""  # the whole gap, or its next part if it is large
        text_start = _BETWEEN_DOCUMENTS.match(gap).end()  # type: ignore[union-attr]  # it matches even b""
        has_text = text_start < len(gap)
        was_reported = self._has_reported_gap
        gap_continues = not piece.terminator
        self._has_reported_gap = gap_continues and (was_reported or has_text)
        if not has_text or was_reported:
            return None
        text = quote_start(gap[text_start:].splitlines()[0])
        reason = f"there is text outside of a <DOC>: {text}; add the missing tag, or load this file with another loader"
        return record_error(self._source, reason, line=self._unchecked_line + _count_line_ends(gap[:text_start]))


def _count_line_ends(raw: bytes) -> int:
    """Return the number of line ends, each of which is LF, CR or CR LF."""
    return raw.count(b"\n") + raw.count(b"\r") - raw.count(b"\r\n")


def _decode(source: SourceFile, raw: bytes, line: int, encoding: str = "utf-8") -> str | FormatError:
    """Decode a document, and convert the line ends CR LF and CR to LF. Return an error if it cannot be decoded."""
    try:
        text = raw.decode(encoding)
        return text.replace("\r\n", "\n") if "\n" in text else text.replace("\r", "\n")
    except UnicodeDecodeError as error:
        error_line = line + _count_line_ends(raw[: error.start])
        return record_error(source, f"not UTF-8: byte 0x{raw[error.start]:02x}", line=error_line)


def _read_sgml(source: SourceFile, encoding: str = "utf-8", *, contents: bool = False) -> Iterator[Record]:
    for number, block in doc_blocks(source, encoding):
        if isinstance(block, FormatError):
            yield block
            continue
        doc_id = next(iter(extract_elements(block, "DOCNO") or _DOC_ID.findall(block)), "")
        docno_offsets = [match.start() for match in _DOCNO.finditer(block)]
        if len(docno_offsets) > 1:
            line = number + _count_line_ends(block[: docno_offsets[1]].encode())
            yield record_error(source, f"a second <DOCNO> in the <DOC> of {doc_id!r}; is </DOC> missing?", line=line)
        elif doc_id:
            text = "\n".join(extract_elements(block, *_TEXT_TAGS))
            metadata = {CONTENTS: "\n".join(extract_elements(block, *_CONTENTS_TAGS))} if contents else {}
            document = Document(doc_id, text, " ".join(extract_elements(block, *_TITLE_TAGS)), metadata)
            yield check_id(source, document, number)
        else:
            yield record_error(source, "a <DOC> without <DOCNO>", line=number)


def _read_html(source: SourceFile) -> Iterator[Record]:
    html = _decode(source, source.stream.read(), 1)
    if isinstance(html, FormatError):
        yield html
    else:
        stem = PurePath(source.name.rpartition("!")[2]).stem  # ARCHIVE!MEMBER
        yield check_id(source, Document(stem, strip_tags(html).strip()), 1)


def _read_new_york_times(source: SourceFile, *, contents: bool = False) -> Iterator[Record]:
    try:
        article = ET.fromstring(source.stream.read())  # noqa: S314 - expat since 2.4.1 bounds entity expansion
    except ET.ParseError as error:
        yield record_error(source, f"not well-formed XML: {error}", line=error.position[0])
        return
    id_element = article.find(".//doc-id")
    if id_element is None or not id_element.get("id-string"):
        yield record_error(source, "no <doc-id id-string=...>")
        return
    abstract = _element_texts(article.findall(".//abstract/p"))
    body = _element_texts(article.findall(".//block[@class='full_text']/p"))
    headline = _element_texts(article.findall(".//hl1"))
    title = " ".join(headline) or " ".join(_element_texts(article.findall("./head/title")))
    metadata = {CONTENTS: "\n".join([*headline, *abstract, *body])} if contents else {}
    document = Document(id_element.attrib["id-string"], "\n".join([*abstract, *body]), title, metadata)
    yield check_id(source, document, 1)


def _element_texts(nodes: Iterable[ET.Element]) -> list[str]:
    return ["".join(element.itertext()).strip() for element in nodes]


def _read_washington_post(source: SourceFile, *, contents: bool = False) -> Iterator[Record]:
    for number, record in read_json_lines(source):
        if isinstance(record, FormatError):
            yield record
        elif isinstance(record.get("id"), str) and isinstance(record.get("contents"), list):
            title = record.get("title") or ""
            metadata = {"url": record["article_url"]} if record.get("article_url") else {}
            if contents:
                metadata[CONTENTS] = "\n".join([title, *_post_texts(record["contents"], kickers=True)])
            document = Document(record["id"], "\n".join(_post_texts(record["contents"])), title, metadata)
            yield check_id(source, document, number)
        else:
            yield record_error(source, "expected id and a list of contents (Washington Post)", line=number)


def _post_texts(contents: list[dict[str, Any] | None], *, kickers: bool = False) -> Iterator[str]:
    """Yield the paragraphs, tweets and captions of an article. If ``kickers`` is set, also yield its kickers.

    A kicker is the label above a headline, such as "Opinion".
    """
    types = _POST_TEXT_TYPES | ({"kicker"} if kickers else set())
    for part in contents:
        if not part:
            continue
        if part.get("type") in types and part.get("content"):
            yield strip_tags(part["content"]).strip()
        if part.get("fullcaption"):
            yield strip_tags(part["fullcaption"]).strip()


TREC = Loader(
    name="trec",
    read=read_trec,
    fields={"url": {"type": "keyword", "ignore_above": 2048}},
    read_contents=partial(read_trec, contents=True),
)

ROBUST04 = Loader(
    name="robust04",
    read=read_robust04,
    allows_empty_files=True,
    read_contents=partial(read_robust04, contents=True),
)
