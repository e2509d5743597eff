"""Split text into words and turn words into index terms, as Lucene's analyzers do.

An analyzer has a tokenizer, which splits a text into words, and filters, which change words or drop them. The terms of
frequent words are cached. The standard tokenizer follows Unicode Standard Annex 29 with Lucene's additions: each Han or
Hiragana character and each emoji is a word, and so is a run of letters in a script without spaces.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import Stemmer
import tantivy

GAP = "\x00"
"""The placeholder for a word that a filter has dropped, so that positions count it: "the tea" -> ``[GAP, "tea"]``."""
MAX_TOKEN_CHARS = 255
"""The maximum length of a word. Longer words are split, as in Lucene."""
STOP_WORDS = frozenset(
    ["a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
     "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with"]
)  # fmt: skip
"""Lucene's 33 English stop words."""

_ACCENTS = r"[\p{wb=Extend}\p{wb=Format}\p{wb=ZWJ}]*"
"""Any number of accents and other characters that belong to the character before them."""
_SPACELESS = "".join(
    rf"\p{{sc={script}}}"
    for script in ("Thai", "Lao", "Khmer", "Myanmar", "Tai_Le", "New_Tai_Lue", "Tai_Tham", "Tai_Viet", "Ahom")
)
"""The characters of scripts without spaces between words (Unicode's line break class SA)."""
_ASCII_WORD = re.compile(r"\w+(?:(?:(?<=[A-Za-z])[.':](?=[A-Za-z])|(?<=[0-9])[.',;](?=[0-9]))\w+)*", re.ASCII)
"""Matches a word in ASCII, such as ``it's``, ``example.org`` or ``1,024.5``."""
_POSSESSIVES = ("'s", "'S", "\u2019s", "\u2019S", "\uff07s", "\uff07S")  # straight, curly and full-width


def _standard_pattern() -> str:
    """Return the pattern of the standard tokenizer for Rust's regex crate, which has Unicode's word-break classes."""

    def with_accents(characters: str) -> str:
        """Return the pattern of one of the characters, and any accents after it."""
        return f"(?:{characters}{_ACCENTS})"

    connector = with_accents(r"\p{wb=ExtendNumLet}")  # such as an underscore
    letter = with_accents(r"[\p{wb=ALetter}\p{wb=Hebrew_Letter}]")
    hebrew = with_accents(r"\p{wb=Hebrew_Letter}")
    digit = with_accents(r"[\p{wb=Numeric}\x{FF10}-\x{FF19}]")  # with full-width digits
    katakana = with_accents(r"\p{wb=Katakana}")
    # The colon left the class MidLetter in Unicode 15.1, but Lucene's tokenizer follows Unicode 12.1.
    mid_letter = with_accents(r"[\p{wb=MidLetter}:\p{wb=MidNumLet}\p{wb=Single_Quote}]")
    mid_digit = with_accents(r"[\p{wb=MidNum}\p{wb=MidNumLet}\p{wb=Single_Quote}]")
    number = f"{digit}(?:{connector}*{digit}|{mid_digit}{digit})*"
    double_quote = with_accents('"')
    hebrew_word = f"{hebrew}+(?:{double_quote}{hebrew}|')"  # an acronym, or letters and an apostrophe
    word = f"{letter}(?:{connector}*{letter}|{mid_letter}{letter})*"
    core = f"(?:{katakana}(?:{connector}*{katakana})*|(?:{hebrew_word}|{number}|{word})+)"
    emoji_part = r"\p{Extended_Pictographic}"  # several are joined by U+200D
    emoji = rf"{emoji_part}(?:[\p{{wb=Extend}}\p{{wb=Format}}]*\x{{200D}}{emoji_part})*{_ACCENTS}"
    return "|".join(
        [
            r"[0-9#*]\x{FE0F}?\x{20E3}",  # a keycap emoji
            rf"\p{{wb=Regional_Indicator}}{{2}}{_ACCENTS}",  # a flag
            f"{connector}*{core}(?:{connector}+{core})*{connector}*",  # a word or number, such as snake_case or 1,024.5
            emoji,  # another emoji
            rf"(?:[[{_SPACELESS}]&&[\p{{L}}\p{{M}}]]{_ACCENTS})+",  # a run of letters in a script without spaces
            rf"\p{{sc=Han}}{_ACCENTS}",  # a Chinese character
            rf"\p{{sc=Hiragana}}{_ACCENTS}",  # a Japanese syllable
        ]
    )


class Token(NamedTuple):
    """A term, the number of words before it, and the start and end of its word in the text, in characters.

    The second word of "hot teas" is ``Token("tea", position=1, start=4, end=8)``.
    """

    term: str
    position: int
    start: int
    end: int


