"""Reading queries and judgments as they are published.

Queries: ``query_id TAB text`` (MS MARCO), BEIR's JSON lines, and TREC topics, parsed by their tags: some files close
them, some do not. Judgments: TREC's four columns, split at any white space, and BEIR's three with a heading.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from osrerank.errors import CorpusFormatError
from osrerank.formats.common_layout import Judgment
from osrerank.formats.lines import json_lines, shown, text_lines
from osrerank.formats.markup import strip_tags
from osrerank.formats.sources import Patterns, Source, files_of, malformed, open_sources
from osrerank.types import Query

TopicField = Literal["title", "desc", "narr"]
_QUERY_FILES: Patterns = ("queries*", "*topics*", "*.tsv", "*.jsonl")
_QRELS_COLUMNS, _BEIR_COLUMNS = 4, 3
_TOPIC = re.compile(r"<(top|DOC)>(.*?)(?=<\1>|\Z)", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"<num>\s*(?:Number:)?\s*([^\s<]+)|<DOCNO>\s*([^\s<]+)\s*</DOCNO>", re.IGNORECASE)
_INTEGER = re.compile(r"-?\d+")
_LABEL = re.compile(r"^\s*(?:Topic|Description|Narrative)\b\s*:?", re.IGNORECASE)


def read_queries(paths: Sequence[str], *, field: TopicField = "title") -> Iterator[Query]:
    """Read queries in whichever form the files have.

    Args:
        paths: files, folders or archives.
        field: which part of a TREC topic is the query.

    Raises:
        CorpusFormatError: a line or topic is malformed, or has no text.
    """
    for source in open_sources(files_of(paths, _QUERY_FILES), _QUERY_FILES):
        head = source.stream.peek(512)[:512].lstrip().lower()
        if head.startswith(b"{"):
            yield from _json_queries(source)
        elif head.startswith((b"<top", b"<doc>", b"<?xml")):
            yield from _topics(source, field)
        else:
            yield from _tsv_queries(source)


def _tsv_queries(source: Source) -> Iterator[Query]:
    for number, line in text_lines(source):
        if isinstance(line, CorpusFormatError):
            raise line
        query_id, found, text = line.partition("\t")
        if not found or not query_id or not text.strip():
            raise malformed(source, f"expected query_id TAB text, found {shown(line)}", line=number)
        yield Query(query_id, text)


def _json_queries(source: Source) -> Iterator[Query]:
    for number, record in json_lines(source):
        if isinstance(record, CorpusFormatError):
            raise record
        query_id, text = record.get("_id", record.get("id")), record.get("text")
        if query_id is None or not isinstance(text, str) or not text.strip():
            raise malformed(source, f"expected _id and text, found the fields {', '.join(record)}", line=number)
        yield Query(str(query_id), text)


def _topics(source: Source, field: TopicField) -> Iterator[Query]:
    try:
        content = source.stream.read().decode()
    except UnicodeDecodeError as error:
        raise malformed(source, "not UTF-8", byte=error.start) from error
    for topic in _TOPIC.finditer(content):
        line = content.count("\n", 0, topic.start()) + 1
        number = _NUMBER.search(topic[2])
        if number is None:
            raise malformed(source, "a topic without <num> or <DOCNO>", line=line)
        text = _field(topic[2], field) if topic[1].lower() == "top" else strip_tags(topic[2][number.end() :])
        if not text.strip():
            raise malformed(source, f"topic {number[0]!r} has no {field}", line=line)
        yield Query(_topic_id(number[1] or number[2]), " ".join(text.split()))


def _field(topic: str, field: TopicField) -> str:
    """Return what stands between a field's tag and the next tag of the topic, without its label."""
    found = re.search(
        rf"<{field}>(.*?)(?=</?(?:num|title|desc|narr|top|smry|con|dom)\b|\Z)", topic, re.DOTALL | re.IGNORECASE
    )
    return _LABEL.sub("", strip_tags(found[1])) if found else ""


def _topic_id(number: str) -> str:
    """Return a topic's number as qrels write it: without leading zeros."""
    return str(int(number)) if number.isdecimal() else number


def read_qrels(paths: Sequence[str]) -> Iterator[Judgment]:
    """Read judgments: ``query_id 0 doc_id relevance``, or BEIR's ``query-id corpus-id score`` under a heading.

    Raises:
        CorpusFormatError: a line has other columns, or the relevance is not an integer.
    """
    for source in open_sources(files_of(paths)):
        columns = _QRELS_COLUMNS
        for number, line in text_lines(source):
            if isinstance(line, CorpusFormatError):
                raise line
            if number == 1 and line.startswith("query-id"):
                columns = _BEIR_COLUMNS
                continue
            yield _judgment(source, number, line, columns)


def _judgment(source: Source, number: int, line: str, columns: int) -> Judgment:
    fields = line.split()
    if len(fields) != columns or not _INTEGER.fullmatch(fields[-1]):
        raise malformed(source, f"expected query_id 0 doc_id relevance, found {shown(line)}", line=number)
    return Judgment(fields[0], fields[columns - 2], int(fields[-1]))
