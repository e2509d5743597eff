"""Read JSON lines with one document each, as in osrerank's own layout and BEIR's ``corpus.jsonl``.

The id is in ``id``, ``_id``, ``doc_id`` or ``docid``, and the text in ``text``, ``contents`` or ``body``. ``title`` is
optional. All other fields become metadata, as do the fields in BEIR's object ``metadata``.

A line with ``id_str`` is a tweet. Its id is in ``id_str``, and its text in ``full_text`` or else in ``text``, which can
be truncated.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from osrerank.errors import FormatError
from osrerank.formats.lines import read_json_lines
from osrerank.formats.sources import SourceFile, record_error
from osrerank.types import Document
from osrerank_loaders.collections.base import Loader, Record, check_id

_ID_KEYS = ("id", "_id", "doc_id", "docid")
_TEXT_KEYS = ("text", "contents", "body")
_TWEET_ID_KEY = "id_str"
_NO_METADATA: Mapping[str, Any] = {}
"""Shared by all documents without metadata, to save memory."""


def read_jsonl(source: SourceFile) -> Iterator[Record]:
    """Yield the documents of a file of JSON lines."""
    for number, record in read_json_lines(source):
        if isinstance(record, FormatError):
            yield record
            continue
        try:
            yield check_id(source, _document(record), number)
        except ValueError as error:
            yield record_error(source, str(error), line=number)


def _document(record: dict[str, Any]) -> Document:
    if _TWEET_ID_KEY in record:
        doc_id = record.pop(_TWEET_ID_KEY)
        text = _pop_first(record, ("full_text", *_TEXT_KEYS))
        # the number id_str is repeated in id, and a part of full_text in text
        record = {name: value for name, value in record.items() if name not in ("id", "text")}
    else:
        doc_id = _pop_first(record, _ID_KEYS)
        text = _pop_first(record, _TEXT_KEYS)
    title = record.pop("title", None) or ""
    if isinstance(doc_id, int) and not isinstance(doc_id, bool):
        doc_id = str(doc_id)
    if not isinstance(doc_id, str) or not doc_id:
        raise ValueError(f"the id must be a non-empty string or an integer, found {doc_id!r}")
    if not isinstance(text, str) or not isinstance(title, str):
        raise ValueError(f"document {doc_id!r}: text and title must be strings")  # noqa: TRY004 - bad data, not misuse
    metadata = record.pop("metadata", None)
    if isinstance(metadata, dict):
        record.update(metadata)
    elif metadata is not None:
        record["metadata"] = metadata
    return Document(doc_id, text, title, record or _NO_METADATA)


def _pop_first(record: dict[str, Any], keys: tuple[str, ...]) -> Any:
    """Remove the first of these keys that the record contains, and return its value."""
    for key in keys:
        if key in record:
            return record.pop(key)
    raise ValueError(
        f"the record has no field {' or '.join(map(repr, keys))}; its fields are {', '.join(record) or 'none'}"
    )


JSONL = Loader(
    name="jsonl",
    read=read_jsonl,
    files=("*.jsonl", "*.json", "*.jl", "*.ndjson"),
    allows_other_fields=True,
    is_generic=True,
)
BEIR = Loader(
    name="beir",
    read=read_jsonl,
    files=("corpus.jsonl",),
    allows_other_fields=True,
)
