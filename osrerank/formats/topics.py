"""Query sets: TSV, JSON lines, TREC topics and CACM's form, told apart by how the file begins."""

import html
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from osrerank.errors import EvaluationError
from osrerank.formats.files import numbered_lines
from osrerank.types import Query

# Tags are parsed, not columns: some topics close <num> and <title>, some do not.
_TOPIC = re.compile(r"<top>(.*?)</top>", re.DOTALL | re.IGNORECASE)
_NUMBER = re.compile(r"<num>\s*(?:Number:)?\s*([^<\s]+)", re.IGNORECASE)
_TITLE = re.compile(r"<title>\s*(?:Topic:)?([^<]*)", re.IGNORECASE)
_CACM = re.compile(r"<DOC>\s*<DOCNO>\s*([^<\s]+)\s*</DOCNO>(.*?)</DOC>", re.DOTALL | re.IGNORECASE)


def read_queries(path: Path | str) -> tuple[Query, ...]:
    """Read a query set, plain or ``.gz``, in file order.

    Formats: ``id<TAB>text``; JSON lines with ``query_id`` (or ``id``, ``_id``) and ``text`` (or ``query``); TREC
    topics, of which number and title are taken; ``<DOC><DOCNO>id</DOCNO> text</DOC>``.

    Raises:
        EvaluationError: a line or topic is malformed, an id appears twice, a text is blank, or there is no query.
    """
    path = Path(path)
    lines = list(numbered_lines(path))
    start = next((line.lstrip() for _number, line in lines if line.strip()), "")
    if start.startswith("<"):
        found = _tagged(path, "\n".join(line for _number, line in lines))
    elif start.startswith("{"):
        found = _json(path, lines)
    else:
        found = _tsv(path, lines)
    return _checked(path, found)


def _tsv(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield (place in the file, id, text)."""
    for number, line in lines:
        if not line.strip():
            continue
        query_id, tab, text = line.partition("\t")
        if not tab:
            raise EvaluationError(f"{path}, line {number}: expected `id<TAB>text`, found no tab")
        yield f"line {number}", query_id.strip(), text


def _json(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, str, str]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise EvaluationError(f"{path}, line {number}: not JSON: {error}") from None
        query_id = next((fields[name] for name in ("query_id", "id", "_id") if name in fields), None)
        text = next((fields[name] for name in ("text", "query") if name in fields), None)
        if query_id is None or not isinstance(text, str):
            raise EvaluationError(f"{path}, line {number}: expected the fields query_id and text")
        yield f"line {number}", str(query_id), text


def _tagged(path: Path, content: str) -> Iterator[tuple[str, str, str]]:
    for match in _CACM.finditer(content):
        yield f"topic {match[1]}", _topic_id(match[1]), " ".join(html.unescape(match[2]).split())
    for place, topic in enumerate(_TOPIC.finditer(content), start=1):
        number, title = _NUMBER.search(topic[1]), _TITLE.search(topic[1])
        if number is None or title is None:
            raise EvaluationError(f"{path}: topic {place} has no <num> or no <title>")
        yield f"topic {number[1]}", _topic_id(number[1]), " ".join(html.unescape(title[1]).split())


def _topic_id(number: str) -> str:
    """Return a topic's number as TREC's qrels write it: `051` is `51`."""
    return str(int(number)) if number.isdecimal() else number


def _checked(path: Path, found: Iterable[tuple[str, str, str]]) -> tuple[Query, ...]:
    queries: dict[str, Query] = {}
    for place, query_id, text in found:
        if query_id in queries:
            raise EvaluationError(f"{path}, {place}: query {query_id} appears twice; remove one")
        if not query_id or not text.strip():
            raise EvaluationError(f"{path}, {place}: query {query_id!r} has no {'text' if query_id else 'id'}")
        queries[query_id] = Query(query_id, text)
    if not queries:
        raise EvaluationError(f"{path}: no queries; expected `id<TAB>text`, JSON lines or TREC topics")
    return tuple(queries.values())
