"""Highlight the words of a hit that the query matched, like OpenSearch's unified highlighter.

Each text is divided into passages. The best passages are returned as fragments, which is OpenSearch's name for passages
with tags around the matching words, such as ``A cup of <em>tea</em>.``
"""

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from osrerank.embedded.analysis.tokens import Token
from osrerank.embedded.errors import (
    Json,
    argument_error,
    parse_count,
    reject_unknown_keys,
    require_object,
    require_string,
    unsupported_error,
)
from osrerank.embedded.mapping.fields import Field, iterate_values
from osrerank.embedded.query.clauses import K1, B
from osrerank.embedded.storage.index import Snapshot

_OPTIONS = frozenset({"pre_tags", "post_tags", "number_of_fragments"})
MAX_CHARACTERS = 1_000_000
"""The maximum length of a text to highlight. A longer text is an error (``index.highlight.max_analyzed_offset``)."""
PASSAGE_CHARACTERS = 100
"""The maximum length of a passage. If it would end inside a word, the passage is longer, up to the end of the word."""
AVERAGE_PASSAGE_CHARACTERS = 87
"""The average length of a passage according to Lucene's PassageScorer, which calls it the pivot."""
# The following expressions find sentences and words nearly as Java's BreakIterator does.
_CLOSING_MARKS = r"""["')\]}\u2019\u201d]*"""
_SENTENCE = re.compile(
    rf"""(?s:.*?)(?:
        \.+{_CLOSING_MARKS}\s+(?=["'(\[{{\u201c\u2018]*[^\W_a-z0-9])  # full stop and spaces before a capital letter
        |[.!?]*[!?]+{_CLOSING_MARKS}\s*  # exclamation or question mark
        |\Z)""",
    re.VERBOSE,
)
_WORD = re.compile(r"\w+(?:['.-]\w+)*|\s|.", re.DOTALL)


class Highlighter:
    """Highlights the terms of a query in the hits of one index.

    Args:
        body: the request's ``highlight`` object.
        snapshot: the index.
        terms: the query's terms in each field, such as ``{"title": {"tea"}}``.
    """

    def __init__(self, body: Json, snapshot: Snapshot, terms: Mapping[str, set[str]]) -> None:
        reject_unknown_keys("highlight", require_object(body, "highlight"), _OPTIONS | {"fields"})
        self._snapshot = snapshot
        self._terms = terms
        common_options = {key: value for key, value in body.items() if key != "fields"}
        self._fields: dict[str, tuple[Field, Json]] = {}
        for pattern, options in require_object(body.get("fields", {}), "highlight.fields").items():
            reject_unknown_keys(
                f"highlight of {pattern}", require_object(options, f"highlight.fields.{pattern}"), _OPTIONS
            )
            for field in snapshot.fields.find(pattern):
                if field.column in ("text", "keyword"):  # numbers and dates are not highlighted
                    self._fields[field.path] = (field, {**common_options, **options})

    def highlight(self, source: Json) -> dict[str, list[str]]:
        """Return the fragments of each field with a matching word: ``{"title": ["Green <em>tea</em>"]}``."""
        highlights = {}
        for field, options in self._fields.values():
            terms = self._terms.get(field.path, set())
            if not terms:
                continue
            values = [value for path, value in iterate_values(source) if path == field.source_path]
            texts = [text for value in values if (text := field.convert(value)) is not None]  # None: not indexed
            fragments = self._build_fragments(field, options, texts, terms)
            if fragments:
                highlights[field.path] = fragments
        return highlights

    def _build_fragments(self, field: Field, options: Json, texts: list[str], terms: set[str]) -> list[str]:
        """Return the best fragments of a field's texts, in the order of the texts."""
        pre_tag = _read_tag(options, "pre_tags", "<em>")
        post_tag = _read_tag(options, "post_tags", "</em>")
        limit = parse_count(options.get("number_of_fragments", 5), "highlight.number_of_fragments")
        fragments: list[str] = []
        scores: list[float] = []  # of the fragments
        total_length = sum(map(len, texts)) + len(texts) - 1  # the texts count as joined by a separator
        matches_by_text = [[token for token in self._analyse(field, text) if token.term in terms] for text in texts]
        term_counts = Counter(token.term for tokens in matches_by_text for token in tokens)
        text_start = 0
        for text, tokens in zip(texts, matches_by_text, strict=True):
            passages = _find_passages(text, tokens)
            if tokens and limit == 0:  # 0 means whole texts
                passages = iter([_Passage(0, len(text), tokens)])
            for passage in passages:
                score = _score_passage(passage, term_counts, total_length, text_start + passage.start)
                scores.append(score)
                fragments.append(_insert_tags(text, passage, pre_tag, post_tag))
            text_start += len(text) + 1
        best_first = sorted(range(len(scores)), key=lambda index: -scores[index])
        best = best_first[: limit or None]  # the limit 0 keeps all
        return [fragments[index] for index in sorted(best)]

    def _analyse(self, field: Field, text: str) -> list[Token]:
        if len(text) > MAX_CHARACTERS:
            reason = f"The length of [{field.path}] has exceeded [{MAX_CHARACTERS}]"
            raise argument_error(f"{reason} - maximum allowed to be analyzed for highlighting.")
        if field.column == "keyword":
            return [Token(text, position=0, start=0, end=len(text))]
        return self._snapshot.analyzers.get(field.analyzer_name).tokens(text)


