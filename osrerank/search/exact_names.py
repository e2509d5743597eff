"""Keep the hits whose whole name is the query at least where the first pass has them."""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from osrerank.response import Hits
from osrerank.retrieval.text_fields import is_title
from osrerank.types import Candidate, Ranking, StageScore

STAGE = "exact_name"
"""Name of the mark in the first pass's part of ``_rerank``, and of the entry of a hit that was moved up."""
MOST_EXACT = 3
"""If more hits than this have the name, it names none of them."""
LONGEST = 4
"""A value this many times as long as the query, and a little longer, is not looked at."""
_WORD = re.compile(r"[\w+#]+")
_is_title = lru_cache(1_000)(is_title)


def words_of(text: str) -> list[str]:
    """Return the words of a text, without differences in case and form; ``c++`` and ``c#`` are words."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold().replace("_", " "))


def _has_words(name: str, words: Sequence[str]) -> bool:
    """Return whether a name has these words and no others; most names are told apart without being normalised."""
    return (not name.isascii() or words[0] in name.casefold()) and words_of(name) == words


def marked(found: Ranking, hits: Hits) -> Ranking:
    """Return the first pass's ranking with a mark on the hits, at most three, whose whole name is the query.

    A name is a value of a field that is named like a title, among those that the hit shows or the model reads.
    """
    wanted, most = words_of(found.query.text), LONGEST * (len(found.query.text) + LONGEST)
    if not wanted:
        return found
    exact = [
        place
        for place, (candidate, hit) in enumerate(zip(found.candidates, hits, strict=True))
        if any(len(name) <= most and _has_words(name, wanted) for name in _names(candidate, hit))
    ]
    if not 0 < len(exact) <= MOST_EXACT:
        return found
    candidates = list(found.candidates)
    for place in exact:
        candidates[place] = candidates[place].with_first_parts({STAGE: True})
    return replace(found, candidates=tuple(candidates))


def exact_first(ranking: Ranking) -> Ranking:
    """Return the ranking in which no marked hit is below its rank in the first pass; it gets the score it displaces."""
    ordered = list(ranking.candidates)
    exact = [each for each in ordered if each.trace and STAGE in each.trace[0].parts]
    if all(each.rank <= each.trace[0].rank for each in exact):
        return ranking
    for candidate in sorted(exact, key=lambda each: each.trace[0].rank):
        place, rank = ordered.index(candidate), candidate.trace[0].rank
        if place >= rank:
            above = ordered[rank - 1]
            last = above.trace[-1]
            entry = StageScore(STAGE, above.score, rank, last.unit, level=last.level)
            del ordered[place]
            ordered.insert(rank - 1, candidate._replace(score=above.score, trace=(*candidate.trace, entry)))
    candidates = tuple(each._replace(rank=rank) for rank, each in enumerate(ordered, start=1))
    return replace(ranking, candidates=candidates)


def _names(candidate: Candidate, hit: Mapping[str, Any]) -> Iterator[str]:
    source, fields = hit.get("_source") or {}, hit.get("fields") or {}
    yield from _titles(source)
    if fields:
        yield from _titles(fields)
    for section in candidate.sections:
        if section.field not in source and _is_title(section.field):
            yield section.text


def _titles(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the texts in an object, or in objects within it, whose names are like a title's."""
    for name, value in values.items():
        path = f"{above}.{name}" if above else name
        for each in value if type(value) is list else (value,):
            if type(each) is str:
                if _is_title(path):
                    yield each
            elif isinstance(each, Mapping):
                yield from _titles(each, path)
