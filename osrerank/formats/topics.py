"""Read query sets: TREC topics, tab-separated lines, JSON lines and other formats, detected by a file's first bytes."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from osrerank.errors import FormatError
from osrerank.formats.lines import (
    explain_invalid_id,
    quote_start,
    raise_errors,
    read_column_lines,
    read_json_lines,
    read_text_lines,
)
from osrerank.formats.markup import strip_tags
from osrerank.formats.sources import Patterns, SourceFile, file_errors, open_paths, record_error
from osrerank.formats.tables import QID, QUERY, is_table, read_table_rows
from osrerank.types import Query

TopicField = Literal["title", "desc", "narr"]
FILE_PATTERNS: Patterns = ("queries*", "*topics*", "*.tsv", "*.jsonl")
"""Files with these names are read from folders and archives."""
# A topic extends to the next topic, because closing tags are optional.
_TOPIC = re.compile(r"<(top|DOC)(?:\s[^>]*)?>(.*?)(?=<\1(?:\s[^>]*)?>|\Z)", re.DOTALL | re.IGNORECASE)
_ID_TAG = re.compile(r"<num>\s*(?:Number:)?\s*([^\s<]+)|<DOCNO>\s*([^\s<]+)\s*</DOCNO>", re.IGNORECASE)
"""Matches the id of a topic, such as ``<num> Number: 301`` or ``<DOCNO>301</DOCNO>``."""
_LABEL = re.compile(r"^\s*(?:Topic|Description|Narrative)\b\s*:?", re.IGNORECASE)
"""Matches the label before a field's text, such as ``Description:``."""
_TAGS = r"</?(?:num|title|query|querytime|querytweettime|desc|narr|top|smry|con|dom)\b"
"""Matches a tag at which a field's text ends."""
_TAG_NAMES: dict[TopicField, str] = {"title": "title|query", "desc": "desc", "narr": "narr"}
"""The tags of each topic field, as alternatives in a pattern. TREC Microblog's title is ``<query>``."""
_HEADER = re.compile(r"(?:_?id|qid|query[_-]?id)\s*\t\s*(?:query|text)\s*", re.IGNORECASE)
"""Matches a header line of columns separated by tabs, such as ``qid<TAB>query``."""
_CAR_PREFIX = re.compile(r"^(?:enwiki|tqa\d*):")
_CAR_ID_PART = re.compile(rb"\A(?:enwiki|tqa\d*):|%[0-9A-Fa-f]{2}|[^\s:/]/[^\s/]")
"""Matches what only TREC-CAR's ids contain, such as ``enwiki:Soil/Use%20of%20water``: a prefix, an escape, a slash."""


def read_queries(paths: Path | str | Sequence[str], *, field: TopicField = "title") -> tuple[Query, ...]:
    """Read a query set, in the order of the file.

    The formats are:

    - ``id<TAB>text``, perhaps after a header line such as ``qid<TAB>query``
    - JSON lines with ``query_id`` (or ``id``, ``_id``) and ``text`` (or ``query``)
    - TREC topics, whose numbers lose leading zeros, as in TREC's qrels
    - ``<DOC><DOCNO>id</DOCNO> text</DOC>``
    - TREC-CAR's ids, one per line, whose text is the decoded id: a title and headings
    - PyTerrier's table as CSV (``qid``, ``query``)
    - ``ir_datasets:NAME``

    Args:
        paths: a file, or a list of files, folders and archives, each compressed or not.
        field: the part of a TREC topic to use as the query.

    Raises:
        FormatError: a line or topic is malformed, an id is repeated, a text is blank, or the set is empty.
        LoaderError: a path in a list does not exist, or a folder has no file with queries.
    """
    queries = tuple(query for _line, query in read_numbered_queries(paths, field=field))
    if not queries:
        source = paths if isinstance(paths, str | Path) else ", ".join(paths)
        reason = f"{source} has no queries; expected lines `id<TAB>text`, JSON lines or TREC topics"
        raise FormatError(reason, file=str(source))
    return queries


def read_numbered_queries(
    paths: Path | str | Sequence[str], *, field: TopicField = "title"
) -> Iterator[tuple[int, Query]]:
    """Read a query set as `read_queries` does, and yield each query with the number of its first line.

    Raises:
        FormatError: as for `read_queries`, but the set may be empty.
    """
    query_ids: set[str] = set()
    for source in open_paths(paths, FILE_PATTERNS, part="queries"):
        with file_errors(source):
            for line, query_id, text in _parse_queries(source, field):
                if query_id in query_ids:
                    raise record_error(source, f"query {query_id!r} appears twice; remove one", line=line)
                if not query_id:
                    raise record_error(source, "the query has no id", line=line)
                if not text.strip():
                    raise record_error(source, f"query {query_id!r} has no text", line=line)
                reason = explain_invalid_id(query_id, is_query=True)
                if reason:
                    raise record_error(source, reason, line=line)
                query_ids.add(query_id)
                yield line, Query(query_id, text)


