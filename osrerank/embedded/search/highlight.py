"""Mark the words of a hit that the query matched."""

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping

from osrerank.embedded.analysis.tokens import Token
from osrerank.embedded.errors import Json, as_name, as_object, as_whole, illegal, reject_unknown_keys, unsupported
from osrerank.embedded.mapping.fields import Field, leaves
from osrerank.embedded.storage.index import Snapshot

_OPTIONS = frozenset({"pre_tags", "post_tags", "number_of_fragments"})
MAX_CHARACTERS = 1_000_000
"""The longest text to highlight, as in OpenSearch (``index.highlight.max_analyzed_offset``)."""
FRAGMENT = 100
"""The most characters in a fragment, unless a word is longer."""
PIVOT = 87
"""The length of an average passage in Lucene's PassageScorer."""
_CLOSED = r"""["')\]}\u2019\u201d]*"""
_SENTENCE = re.compile(
    rf"""(?s:.*?)(?:\.+{_CLOSED}\s+(?=["'(\[{{\u201c\u2018]*[^\W_a-z0-9])|[.!?]*[!?]+{_CLOSED}\s*|\Z)"""
)
_WORD = re.compile(r"\w+(?:['.-]\w+)*|\s|.", re.DOTALL)
"""`_SENTENCE` and `_WORD` find sentences and words nearly as Java's BreakIterator does."""


class Highlighter:
    """Marks the query's words in the fields of hits.

    Args:
        body: the search's ``highlight`` object.
        snapshot: the index of the hits.
        terms: field path -> the query's terms.

    Raises:
        Fault: 400; the reason names an option that is not supported.
    """

    def __init__(self, body: Json, snapshot: Snapshot, terms: Mapping[str, set[str]]) -> None:
        reject_unknown_keys("highlight", as_object(body, "highlight"), _OPTIONS | {"fields"})
        self._snapshot = snapshot
        self._terms = terms
        common = {key: value for key, value in body.items() if key != "fields"}
        self._wanted: dict[str, tuple[Field, Json]] = {}
        for pattern, options in as_object(body.get("fields", {}), "highlight.fields").items():
            reject_unknown_keys(f"highlight of {pattern}", as_object(options, f"highlight.fields.{pattern}"), _OPTIONS)
            for field in snapshot.fields.matching(pattern):
                if field.column in ("text", "keyword"):
                    self._wanted[field.path] = (field, {**common, **options})

    def mark(self, source: Json) -> dict[str, list[str]]:
        """Return field path -> a document's marked fragments; fields without a match are left out."""
        marked = {}
        for field, options in self._wanted.values():
            terms = self._terms.get(field.path, set())
            values = [value for path, value in leaves(source) if path == field.source] if terms else []
            texts = [text for value in values if (text := field.convert(value)) is not None]
            if fragments := self._fragments(field, options, texts, terms):
                marked[field.path] = fragments
        return marked

    def _fragments(self, field: Field, options: Json, texts: list[str], terms: set[str]) -> list[str]:
        tags = [_tag(options, key, normal) for key, normal in (("pre_tags", "<em>"), ("post_tags", "</em>"))]
        limit = as_whole(options.get("number_of_fragments", 5), "highlight.number_of_fragments")
        fragments: list[tuple[float, str]] = []
        before, total = 0, sum(map(len, texts)) + len(texts) - 1
        hits = [[token for token in self._tokens(field, text) if token.term in terms] for text in texts]
        often = Counter(token.term for inside in hits for token in inside)
        for text, inside in zip(texts, hits, strict=True):
            for start, end, marked in [(0, len(text), inside)] if limit == 0 and inside else _passages(text, inside):
                score = _score([token.term for token in marked], often, total, end - start, before + start)
                fragments.append((score, _tagged(text, start, end, marked, tags)))
            before += len(text) + 1
        best = sorted(range(len(fragments)), key=lambda index: -fragments[index][0])[: limit or None]
        return [fragments[index][1] for index in sorted(best)]

    def _tokens(self, field: Field, text: str) -> list[Token]:
        if len(text) > MAX_CHARACTERS:
            reason = f"The length of [{field.path}] has exceeded [{MAX_CHARACTERS}]"
            raise illegal(f"{reason} - maximum allowed to be analyzed for highlighting.")
        if field.column == "keyword":
            return [Token(text, 0, 0, len(text))]
        return self._snapshot.analyzer(field).tokens(text)


def _tag(options: Json, key: str, normal: str) -> str:
    """Return the one tag of ``pre_tags`` or ``post_tags``."""
    chosen = options.get(key, [normal])
    if not isinstance(chosen, list) or len(chosen) != 1:
        raise unsupported(f"[{key}: {chosen!r:.50}] in [highlight]", "pass a list of one tag")
    return as_name(chosen[0], f"highlight.{key}")


def _passages(text: str, hits: list[Token]) -> Iterator[tuple[int, int, list[Token]]]:
    """Yield start, end and hits of each passage with a hit, cut as OpenSearch's unified highlighter cuts a text.

    A passage is as many whole sentences as fit, or the part of a longer sentence around its first hit.
    """
    sentences, words = _ends(_SENTENCE, text), _ends(_WORD, text)
    window = start = end = 0
    marked: list[Token] = []
    for token in hits:
        if marked and token.start < end:
            marked.append(token)
            continue
        if marked:
            yield start, end, marked
        if token.start < window:
            start, end = end, window
        else:
            start, end = _before(sentences, token.start + 1), _after(sentences, token.start)
            while end < len(text) and (longer := _after(sentences, end)) - start <= FRAGMENT:
                end = longer
            window = end
        if end - start > FRAGMENT:
            start = max(start, _before(words, token.start + 1 - FRAGMENT))
            end = min(window, _after(words, token.start + 1 + max(0, FRAGMENT - (token.start + 1 - start))))
        marked = [token]
    if marked:
        yield start, end, marked


def _ends(pattern: re.Pattern[str], text: str) -> list[int]:
    return [match.end() for match in pattern.finditer(text)]


def _before(ends: list[int], offset: int) -> int:
    """Return the last boundary before an offset."""
    position = bisect_left(ends, offset)
    return ends[position - 1] if position else 0


def _after(ends: list[int], offset: int) -> int:
    """Return the first boundary after an offset, or the last boundary."""
    return ends[min(bisect_right(ends, offset), len(ends) - 1)]


def _score(terms: list[str], often: Mapping[str, int], total: int, length: int, start: int) -> float:
    """Return the BM25 of a passage as Lucene's PassageScorer computes it, with a bonus for the text's beginning."""
    documents, score = 1 + total / PIVOT, 0.0
    for term, count in Counter(terms).items():
        weight = 2.2 * math.log(1 + (documents + 0.5) / (often[term] + 0.5))
        score += weight * count / (count + 1.2 * (0.25 + 0.75 * length / PIVOT))
    return score * (1 + 1 / math.log(PIVOT + start))


def _tagged(text: str, start: int, end: int, tokens: list[Token], tags: list[str]) -> str:
    fragments = []
    position = start
    for token in tokens:
        fragments += [text[position : token.start], tags[0], text[token.start : token.end], tags[1]]
        position = token.end
    return "".join([*fragments, text[position:end]]).strip()
