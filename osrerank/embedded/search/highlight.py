"""Highlight the words of a hit that the query matched, like the unified highlighter of OpenSearch."""

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping

from osrerank.embedded.analysis.tokens import Token
from osrerank.embedded.errors import (
    Json,
    argument_fault,
    parse_count,
    reject_unknown_keys,
    require_object,
    require_string,
    unsupported_fault,
)
from osrerank.embedded.mapping.fields import Field, leaves
from osrerank.embedded.storage.index import Snapshot

_OPTIONS = frozenset({"pre_tags", "post_tags", "number_of_fragments"})
MAX_CHARACTERS = 1_000_000
"""The maximum length of a text to highlight, as in OpenSearch (``index.highlight.max_analyzed_offset``)."""
FRAGMENT_CHARACTERS = 100
"""The maximum length of a fragment, unless a word is longer."""
AVERAGE_PASSAGE_CHARACTERS = 87
"""The length of an average passage in Lucene's PassageScorer, which calls it the pivot."""
_CLOSING_MARKS = r"""["')\]}\u2019\u201d]*"""
_SENTENCE = re.compile(
    rf"""(?s:.*?)(?:\.+{_CLOSING_MARKS}\s+(?=["'(\[{{\u201c\u2018]*[^\W_a-z0-9])|[.!?]*[!?]+{_CLOSING_MARKS}\s*|\Z)"""
)
_WORD = re.compile(r"\w+(?:['.-]\w+)*|\s|.", re.DOTALL)
"""`_SENTENCE` and `_WORD` find sentences and words nearly as Java's BreakIterator does."""


class Highlighter:
    """Highlights the query's terms, which are given by field path, in the fields of hits."""

    def __init__(self, body: Json, snapshot: Snapshot, terms: Mapping[str, set[str]]) -> None:
        reject_unknown_keys("highlight", require_object(body, "highlight"), _OPTIONS | {"fields"})
        self._snapshot = snapshot
        self._terms = terms
        common = {key: value for key, value in body.items() if key != "fields"}
        self._fields: dict[str, tuple[Field, Json]] = {}
        for pattern, options in require_object(body.get("fields", {}), "highlight.fields").items():
            reject_unknown_keys(
                f"highlight of {pattern}", require_object(options, f"highlight.fields.{pattern}"), _OPTIONS
            )
            for field in snapshot.fields.matching(pattern):
                if field.column in ("text", "keyword"):
                    self._fields[field.path] = (field, {**common, **options})

    def mark(self, source: Json) -> dict[str, list[str]]:
        """Return field path -> highlighted fragments of a document; fields without a match are left out."""
        highlights = {}
        for field, options in self._fields.values():
            terms = self._terms.get(field.path, set())
            values = [value for path, value in leaves(source) if path == field.source] if terms else []
            texts = [text for value in values if (text := field.convert(value)) is not None]
            fragments = self._fragments(field, options, texts, terms)
            if fragments:
                highlights[field.path] = fragments
        return highlights

    def _fragments(self, field: Field, options: Json, texts: list[str], terms: set[str]) -> list[str]:
        """Return the best fragments of a field's texts, in the order of the texts."""
        tags = [_tag(options, "pre_tags", "<em>"), _tag(options, "post_tags", "</em>")]
        limit = parse_count(options.get("number_of_fragments", 5), "highlight.number_of_fragments")
        fragments: list[tuple[float, str]] = []
        total_length = sum(map(len, texts)) + len(texts) - 1
        matches = [[token for token in self._tokens(field, text) if token.term in terms] for text in texts]
        term_counts = Counter(token.term for tokens in matches for token in tokens)
        text_start = 0
        for text, tokens in zip(texts, matches, strict=True):
            passages = [(0, len(text), tokens)] if limit == 0 and tokens else _passages(text, tokens)
            for start, end, inner in passages:
                score = _score_passage(inner, term_counts, total_length, end - start, text_start + start)
                fragments.append((score, _insert_tags(text, start, end, inner, tags)))
            text_start += len(text) + 1
        best = sorted(range(len(fragments)), key=lambda index: -fragments[index][0])[: limit or None]
        return [fragments[index][1] for index in sorted(best)]

    def _tokens(self, field: Field, text: str) -> list[Token]:
        if len(text) > MAX_CHARACTERS:
            reason = f"The length of [{field.path}] has exceeded [{MAX_CHARACTERS}]"
            raise argument_fault(f"{reason} - maximum allowed to be analyzed for highlighting.")
        if field.column == "keyword":
            return [Token(text, 0, 0, len(text))]
        return self._snapshot.analyzer(field).tokens(text)