def _parse_queries(source: SourceFile, field: TopicField) -> Iterator[tuple[int, str, str]]:
    """Detect a file's format, and yield line number, id and text of each query."""
    head = source.stream.peek(512)[:512].lstrip()
    if head.startswith(b"<"):
        return _parse_tagged(source, field)
    if head.startswith(b"{"):
        return _parse_json(source)
    if is_table(source):
        return ((number, row[QID], row[QUERY]) for number, row in read_table_rows(source, (QID, QUERY)))
    is_car = _CAR_ID_PART.search(head) and not re.search(rb"[ \t]|://", head)  # no id contains white space or a URL
    return _parse_car_ids(source) if is_car else _parse_tsv(source)


def _parse_tsv(source: SourceFile) -> Iterator[tuple[int, str, str]]:
    for number, line in read_column_lines(source):
        if not line.strip() or (number == 1 and _HEADER.fullmatch(line)):
            continue
        query_id, tab, text = line.partition("\t")
        if not tab:
            raise record_error(source, f"expected `id<TAB>text`, found {quote_start(line)}", line=number)
        yield number, query_id.strip(), text


def _parse_car_ids(source: SourceFile) -> Iterator[tuple[int, str, str]]:
    for number, line in raise_errors(read_text_lines(source)):
        query_id = line.strip()
        if len(query_id.split()) > 1:
            raise record_error(source, f"expected one TREC-CAR id, found {quote_start(line)}", line=number)
        try:
            text = unquote(_CAR_PREFIX.sub("", query_id).replace("/", " "), errors="strict")
        except UnicodeDecodeError:
            raise record_error(
                source,
                f"{quote_start(line)} has escapes that are not UTF-8; write é as %C3%A9, not as %E9",
                line=number,
            ) from None
        if query_id:
            yield number, query_id, text


def _parse_json(source: SourceFile) -> Iterator[tuple[int, str, str]]:
    for number, fields in raise_errors(read_json_lines(source)):
        query_id = next((fields[name] for name in ("query_id", "id", "_id") if name in fields), None)
        text = next((fields[name] for name in ("text", "query") if name in fields), None)
        if query_id is None or not isinstance(text, str):
            reason = f"expected the fields query_id and text, found {', '.join(fields) or 'none'}"
            raise record_error(source, reason, line=number)
        yield number, str(query_id), text


def _parse_tagged(source: SourceFile, field: TopicField) -> Iterator[tuple[int, str, str]]:
    try:
        content = source.stream.read().decode()
    except UnicodeDecodeError as error:
        raise record_error(source, "the file is not UTF-8; convert it first", byte=error.start) from error
    if "\n" not in content:  # the lines end as on old Macs
        content = content.replace("\r", "\n")
    for topic in _TOPIC.finditer(content):
        line = content.count("\n", 0, topic.start()) + 1
        name, body = topic[1], topic[2]
        id_tags = list(_ID_TAG.finditer(body))
        if len(id_tags) != 1:
            reason = (
                "the topic has several <num> or <DOCNO>; keep one" if id_tags else "the topic has no <num> or <DOCNO>"
            )
            raise record_error(source, reason, line=line)
        id_tag = id_tags[0]
        query_id = _normalise_topic_id(id_tag[1] or id_tag[2])
        text = _extract_field(body, field) if name.lower() == "top" else strip_tags(body[id_tag.end() :])
        if not text.strip():
            raise record_error(source, f"topic {query_id!r} has no {field}", line=line)
        yield line, query_id, " ".join(text.split())


def _extract_field(topic: str, field: TopicField) -> str:
    """Return the text from a field's tag to the next tag, without a label such as ``Description:``."""
    match = re.search(rf"<(?:{_TAG_NAMES[field]})>(.*?)(?={_TAGS}|\Z)", topic, re.DOTALL | re.IGNORECASE)
    return _LABEL.sub("", strip_tags(match[1])) if match else ""


def _normalise_topic_id(number: str) -> str:
    """Return a topic's number as in TREC's qrels: ``051`` becomes ``51``."""
    return str(int(number)) if number.isascii() and number.isdecimal() else number
