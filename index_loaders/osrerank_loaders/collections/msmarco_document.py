"""Read MS MARCO documents: version 1 (``msmarco-docs.tsv`` or ``.trec``), 2 and 2.1 (JSON lines, or segments)."""

import re
from collections.abc import Iterator

from osrerank.errors import FormatError
from osrerank.formats.lines import excerpt, json_lines, text_lines
from osrerank.formats.sources import SourceFile, record_error
from osrerank.types import Document
from osrerank_loaders.collections.base import Loader, Record, checked, joined
from osrerank_loaders.collections.jsonl import read_jsonl
from osrerank_loaders.collections.trec import doc_blocks

_URL = {"type": "keyword", "ignore_above": 2048}
_SPAN = ("start_char", "end_char")
_MARKS = re.compile(rb"<(?:DOC>(?=\s*<DOCNO>)()|/TEXT>\s*</DOC>())")
"""Matches the begin and end of a document, with the tags around them: the text is not markup and may contain them."""


def read_documents(source: SourceFile) -> Iterator[Record]:
    """Read ``docid TAB url TAB title TAB body`` lines, the TREC form, or ``{"id", "contents"}`` lines."""
    head = source.stream.peek(512)[:512].lstrip()[:5]
    if head.startswith(b"{"):
        return read_jsonl(source)
    return _read_trec(source) if head.upper() == b"<DOC>" else _read_tsv(source)


def _read_tsv(source: SourceFile) -> Iterator[Record]:
    for number, line in text_lines(source):
        if isinstance(line, FormatError):
            yield line
            continue
        try:
            doc_id, url, title, body = line.split("\t")
        except ValueError:
            n_fields = line.count("\t") + 1
            reason = f"expected docid TAB url TAB title TAB body, found {n_fields} fields: {excerpt(line)}"
            yield record_error(source, reason, line=number)
        else:
            if doc_id:
                yield checked(source, Document(doc_id, body, title, {"url": url}), number)
            else:
                yield record_error(source, "the document has no id", line=number)


def _read_trec(source: SourceFile) -> Iterator[Record]:
    """Read ``<DOC>`` records whose text is a url, a title and a body on lines of their own, and no markup."""
    for number, block in doc_blocks(source, marks=_MARKS):
        if isinstance(block, FormatError):
            yield block
            continue
        front, text_tag, text = block.partition("<TEXT>")
        doc_id = front.partition("<DOCNO>")[2].partition("</DOCNO>")[0].strip()
        if not text_tag or not doc_id or front.count("<DOCNO>") > 1:
            yield record_error(source, "a <DOC> without <DOCNO> or <TEXT>, or with two", line=number)
            continue
        lines = text.removeprefix("\n").rpartition("</TEXT>")[0]
        if lines and "\n" not in lines:
            yield record_error(source, f"expected url, title and body on lines of their own in {doc_id!r}", line=number)
            continue
        url, title, body = [*lines.split("\n", 2), "", ""][:3]
        yield checked(source, Document(doc_id, body.removesuffix("\n"), title, {"url": url}), number)


def read_documents_v2(source: SourceFile) -> Iterator[Record]:
    """Read ``{"url", "title", "headings", "body", "docid"}`` lines; segments have ``segment`` instead of ``body``.

    Segments of version 2.1 also have ``start_char`` and ``end_char``, their span in the document's body, in characters.
    """
    for number, record in json_lines(source):
        if isinstance(record, FormatError):
            yield record
            continue
        try:
            doc_id, title = record["docid"], record["title"]
            text = record["segment"] if "segment" in record else record["body"]
            metadata = {"url": record["url"], "headings": record["headings"]}
            if any(name in record for name in _SPAN):
                metadata |= {name: record[name] for name in _SPAN}
        except KeyError as error:
            yield record_error(source, f"no field {error}; the fields here are {', '.join(record)}", line=number)
            continue
        if not all(type(metadata.get(name, 0)) is int for name in _SPAN):
            reason = f"start_char and end_char must be whole numbers, in document {doc_id!r}"
            yield record_error(source, reason, line=number)
        elif isinstance(doc_id, str) and doc_id and isinstance(text, str) and isinstance(title, str):
            yield checked(source, Document(doc_id, text, title, metadata), number)
        else:
            yield record_error(source, f"docid, title and body must be strings, found docid {doc_id!r}", line=number)


def _url_title_body(document: Document) -> str:
    """Join what Anserini indexes of a version 1 document: url, title and text, on lines of their own."""
    return "\n".join(part for part in (document.metadata.get("url"), document.title, document.text) if part)


def _url_title_headings_text(document: Document) -> str:
    """Join what Anserini indexes of a version 2 document or segment (``MsMarcoV2DocCollection``), with spaces."""
    return f"{document.metadata['url']} {document.title} {document.metadata['headings']} {document.text}"


MSMARCO_DOCUMENT = Loader(
    name="msmarco-document",
    about="MS MARCO documents: msmarco-docs.tsv or msmarco-docs.trec",
    read=read_documents,
    files=("msmarco-docs.tsv", "msmarco-docs.trec", "*.json", "*.jsonl"),
    k1=4.46,
    b=0.82,
    fields={"url": _URL},
    read_contents=joined(read_documents, _url_title_body),
)
MSMARCO_V2_DOCUMENT = Loader(
    name="msmarco-v2-document",
    about="MS MARCO v2 and v2.1 documents: msmarco_v2.1_doc.tar, its segmented form, or their files",
    read=read_documents_v2,
    files=("msmarco_doc_*", "msmarco_v2.1_doc_*", "*.json", "*.jsonl"),
    fields={
        "url": _URL,
        "headings": {"type": "text", "analyzer": "english"},
        **{name: {"type": "integer"} for name in _SPAN},
    },
    read_contents=joined(read_documents_v2, _url_title_headings_text),
)