def _read_tag(options: Json, key: str, default: str) -> str:
    tags = options.get(key, [default])
    if not isinstance(tags, list) or len(tags) != 1:
        raise unsupported_error(f"[{key}: {tags!r:.50}] in [highlight]", "pass a list of one tag")
    return require_string(tags[0], f"highlight.{key}")


class _Passage(NamedTuple):
    """The part of a text from ``start`` to ``end``, in characters, with the tokens in it that match."""

    start: int
    end: int
    tokens: list[Token]


def _find_passages(text: str, matches: list[Token]) -> Iterator[_Passage]:
    """Divide a text into passages, and yield those that contain a match.

    A passage consists of as many whole sentences as have `PASSAGE_CHARACTERS` together. If the first of them is longer,
    the passage is the part of this sentence around the first match.
    """
    sentence_ends, word_ends = _find_ends(_SENTENCE, text), _find_ends(_WORD, text)
    start = end = 0  # of the current passage
    sentence_end = 0  # where the passage's last sentence ends; the passage can end earlier
    tokens: list[Token] = []  # of the current passage
    for token in matches:
        is_in_passage = bool(tokens) and token.start < end
        if is_in_passage:
            tokens.append(token)
            continue
        if tokens:
            yield _Passage(start, end, tokens)
        if token.start < sentence_end:  # the previous passage was only a part of this sentence, so go on after it
            start, end = end, sentence_end
        else:  # take the token's sentence, and the next ones while they fit
            start, end = _end_before(sentence_ends, token.start + 1), _end_after(sentence_ends, token.start)
            while end < len(text) and _end_after(sentence_ends, end) - start <= PASSAGE_CHARACTERS:
                end = _end_after(sentence_ends, end)
            sentence_end = end
        if end - start > PASSAGE_CHARACTERS:  # take only the words around the token
            offset = token.start + 1  # Lucene looks for the ends of words around this offset
            start = max(start, _end_before(word_ends, offset - PASSAGE_CHARACTERS))
            n_remaining = max(0, PASSAGE_CHARACTERS - (offset - start))
            end = min(sentence_end, _end_after(word_ends, offset + n_remaining))
        tokens = [token]
    if tokens:
        yield _Passage(start, end, tokens)


def _find_ends(pattern: re.Pattern[str], text: str) -> list[int]:
    """Return the offsets at which the text's sentences or words end. ``pattern`` matches one of them."""
    return [match.end() for match in pattern.finditer(text)]


def _end_before(ends: list[int], offset: int) -> int:
    """Return the last end before an offset, or 0, where the text begins."""
    index = bisect_left(ends, offset)
    return ends[index - 1] if index else 0


def _end_after(ends: list[int], offset: int) -> int:
    """Return the first end after an offset, or the last end."""
    return ends[min(bisect_right(ends, offset), len(ends) - 1)]


def _score_passage(passage: _Passage, term_counts: Mapping[str, int], field_length: int, field_offset: int) -> float:
    """Return a passage's BM25 score as Lucene's PassageScorer computes it. Passages near a field's start get a bonus.

    Args:
        passage: the passage.
        term_counts: how often each term occurs in the whole field.
        field_length: the length of the field, in characters.
        field_offset: the offset of the passage in the field, in characters.
    """
    passage_count = 1 + field_length / AVERAGE_PASSAGE_CHARACTERS
    relative_length = (passage.end - passage.start) / AVERAGE_PASSAGE_CHARACTERS
    score = 0.0
    for term, count in Counter(token.term for token in passage.tokens).items():
        weight = (K1 + 1) * math.log(1 + (passage_count + 0.5) / (term_counts[term] + 0.5))
        score += weight * count / (count + K1 * (1 - B + B * relative_length))
    return score * (1 + 1 / math.log(AVERAGE_PASSAGE_CHARACTERS + field_offset))


def _insert_tags(text: str, passage: _Passage, pre_tag: str, post_tag: str) -> str:
    parts = []
    position = passage.start
    for token in passage.tokens:
        parts += [text[position : token.start], pre_tag, text[token.start : token.end], post_tag]
        position = token.end
    return "".join([*parts, text[position : passage.end]]).strip()
