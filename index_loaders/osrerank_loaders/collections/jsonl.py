"""Read JSON lines with one document each: osrerank's common layout, and BEIR's ``corpus.jsonl``.

The id is in ``id``, ``_id``, ``doc_id`` or ``docid``, and the text in ``text``, ``contents`` or ``body``; ``title`` is
optional. Other fields become metadata, and so do the fields of an object named ``metadata``, as in BEIR. A line with
``id_str`` is a tweet: ``id_str`` is its id, and ``full_text`` is preferred to ``text``, which may be truncated.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from osrerank.errors import FormatError
from osrerank.formats.lines import json_lines
from osrerank.formats.sources import SourceFile, record_error
from osrerank.types import Document
from osrerank_loaders.collections.base import Loader, Record, checked

_ID_KEYS = ("id", "_id", "doc_id", "docid")
_TEXT_KEYS = ("text", "contents", "body")
_TWEET = "id_str"
_NOTHING: Mapping[str, Any] = {}


def read_jsonl(source: SourceFile) -> Iterator[Record]:
    """Yield the documents of a file of JSON lines."""
    for number, record in json_lines(source):
        if isinstance(record, FormatError):
            yield record
            continue
        try:
            yield checked(source, _document(record), number)
        except ValueError as error:
            yield record_error(source, str(error), line=number)


def _document(record: dict[str, Any]) -> Document:
    is_tweet = _TWEET in record
    doc_id = _take(record, (_TWEET,) if is_tweet else _ID_KEYS)
    text = _take(record, ("full_text", *_TEXT_KEYS) if is_tweet else _TEXT_KEYS)
    if is_tweet:
        record = {name: value for name, value in record.items() if name not in ("id", "text")}
    title = record.pop("title", None) or ""
    if isinstance(doc_id, int) and not isinstance(doc_id, bool):
        doc_id = str(doc_id)
    if not isinstance(doc_id, str) or not doc_id:
        raise ValueError(f"the id must be a non-empty string or an integer, found {doc_id!r}")
    if not isinstance(text, str) or not isinstance(title, str):
        raise ValueError(f"document {doc_id!r}: text and title must be strings")  # noqa: TRY004 - bad data, not misuse
    if record:
        nested = record.pop("metadata", None)
        record.update(nested if isinstance(nested, dict) else {} if nested is None else {"metadata": nested})
    return Document(doc_id, text, title, record or _NOTHING)


def _take(record: dict[str, Any], keys: tuple[str, ...]) -> Any:
    for key in keys:
        if key in record:
            return record.pop(key)
    raise ValueError(f"no field {' or '.join(map(repr, keys))}; the fields here are {', '.join(record) or 'none'}")


JSONL = Loader(
    name="jsonl",
    about='JSON lines {"id", "text", "title"?, ...}',
    read=read_jsonl,
    files=("*.jsonl", "*.json", "*.jl", "*.ndjson"),
    allows_other_fields=True,
    is_for_own_collections=True,
)
BEIR = Loader(
    name="beir",
    about="A BEIR data set: its folder or archive, or its corpus.jsonl",
    read=read_jsonl,
    files=("corpus.jsonl",),
    allows_other_fields=True,
)
