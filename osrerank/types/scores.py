"""The protocol `Scorer`, the `Scores` that it returns, and the `Deadline` of a call."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

MAX_S = 1e6
"""The longest time to a deadline, in seconds; every system can wait that long."""
WITHDRAWN_AFTER_S = 0.1
"""The time within which `Deadline.wait` notices that the deadline was withdrawn, in seconds."""
QUERY_CUT = 128
"""The bit of `Scores.cuts` that says that the query was cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of what was computed, cached and cut in scoring.

    Attributes:
        inferences: the number of forward passes, which cached scores do not need; for a bi-encoder, the number of texts
            or passages compared.
        cached: the number of scores that came from a cache.
        encoded: the number of texts or passages that a bi-encoder encoded now.
        known: the number of texts or passages whose vectors were stored before.
        truncated: the number of documents cut to fit the model, including those with cached scores.
        query_truncated: whether the query was cut to fit the model.
    """

    inferences: int = 0
    cached: int = 0
    encoded: int = 0
    known: int = 0
    truncated: int = 0
    query_truncated: bool = False

    def counts(self) -> dict[str, Any]:
        """Return the counts by name."""
        return {count.name: getattr(self, count.name) for count in fields(Counts)}

    @staticmethod
    def total(parts: Sequence["Counts"]) -> dict[str, Any]:
        """Add up the counts of several calls, by name; the query counts as cut if any call cut it."""
        names = [count.name for count in fields(Counts) if count.name != "query_truncated"]
        sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in names}
        return {**sums, "query_truncated": any(part.query_truncated for part in parts)}


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time by which a call must answer.

    Attributes:
        at_s: the deadline in seconds of ``clock``, at most `MAX_S` from now; None for never.
        withdrawn: a cheap function that returns whether nobody waits any more; the deadline then counts as passed.
        clock: a function that returns the time in seconds, which never decreases.
    """

    at_s: float | None = None
    withdrawn: Callable[[], bool] | None = field(default=None, compare=False)
    clock: Callable[[], float] = field(default=time.monotonic, compare=False)

    def __post_init__(self) -> None:
        if self.at_s is not None:
            if math.isnan(self.at_s):
                raise ValueError("a deadline is a point in time, not NaN")
            object.__setattr__(self, "at_s", min(self.at_s, self.clock() + MAX_S))

    @classmethod
    def after_ms(cls, duration_ms: float | None, clock: Callable[[], float] = time.monotonic) -> Self:
        """Return the deadline that is this many milliseconds from now; for None, one that never passes."""
        return cls(None if duration_ms is None else clock() + duration_ms / 1000, clock=clock)

    @property
    def is_withdrawn(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.withdrawn is not None and self.withdrawn()

    def within_ms(self, duration_ms: float) -> "Deadline":
        """Return the earlier of this deadline and one this many milliseconds from now."""
        if duration_ms == math.inf:
            return self
        sooner = replace(Deadline.after_ms(duration_ms, self.clock), withdrawn=self.withdrawn)
        return sooner if sooner.remaining_s() < self.remaining_s() else self

    def remaining_s(self) -> float:
        """Return the seconds left: negative after the deadline, infinite without one."""
        if self.is_withdrawn:
            return -1.0
        return math.inf if self.at_s is None else self.at_s - self.clock()

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        if self.at_s is not None and self.at_s <= self.clock():
            return True
        return self.withdrawn is not None and self.withdrawn()

    def wait(self, event: threading.Event) -> bool:
        """Wait for an event; return whether it came before the deadline."""
        while not event.is_set() and not self.passed:
            remaining_s = self.remaining_s()
            max_s = remaining_s if self.withdrawn is None else min(remaining_s, WITHDRAWN_AFTER_S)
            event.wait(None if max_s == math.inf else max(0.0, max_s))
        return event.is_set()


NEVER = Deadline()
"""A deadline that never passes."""


@dataclass(frozen=True, slots=True)
class Scores(Counts):
    """What a scorer returns: a logit for each tuple, and which tuples failed or were not reached.

    Attributes:
        values: the logits, float32 ``(n,)``, one per tuple, in order; higher is better; NaN if a tuple failed or was
            not attempted.
        failures: index of a tuple -> why it could not be scored.
        reached: the number of leading tuples that were all attempted before the deadline.
        identity: the identity of the model (`Scorer.identity`) if it may change between calls; else empty.
        odds: the log-odds of relevance ``(n,)``; None if the values are log-odds. A next-sentence head needs both,
            because its value is the second of two logits.
        cuts: which parts of each tuple were cut to fit the model ``(n,)``: the sum of 1 for its first document, 2 for
            its second and `QUERY_CUT` for the query; None if this is not known.
    """

    values: npt.NDArray[np.float32]
    failures: Mapping[int, str] = field(default_factory=dict)
    reached: int = -1
    identity: str = ""
    odds: npt.NDArray[np.float32] | None = None
    cuts: npt.NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        if self.reached < 0:
            object.__setattr__(self, "reached", len(self.values))

    @property
    def log_odds(self) -> npt.NDArray[np.float32]:
        """The log-odds ``(n,)`` that `Scorer.probabilities` takes: `odds`, or else the values."""
        return self.values if self.odds is None else self.odds

    @staticmethod
    def joined_odds(
        parts: Sequence["Scores | str | None"], indices: Sequence[Sequence[int]], size: int
    ) -> npt.NDArray[np.float32] | None:
        """Join the log-odds of several calls in one array ``(size,)``; return None if no call has separate log-odds.

        Args:
            parts: the scores of each call, or an error message or None instead.
            indices: the indices of each call's tuples among all tuples.
            size: the number of all tuples.
        """
        if all(not isinstance(part, Scores) or part.odds is None for part in parts):
            return None
        joined = np.full(size, np.nan, dtype=np.float32)
        for part, part_indices in zip(parts, indices, strict=True):
            if isinstance(part, Scores):
                joined[list(part_indices)] = part.log_odds
        return joined

    def cut_documents(self, tuples: Sequence[tuple[int, ...]]) -> set[int]:
        """Return the indices of the documents that were cut to fit the model; empty if this is not known.

        Args:
            tuples: the tuples that were scored, in order.
        """
        if self.cuts is None:
            return set()
        cut_tuples = np.flatnonzero(self.cuts % QUERY_CUT).tolist()
        return {
            document
            for index in cut_tuples
            for position, document in enumerate(tuples[index])
            if self.cuts[index] >> position & 1
        }

    def among(self, indices: Sequence[int], size: int, reason: str) -> "Scores":
        """Extend the scores of single documents to a longer list of documents, in which the others failed.

        Args:
            indices: the index of each scored document in the longer list, in ascending order.
            size: the length of the longer list.
            reason: why the other documents have no score.
        """
        values = np.full(size, np.nan, dtype=np.float32)
        values[indices] = self.values
        failures = dict.fromkeys(sorted({*range(size)} - {*indices}), reason)
        failures |= {indices[index]: failure for index, failure in self.failures.items()}
        reached = indices[self.reached] if self.reached < len(indices) else size
        odds = Scores.joined_odds([self], [indices], size)
        return replace(self, values=values, failures=failures, reached=reached, odds=odds, cuts=None)

    @property
    def attempted(self) -> list[int]:
        """The indices of the tuples that were attempted, in order."""
        behind = np.flatnonzero(~np.isnan(self.values[self.reached :])) + self.reached
        failed = [index for index in self.failures if index >= self.reached]
        return [*range(self.reached), *sorted({*behind.tolist(), *failed})]


@dataclass(frozen=True, slots=True)
class Advice:
    """What a model recommends for ranking by its scores; by default, the scores alone.

    Attributes:
        first_pass_weight: the weight, in a linear blend, of the first-pass score divided by the query's best one; 0 or
            above.
        passages: whether a document longer than the model's window is read by passages.
        languages: the ISO 639-1 codes of the languages that the model reads; empty if not known.
        kind: the model's kind: ``bi-encoder``, ``late-interaction``, ``cross-encoder`` or ``duo``.
        vectors_weight: the weight of the vectors' logit beside the cross-encoder's in ``vectors-mono``; 0 or above.
    """

    first_pass_weight: float = 0.0
    passages: bool = False
    languages: tuple[str, ...] = ()
    kind: str = "cross-encoder"
    vectors_weight: float = 0.0

    def __post_init__(self) -> None:
        for name in ("first_pass_weight", "vectors_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or above")


@runtime_checkable
class Scorer(Protocol):
    """A model that reads a query and documents together and returns one logit per tuple.

    ```python
    import numpy as np
    from osrerank import Reranker
    from osrerank.types import NEVER, Advice, Scores

    class CommonWords:
        model, identity, advice = "common-words", "common-words-1", Advice()

        def score(self, query, documents, tuples, *, deadline=NEVER):
            words = set(query.split())
            values = [len(words & set(documents[index].split())) for (index,) in tuples]
            return Scores(np.array(values, np.float32), inferences=len(tuples))

        def probabilities(self, logits):
            return 1 / (1 + np.exp(-logits.astype(np.float64)))

        def close(self):
            pass

    ranked = Reranker(scorer=CommonWords()).rank("low pressure", ["a high price", "a low pressure"])
    assert ranked[0].text == "a low pressure"
    ```
    """

    @property
    def model(self) -> str:
        """The model's name, for reports."""

    @property
    def identity(self) -> str:
        """A string that changes with everything that a score depends on, except the texts; it is part of cache keys.

        It covers the model's digest, the precision and the input policy.
        """

    @property
    def advice(self) -> Advice:
        """What the model recommends for ranking; by default, nothing."""
        return Advice()

    def score(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        *,
        deadline: Deadline = NEVER,
    ) -> Scores:
        """Score tuples of documents against a query.

        Args:
            query: the query's text.
            documents: the documents' texts.
            tuples: the indices of the documents to score together: ``(i,)`` for one document, ``(i, j)`` for duo.
            deadline: the time after which no batch begins; tuples are attempted approximately in order.
        """

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Map `Scores.log_odds` ``(n,)`` to calibrated probabilities ``(n,)`` by a non-decreasing function."""

    def close(self) -> None:
        """Release the model; further calls are errors."""
