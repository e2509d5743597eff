"""Summarise the records of searches in shadow mode, which `osrerank.search.shadow` writes.

In shadow mode, users get the first pass. Each search is run again with reranking, and its changes are recorded.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osrerank.errors import EvaluationError, FormatError
from osrerank.formats.files import line_error
from osrerank.formats.lines import read_json_lines
from osrerank.formats.sources import file_errors, open_paths

MAX_EXAMPLES = 10
"""The maximum number of searches that the report lists, by decreasing change."""
NUMERIC_FIELDS = ("dropped", "ms", "first_pass_ms", "hits", "after", "overlap", "moved", "farthest", "known", "encoded")
"""The optional fields of a record whose values are numbers of at least 0. Of the top ten, ``hits`` is the number before
reranking, ``after`` the number after it, and ``overlap`` the number in both."""

Record = dict[str, Any]


@dataclass(slots=True)
class ShadowReport:
    """What reranking would have changed in the recorded searches.

    Attributes:
        searches: the number of searches that were run again with reranking.
        dropped: the number of searches that were not run again, because too many were waiting or the process ended.
        unreadable: the number of lines that are not records, such as a line truncated by a full disk.
        applied: the number of searches that were reranked fully (``true``), in part (``partial``) or not (``false``).
        reasons: for each reason code, the number of searches that were not or only partly reranked.
        new_hits: for each number of new hits in the top ten, the number of reranked searches: ``{0: 80, 2: 15}`` means
            that 80 searches got no new hit, and 15 got two.
        first_changed: the number of searches whose first hit changes.
        moved: for each search, the number of its first ten hits whose rank changes.
        farthest: for each search, the maximum change of a hit's rank.
        ms: for each search, its wall time with reranking, in milliseconds.
        first_pass_ms: for each search, the time of its first pass as OpenSearch reports it, in milliseconds.
        known: the number of documents whose vectors were already stored.
        encoded: the number of documents that were encoded.
        most_changed: the records of the searches with the greatest changes, in decreasing order (`change_size`).
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
        """The number of reranked searches with hits, whose changes were counted."""
        return self.new_hits.total()

    def add(self, record: Record) -> None:
        """Add a record to the counts."""
        self.dropped += record.get("dropped", 0)
        if "query" not in record:  # a process writes such a record when it ends, to report dropped searches
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
            self._add_changes(record)

    def _add_changes(self, record: Record) -> None:
        self.new_hits[count_new_hits(record)] += 1
        self.first_changed += record["first_changed"]
        self.moved.append(record["moved"])
        self.farthest.append(record["farthest"])
        # a search that was made several times is listed once, with its greatest change
        by_search = {(earlier["index"], earlier["query"]): earlier for earlier in self.most_changed}
        search = record["index"], record["query"]
        by_search[search] = max(by_search.get(search, record), record, key=change_size)
        self.most_changed = sorted(by_search.values(), key=change_size, reverse=True)[:MAX_EXAMPLES]

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
            "moved": percentiles(self.moved),
            "farthest": percentiles(self.farthest),
            "ms": percentiles(self.ms),
            "first_pass_ms": percentiles(self.first_pass_ms),
            "known": self.known,
            "encoded": self.encoded,
            "most_changed": self.most_changed,
        }


def count_new_hits(record: Record) -> int:
    """Return how many of the top ten hits with reranking are not among the top ten hits of the first pass."""
    return int(record["after"] - record["overlap"])


def change_size(record: Record) -> tuple[int, int, int]:
    """Return a sort key: the number of new hits, the number of moved hits, and the maximum change of a rank."""
    return count_new_hits(record), record["moved"], record["farthest"]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the 95th percentile, such as ``{"p50": 31.0, "p95": 84.0}``. Without values, both are 0."""
    if not values:
        return {"p50": 0.0, "p95": 0.0}
    sorted_values = sorted(values)

    def percentile(fraction: float) -> float:
        return float(sorted_values[math.ceil(fraction * len(sorted_values)) - 1])

    return {"p50": percentile(0.5), "p95": percentile(0.95)}


def read_report(paths: Iterable[Path]) -> ShadowReport:
    """Read files of records, compressed or not, and return their report.

    Raises:
        EvaluationError: the files have no records.
        FormatError: a file is truncated or damaged, or its first line is not a record.
    """
    report = ShadowReport()
    for path in paths:
        for source in open_paths(path):
            with file_errors(source):
                for number, line in read_json_lines(source):
                    try:
                        report.add(_validate_record(path, number, line))
                    except FormatError:
                        if number == 1:  # the file is probably not one of records
                            raise
                        report.unreadable += 1
    if not report.searches and not report.dropped:
        fix = "set OSRERANK_SHADOW_FILE and search with rerank={'traffic': {'shadow': True}}"
        raise EvaluationError(f"the files have no records of shadow mode; {fix}")
    return report


def _validate_record(path: Path, number: int, line: Record | FormatError) -> Record:
    """Return a parsed line if it is a record of shadow mode. ``line`` is an error if it cannot be parsed.

    Raises:
        FormatError: the line is not a record.
    """
    if isinstance(line, FormatError):
        raise line
    invalid = [name for name in NUMERIC_FIELDS if name in line and not _is_number(line[name])]
    # a record without a query reports searches that were dropped
    required = ["query", "index", "applied"] if "query" in line else ["time", "dropped"]
    if line.get("hits"):
        required += ["after", "overlap", "first_changed", "moved", "farthest"]
    if "ms" in line:
        required += ["first_pass_ms"]
    invalid += [name for name in required if name not in line]
    if "query" in line and line.get("applied") is not True and not isinstance(line.get("reason_code"), str):
        invalid.append("reason_code")
    if invalid:
        raise line_error(path, number, f"the field {invalid[0]!r} of a search in shadow mode is missing or invalid")
    return line


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
