"""Turn text into words and words into index terms, as Lucene's analyzers do.

A tokenizer finds words; every filter maps one word to one term or drops it. So a whole chain is one function of a word,
and its results are cached. The standard tokenizer follows Unicode Standard Annex 29 with Lucene's additions: a Han or
Hiragana character is a word of its own, a run of a script without spaces is one word, an emoji sequence is one word.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import Stemmer
import tantivy

GAP = "\x00"
"""Placeholder for a word that a filter dropped: it keeps the word's position."""
MAX_TOKEN_CHARS = 255
STOP_WORDS = frozenset(
    ["a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
     "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with"]
)  # fmt: skip
"""Lucene's 33 English stop words."""

_EXTEND = r"[\p{wb=Extend}\p{wb=Format}\p{wb=ZWJ}]*"
# The scripts of line break class SA.
_SPACELESS = "".join(
    rf"\p{{sc={script}}}"
    for script in ("Thai", "Lao", "Khmer", "Myanmar", "Tai_Le", "New_Tai_Lue", "Tai_Tham", "Tai_Viet", "Ahom")
)
_ASCII = re.compile(r"\w+(?:(?:(?<=[A-Za-z])[.':](?=[A-Za-z])|(?<=[0-9])[.',;](?=[0-9]))\w+)*", re.ASCII)
_WHITESPACE = re.compile(r"[^\s\x1c-\x1f]+")
_POSSESSIVE = ("'s", "'S", "\u2019s", "\u2019S", "\uff07s", "\uff07S")


def _uax29() -> str:
    """Return the standard tokenizer as one expression for Rust's regex crate, which has the word-break classes."""

    def unit(characters: str) -> str:
        return f"(?:{characters}{_EXTEND})"

    join = unit(r"\p{wb=ExtendNumLet}")
    letter = unit(r"[\p{wb=ALetter}\p{wb=Hebrew_Letter}]")
    hebrew = unit(r"\p{wb=Hebrew_Letter}")
    digit = unit(r"[\p{wb=Numeric}\x{FF10}-\x{FF19}]")
    katakana = unit(r"\p{wb=Katakana}")
    # The colon left the class MidLetter in Unicode 15.1; Lucene's tokenizer is of Unicode 12.1.
    mid_letter = unit(r"[\p{wb=MidLetter}:\p{wb=MidNumLet}\p{wb=Single_Quote}]")
    mid_digit = unit(r"[\p{wb=MidNum}\p{wb=MidNumLet}\p{wb=Single_Quote}]")
    number = f"{digit}(?:{join}*{digit}|{mid_digit}{digit})*"
    hebrew_word = rf"{hebrew}+(?:{unit(chr(34))}{hebrew}|')"
    word = f"{letter}(?:{join}*{letter}|{mid_letter}{letter})*"
    core = f"(?:{katakana}(?:{join}*{katakana})*|(?:{hebrew_word}|{number}|{word})+)"
    picture = r"\p{Extended_Pictographic}"
    pictograph = rf"{picture}(?:[\p{{wb=Extend}}\p{{wb=Format}}]*\x{{200D}}{picture})*{_EXTEND}"
    return "|".join(
        [
            r"[0-9#*]\x{FE0F}?\x{20E3}",
            rf"\p{{wb=Regional_Indicator}}{{2}}{_EXTEND}",
            f"{join}*{core}(?:{join}+{core})*{join}*",
            pictograph,
            rf"(?:[[{_SPACELESS}]&&[\p{{L}}\p{{M}}]]{_EXTEND})+",
            rf"\p{{sc=Han}}{_EXTEND}",
            rf"\p{{sc=Hiragana}}{_EXTEND}",
        ]
    )


class Token(NamedTuple):
    """A term of a text with its position among the words and the characters."""

    term: str
    position: int
    start: int
    end: int


@lru_cache(maxsize=1)
def _unicode_tokenizer() -> tantivy.TextAnalyzer:
    return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(_uax29())).build()


