"""Repair double-encoded UTF-8, as in version 1 of MS MARCO, where some "é" became "Ã©".

Such texts were encoded in UTF-8, decoded as Windows-1252 and encoded in UTF-8 again: the two bytes of "é" were read as
the two characters "Ã" and "©". Repair is off by default, because published runs and models used the unrepaired texts.
A text can mix correct and double-encoded characters. If some cannot be decoded, the whole text stays unchanged.
"""

import dataclasses
import re

from osrerank.errors import FormatError
from osrerank_loaders.collections.base import CONTENTS, Record

_BYTE_BY_CHARACTER = {bytes([byte]).decode("cp1252", "ignore") or chr(byte): byte for byte in range(0x80, 0xA0)}
"""The bytes 0x80 to 0x9F by their Windows-1252 characters, such as ``{"€": 0x80}``.

Five of these bytes have no character in Windows-1252. They are read as the control characters with the same numbers.
Bytes from 0xA0 on have the same numbers as their characters.
"""
# Patterns of characters whose Windows-1252 bytes are a UTF-8 character: a first byte, and one to three other bytes.
_OTHER_BYTE = f"[\x80-\xbf{''.join(_BYTE_BY_CHARACTER)}]"
_SUSPECT = f"(?:[\xc2-\xdf]{_OTHER_BYTE}|[\xe0-\xef]{_OTHER_BYTE}{{2}}|[\xf0-\xf4]{_OTHER_BYTE}{{3}})"
_SUSPECTS = re.compile(f"{_SUSPECT}+")
"""Matches what may be double-encoded characters, such as "Ã©"."""
_DOUBLE_ENCODED = re.compile(f"[\x80-\x9f]|[\xc2\xc3][\xa0-\xbf]|[\xe0-\xf4]{_OTHER_BYTE}{{2}}|{_SUSPECT}{{2}}")
"""Matches suspects that never occur in correct text: with a control character, with "Â" or "Ã" before a symbol, or with
more than two characters. A single pair such as "É»" is not matched, because it occurs in "«CAFÉ»"."""
_CONTROL = re.compile("[\x80-\x9f]")
"""Matches control characters, which correct text does not contain."""


def repair(text: str) -> str | None:
    """Decode the double-encoded characters of a text: "cafÃ©s" -> "cafés". Return None if some cannot be decoded."""
    if text.isascii():
        return text
    pieces: list[str] = []
    repaired_end = 0
    for match in _SUSPECTS.finditer(text):
        suspects = match.group()
        is_double_encoded = _DOUBLE_ENCODED.search(suspects) is not None
        neighbours = (text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1])
        touches_non_ascii_letter = any(character.isalpha() and not character.isascii() for character in neighbours)
        touches_non_latin_1 = any(character > "\xff" for character in neighbours)
        # such a letter may be the rest of a damaged double-encoded character
        if touches_non_ascii_letter and (is_double_encoded or touches_non_latin_1):
            return None
        if not is_double_encoded:
            continue
        unchanged = text[repaired_end : match.start()]
        try:
            repaired = bytes(_BYTE_BY_CHARACTER.get(character, ord(character)) for character in suspects).decode()
        except UnicodeDecodeError:
            return None
        if _CONTROL.search(unchanged):  # the rest of a damaged character
            return None
        pieces += [unchanged, repaired]
        repaired_end = match.end()
    unchanged = text[repaired_end:]
    return None if _CONTROL.search(unchanged) else "".join([*pieces, unchanged])


class EncodingRepair:
    """Repairs the texts of documents.

    Attributes:
        n_unrepaired: the number of documents with a text that is unchanged, because it cannot be repaired completely.
        first_unrepaired: the id of the first of these documents, or "" if there are none.
    """

    def __init__(self) -> None:
        self.n_unrepaired = 0
        self.first_unrepaired = ""

    def __call__(self, record: Record) -> Record:
        """Repair a document's text, title and contents. A `FormatError` is returned as it is."""
        if isinstance(record, FormatError):
            return record
        texts = (record.text, record.title, record.metadata.get(CONTENTS, ""))
        repaired_texts = [repair(text) for text in texts]
        if None in repaired_texts:
            self.n_unrepaired += 1
            self.first_unrepaired = self.first_unrepaired or record.doc_id
        text, title, contents = (
            original if repaired is None else repaired for original, repaired in zip(texts, repaired_texts, strict=True)
        )
        metadata = record.metadata
        if CONTENTS in metadata:
            metadata = {**metadata, CONTENTS: contents}
        return dataclasses.replace(record, text=text, title=title, metadata=metadata)

    @property
    def note(self) -> str:
        """A sentence about the unrepaired texts, for the user, or "" if all texts were repaired."""
        if not self.n_unrepaired:
            return ""
        return (
            f"{self.n_unrepaired:,} documents contain double-encoded text that cannot be repaired completely, so it is "
            f"unchanged (the first is {self.first_unrepaired!r})"
        )
