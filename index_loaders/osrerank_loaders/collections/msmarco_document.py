"""Read MS MARCO's documents of version 1 (``msmarco-docs.tsv`` or ``.trec``) and versions 2 and 2.1 (JSON lines)."""

import re
from collections.abc import Iterator

from osrerank.errors import FormatError
from osrerank.formats.lines import quote_start, read_json_lines, read_text_lines
from osrerank.formats.sources import SourceFile, record_error
from osrerank.types import Document
from osrerank_loaders.collections.base import Loader, Record, add_contents, check_id
from osrerank_loaders.collections.jsonl import read_jsonl
from osrerank_loaders.collections.trec import doc_blocks

_URL_MAPPING = {"type": "keyword", "ignore_above": 2048}
_OFFSET_FIELDS = ("start_char", "end_char")
_DOC_TAGS = re.compile(rb"<(?:DOC>(?=\s*<DOCNO>)(?P<begin>)|/TEXT>\s*</DOC>(?P<end>))")
"""Matches ``<DOC>`` only before ``<DOCNO>``, and ``</DOC>`` only after ``</TEXT>``, because texts contain both tags.

The empty group ``begin`` or ``end`` says which tag matched.
"""


def read_documents(source: SourceFile) -> Iterator[Record]:
    """Read ``docid TAB url TAB title TAB body`` lines, ``<DOC>`` elements, or ``{"id", "contents"}`` lines."""
    head = source.stream.peek(512)[:512].lstrip()[:5]
    if head.startswith(b"{"):
        return read_jsonl(source)
    if head.upper() == b"<DOC>":
        return _read_trec(source)
    return _read_tsv(source)


def _read_tsv(source: SourceFile) -> Iterator[Record]:
    for number, line in read_text_lines(source):
        if isinstance(line, FormatError):
            yield line
            continue
        try:
            doc_id, url, title, body = line.split("\t")
        except ValueError:
            n_fields = line.count("\t") + 1
            reason = f"expected docid TAB url TAB title TAB body, found {n_fields} fields: {quote_start(line)}"
            yield record_error(source, reason, line=number)
        else:
            if doc_id:
                yield check_id(source, Document(doc_id, body, title, {"url": url}), number)
            else:
                yield record_error(source, "the document has no id", line=number)


def _read_trec(source: SourceFile) -> Iterator[Record]:
    """Read ``<DOC>`` elements, whose text has the url on the first line, the title on the second, and then the body."""
    for number, block in doc_blocks(source, tags=_DOC_TAGS):
        if isinstance(block, FormatError):
            yield block
            continue
        before_text, text_tag, text = block.partition("<TEXT>")
        doc_id = before_text.partition("<DOCNO>")[2].partition("</DOCNO>")[0].strip()
        if not text_tag or not doc_id or before_text.count("<DOCNO>") > 1:
            yield record_error(source, "expected one <DOCNO> and one <TEXT> in a <DOC>", line=number)
            continue
        text = text.removeprefix("\n").rpartition("</TEXT>")[0]
        if text and "\n" not in text:
            yield record_error(source, f"expected url, title and body on lines of their own in {doc_id!r}", line=number)
            continue
        url, _, title_and_body = text.partition("\n")
        title, _, body = title_and_body.partition("\n")
        yield check_id(source, Document(doc_id, body.removesuffix("\n"), title, {"url": url}), number)


def read_documents_v2(source: SourceFile) -> Iterator[Record]:
    """Read ``{"url", "title", "headings", "body", "docid"}`` lines, or segments, which have ``segment`` for ``body``.

    Segments of version 2.1 also have ``start_char`` and ``end_char``, their offsets in the document's body.
    """
    for number, record in read_json_lines(source):
        if isinstance(record, FormatError):
            yield record
            continue
        try:
            doc_id, title = record["docid"], record["title"]
            text = record["segment"] if "segment" in record else record["body"]
            metadata = {"url": record["url"], "headings": record["headings"]}
            if any(name in record for name in _OFFSET_FIELDS):
                metadata |= {name: record[name] for name in _OFFSET_FIELDS}
        except KeyError as error:
            yield record_error(
                source, f"the record has no field {error}; its fields are {', '.join(record)}", line=number
            )
            continue
        if any(type(metadata[name]) is not int for name in _OFFSET_FIELDS if name in metadata):
            reason = f"start_char and end_char must be whole numbers, in document {doc_id!r}"
            yield record_error(source, reason, line=number)
        elif isinstance(doc_id, str) and doc_id and isinstance(text, str) and isinstance(title, str):
            yield check_id(source, Document(doc_id, text, title, metadata), number)
        else:
            yield record_error(source, f"docid, title and body must be strings, found docid {doc_id!r}", line=number)


def _join_v1(document: Document) -> str:
    """Return the text that Anserini indexes for a document of version 1."""
    return "\n".join(part for part in (document.metadata.get("url"), document.title, document.text) if part)


def _join_v2(document: Document) -> str:
    """Return the text that Anserini indexes for a document of version 2."""
    return f"{document.metadata['url']} {document.title} {document.metadata['headings']} {document.text}"


MSMARCO_DOCUMENT = Loader(
    name="msmarco-document",
    read=read_documents,
    files=("msmarco-docs.tsv", "msmarco-docs.trec", "*.json", "*.jsonl"),
    k1=4.46,
    b=0.82,
    fields={"url": _URL_MAPPING},
    read_contents=add_contents(read_documents, _join_v1),
)
MSMARCO_V2_DOCUMENT = Loader(
    name="msmarco-v2-document",
    read=read_documents_v2,
    files=("msmarco_doc_*", "msmarco_v2.1_doc_*", "*.json", "*.jsonl"),
    fields={
        "url": _URL_MAPPING,
        "headings": {"type": "text", "analyzer": "english"},
        **{name: {"type": "integer"} for name in _OFFSET_FIELDS},
    },
    read_contents=add_contents(read_documents_v2, _join_v2),
)
