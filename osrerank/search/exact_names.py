"""Keep a hit from falling below its first-pass rank if the query is exactly its name, such as "C++" or "moby dick".

A hit's names are the values of its title-like fields, such as ``title`` or ``name``. Case and punctuation are ignored.
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
"""The name of the mark on a hit's first-pass score, and of the entry in ``_rerank`` of a hit that was moved up."""
MAX_EXACT = 3
"""The maximum number of marked hits.

If more hits have the name, the query is a common word rather than the name of one thing, and no hit is marked.
"""
MAX_LENGTH_FACTOR = 4
"""The maximum length of a compared name, as a multiple of len(query) + 4. Longer names are skipped to save time."""
_WORD = re.compile(r"[\w+#]+")  # with + and #, because of names such as C++ and C#
_is_title = lru_cache(1_000)(is_title)


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case and normalised: "The C++_Guide" has the words the, c++ and guide."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold().replace("_", " "))


def _has_words(name: str, words: Sequence[str]) -> bool:
    """Return whether a name consists of exactly these words. A cheap test excludes most names first."""
    may_match = not name.isascii() or words[0] in name.casefold()
    return may_match and split_words(name) == words


def mark_exact_names(ranking: Ranking, hits: Hits) -> Ranking:
    """Return the first pass's ranking with a mark on each hit whose name is exactly the query."""
    words = split_words(ranking.query.text)
    max_length = MAX_LENGTH_FACTOR * (len(ranking.query.text) + 4)  # 4 more for the sake of short queries
    if not words:
        return ranking
    candidates = list(ranking.candidates)
    marked_indices = []
    for index, (candidate, hit) in enumerate(zip(candidates, hits, strict=True)):
        for name in _hit_names(candidate, hit):
            if len(name) <= max_length and _has_words(name, words):
                marked_indices.append(index)
                break
    if not 0 < len(marked_indices) <= MAX_EXACT:
        return ranking
    for index in marked_indices:
        candidates[index] = candidates[index].with_first_parts({STAGE: True})
    return replace(ranking, candidates=tuple(candidates))


def move_exact_names_up(ranking: Ranking) -> Ranking:
    """Move each marked hit that fell below its first-pass rank back to that rank.

    The hit gets the score of the hit that it displaces.
    """
    candidates = list(ranking.candidates)
    # the first entry of a trace is the first pass's score
    marked = [candidate for candidate in ranking.candidates if candidate.trace and STAGE in candidate.trace[0].parts]
    if all(candidate.rank <= candidate.trace[0].rank for candidate in marked):
        return ranking
    for candidate in sorted(marked, key=lambda candidate: candidate.trace[0].rank):
        first_rank = candidate.trace[0].rank
        index = candidates.index(candidate)
        target_index = first_rank - 1
        if index > target_index:
            displaced = candidates[target_index]
            score_to_take = displaced.trace[-1]
            entry = StageScore(STAGE, displaced.score, first_rank, score_to_take.unit, level=score_to_take.level)
            del candidates[index]
            moved = candidate._replace(score=displaced.score, trace=(*candidate.trace, entry))
            candidates.insert(target_index, moved)
    ranked = tuple(candidate._replace(rank=rank) for rank, candidate in enumerate(candidates, start=1))
    return replace(ranking, candidates=ranked)


def _hit_names(candidate: Candidate, hit: Mapping[str, Any]) -> list[str]:
    """Return the values of a hit's title-like fields, from its ``_source``, its ``fields`` and the model's input."""
    source, fields = hit.get("_source") or {}, hit.get("fields")
    names = _titles(source)
    if fields:
        names += _titles(fields)
    names += [
        section.text for section in candidate.sections if section.field not in source and _is_title(section.field)
    ]
    return names


def _titles(values: Mapping[str, Any], parent: str = "") -> list[str]:
    """Return the texts of an object's title-like fields, including those of nested objects, such as ``book.title``.

    Args:
        values: the values of the object's fields.
        parent: the path of the object. Empty for a whole document.
    """
    titles = []
    for name, value in values.items():
        path = f"{parent}.{name}" if parent else name
        if type(value) is str:  # a fast test of the usual case
            if _is_title(path):
                titles.append(value)
        else:
            elements = value if type(value) is list else [value]
            for element in elements:
                if isinstance(element, str) and _is_title(path):
                    titles.append(element)
                elif isinstance(element, Mapping):
                    titles += _titles(element, path)
    return titles
