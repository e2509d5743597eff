"""Undo double-encoded UTF-8, as in MS MARCO's version 1 collection, even mixed within one passage.

Off by default: published runs and models used the text as it is.
"""

import dataclasses
import re

from osrerank.errors import FormatError
from osrerank_loaders.collections.base import CONTENTS, Record

# Two to four characters that, written as latin-1, are the bytes of one character in UTF-8.
_ENCODED_TWICE = re.compile("[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")


def repair(text: str) -> str:
    """Return the text with every character that was encoded twice decoded once more."""
    return text if text.isascii() else _ENCODED_TWICE.sub(_decoded, text)


def _decoded(match: re.Match[str]) -> str:
    try:
        return match.group().encode("latin-1").decode()
    except UnicodeDecodeError:
        return match.group()


def repaired(record: Record) -> Record:
    """Return a document with its text, title and contents repaired; an error as it is."""
    if isinstance(record, FormatError):
        return record
    metadata = record.metadata
    if CONTENTS in metadata:
        metadata = {**metadata, CONTENTS: repair(metadata[CONTENTS])}
    return dataclasses.replace(record, text=repair(record.text), title=repair(record.title), metadata=metadata)
