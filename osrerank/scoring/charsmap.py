"""Normalise texts as sentencepiece does: by a model's precompiled map of characters, the longest sequence first.

`tokenizers` has a normaliser for such a map, too, but its results differ. For a grapheme of up to five bytes, it uses
the shortest sequence in the map, and drops the other characters. Longer graphemes are replaced character by character.
So a letter with two combining marks loses one mark, and Hangul in single letters is not composed.
"""

import base64
import json
import struct
from array import array
from typing import Self

from tokenizers import Tokenizer, normalizers

MAX_PAIRS = 1 << 16
"""The maximum number of cached character pairs. A lookup in the trie instead takes a step for each byte."""


class CharacterMap:
    """A map from sequences of characters to their replacements, as sentencepiece compiles it.

    Args:
        compiled: the size of the trie in bytes, a uint32; the trie, a Darts double array of UTF-8; the replacements,
            each with a NUL at its end.
    """

    def __init__(self, compiled: bytes) -> None:
        (size,) = struct.unpack_from("<I", compiled)
        self._trie = array("I", compiled[4 : 4 + size])
        self._replacements = compiled[4 + size :]
        self._pairs: dict[str, tuple[str, int]] = {}

    @classmethod
    def take_from(cls, tokenizer: Tokenizer) -> Self:
        """Return the map of a tokenizer's normaliser, and remove the normaliser from the tokenizer.

        Raises:
            ValueError: the tokenizer's normaliser is not such a map.
        """
        normalizer = tokenizer.normalizer
        state = {} if normalizer is None else json.loads(normalizer.__getstate__())
        if state.get("type") != "Precompiled":
            raise ValueError("the card's normalization is sentencepiece, and the normalizer is not Precompiled")
        tokenizer.normalizer = normalizers.Sequence([])
        return cls(base64.b64decode(state["precompiled_charsmap"]))

    def normalise(self, text: str) -> tuple[str, list[int]]:
        """Return a text's normal form, and for each of its characters, the start of the sequence that it replaces.

        Spaces at both ends are left out; several spaces in a row become one.
        """
        normalised: list[str] = []
        starts: list[int] = []
        start, is_behind_space = 0, True
        while start < len(text):
            replacement, length = self._pairs.get(text[start : start + 2]) or self._longest(text, start)
            if is_behind_space:
                replacement = replacement.lstrip(" ")
            if replacement:
                normalised.append(replacement)
                starts += [start] * len(replacement)
                is_behind_space = replacement.endswith(" ")
            start += length
        return "".join(normalised).rstrip(" "), starts

    def _longest(self, text: str, start: int) -> tuple[str, int]:
        """Return the replacement of the longest sequence at ``start``, and that sequence's length in characters."""
        trie, node = self._trie, _children(self._trie[0])
        replacement, length, end = text[start], 1, start
        while end < len(text):
            for byte in text[end].encode():
                node ^= byte
                unit = trie[node]
                if unit & 0x800000FF != byte:  # the trie has no longer sequence
                    if end < start + 2 and len(self._pairs) < MAX_PAIRS:
                        self._pairs[text[start : start + 2]] = replacement, length
                    return replacement, length
                node ^= _children(unit)
            end += 1
            if unit >> 8 & 1:  # a sequence ends here
                replacement, length = self._replacement(trie[node] & 0x7FFFFFFF), end - start
        return replacement, length

    def _replacement(self, start: int) -> str:
        return self._replacements[start : self._replacements.index(b"\0", start)].decode()


def _children(unit: int) -> int:
    """Return the offset of a unit's children, relative to the unit."""
    return unit >> 10 << ((unit & 0x200) >> 6)