@lru_cache(maxsize=1)
def _unicode_tokenizer() -> tantivy.TextAnalyzer:
    return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(_standard_pattern())).build()


def split_standard(text: str) -> list[str]:
    """Split a text as Lucene's standard tokenizer does."""
    if text.isascii():  # this pattern is nine times as fast as the general one
        words = _ASCII_WORD.findall(text)
        if "_" in text:
            words = [word for word in words if word.strip("_")]  # underscores alone are no word
    else:
        words = _unicode_tokenizer().analyze(text)
    return _split_long_words(words, split_standard) if len(text) > MAX_TOKEN_CHARS else words


def _split_long_words(words: list[str], tokenizer: Callable[[str], list[str]]) -> list[str]:
    """Split words that are longer than `MAX_TOKEN_CHARS`. Like Lucene, tokenise the rest of such a word again."""
    if max(map(len, words), default=0) <= MAX_TOKEN_CHARS:
        return words
    return [token for word in words for token in _split_long_word(word, tokenizer)]


def _split_long_word(word: str, tokenizer: Callable[[str], list[str]]) -> list[str]:
    inner_punctuation = ".,:;'"  # occurs inside a word, but not at its beginning or end
    heads = []
    while len(word) > MAX_TOKEN_CHARS:
        head = word[:MAX_TOKEN_CHARS].rstrip(inner_punctuation)
        heads.append(head)
        word = word[len(head) :].lstrip(inner_punctuation)
    return [*heads, *tokenizer(word)]


def split_whitespace(text: str) -> list[str]:
    """Split a text at white space."""
    return _split_long_words(text.split(), split_whitespace)


def lowercase(word: str) -> str:
    """Lower-case each character separately, as Java does. Python's ``lower`` makes ς of a final Σ, and two of İ."""
    if "\u0130" in word or "\u03a3" in word:
        word = word.replace("\u0130", "i").replace("\u03a3", "\u03c3")
    return word.lower()


def strip_possessive(word: str) -> str:
    """Remove a final 's."""
    return word[:-2] if word.endswith(_POSSESSIVES) else word


def replace_stop_word(word: str) -> str:
    """Return `GAP` for a stop word, and another word unchanged."""
    return GAP if word in STOP_WORDS else word


def stem_porter(word: str) -> str:
    """Stem a word as Lucene's PorterStemmer does: by Porter's algorithm of 1980 and his two later rules.

    The later rules turn -bli into -ble, and -logi into -log. PyStemmer's ``porter`` lacks them, so they are applied to
    its result.
    """
    if len(word) <= 2:
        return word
    stem: str = _published_porter().stemWord(word)
    if stem.endswith("logi") and _measure(stem[:-4]) > 0:
        return stem[:-1]
    if stem.endswith("bli") and _measure(stem[:-3]) > 0:
        return str(_published_porter().stemWord(stem[:-1] + "e"))  # -bli became -ble, which the later steps may shorten
    return stem


@lru_cache(maxsize=1)
def _published_porter() -> Stemmer.Stemmer:
    return Stemmer.Stemmer("porter", 0)


def _measure(stem: str) -> int:
    """Return Porter's m, the number of vowel runs that a consonant run follows: 2 for "oaten" (oa-t, e-n)."""
    shape = ""
    for letter in stem:
        is_vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if is_vowel else "c"
    return shape.count("vc")


@dataclass(frozen=True, slots=True)
class Analyzer:
    """A tokenizer and its filters.

    Attributes:
        split_text: the tokenizer, which returns the words of a text.
        filter_word: the filters, which turn a word into its term, or into `GAP` if they drop it.
    """

    split_text: Callable[[str], list[str]]
    filter_word: Callable[[str], str]

    def terms(self, text: str) -> list[str]:
        """Return the term of each word of a text, or `GAP` for a dropped word."""
        return list(map(self.filter_word, self.split_text(text)))

    def tokens(self, text: str) -> list[Token]:
        """Return the terms of a text with their positions and offsets, without dropped words."""
        tokens = []
        offset = 0
        for position, word in enumerate(self.split_text(text)):
            offset = text.index(word, offset)
            term = self.filter_word(word)
            if term != GAP:
                tokens.append(Token(term, position, offset, offset + len(word)))
            offset += len(word)
        return tokens


def build_analyzer(split_text: Callable[[str], list[str]], filters: Sequence[Callable[[str], str]]) -> Analyzer:
    """Return an analyzer that applies the filters in order, and caches each word's term."""

    @lru_cache(maxsize=200_000)  # a full cache takes about 30 MB
    def filter_word(word: str) -> str:
        for apply_filter in filters:
            if word == GAP:
                return GAP
            word = apply_filter(word)
        return word

    return Analyzer(split_text, filter_word)
