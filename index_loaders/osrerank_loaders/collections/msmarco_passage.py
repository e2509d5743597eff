"""Read MS MARCO passages: version 1 (``collection.tsv``, or Anserini's JSON lines) and version 2 (JSON lines)."""

from collections.abc import Iterator

from osrerank.errors import FormatError
from osrerank.formats.lines import excerpt, json_lines, text_lines
from osrerank.formats.sources import SourceFile, record_error
from osrerank.types import Document
from osrerank_loaders.collections.base import Loader, Record, checked
from osrerank_loaders.collections.jsonl import read_jsonl

_FIELDS = 2


def read_passages(source: SourceFile) -> Iterator[Record]:
    """Read ``pid TAB passage`` lines, or ``{"id", "contents"}`` lines if the file begins with a brace."""
    return read_jsonl(source) if source.stream.peek(512)[:512].lstrip()[:1] == b"{" else _read_tsv(source)


def _read_tsv(source: SourceFile) -> Iterator[Record]:
    """Split each line at its tab. Quotes mean nothing, and empty passages and leading spaces are kept."""
    nothing: dict[str, str] = {}
    for number, line in text_lines(source):
        if isinstance(line, FormatError):
            yield line
            continue
        doc_id, tab, text = line.partition("\t")
        if not tab or "\t" in text:
            n_fields = line.count("\t") + 1
            yield record_error(
                source, f"expected pid TAB passage, found {n_fields} fields: {excerpt(line)}", line=number
            )
        elif doc_id:
            yield checked(source, Document(doc_id, text, "", nothing), number)
        else:
            yield record_error(source, "the passage has no id", line=number)


def read_passages_v2(source: SourceFile) -> Iterator[Record]:
    """Read ``{"pid", "passage", "spans", "docid"}`` lines.

    The text is the published passage; texts that are rebuilt from ``spans`` differ from some of them.
    """
    for number, record in json_lines(source):
        if isinstance(record, FormatError):
            yield record
            continue
        try:
            doc_id, text = record["pid"], record["passage"]
            metadata = {"spans": record["spans"], "docid": record["docid"]}
        except KeyError as error:
            yield record_error(source, f"no field {error}; the fields here are {', '.join(record)}", line=number)
        else:
            if isinstance(doc_id, str) and doc_id and isinstance(text, str):
                yield checked(source, Document(doc_id, text, "", metadata), number)
            else:
                yield record_error(source, f"pid and passage must be strings, found {doc_id!r}", line=number)


MSMARCO_PASSAGE = Loader(
    name="msmarco-passage",
    about="MS MARCO passages: collection.tsv, its archives, or {id, contents} JSON",
    read=read_passages,
    files=("collection*.tsv", "*.json", "*.jsonl"),
    k1=0.82,
    b=0.68,
)
MSMARCO_V2_PASSAGE = Loader(
    name="msmarco-v2-passage",
    about="MS MARCO v2 passages: msmarco_v2_passage.tar or its files",
    read=read_passages_v2,
    files=("msmarco_passage_*", "*.json", "*.jsonl"),
    fields={"docid": {"type": "keyword"}, "spans": {"type": "keyword", "index": False, "doc_values": False}},
)
