"""Read query sets: TSV, JSON lines, TREC topics, CACM documents or TREC-CAR ids, distinguished by their first bytes."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from osrerank.errors import FormatError
from osrerank.formats.lines import column_lines, excerpt, invalid_id_reason, json_lines, raise_errors, text_lines
from osrerank.formats.markup import strip_tags
from osrerank.formats.sources import Patterns, SourceFile, file_errors, open_paths, record_error
from osrerank.formats.tables import QID, QUERY, is_table, table_rows
from osrerank.types import Query

TopicField = Literal["title", "desc", "narr"]
FILES: Patterns = ("queries*", "*topics*", "*.tsv", "*.jsonl")
"""Name patterns of the files with queries in folders and archives."""
# Topics are parsed by their tags: some topics close <num> and <title>, some do not.
_TOPIC = re.compile(r"<(top|DOC)(?:\s[^>]*)?>(.*?)(?=<\1(?:\s[^>]*)?>|\Z)", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"<num>\s*(?:Number:)?\s*([^\s<]+)|<DOCNO>\s*([^\s<]+)\s*</DOCNO>", re.IGNORECASE)
_LABEL = re.compile(r"^\s*(?:Topic|Description|Narrative)\b\s*:?", re.IGNORECASE)
_TAGS = r"</?(?:num|title|query|querytime|querytweettime|desc|narr|top|smry|con|dom)\b"
_NAMES: dict[TopicField, str] = {"title": "title|query", "desc": "desc", "narr": "narr"}  # Microblog's title is <query>
_CAR_SOURCE = re.compile(r"^(?:enwiki|tqa\d*):")
_CAR_FILE = re.compile(rb"\A(?:enwiki|tqa\d*):|%[0-9A-Fa-f]{2}|[^\s:/]/[^\s/]")
"""What distinguishes a file of TREC-CAR's ids, which has no spaces or tabs: a source, an escape, or a heading."""


def read_queries(paths: Path | str | Sequence[str], *, field: TopicField = "title") -> tuple[Query, ...]:
    """Read a query set in the order of the file; files may be compressed, or archives.

    Formats: ``id<TAB>text``; JSON lines with ``query_id`` (or ``id``, ``_id``) and ``text`` (or ``query``); TREC
    topics; ``<DOC><DOCNO>id</DOCNO> text</DOC>``; TREC-CAR's ids, one a line, whose decoded title and headings are the
    text; PyTerrier's table as CSV (``qid``, ``query``); ``ir_datasets:NAME``. Leading zeros of a topic's number are
    removed, because TREC's qrels have none.

    Args:
        paths: a file, or files, folders and archives.
        field: the part of a TREC topic that is the query.

    Raises:
        FormatError: a line or topic is malformed, an id appears twice, a text is blank, or the set is empty.
        LoaderError: one of several paths does not exist, or has no file with queries.
    """
    queries = tuple(query for _line, query in numbered_queries(paths, field=field))
    if not queries:
        source = paths if isinstance(paths, str | Path) else ", ".join(paths)
        raise FormatError(f"{source}: no queries; expected `id<TAB>text`, JSON lines or TREC topics", file=str(source))
    return queries


def numbered_queries(paths: Path | str | Sequence[str], *, field: TopicField = "title") -> Iterator[tuple[int, Query]]:
    """Yield the queries of `read_queries`, each with the number of its first line.

    Raises:
        FormatError: as `read_queries`, except that the set may be empty.
    """
    query_ids: set[str] = set()
    for source in open_paths(paths, FILES, part="queries"):
        with file_errors(source):
            for line, query_id, text in _queries(source, field):
                if query_id in query_ids:
                    raise record_error(source, f"query {query_id} appears twice; remove one", line=line)
                if not query_id:
                    raise record_error(source, "a query has no id", line=line)
                if not text.strip():
                    raise record_error(source, f"query {query_id!r} has no text", line=line)
                if problem := invalid_id_reason(query_id, of_query=True):
                    raise record_error(source, problem, line=line)
                query_ids.add(query_id)
                yield line, Query(query_id, text)


def _queries(source: SourceFile, field: TopicField) -> Iterator[tuple[int, str, str]]:
    """Detect the file's format, and yield line number, id and text of each query."""
    head = source.stream.peek(512)[:512].lstrip()
    if head.startswith(b"<"):
        return _tagged(source, field)
    if head.startswith(b"{"):
        return _json(source)
    if is_table(source):
        return ((number, row[QID], row[QUERY]) for number, row in table_rows(source, (QID, QUERY)))
    is_car = _CAR_FILE.search(head) and not re.search(rb"[ \t]|://", head)
    return _car_ids(source) if is_car else _tsv(source)


def _tsv(source: SourceFile) -> Iterator[tuple[int, str, str]]:
    for number, line in column_lines(source):
        if not line.strip():
            continue
        query_id, tab, text = line.partition("\t")
        if not tab:
            raise record_error(source, f"expected `id<TAB>text`, found {excerpt(line)}", line=number)
        yield number, query_id.strip(), text


def _car_ids(source: SourceFile) -> Iterator[tuple[int, str, str]]:
    for number, line in raise_errors(text_lines(source)):
        query_id = line.strip()
        if len(query_id.split()) > 1:
            raise record_error(source, f"expected one TREC-CAR id, found {excerpt(line)}", line=number)
        try:
            text = unquote(_CAR_SOURCE.sub("", query_id).replace("/", " "), errors="strict")
        except UnicodeDecodeError:
            raise record_error(source, f"the escapes of {excerpt(line)} are not UTF-8", line=number) from None
        if query_id:
            yield number, query_id, text


def _json(source: SourceFile) -> Iterator[tuple[int, str, str]]:
    for number, fields in raise_errors(json_lines(source)):
        query_id = next((fields[name] for name in ("query_id", "id", "_id") if name in fields), None)
        text = next((fields[name] for name in ("text", "query") if name in fields), None)
        if query_id is None or not isinstance(text, str):
            reason = f"expected the fields query_id and text, found {', '.join(fields) or 'none'}"
            raise record_error(source, reason, line=number)
        yield number, str(query_id), text


def _tagged(source: SourceFile, field: TopicField) -> Iterator[tuple[int, str, str]]:
    try:
        content = source.stream.read().decode()
        content = content if "\n" in content else content.replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise record_error(source, "not UTF-8; convert the file to UTF-8 first", byte=error.start) from error
    for topic in _TOPIC.finditer(content):
        line = content.count("\n", 0, topic.start()) + 1
        numbers = list(_NUMBER.finditer(topic[2]))
        if len(numbers) != 1:
            problem = "two topics in one <top> or <DOC>" if numbers else "a topic without <num> or <DOCNO>"
            raise record_error(source, problem, line=line)
        number = numbers[0]
        query_id = _topic_id(number[1] or number[2])
        text = _field(topic[2], field) if topic[1].lower() == "top" else strip_tags(topic[2][number.end() :])
        if not text.strip():
            raise record_error(source, f"topic {query_id} has no {field}", line=line)
        yield line, query_id, " ".join(text.split())


def _field(topic: str, field: TopicField) -> str:
    """Return the text between a field's tag and the next tag of the topic, without its label."""
    match = re.search(rf"<(?:{_NAMES[field]})>(.*?)(?={_TAGS}|\Z)", topic, re.DOTALL | re.IGNORECASE)
    return _LABEL.sub("", strip_tags(match[1])) if match else ""


def _topic_id(number: str) -> str:
    """Return a topic's number as TREC's qrels write it: `051` is `51`."""
    return str(int(number)) if number.isascii() and number.isdecimal() else number
