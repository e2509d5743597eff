"""Highlight the words of a hit that the query matched, like OpenSearch's unified highlighter.

Each text is divided into passages, and the best ones are returned with tags around the matching words. OpenSearch calls
these tagged passages fragments.
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
"""Longer texts are not highlighted but refused, as in OpenSearch (``index.highlight.max_analyzed_offset``)."""
PASSAGE_CHARACTERS = 100
"""Passages are at most this long, except that the last word is not split."""
AVERAGE_PASSAGE_CHARACTERS = 87
"""The average length of a passage according to Lucene's PassageScorer, which calls it the pivot."""
# The following expressions find sentences and words nearly as Java's BreakIterator does.
_CLOSING_MARKS = r"""["')\]}\u2019\u201d]*"""
_SENTENCE = re.compile(
    rf"""(?s:.*?)(?:\.+{_CLOSING_MARKS}\s+(?=["'(\[{{\u201c\u2018]*[^\W_a-z0-9])|[.!?]*[!?]+{_CLOSING_MARKS}\s*|\Z)"""
)
_WORD = re.compile(r"\w+(?:['.-]\w+)*|\s|.", re.DOTALL)


class Highlighter:
    """Highlights the terms of a query, which are given by field path, in the hits of one index."""

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
                if field.column in ("text", "keyword"):
                    self._fields[field.path] = (field, {**common_options, **options})

    def highlight(self, source: Json) -> dict[str, list[str]]:
        """Return a document's highlighted fragments by field path, for the fields that contain a term."""
        highlights = {}
        for field, options in self._fields.values():
            terms = self._terms.get(field.path, set())
            values = [value for path, value in iterate_values(source) if path == field.source] if terms else []
            texts = [text for value in values if (text := field.convert(value)) is not None]
            fragments = self._build_fragments(field, options, texts, terms)
            if fragments:
                highlights[field.path] = fragments
        return highlights

    def _build_fragments(self, field: Field, options: Json, texts: list[str], terms: set[str]) -> list[str]:
        tags = [_read_tag(options, "pre_tags", "<em>"), _read_tag(options, "post_tags", "</em>")]
        limit = parse_count(options.get("number_of_fragments", 5), "highlight.number_of_fragments")
        scored_fragments: list[tuple[float, str]] = []
        total_length = sum(map(len, texts)) + len(texts) - 1
        matches = [[token for token in self._analyse(field, text) if token.term in terms] for text in texts]
        term_counts = Counter(token.term for tokens in matches for token in tokens)
        text_start = 0
        for text, tokens in zip(texts, matches, strict=True):
            returns_whole_text = limit == 0 and bool(tokens)
            passages = [_Passage(0, len(text), tokens)] if returns_whole_text else _find_passages(text, tokens)
            for passage in passages:
                score = _score_passage(passage, term_counts, total_length, text_start + passage.start)
                scored_fragments.append((score, _insert_tags(text, passage, tags)))
            text_start += len(text) + 1
        best = sorted(range(len(scored_fragments)), key=lambda index: -scored_fragments[index][0])[: limit or None]
        return [scored_fragments[index][1] for index in sorted(best)]

    def _analyse(self, field: Field, text: str) -> list[Token]:
        if len(text) > MAX_CHARACTERS:
            reason = f"The length of [{field.path}] has exceeded [{MAX_CHARACTERS}]"
            raise argument_error(f"{reason} - maximum allowed to be analyzed for highlighting.")
        if field.column == "keyword":
            return [Token(text, 0, 0, len(text))]
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

    A passage consists of as many whole sentences as fit, or of the part of a longer sentence around its first match.
    """
    sentences, words = _boundaries(_SENTENCE, text), _boundaries(_WORD, text)
    sentence_end = start = end = 0
    tokens: list[Token] = []
    for token in matches:
        if tokens and token.start < end:
            tokens.append(token)
            continue
        if tokens:
            yield _Passage(start, end, tokens)
        if token.start < sentence_end:  # the last passage was only a part of this sentence
            start, end = end, sentence_end
        else:
            start, end = _boundary_before(sentences, token.start + 1), _boundary_after(sentences, token.start)
            while end < len(text) and (next_end := _boundary_after(sentences, end)) - start <= PASSAGE_CHARACTERS:
                end = next_end
            sentence_end = end
        if end - start > PASSAGE_CHARACTERS:
            offset = token.start + 1
            start = max(start, _boundary_before(words, offset - PASSAGE_CHARACTERS))
            remaining = max(0, PASSAGE_CHARACTERS - (offset - start))
            end = min(sentence_end, _boundary_after(words, offset + remaining))
        tokens = [token]
    if tokens:
        yield _Passage(start, end, tokens)


def _boundaries(pattern: re.Pattern[str], text: str) -> list[int]:
    return [match.end() for match in pattern.finditer(text)]


def _boundary_before(boundaries: list[int], offset: int) -> int:
    """Return the last boundary before an offset, or 0, where the text begins."""
    index = bisect_left(boundaries, offset)
    return boundaries[index - 1] if index else 0


def _boundary_after(boundaries: list[int], offset: int) -> int:
    """Return the first boundary after an offset, or the last boundary."""
    return boundaries[min(bisect_right(boundaries, offset), len(boundaries) - 1)]


def _score_passage(passage: _Passage, term_counts: Mapping[str, int], field_length: int, field_offset: int) -> float:
    """Return a passage's BM25 as Lucene's PassageScorer computes it. Passages at the beginning of a field get a bonus.

    The length of the field and the passage's offset in it are in characters. ``term_counts`` counts the whole field.
    """
    passage_count, score = 1 + field_length / AVERAGE_PASSAGE_CHARACTERS, 0.0
    relative_length = (passage.end - passage.start) / AVERAGE_PASSAGE_CHARACTERS
    for term, count in Counter(token.term for token in passage.tokens).items():
        weight = (K1 + 1) * math.log(1 + (passage_count + 0.5) / (term_counts[term] + 0.5))
        score += weight * count / (count + K1 * (1 - B + B * relative_length))
    return score * (1 + 1 / math.log(AVERAGE_PASSAGE_CHARACTERS + field_offset))


def _insert_tags(text: str, passage: _Passage, tags: list[str]) -> str:
    parts = []
    position = passage.start
    for token in passage.tokens:
        parts += [text[position : token.start], tags[0], text[token.start : token.end], tags[1]]
        position = token.end
    return "".join([*parts, text[position : passage.end]]).strip()
