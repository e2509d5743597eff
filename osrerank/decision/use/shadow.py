"""Summarise the records of searches in shadow mode (`osrerank.search.shadow`): what reranking would have changed."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osrerank.errors import EvaluationError, FormatError
from osrerank.formats.files import bad_line
from osrerank.formats.lines import json_lines
from osrerank.formats.sources import file_errors, open_paths

EXAMPLES = 10
"""Maximum number of searches that the report lists, by decreasing change."""
NUMBERS = ("dropped", "ms", "first_pass_ms", "hits", "after", "overlap", "moved", "farthest", "known", "encoded")
"""Optional fields of a record that are numbers, at least 0."""

Record = dict[str, Any]


@dataclass(slots=True)
class ShadowReport:
    """What reranking would have changed in the recorded searches.

    Attributes:
        searches: number of searches that were run again with reranking.
        dropped: number of searches not run again, because too many were waiting or a process ended.
        unreadable: how many lines are not records, such as a line cut short by a full disk.
        applied: outcome ``true``, ``partial`` or ``false`` -> number of searches.
        reasons: reason code -> number of searches that were not reranked, or only in part.
        new_hits: how many of the first ten hits are new with reranking -> number of reranked searches.
        first_changed: how many searches have another first hit with reranking.
        moved: for each search, how many of the first ten hits change their rank.
        farthest: for each search, the maximum number of ranks by which one of its hits moves.
        ms: for each search, its wall time with reranking, in milliseconds.
        first_pass_ms: for each search, the time of its first pass as OpenSearch reports it, in milliseconds.
        known: how many documents had stored vectors.
        encoded: how many documents had to be encoded.
        most_changed: the records of the searches that reranking changes most, the greatest change first.
    """

    searches: int = 0
    dropped: int = 0
    unreadable: int = 0
    applied: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    new_hits: Counter[int] = field(default_factory=Counter)
    first_changed: int = 0
    moved: list[int] = field(default_factory=list)
    farthest: list[int] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    first_pass_ms: list[float] = field(default_factory=list)
    known: int = 0
    encoded: int = 0
    most_changed: list[Record] = field(default_factory=list)

    @property
    def compared(self) -> int:
        """How many searches had hits to which reranking was applied."""
        return self.new_hits.total()

    def add(self, record: Record) -> None:
        """Add a record to the counts."""
        self.dropped += record.get("dropped", 0)
        if "query" not in record:  # a process writes such a record when it ends: how many searches it dropped
            return
        self.searches += 1
        self.applied[str(record["applied"]).lower()] += 1
        if record["applied"] is not True:
            self.reasons[record["reason_code"]] += 1
        self.known += record.get("known", 0)
        self.encoded += record.get("encoded", 0)
        if "ms" in record:
            self.ms.append(record["ms"])
            self.first_pass_ms.append(record["first_pass_ms"])
        if record.get("hits"):
            self._compare(record)

    def _compare(self, record: Record) -> None:
        self.new_hits[new_hits(record)] += 1
        self.first_changed += record["first_changed"]
        self.moved.append(record["moved"])
        self.farthest.append(record["farthest"])
        by_search = {(earlier["index"], earlier["query"]): earlier for earlier in self.most_changed}
        name = record["index"], record["query"]  # the same search counts once
        by_search[name] = max(by_search.get(name, record), record, key=change)
        self.most_changed = sorted(by_search.values(), key=change, reverse=True)[:EXAMPLES]

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "searches": self.searches,
            "dropped": self.dropped,
            "unreadable": self.unreadable,
            "applied": dict(self.applied),
            "reasons": dict(self.reasons.most_common()),
            "new_hits": {str(count): self.new_hits[count] for count in sorted(self.new_hits)},
            "first_changed": self.first_changed,
            "moved": spread(self.moved),
            "farthest": spread(self.farthest),
            "ms": spread(self.ms),
            "first_pass_ms": spread(self.first_pass_ms),
            "known": self.known,
            "encoded": self.encoded,
            "most_changed": self.most_changed,
        }


def new_hits(record: Record) -> int:
    """Return how many of a search's first ten hits with reranking are new."""
    return int(record["after"] - record["overlap"])


def change(record: Record) -> tuple[int, int, int]:
    """Return how much reranking changes a search, for sorting: new hits, then hits that moved, then how far."""
    return new_hits(record), record["moved"], record["farthest"]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the 95th percentile of values; 0 if there are no values."""
    ordered = sorted(values)
    positions = {name: math.ceil(share * len(ordered)) - 1 for name, share in (("p50", 0.5), ("p95", 0.95))}
    return {name: float(ordered[index]) if ordered else 0.0 for name, index in positions.items()}


def read_report(paths: Iterable[Path]) -> ShadowReport:
    """Read files of records, compressed or not, and return the report on them.

    Raises:
        EvaluationError: the files hold no record.
        FormatError: a file is truncated or damaged, or its first line is not a record.
    """
    report = ShadowReport()
    for path in paths:
        for source in open_paths(path):
            with file_errors(source):
                for number, line in json_lines(source):
                    problem = line if isinstance(line, FormatError) else _problem(path, number, line)
                    if problem is None and not isinstance(line, FormatError):
                        report.add(line)
                    elif problem is not None and number == 1:
                        raise problem
                    else:
                        report.unreadable += 1
    if not report.searches and not report.dropped:
        fix = "set OSRERANK_SHADOW_FILE and search with rerank={'traffic': {'shadow': True}}"
        raise EvaluationError(f"the files have no record: {fix}")
    return report


def _problem(path: Path, number: int, line: Record) -> FormatError | None:
    """Return the error in a line that is not a record of a search in shadow mode; None if the line is valid."""
    wrong = [name for name in NUMBERS if name in line and not _is_number(line[name])]
    needed = ["query", "index", "applied"] if "query" in line else ["time", "dropped"]
    if line.get("hits"):
        needed += ["after", "overlap", "first_changed", "moved", "farthest"]
    if "ms" in line:
        needed += ["first_pass_ms"]
    wrong += [name for name in needed if name not in line]
    if "query" in line and line.get("applied") is not True and not isinstance(line.get("reason_code"), str):
        wrong.append("reason_code")
    return bad_line(path, number, f"{wrong[0]} is missing or wrong for a search in shadow mode") if wrong else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
