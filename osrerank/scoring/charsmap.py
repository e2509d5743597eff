"""Normalise texts as sentencepiece does: by a model's precompiled map of characters, the longest sequence first.

`tokenizers` has a normaliser for such a map, too, but it asks the map once for each grapheme of up to five bytes, takes
the shortest sequence that the map has, and drops the rest; longer graphemes it reads character by character. A letter
with two combining marks loses one, and Hangul in single letters is not composed.
"""

import base64
import json
import struct
from array import array
from typing import Self

from tokenizers import Tokenizer, normalizers

MOST_PAIRS = 1 << 16
"""Of how many pairs of characters the target is kept, because the trie is read byte by byte."""


class CharacterMap:
    """A map from sequences of characters to what stands for them, as sentencepiece compiles it.

    Args:
        compiled: the size of a trie in bytes, a uint32; the trie, a Darts double array of UTF-8; the targets, each with
            a NUL at its end.
    """

    def __init__(self, compiled: bytes) -> None:
        (size,) = struct.unpack_from("<I", compiled)
        self._trie = array("I", compiled[4 : 4 + size])
        self._targets = compiled[4 + size :]
        self._pairs: dict[str, tuple[str, int]] = {}

    @classmethod
    def taken_from(cls, tokenizer: Tokenizer) -> Self:
        """Return the map of a tokenizer's normaliser, which the tokenizer then no longer has.

        Raises:
            ValueError: it has none.
        """
        normalizer = tokenizer.normalizer
        state = {} if normalizer is None else json.loads(normalizer.__getstate__())
        if state.get("type") != "Precompiled":
            raise ValueError("the card's normalization is sentencepiece, and the normalizer is not Precompiled")
        tokenizer.normalizer = normalizers.Sequence([])
        return cls(base64.b64decode(state["precompiled_charsmap"]))

    def normalised(self, text: str) -> tuple[str, list[int]]:
        """Return a text's normal form, and for each of its characters where the characters begin that it stands for.

        Spaces at both ends are left out, and so are those behind another.
        """
        parts: list[str] = []
        begins: list[int] = []
        at, is_behind_space = 0, True
        while at < len(text):
            target, length = self._pairs.get(text[at : at + 2]) or self._longest(text, at)
            if is_behind_space:
                target = target.lstrip(" ")
            if target:
                parts.append(target)
                begins += [at] * len(target)
                is_behind_space = target.endswith(" ")
            at += length
        return "".join(parts).rstrip(" "), begins

    def _longest(self, text: str, start: int) -> tuple[str, int]:
        """Return the target of the longest sequence that begins here, and the sequence's length in characters."""
        trie, node = self._trie, _children(self._trie[0])
        target, length, end = text[start], 1, start
        while end < len(text):
            for byte in text[end].encode():
                node ^= byte
                unit = trie[node]
                if unit & 0x800000FF != byte:  # no sequence goes on like this
                    if end < start + 2 and len(self._pairs) < MOST_PAIRS:
                        self._pairs[text[start : start + 2]] = target, length
                    return target, length
                node ^= _children(unit)
            end += 1
            if unit >> 8 & 1:  # a sequence ends here
                target, length = self._text(trie[node] & 0x7FFFFFFF), end - start
        return target, length

    def _text(self, start: int) -> str:
        return self._targets[start : self._targets.index(b"\0", start)].decode()


def _children(unit: int) -> int:
    """Return where a unit's children are, relative to it."""
    return unit >> 10 << ((unit & 0x200) >> 6)
