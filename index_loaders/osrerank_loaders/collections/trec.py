"""Read the collections of TREC's news tracks, in the format that a file's beginning shows.

- SGML ``<DOC>`` records, as on TREC disks 4 and 5.
- New York Times: one NITF XML file for each article.
- Washington Post: JSON lines.
- HTML: one file for each document; its id is the file's stem, and ``text`` has all of its text, as Anserini has CACM.

Which elements are indexed follows Anserini's collection classes.

Robust04 is TREC disks 4 and 5 without the Congressional Record. They are encoded in ISO 8859-1, in which every byte
is a character: the loader ``robust04`` reads them so, whereas ``trec`` refuses all but UTF-8.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import PurePath
from typing import Any

from osrerank.errors import FormatError
from osrerank.formats.lines import excerpt, json_lines
from osrerank.formats.markup import elements, strip_tags
from osrerank.formats.sources import BUFFER_BYTES, SourceFile, record_error
from osrerank.types import Document
from osrerank_loaders.collections.base import CONTENTS, Loader, Record, checked, joined, title_and_text

_TITLE_TAGS = ("HEADLINE", "HEAD", "TITLE", "TTL", "HL")
_TEXT_TAGS = ("TEXT", "LEADPARA", "LP")
_CONTENTS_TAGS = (*_TITLE_TAGS, *_TEXT_TAGS, "DATE", "DD")
"""The elements that Anserini's ``TrecCollection`` indexes, with the elements inside them."""
_POST_TYPES = frozenset({"sanitized_html", "tweet"})
LATIN_1, CONGRESSIONAL_RECORD = "iso-8859-1", "CR93"
_MARKS = re.compile(rb"<(?:DOC(?:\s[^<>]*)?>()|/DOC\s*>())", re.IGNORECASE)
_MORE, _BEGIN, _END, _OVER = 0, 1, 2, 3
_LONGEST_MARK, _LONGEST_GAP = 4096, 1 << 20
_NO_TEXT = re.compile(rb"(?:[\s\0\x1a]++|\xef\xbb\xbf|<!--.*?-->|<[!?][^>]*>|</?[A-Za-z][^>]*>)*+", re.DOTALL)
"""Matches what may stand between documents; DOS files end with 0x1A, and joined files have byte order marks inside."""
_DOCNO = re.compile(r"<DOCNO(?:\s[^>]*)?>", re.IGNORECASE)
_DOC_ID = re.compile(r'<DOC\s+id="([^"]*)"', re.IGNORECASE)


def read_trec(source: SourceFile, *, contents: bool = False) -> Iterator[Record]:
    """Read documents in the format that the file's beginning shows; ``contents`` adds the field of that name."""
    head = source.stream.peek(512)[:512].lstrip().lower()
    if PurePath(source.name).suffix.lower() in {".html", ".htm"}:
        return joined(_read_html, title_and_text)(source) if contents else _read_html(source)
    if head.startswith(b"{"):
        return _read_post(source, contents=contents)
    if b"<nitf" in head:
        return _read_times(source, contents=contents)
    return _read_sgml(source, contents=contents)


def read_robust04(source: SourceFile, *, contents: bool = False) -> Iterator[Record]:
    """Read the SGML documents of TREC disks 4 and 5, except those of the Congressional Record.

    A file with the Congressional Record alone yields nothing, which is not an error.
    """
    is_empty = True
    for record in _read_sgml(source, LATIN_1, contents=contents):
        is_empty = False
        if isinstance(record, FormatError) or not record.doc_id.startswith(CONGRESSIONAL_RECORD):
            yield record
    if is_empty:
        yield record_error(source, "holds no record for the loader robust04; is this the right file?")


