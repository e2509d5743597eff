"""Repair double-encoded UTF-8, as in version 1 of MS MARCO: either all of a text or nothing.

It is off by default, because published runs and models used the texts as they are. A text may have correct characters
as well as double-encoded ones. A text that could be repaired only in part is left as it is, and counted.
"""

import dataclasses
import re

from osrerank.errors import FormatError
from osrerank_loaders.collections.base import CONTENTS, Record

# A byte from 0x80 on, written as a character of latin-1 or, below 0xa0, of Windows-1252.
_WINDOWS = {bytes([byte]).decode("cp1252", "ignore") or chr(byte): byte for byte in range(0x80, 0xA0)}
_NEXT = f"[\x80-\xbf{''.join(_WINDOWS)}]"
_SEQUENCE = f"(?:[\xc2-\xdf]{_NEXT}|[\xe0-\xef]{_NEXT}{{2}}|[\xf0-\xf4]{_NEXT}{{3}})"
_RUN = re.compile(f"{_SEQUENCE}+")
# Matches what no correct text has; a single pair of printable characters may be correct: "Ä§", "CAFÉ»", "MARQUÉ…".
_CERTAIN = re.compile(f"[\x80-\x9f]|[\xc2\xc3][\xa0-\xbf]|[\xe0-\xf4]{_NEXT}{{2}}|{_SEQUENCE}{{2}}")
_CONTROL = re.compile("[\x80-\x9f]")


def repair(text: str) -> str | None:
    """Decode all double-encoded characters of a text once more; return None if some cannot be decoded."""
    if text.isascii():
        return text
    pieces, end = [], 0
    for run in _RUN.finditer(text):
        before, after = text[run.start() - 1 : run.start()], text[run.end() : run.end() + 1]
        is_part = any(character.isalpha() and not character.isascii() for character in (before, after))
        if is_part and (ord(max(before, after)) > 0xFF or _CERTAIN.search(run.group())):
            return None
        if not _CERTAIN.search(run.group()):
            continue
        try:
            decoded = bytes(_WINDOWS.get(character) or ord(character) for character in run.group()).decode()
        except UnicodeDecodeError:
            return None
        pieces += [text[end : run.start()], decoded]
        end = run.end()
    tail = text[end:]
    return None if _CONTROL.search("".join([*pieces[::2], tail])) else "".join([*pieces, tail])


class Repair:
    """Repairs the texts of documents.

    Attributes:
        left: the number of documents with a text that could be repaired only in part, and was left as it is.
        first: the id of the first such document.
    """

    def __init__(self) -> None:
        self.left = 0
        self.first = ""

    def __call__(self, record: Record) -> Record:
        """Repair a document's text, title and contents; return an error unchanged."""
        if isinstance(record, FormatError):
            return record
        texts = {"text": record.text, "title": record.title, CONTENTS: record.metadata.get(CONTENTS, "")}
        repaired = {name: repair(text) for name, text in texts.items()}
        if None in repaired.values():
            self.left += 1
            self.first = self.first or record.doc_id
        fields = {name: texts[name] if text is None else text for name, text in repaired.items()}
        contents = fields.pop(CONTENTS)
        metadata = {**record.metadata, CONTENTS: contents} if CONTENTS in record.metadata else record.metadata
        return dataclasses.replace(record, metadata=metadata, **fields)

    @property
    def note(self) -> str:
        """A sentence about the texts that were left as they are, for the user; "" if there are none."""
        beginning = f"{self.left:,} documents have double-encoded text that could be repaired only in part"
        return f"{beginning}, so it was left as it is (first: {self.first!r})" if self.left else ""
