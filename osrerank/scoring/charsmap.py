"""Normalise texts as sentencepiece does, by a model's precompiled character map: the longest match is replaced first.

The normaliser of `tokenizers` gives other results. In a grapheme of up to five bytes, it replaces the shortest match
and drops the other characters. It replaces longer graphemes character by character. For example, a letter with two
combining marks loses one of them, and decomposed Hangul is not composed.
"""

import base64
import json
import struct
from array import array
from typing import Self

from tokenizers import Tokenizer, normalizers

MAX_CACHED_PAIRS = 1 << 16
"""Maximum number of character pairs whose replacements are cached, because a lookup in the trie is slow."""


class CharacterMap:
    """A map from character sequences to their replacements, in sentencepiece's compiled format.

    Each node of the trie is a uint32: bits 0 to 7 are the byte that leads to it, bit 8 says whether a match ends there,
    and bits 10 to 30 are the offset of its children, divided by 256 if bit 9 is set. A match's value has bit 31 set.
    Its other bits are the position of the replacement.

    Args:
        compiled: the compiled map: the size of the trie in bytes as a uint32; the trie, a double array (Darts) over
            UTF-8 bytes; the replacements, each of which ends with a NUL.
    """

    def __init__(self, compiled: bytes) -> None:
        (size,) = struct.unpack_from("<I", compiled)
        self._trie = array("I", compiled[4 : 4 + size])
        self._replacements = compiled[4 + size :]
        self._cached_pairs: dict[str, tuple[str, int]] = {}  # two characters -> result of `_find_longest` at the first

    @classmethod
    def pop_from(cls, tokenizer: Tokenizer) -> Self:
        """Remove the normaliser of a tokenizer, and return its character map.

        Raises:
            ValueError: the tokenizer's normaliser does not contain a character map.
        """
        normalizer = tokenizer.normalizer
        state = {} if normalizer is None else json.loads(normalizer.__getstate__())
        if state.get("type") != "Precompiled":
            raise ValueError(
                "tokenizer.json has no normalizer of the type Precompiled, which the card's normalization "
                "(sentencepiece) needs: export the model again, or delete the line normalization from the card"
            )
        tokenizer.normalizer = normalizers.Sequence([])
        return cls(base64.b64decode(state["precompiled_charsmap"]))

    def normalise(self, text: str) -> tuple[str, list[int]]:
        """Return the normal form of a text, and for each of its characters the index of the original in the text.

        For example, the ligature in "\ufb01x" is replaced by two letters, which gives ("fix", [0, 0, 1]).
        Leading and trailing spaces are removed, and repeated spaces become one.
        """
        replacements: list[str] = []
        origins: list[int] = []
        start = 0
        is_after_space = True
        while start < len(text):
            replacement, length = self._cached_pairs.get(text[start : start + 2]) or self._find_longest(text, start)
            if is_after_space:
                replacement = replacement.lstrip(" ")
            if replacement:
                replacements.append(replacement)
                origins += [start] * len(replacement)
                is_after_space = replacement.endswith(" ")
            start += length
        return "".join(replacements).rstrip(" "), origins

    def _find_longest(self, text: str, start: int) -> tuple[str, int]:
        """Return the replacement of the longest match at ``start``, and the match's length in characters."""
        trie = self._trie
        node = _child_offset(trie[0])
        replacement, length = text[start], 1
        end = start
        while end < len(text):
            for byte in text[end].encode():
                node ^= byte
                unit = trie[node]
                if unit & 0x800000FF != byte:  # another byte or a value: the trie contains no longer match
                    if end < start + 2 and len(self._cached_pairs) < MAX_CACHED_PAIRS:
                        self._cached_pairs[text[start : start + 2]] = replacement, length
                    return replacement, length
                node ^= _child_offset(unit)
            end += 1
            if unit >> 8 & 1:  # a match ends here
                replacement, length = self._read_replacement(trie[node] & 0x7FFFFFFF), end - start
        return replacement, length

    def _read_replacement(self, start: int) -> str:
        """Return the replacement at a position in the compiled replacements: the text up to the next NUL."""
        return self._replacements[start : self._replacements.index(b"\0", start)].decode()


def _child_offset(unit: int) -> int:
    """Return the offset of a trie unit's children, relative to the unit."""
    offset = unit >> 10
    return offset << 8 if unit & 0x200 else offset