def doc_blocks(
    source: SourceFile, encoding: str = "utf-8", *, marks: re.Pattern[bytes] = _MARKS
) -> Iterator[tuple[int, str | FormatError]]:
    """Yield each ``<DOC>`` element with the number of its first line; the tags may stand anywhere in a line.

    Memory holds one document at a time. Comments and other tags may stand between documents; text there is an error.

    Args:
        source: the file.
        encoding: the encoding of the documents.
        marks: a pattern whose first group matches at the begin of a document, and whose second at the end.
    """
    block: list[bytes] = []
    line, began, gap = 1, 0, _Gap(source)
    for before, mark, kind in _pieces(source, marks):
        if began:
            block.append(before)
        elif problem := gap.problem(before, line, is_over=kind != _MORE):
            yield problem.line or line, problem
        line += _line_ends(before)
        if kind == _BEGIN:
            if began:
                yield began, record_error(source, "a <DOC> without </DOC>", line=began)
            block, began = [mark], line
        elif kind == _END and began:
            yield began, _decoded(source, b"".join([*block, mark]), began, encoding)
            block, began = [], 0
        elif kind == _END:
            yield line, record_error(source, "a </DOC> without <DOC>", line=line)
        line += _line_ends(mark)
    if began:
        yield began, record_error(source, "the file ends inside a <DOC>: it is truncated", line=began)


