"""Undo double-encoded UTF-8, as in MS MARCO's version 1 collection: a text whole, or not at all.

Off by default: published runs and models used the text as it is. A text may have correct characters beside those that
were encoded twice. One that would keep a part of them, such as half a word, is left as it is and counted.
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
# What no correct text has. One pair of printable characters may be correct: "Ä§", "CAFÉ»", "MARQUÉ…".
_CERTAIN = re.compile(f"[\x80-\x9f]|[\xc2\xc3][\xa0-\xbf]|[\xe0-\xf4]{_NEXT}{{2}}|{_SEQUENCE}{{2}}")
_CONTROL = re.compile("[\x80-\x9f]")


def repair(text: str) -> str | None:
    """Return the text with every character that was encoded twice decoded once more; None where some cannot be."""
    if text.isascii():
        return text
    pieces, end = [], 0
    for run in _RUN.finditer(text):
        before, after = text[run.start() - 1 : run.start()], text[run.end() : run.end() + 1]
        is_part = any(one.isalpha() and not one.isascii() for one in (before, after))
        if is_part and (ord(max(before, after)) > 0xFF or _CERTAIN.search(run.group())):
            return None
        if not _CERTAIN.search(run.group()):
            continue
        try:
            decoded = bytes(_WINDOWS.get(one) or ord(one) for one in run.group()).decode()
        except UnicodeDecodeError:
            return None
        pieces += [text[end : run.start()], decoded]
        end = run.end()
    rest = text[end:]
    return None if _CONTROL.search("".join([*pieces[::2], rest])) else "".join([*pieces, rest])


class Repair:
    """Repairs the texts of documents.

    Attributes:
        left: documents of which a text could be repaired only in part and was left as it is.
        first: the id of the first of them.
    """

    def __init__(self) -> None:
        self.left = 0
        self.first = ""

    def __call__(self, record: Record) -> Record:
        """Return a document with its text, title and contents repaired; an error as it is."""
        if isinstance(record, FormatError):
            return record
        texts = {"text": record.text, "title": record.title, CONTENTS: record.metadata.get(CONTENTS, "")}
        found = {name: repair(text) for name, text in texts.items()}
        if None in found.values():
            self.left += 1
            self.first = self.first or record.doc_id
        whole = {name: texts[name] if text is None else text for name, text in found.items()}
        contents = whole.pop(CONTENTS)
        metadata = {**record.metadata, CONTENTS: contents} if CONTENTS in record.metadata else record.metadata
        return dataclasses.replace(record, metadata=metadata, **whole)

    @property
    def note(self) -> str:
        """What was left, "" if nothing was."""
        beginning = f"{self.left:,} documents have text that is encoded twice in part"
        return f"{beginning} and was left as it is, {self.first!r} first" if self.left else ""
