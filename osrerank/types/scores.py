"""What a scorer is, what it gives, and until when it may compute."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

WITHDRAWN_AFTER_S = 0.1
"""Who waits for an event notices that its deadline was withdrawn this much later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What scoring took.

    Attributes:
        inferences: forward passes computed, without cached scores; of a bi-encoder, documents compared with the query.
        cached: scores that came from a cache.
        encoded: documents whose vectors were computed, of a bi-encoder.
        known: documents whose vectors were there.
        truncated: documents cut to fit the model, among those inferred.
        query_truncated: whether the query was cut to fit the model; known only where something was inferred.
    """

    inferences: int = 0
    cached: int = 0
    encoded: int = 0
    known: int = 0
    truncated: int = 0
    query_truncated: bool = False

    def counts(self) -> dict[str, Any]:
        """Return them by name."""
        return {one.name: getattr(self, one.name) for one in fields(Counts)}

    @staticmethod
    def total(parts: Sequence["Counts"]) -> dict[str, Any]:
        """Return the sums of several calls' counts by name; the query was cut where one of them says so."""
        names = [one.name for one in fields(Counts) if one.name != "query_truncated"]
        sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in names}
        return {**sums, "query_truncated": any(part.query_truncated for part in parts)}


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a call must have answered.

    Attributes:
        at_s: on the monotonic clock; None for never.
        withdrawn: returns whether nobody waits for the answer any more, so that the deadline has passed; asked often.
        clock: returns seconds, never decreasing.
    """

    at_s: float | None = None
    withdrawn: Callable[[], bool] | None = field(default=None, compare=False)
    clock: Callable[[], float] = field(default=time.monotonic, compare=False)

    @classmethod
    def after_ms(cls, duration_ms: float | None, clock: Callable[[], float] = time.monotonic) -> Self:
        """Return a deadline this many milliseconds from now; None gives one that never passes."""
        return cls(None if duration_ms is None else clock() + duration_ms / 1000, clock=clock)

    @property
    def is_withdrawn(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.withdrawn is not None and self.withdrawn()

    def within_ms(self, duration_ms: float | None) -> "Deadline":
        """Return the sooner of this deadline and one this many milliseconds from now; None keeps this one."""
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
        return self.remaining_s() <= 0

    def wait(self, event: threading.Event) -> bool:
        """Wait for an event; return whether it came before the deadline."""
        while not event.is_set() and not self.passed:
            remaining_s = self.remaining_s()
            most_s = remaining_s if self.withdrawn is None else min(remaining_s, WITHDRAWN_AFTER_S)
            event.wait(None if most_s == math.inf else max(0.0, most_s))
        return event.is_set()


NEVER = Deadline()
"""A deadline that never passes."""


@dataclass(frozen=True, slots=True)
class Scores(Counts):
    """The answer of a scorer.

    Attributes:
        values: float32 ``(n,)``, a logit per tuple in their order; higher is better; NaN for failed and not attempted.
        failures: index of a tuple -> why it could not be scored.
        reached: how many leading tuples were attempted for sure before the deadline.
        identity: identity of the model that scored (`Scorer.identity`) where it may change between calls; else empty.
        odds: log-odds of relevance ``(n,)`` where they are not the values: of a next-sentence head, whose value is the
            second of two logits.
    """

    values: npt.NDArray[np.float32]
    failures: Mapping[int, str] = field(default_factory=dict)
    reached: int = -1
    identity: str = ""
    odds: npt.NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        if self.reached < 0:
            object.__setattr__(self, "reached", len(self.values))

    @property
    def log_odds(self) -> npt.NDArray[np.float32]:
        """What `Scorer.probabilities` maps to probabilities ``(n,)``: the values, unless there are others."""
        return self.values if self.odds is None else self.odds

    @staticmethod
    def joined_odds(
        parts: Sequence["Scores | str | None"], places: Sequence[Sequence[int]], size: int
    ) -> npt.NDArray[np.float32] | None:
        """Return the odds of several calls' tuples as those of one; None where no call has others than its values.

        Args:
            parts: the calls' scores, or what came instead.
            places: which tuples each part has.
            size: how many there are.
        """
        if all(not isinstance(part, Scores) or part.odds is None for part in parts):
            return None
        joined = np.full(size, np.nan, dtype=np.float32)
        for part, where in zip(parts, places, strict=True):
            if isinstance(part, Scores):
                joined[list(where)] = part.log_odds
        return joined

    @property
    def attempted(self) -> list[int]:
        """The tuples that were attempted, in order."""
        behind = np.flatnonzero(~np.isnan(self.values[self.reached :])) + self.reached
        failed = [index for index in self.failures if index >= self.reached]
        return [*range(self.reached), *sorted({*behind.tolist(), *failed})]


@dataclass(frozen=True, slots=True)
class Advice:
    """What a model recommends for ordering by its scores; by default nothing but the scores.

    Attributes:
        first_pass_weight: weight, 0 or above, of the first-pass score over the query's best in a linear blend.
        passages: whether documents beyond the model's window are read by passages.
        languages: that the model reads, by ISO 639-1 code; none where it is not known.
    """

    first_pass_weight: float = 0.0
    passages: bool = False
    languages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.first_pass_weight < math.inf:
            raise ValueError(f"first_pass_weight is {self.first_pass_weight}; it must be 0 or above")


class RequestVectors(Protocol):
    """Records of document vectors that one search brought, and takes with it (`osrerank.scoring.vectors`)."""

    @property
    def name(self) -> str:
        """Where they come from, for metrics."""

    def read(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the records that there are, by key."""

    def write(self, records: Mapping[bytes, bytes]) -> int:
        """Take records that were not there; return how many are taken."""


@runtime_checkable
class Scorer(Protocol):
    """Texts in, one float per tuple out; knows nothing of rankings."""

    @property
    def model(self) -> str:
        """The model's name, for reports."""

    @property
    def identity(self) -> str:
        """All that a score depends on except the texts: model digest, precision, input policy. Part of cache keys."""

    @property
    def advice(self) -> Advice:
        """What the model recommends to whoever orders; none unless a scorer says otherwise."""
        return Advice()

    def score(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        *,
        deadline: Deadline = NEVER,
        vectors: RequestVectors | None = None,
    ) -> Scores:
        """Score tuples of documents against a query.

        Args:
            query: its text.
            documents: their texts.
            tuples: indices into ``documents``: ``(i,)`` for mono, ``(i, j)`` for duo.
            deadline: no batch begins after it; tuples are attempted in about their order.
            vectors: what the search brought of document vectors, for models that have some; others leave it.
        """

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Map `Scores.log_odds` ``(n,)`` to calibrated probabilities ``(n,)``, never decreasing in them."""

    def close(self) -> None:
        """Release the model; further calls are errors."""