def standard_words(text: str) -> list[str]:
    """Return the words of a text by Lucene's standard tokenizer."""
    if text.isascii():  # nine times as fast as the general expression
        words = _ASCII.findall(text)
        if "_" in text:
            words = [word for word in words if word.strip("_")]
    else:
        words = _unicode_tokenizer().analyze(text)
    return _cut(words, standard_words) if len(text) > MAX_TOKEN_CHARS else words


def _cut(words: list[str], tokenizer: Callable[[str], list[str]]) -> list[str]:
    """Cut words that are too long for Lucene's tokens; the rest is tokenised again."""
    if max(map(len, words), default=0) <= MAX_TOKEN_CHARS:
        return words
    return [token for word in words for token in _split_long(word, tokenizer)]


def _split_long(word: str, tokenizer: Callable[[str], list[str]]) -> list[str]:
    tokens = []
    while len(word) > MAX_TOKEN_CHARS:
        head = word[:MAX_TOKEN_CHARS].rstrip(".,:;'")
        tokens.append(head)
        word = word[len(head) :].lstrip(".,:;'")
    return [*tokens, *tokenizer(word)]


def whitespace_words(text: str) -> list[str]:
    """Split a text at white space."""
    return _cut(_WHITESPACE.findall(text), whitespace_words)


def lowercase(word: str) -> str:
    """Lower-case each character by itself, as Java does: no final sigma, no combining dot."""
    if "\u0130" in word or "\u03a3" in word:
        word = word.replace("\u0130", "i").replace("\u03a3", "\u03c3")
    return word.lower()


def possessive(word: str) -> str:
    """Remove a final 's."""
    return word[:-2] if word.endswith(_POSSESSIVE) else word


def porter(word: str) -> str:
    """Stem as Lucene's PorterStemmer does: Porter (1980) with its author's two later rules, -bli and -logi.

    PyStemmer's ``porter`` is the published algorithm, so the two rules are applied to its result.
    """
    if len(word) <= 2:
        return word
    stem: str = _published_porter().stemWord(word)
    if stem.endswith("logi") and _measure(stem[:-4]):
        return stem[:-1]
    if stem.endswith("bli") and _measure(stem[:-3]):
        return str(_published_porter().stemWord(stem[:-1] + "e"))
    return stem


@lru_cache(maxsize=1)
def _published_porter() -> Stemmer.Stemmer:
    return Stemmer.Stemmer("porter", 0)


def _measure(stem: str) -> int:
    """Count vowel-consonant changes, Porter's m."""
    shape = ""
    for letter in stem:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape.count("vc")


@dataclass(frozen=True, slots=True)
class Analyzer:
    """A tokenizer and its filters, as one chain.

    Attributes:
        words: finds the words of a text.
        term: maps a word to its term, or to ``GAP``; its results are cached.
    """

    words: Callable[[str], list[str]]
    term: Callable[[str], str]

    def terms(self, text: str) -> list[str]:
        """Return the terms in order, ``GAP`` where a word was dropped."""
        return list(map(self.term, self.words(text)))

    def tokens(self, text: str) -> list[Token]:
        """Return the terms with their positions; character offsets count code points."""
        tokens = []
        offset = 0
        for position, word in enumerate(self.words(text)):
            offset = text.index(word, offset)
            if (term := self.term(word)) != GAP:
                tokens.append(Token(term, position, offset, offset + len(word)))
            offset += len(word)
        return tokens


def chain(words: Callable[[str], list[str]], filters: Sequence[Callable[[str], str]]) -> Analyzer:
    """Return the analyzer of a tokenizer and its filters, in order."""

    @lru_cache(maxsize=200_000)  # a word's letters and its term: about 30 MB when full
    def term(word: str) -> str:
        for step in filters:
            if word == GAP:
                return GAP
            word = step(word)
        return word

    return Analyzer(words, term)
