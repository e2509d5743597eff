"""The pairs of a benchmark: queries with their documents, from a file or synthetic."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from osrerank.formats.candidates import read_candidates

SEED = 1
QUERY_WORDS = 6
SYLLABLES = (
    "low",
    "blood",
    "press",
    "ure",
    "heart",
    "rate",
    "wing",
    "flow",
    "heat",
    "salt",
    "bed",
    "rest",
    "north",
    "sea",
)


@dataclass(frozen=True, slots=True)
class BenchQuery:
    """A query and its documents.

    Attributes:
        query_id: for the judgments.
        query: its text.
        documents: id -> text, in first-pass order.
    """

    query_id: str
    query: str
    documents: Mapping[str, str]


def from_candidates(path: Path, *, queries: int, depth: int) -> list[BenchQuery]:
    """Read the first ``depth`` documents of the first ``queries`` queries of a candidate file; 0 queries means all.

    Raises:
        EvaluationError: the file is malformed.
    """
    lists = read_candidates(path)[: queries or None]
    return [
        BenchQuery(
            one.query.query_id,
            one.query.text,
            {entry["id"]: f"{entry.get('title') or ''} {entry['text']}".strip() for entry in one.documents[:depth]},
        )
        for one in lists
    ]


def synthetic(words: int, *, queries: int, depth: int) -> list[BenchQuery]:
    """Return queries of invented words with documents of 0.5 to 1.5 times ``words`` words."""
    draw = random.Random(SEED)  # noqa: S311 - a reproducible draw
    lexicon = [first + second for first in SYLLABLES for second in SYLLABLES]

    def text(size: int) -> str:
        return " ".join(draw.choices(lexicon, k=size))

    return [
        BenchQuery(
            str(query),
            text(QUERY_WORDS),
            {str(doc): text(draw.randint(max(1, words // 2), max(1, 3 * words // 2))) for doc in range(depth)},
        )
        for query in range(queries)
    ]


def pairs(tasks: Sequence[BenchQuery]) -> int:
    """Return how many pairs the tasks have."""
    return sum(len(task.documents) for task in tasks)
