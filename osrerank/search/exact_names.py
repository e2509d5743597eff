"""Keep hits whose whole name is the query at least at their first-pass rank.

A name is a value of a field whose own name is like a title, such as ``title`` or ``name``.
"""

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
"""The name of the mark in a hit's first-pass score, and of the score of a hit that was moved up."""
MAX_EXACT = 3
"""The maximum number of hits with the same name; if there are more, the query does not name a single hit."""
MAX_LENGTH_FACTOR = 4
"""The maximum length of a name, as a multiple of the length of the query plus four characters."""
_WORD = re.compile(r"[\w+#]+")
_is_title = lru_cache(1_000)(is_title)


def words_of(text: str) -> list[str]:
    """Return the words of a text after case folding and Unicode normalisation; ``c++`` and ``c#`` are words."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold().replace("_", " "))


def _has_words(name: str, words: Sequence[str]) -> bool:
    """Return whether a name consists of exactly these words; a cheap test excludes most names first."""
    return (not name.isascii() or words[0] in name.casefold()) and words_of(name) == words


def mark_exact_names(ranking: Ranking, hits: Hits) -> Ranking:
    """Return the first pass's ranking with marks on the hits (at most three) whose whole name is the query."""
    words = words_of(ranking.query.text)
    max_length = MAX_LENGTH_FACTOR * (len(ranking.query.text) + 4)
    if not words:
        return ranking
    candidates = list(ranking.candidates)
    exact = []
    for position, (candidate, hit) in enumerate(zip(candidates, hits, strict=True)):
        for name in _hit_names(candidate, hit):
            if len(name) <= max_length and _has_words(name, words):
                exact.append(position)
                break
    if not 0 < len(exact) <= MAX_EXACT:
        return ranking
    for position in exact:
        candidates[position] = candidates[position].with_first_parts({STAGE: True})
    return replace(ranking, candidates=tuple(candidates))


def move_exact_names_up(ranking: Ranking) -> Ranking:
    """Return the ranking with no marked hit below its first-pass rank; a moved hit gets the score of that rank."""
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


def _hit_names(candidate: Candidate, hit: Mapping[str, Any]) -> list[str]:
    source, fields = hit.get("_source") or {}, hit.get("fields")
    names = _titles(source)
    if fields:
        names += _titles(fields)
    names += [
        section.text for section in candidate.sections if section.field not in source and _is_title(section.field)
    ]
    return names


def _titles(values: Mapping[str, Any], parent: str = "") -> list[str]:
    """Return the texts of an object's fields, nested ones included, whose names are like a title."""
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
