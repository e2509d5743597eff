"""Keep each hit whose whole name is the query at its rank in the first pass, or above."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from osrerank.response import Hits
from osrerank.retrieval.text_fields import is_title
from osrerank.types import Candidate, Ranking, StageScore

STAGE = "exact_name"
"""Name of the mark in the first pass's part of ``_rerank``, and of the entry of a hit that was moved up."""
MAX_EXACT = 3
"""If more hits than this have the name, it names none of them."""
LONGEST = 4
"""A value this many times as long as the query, and a little longer, is not looked at."""
_WORD = re.compile(r"[\w+#]+")
_is_title = lru_cache(1_000)(is_title)


def words_of(text: str) -> list[str]:
    """Return the words of a text, without differences in case and form; ``c++`` and ``c#`` are words."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold().replace("_", " "))


def _has_words(name: str, words: Sequence[str]) -> bool:
    """Return whether a name has exactly these words; most names are excluded without being normalised."""
    return (not name.isascii() or words[0] in name.casefold()) and words_of(name) == words


def mark_exact_names(ranking: Ranking, hits: Hits) -> Ranking:
    """Return the first pass's ranking with a mark on the hits, at most three, whose whole name is the query.

    A name is a value of a field that is named like a title, among those that the hit shows or the model reads.
    """
    words, longest = words_of(ranking.query.text), LONGEST * (len(ranking.query.text) + LONGEST)
    if not words:
        return ranking
    candidates = list(ranking.candidates)
    exact = []
    for position, (candidate, hit) in enumerate(zip(candidates, hits, strict=True)):
        for name in _names(candidate, hit):
            if len(name) <= longest and _has_words(name, words):
                exact.append(position)
                break
    if not 0 < len(exact) <= MAX_EXACT:
        return ranking
    for position in exact:
        candidates[position] = candidates[position].with_first_parts({STAGE: True})
    return replace(ranking, candidates=tuple(candidates))


def move_exact_names_up(ranking: Ranking) -> Ranking:
    """Return the ranking in which no marked hit is below its rank in the first pass; it gets the score it displaces."""
    candidates = list(ranking.candidates)
    exact = [candidate for candidate in candidates if candidate.trace and STAGE in candidate.trace[0].parts]
    if all(candidate.rank <= candidate.trace[0].rank for candidate in exact):
        return ranking
    for candidate in sorted(exact, key=lambda candidate: candidate.trace[0].rank):
        position, rank = candidates.index(candidate), candidate.trace[0].rank
        if position >= rank:
            displaced = candidates[rank - 1]
            last = displaced.trace[-1]
            entry = StageScore(STAGE, displaced.score, rank, last.unit, level=last.level)
            del candidates[position]
            candidates.insert(rank - 1, candidate._replace(score=displaced.score, trace=(*candidate.trace, entry)))
    ranked = tuple(candidate._replace(rank=rank) for rank, candidate in enumerate(candidates, start=1))
    return replace(ranking, candidates=ranked)


def _names(candidate: Candidate, hit: Mapping[str, Any]) -> list[str]:
    source, fields = hit.get("_source") or {}, hit.get("fields")
    names = _titles(source)
    if fields:
        names += _titles(fields)
    names += [
        section.text for section in candidate.sections if section.field not in source and _is_title(section.field)
    ]
    return names


def _titles(values: Mapping[str, Any], parent: str = "") -> list[str]:
    """Return the texts in an object, or in objects within it, whose names are like a title's."""
    titles = []
    for name, value in values.items():
        path = f"{parent}.{name}" if parent else name
        if type(value) is str:
            if _is_title(path):
                titles.append(value)
        else:
            for element in value if type(value) is list else [value]:
                if isinstance(element, str) and _is_title(path):
                    titles.append(element)
                elif isinstance(element, Mapping):
                    titles += _titles(element, path)
    return titles