def _tag(options: Json, key: str, default: str) -> str:
    """Return the only tag in ``pre_tags`` or ``post_tags``."""
    tags = options.get(key, [default])
    if not isinstance(tags, list) or len(tags) != 1:
        raise unsupported_fault(f"[{key}: {tags!r:.50}] in [highlight]", "pass a list of one tag")
    return require_string(tags[0], f"highlight.{key}")


def _passages(text: str, matches: list[Token]) -> Iterator[tuple[int, int, list[Token]]]:
    """Yield the start, the end and the matching tokens of each passage with a match.

    A passage contains as many whole sentences as fit, or the part of a longer sentence around its first match.
    """
    sentences, words = _boundaries(_SENTENCE, text), _boundaries(_WORD, text)
    sentence_end = start = end = 0
    tokens: list[Token] = []
    for token in matches:
        if tokens and token.start < end:
            tokens.append(token)
            continue
        if tokens:
            yield start, end, tokens
        if token.start < sentence_end:
            start, end = end, sentence_end
        else:
            start, end = _boundary_before(sentences, token.start + 1), _boundary_after(sentences, token.start)
            while end < len(text) and (next_end := _boundary_after(sentences, end)) - start <= FRAGMENT_CHARACTERS:
                end = next_end
            sentence_end = end
        if end - start > FRAGMENT_CHARACTERS:
            offset = token.start + 1
            start = max(start, _boundary_before(words, offset - FRAGMENT_CHARACTERS))
            remaining = max(0, FRAGMENT_CHARACTERS - (offset - start))
            end = min(sentence_end, _boundary_after(words, offset + remaining))
        tokens = [token]
    if tokens:
        yield start, end, tokens


def _boundaries(pattern: re.Pattern[str], text: str) -> list[int]:
    return [match.end() for match in pattern.finditer(text)]


def _boundary_before(boundaries: list[int], offset: int) -> int:
    """Return the last boundary before an offset. 0 if there is none."""
    index = bisect_left(boundaries, offset)
    return boundaries[index - 1] if index else 0


def _boundary_after(boundaries: list[int], offset: int) -> int:
    """Return the first boundary after an offset, or the last boundary."""
    return boundaries[min(bisect_right(boundaries, offset), len(boundaries) - 1)]


def _score_passage(
    tokens: list[Token], term_counts: Mapping[str, int], total_length: int, length: int, start: int
) -> float:
    """Return the BM25 of a passage as Lucene's PassageScorer computes it, with a bonus for the beginning of a field.

    Lengths and the ``start`` in the field are in characters; ``term_counts`` has the matches in the whole field.
    """
    pivot = AVERAGE_PASSAGE_CHARACTERS
    passage_count, score = 1 + total_length / pivot, 0.0
    for term, count in Counter(token.term for token in tokens).items():
        weight = 2.2 * math.log(1 + (passage_count + 0.5) / (term_counts[term] + 0.5))
        score += weight * count / (count + 1.2 * (0.25 + 0.75 * length / pivot))
    return score * (1 + 1 / math.log(pivot + start))


def _insert_tags(text: str, start: int, end: int, tokens: list[Token], tags: list[str]) -> str:
    parts = []
    position = start
    for token in tokens:
        parts += [text[position : token.start], tags[0], text[token.start : token.end], tags[1]]
        position = token.end
    return "".join([*parts, text[position:end]]).strip()
