"""Texts are normalised as sentencepiece does.

``tests/data/charsmap/tiny.bin`` is a map that sentencepiece 0.2.1 compiled of a few rules: white space, letters with
combining marks, Hangul, ligatures. What each text must give is what sentencepiece gave for it.
"""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers

from osrerank.scoring.charsmap import CharacterMap

COMPILED = (Path(__file__).parents[2] / "data/charsmap/tiny.bin").read_bytes()


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("plain text", "plain text"),
        ("  a \t b\u3000", "a b"),
        ("a\u200b b", "a b"),
        ("\u200b", ""),
        ("", ""),
        ("e\u0301", "\u00e9"),
        ("e\u0323\u0302x", "\u1ec7x"),
        ("e\u0323\u0301", "\u1eb9\u0301"),
        ("\ufb01\u0301n", "fi\u0301n"),
        ("\u1112\u1161\u11ab\u1112\u1161", "\ud55c\ud558"),
        ("\uff25\u200be\u0301 \u3392", "E\u00e9 MHz"),
    ],
)
def test_a_text_gets_the_normal_form_that_sentencepiece_gives_it(text: str, normal: str) -> None:
    characters = CharacterMap(COMPILED)
    assert characters.normalise(text)[0] == normal
    assert characters.normalise(text)[0] == normal, "the second time, from what is kept"


def test_each_normalised_character_keeps_its_source_offset() -> None:
    text = " \ufb01\t e\u0301\u3392"
    normal, begins = CharacterMap(COMPILED).normalise(text)
    assert normal == "fi \u00e9MHz"
    assert [text[begin] for begin in begins] == ["\ufb01", "\ufb01", "\t", "e", "\u3392", "\u3392", "\u3392"]


def test_the_character_map_is_read_from_a_tokenizers_normaliser() -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("\u1eb9\u0301", -1.0)], unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.Precompiled(COMPILED)
    characters = CharacterMap.pop_from(tokenizer)
    assert characters.normalise("e\u0323\u0301")[0] == "\u1eb9\u0301"
    assert json.loads(tokenizer.to_str())["normalizer"] == {"type": "Sequence", "normalizers": []}


def test_a_tokenizer_without_a_map_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json has no normalizer of the type Precompiled"):
        CharacterMap.pop_from(Tokenizer(models.Unigram([("<unk>", 0.0)], unk_id=0, byte_fallback=False)))