def _pieces(source: SourceFile, marks: re.Pattern[bytes]) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield the file in pieces ``(bytes without a mark, the mark after them or b"", the mark's kind)``."""
    buffer = bytearray()
    while True:
        while (match := marks.search(buffer)) is not None:
            kind = match.lastindex or _MORE
            begin, end = match.span()
            del match  # a match keeps its bytes from being resized
            yield bytes(buffer[:begin]), bytes(buffer[begin:end]), kind
            del buffer[:end]
        passed = max(0, len(buffer) - _LONGEST_MARK)
        chunk = source.stream.read(BUFFER_BYTES)
        yield bytes(buffer[:passed] if chunk else buffer), b"", _MORE if chunk else _OVER
        if not chunk:
            return
        del buffer[:passed]
        buffer += chunk


class _Gap:
    """Checks that only space, comments and tags stand between documents."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._held = b""
        self._line = 0
        self._is_bad = False

    def problem(self, piece: bytes, line: int, *, is_over: bool) -> FormatError | None:
        """Read the next piece of the gap; return an error for the first text in it, once a gap.

        Args:
            piece: the next bytes of the gap.
            line: the line that the piece begins in.
            is_over: whether the gap ends with this piece.
        """
        self._line = self._line or line
        self._held += piece
        if not is_over and len(self._held) < _LONGEST_GAP:
            return None
        gap, begins, was_bad = self._held, self._line, self._is_bad
        passed = _NO_TEXT.match(gap).end()  # type: ignore[union-attr]  # it matches empty text, too
        self._held, self._line, self._is_bad = b"", 0, not is_over and (was_bad or passed < len(gap))
        if was_bad or passed == len(gap):
            return None
        at_line = begins + _line_ends(gap[:passed])
        quoted = excerpt(gap[passed:].splitlines()[0])
        reason = f"text outside of a <DOC>: {quoted}; is a tag missing, or is this another format?"
        return record_error(self._source, reason, line=at_line)


def _line_ends(raw: bytes) -> int:
    """Count the ends of lines: LF, CR LF, or CR alone."""
    return raw.count(b"\n") + raw.count(b"\r") - raw.count(b"\r\n")


def _decoded(source: SourceFile, raw: bytes, line: int, encoding: str = "utf-8") -> str | FormatError:
    """Decode a document; its lines then end with LF, not with CR LF or, in a document without LF, CR."""
    try:
        text = raw.decode(encoding)
        return text.replace("\r\n", "\n") if "\n" in text else text.replace("\r", "\n")
    except UnicodeDecodeError as error:
        at_line = line + _line_ends(raw[: error.start])
        return record_error(source, f"not UTF-8: byte 0x{raw[error.start]:02x}", line=at_line)


def _read_sgml(source: SourceFile, encoding: str = "utf-8", *, contents: bool = False) -> Iterator[Record]:
    for number, block in doc_blocks(source, encoding):
        if isinstance(block, FormatError):
            yield block
            continue
        doc_id = next(iter(elements(block, "DOCNO") or _DOC_ID.findall(block)), "")
        if len(marks := [match.start() for match in _DOCNO.finditer(block)]) > 1:
            at_line = number + _line_ends(block[: marks[1]].encode())
            yield record_error(source, f"a second <DOCNO> in the <DOC> of {doc_id!r}; is </DOC> missing?", line=at_line)
        elif doc_id:
            text = "\n".join(elements(block, *_TEXT_TAGS))
            metadata = {CONTENTS: "\n".join(elements(block, *_CONTENTS_TAGS))} if contents else {}
            document = Document(doc_id, text, " ".join(elements(block, *_TITLE_TAGS)), metadata)
            yield checked(source, document, number)
        else:
            yield record_error(source, "a <DOC> without <DOCNO>", line=number)


def _read_html(source: SourceFile) -> Iterator[Record]:
    raw = source.stream.read()
    text = _decoded(source, raw, 1)
    stem = PurePath(source.name.rpartition("!")[2]).stem
    yield text if isinstance(text, FormatError) else checked(source, Document(stem, strip_tags(text).strip()), 1)


def _read_times(source: SourceFile, *, contents: bool = False) -> Iterator[Record]:
    try:
        article = ET.fromstring(source.stream.read())  # noqa: S314 - expat since 2.4.1 bounds entity expansion
    except ET.ParseError as error:
        yield record_error(source, f"not well-formed XML: {error}", line=error.position[0])
        return
    number = article.find(".//doc-id")
    if number is None or not number.get("id-string"):
        yield record_error(source, "no <doc-id id-string=...>")
        return
    abstract = _texts(article.findall(".//abstract/p"))
    body = _texts(article.findall(".//block[@class='full_text']/p"))
    headline = _texts(article.findall(".//hl1"))
    title = " ".join(headline) or " ".join(_texts(article.findall("./head/title")))
    metadata = {CONTENTS: "\n".join([*headline, *abstract, *body])} if contents else {}
    yield checked(source, Document(number.attrib["id-string"], "\n".join([*abstract, *body]), title, metadata), 1)


def _texts(nodes: Iterable[ET.Element]) -> list[str]:
    return ["".join(element.itertext()).strip() for element in nodes]


def _read_post(source: SourceFile, *, contents: bool = False) -> Iterator[Record]:
    for number, record in json_lines(source):
        if isinstance(record, FormatError):
            yield record
        elif isinstance(record.get("id"), str) and isinstance(record.get("contents"), list):
            title = record.get("title") or ""
            metadata = {"url": record["article_url"]} if record.get("article_url") else {}
            if contents:
                metadata[CONTENTS] = "\n".join([title, *_post_texts(record["contents"], kickers=True)])
            document = Document(record["id"], "\n".join(_post_texts(record["contents"])), title, metadata)
            yield checked(source, document, number)
        else:
            yield record_error(source, "expected id and a list of contents (Washington Post)", line=number)


def _post_texts(contents: list[dict[str, Any] | None], *, kickers: bool = False) -> Iterator[str]:
    """Yield a post's paragraphs, tweets and captions, and its kickers on request; bylines and dates are not text."""
    types = _POST_TYPES | ({"kicker"} if kickers else set())
    for part in contents:
        if not part:
            continue
        if part.get("type") in types and part.get("content"):
            yield strip_tags(part["content"]).strip()
        if part.get("fullcaption"):
            yield strip_tags(part["fullcaption"]).strip()


TREC = Loader(
    name="trec",
    about="TREC news: SGML <DOC> files, NYT XML, Washington Post JSON lines, HTML files",
    read=read_trec,
    fields={"url": {"type": "keyword", "ignore_above": 2048}},
    read_contents=partial(read_trec, contents=True),
)

ROBUST04 = Loader(
    name="robust04",
    about="Robust04: TREC disks 4 and 5, SGML <DOC> files, without the Congressional Record",
    read=read_robust04,
    may_be_left_out=True,
    read_contents=partial(read_robust04, contents=True),
)
