"""Read MS MARCO's passages of version 1 (``collection.tsv``, or Anserini's JSON lines) and version 2 (JSON lines)."""

from collections.abc import Iterator

from osrerank.errors import FormatError
from osrerank.formats.lines import quote_start, read_json_lines, read_text_lines
from osrerank.formats.sources import SourceFile, record_error
from osrerank.types import Document
from osrerank_loaders.collections.base import Loader, Record, check_id
from osrerank_loaders.collections.jsonl import read_jsonl


def read_passages(source: SourceFile) -> Iterator[Record]:
    """Read ``pid TAB passage`` lines, or ``{"id", "contents"}`` lines if the file begins with a brace."""
    start = source.stream.peek(512)[:512]  # peek may return more
    is_json = start.lstrip().startswith(b"{")
    return read_jsonl(source) if is_json else _read_tsv(source)


def _read_tsv(source: SourceFile) -> Iterator[Record]:
    """Split each line at its tab. Quotes have no meaning, and empty passages and leading spaces are kept."""
    no_metadata: dict[str, str] = {}  # all passages share it, to save memory
    for number, line in read_text_lines(source):
        if isinstance(line, FormatError):
            yield line
            continue
        doc_id, tab, text = line.partition("\t")
        if not tab or "\t" in text:
            n_fields = line.count("\t") + 1
            reason = f"expected pid TAB passage, found {n_fields} fields: {quote_start(line)}"
            yield record_error(source, reason, line=number)
        elif doc_id:
            yield check_id(source, Document(doc_id, text, "", no_metadata), number)
        else:
            yield record_error(source, "the passage has no id", line=number)


def read_passages_v2(source: SourceFile) -> Iterator[Record]:
    """Read ``{"pid", "passage", "spans", "docid"}`` lines.

    The text is the field ``passage``, because a text rebuilt from ``spans`` can differ.
    """
    for number, record in read_json_lines(source):
        if isinstance(record, FormatError):
            yield record
            continue
        missing = [name for name in ("pid", "passage", "spans", "docid") if name not in record]
        if missing:
            reason = f"the record has no field {missing[0]!r}; its fields are {', '.join(record)}"
            yield record_error(source, reason, line=number)
            continue
        doc_id, text = record["pid"], record["passage"]
        if isinstance(doc_id, str) and doc_id and isinstance(text, str):
            metadata = {"spans": record["spans"], "docid": record["docid"]}
            yield check_id(source, Document(doc_id, text, "", metadata), number)
        else:
            reason = f"pid must be a non-empty string, and passage a string; pid is {doc_id!r}"
            yield record_error(source, reason, line=number)


MSMARCO_PASSAGE = Loader(
    name="msmarco-passage",
    read=read_passages,
    files=("collection*.tsv", "*.json", "*.jsonl"),
    k1=0.82,
    b=0.68,
)
MSMARCO_V2_PASSAGE = Loader(
    name="msmarco-v2-passage",
    read=read_passages_v2,
    files=("msmarco_passage_*", "*.json", "*.jsonl"),
    fields={"docid": {"type": "keyword"}, "spans": {"type": "keyword", "index": False, "doc_values": False}},
)
