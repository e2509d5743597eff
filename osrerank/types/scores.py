"""The protocol `Scorer`, the `Scores` that it returns, and the `Deadline` of a call."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

MOST_S = 1e6
"""The longest time to a deadline, in seconds; every system can wait that long."""
WITHDRAWN_AFTER_S = 0.1
"""How long `Deadline.wait` may take to notice that the deadline was withdrawn, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of what was computed, cached and cut in scoring.

    Attributes:
        inferences: forward passes, without those of cached scores; of a bi-encoder, texts or passages compared.
        cached: scores that came from a cache.
        encoded: texts or passages that a bi-encoder encoded now.
        known: texts or passages whose vectors were stored.
        truncated: documents cut to fit the model, those with cached scores among them.
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
        return {one.name: getattr(self, one.name) for one in fields(Counts)}

    @staticmethod
    def total(parts: Sequence["Counts"]) -> dict[str, Any]:
        """Return the sums of several calls' counts by name; the query was cut where one of them says so."""
        names = [one.name for one in fields(Counts) if one.name != "query_truncated"]
        sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in names}
        return {**sums, "query_truncated": any(part.query_truncated for part in parts)}


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time by which a call must answer.

    Attributes:
        at_s: on the monotonic clock, at most `MOST_S` from now; None for never.
        withdrawn: returns whether nobody waits any more; the deadline then counts as passed. Called often.
        clock: returns seconds, never decreasing.
    """

    at_s: float | None = None
    withdrawn: Callable[[], bool] | None = field(default=None, compare=False)
    clock: Callable[[], float] = field(default=time.monotonic, compare=False)

    def __post_init__(self) -> None:
        if self.at_s is not None:
            if math.isnan(self.at_s):
                raise ValueError("a deadline is a point in time, not NaN")
            object.__setattr__(self, "at_s", min(self.at_s, self.clock() + MOST_S))

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
        if duration_ms is None or duration_ms == math.inf:
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
        return self.remaining_s() <= 0

    def wait(self, event: threading.Event) -> bool:
        """Wait for an event; return whether it came before the deadline."""
        while not event.is_set() and not self.passed:
            remaining_s = self.remaining_s()
            most_s = remaining_s if self.withdrawn is None else min(remaining_s, WITHDRAWN_AFTER_S)
            event.wait(None if most_s == math.inf else max(0.0, most_s))
        return event.is_set()


QUERY_CUT = 128
"""The bit of `Scores.cuts` for a cut query."""
NEVER = Deadline()
"""A deadline that never passes."""


@dataclass(frozen=True, slots=True)
class Scores(Counts):
    """The answer of a scorer.

    Attributes:
        values: float32 ``(n,)``, a logit per tuple in their order; higher is better; NaN for failed and not attempted.
        failures: index of a tuple -> why it could not be scored.
        reached: how many leading tuples were all attempted before the deadline.
        identity: identity of the model that scored (`Scorer.identity`) where it may change between calls; else empty.
        odds: log-odds of relevance ``(n,)`` if the values are not: for a next-sentence head, whose value is the second
            of two logits.
        cuts: which parts of each tuple were cut to fit the model ``(n,)``: the sum of 1 for its first document, 2 for
            its second and `QUERY_CUT` for the query; None if that is not known.
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
        """What `Scorer.probabilities` maps to probabilities ``(n,)``: `odds` if there are any, else the values."""
        return self.values if self.odds is None else self.odds

    @staticmethod
    def joined_odds(
        parts: Sequence["Scores | str | None"], places: Sequence[Sequence[int]], size: int
    ) -> npt.NDArray[np.float32] | None:
        """Return the odds of several calls, joined; None if every call's odds are its values.

        Args:
            parts: the calls' scores, or what a call returned instead.
            places: the indices of each part's tuples.
            size: number of all tuples.
        """
        if all(not isinstance(part, Scores) or part.odds is None for part in parts):
            return None
        joined = np.full(size, np.nan, dtype=np.float32)
        for part, where in zip(parts, places, strict=True):
            if isinstance(part, Scores):
                joined[list(where)] = part.log_odds
        return joined

    def cut_documents(self, tuples: Sequence[tuple[int, ...]]) -> set[int]:
        """Return the documents that were cut to fit the model, as far as that is known.

        Args:
            tuples: the scored ones.
        """
        if self.cuts is None:
            return set()
        found = np.flatnonzero(self.cuts % QUERY_CUT).tolist()
        return {index for at in found for bit, index in enumerate(tuples[at]) if self.cuts[at] >> bit & 1}

    def among(self, places: Sequence[int], size: int, reason: str) -> "Scores":
        """Return these scores of single documents, extended to more documents; the added ones failed.

        Args:
            places: indices of these documents, in order.
            size: number of all documents.
            reason: why the others have no score.
        """
        values = np.full(size, np.nan, dtype=np.float32)
        values[places] = self.values
        failures = dict.fromkeys(sorted({*range(size)} - {*places}), reason)
        failures |= {places[at]: why for at, why in self.failures.items()}
        reached = places[self.reached] if self.reached < len(places) else size
        odds = Scores.joined_odds([self], [places], size)
        return replace(self, values=values, failures=failures, reached=reached, odds=odds, cuts=None)

    @property
    def attempted(self) -> list[int]:
        """The tuples that were attempted, in order."""
        behind = np.flatnonzero(~np.isnan(self.values[self.reached :])) + self.reached
        failed = [index for index in self.failures if index >= self.reached]
        return [*range(self.reached), *sorted({*behind.tolist(), *failed})]


@dataclass(frozen=True, slots=True)
class Feedback:
    """How a query's vector moves towards those of its best candidates.

    Rocchio's feedback on dense vectors: Li et al.: Pseudo-relevance feedback with deep language models and dense
    retrievers, 2021, arXiv 2108.11044.

    Attributes:
        share: of the candidates in the new query, at least 0 and below 1; 0 leaves the query as it is.
        temperature: logits, above 0: a candidate so far below another one counts 1 / e as much.
    """

    share: float = 0.1
    temperature: float = 0.15

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"share is {self.share}; it must be at least 0 and below 1")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}; it must be a finite number above 0")

    def moved(
        self, query: npt.NDArray[np.float32], vectors: npt.NDArray[np.float32], logits: npt.NDArray[Any]
    ) -> npt.NDArray[np.float32]:
        """Return norm((1 - share) * query + share * norm(w @ vectors)), where w is softmax(logits / temperature).

        Args:
            query: its vector ``(dimensions,)``, of norm 1.
            vectors: of the candidates ``(n, dimensions)``, at least one.
            logits: what orders the candidates ``(n,)``.
        """
        weights = np.exp((logits - logits.max()) / self.temperature)
        centre = weights @ vectors
        moved = (1 - self.share) * query + self.share * centre / (np.linalg.norm(centre) or 1.0)
        unit: npt.NDArray[np.float32] = (moved / (np.linalg.norm(moved) or 1.0)).astype(np.float32)
        return unit


@dataclass(frozen=True, slots=True)
class Advice:
    """What a model recommends for ranking by its scores; by default, the scores alone.

    Attributes:
        first_pass_weight: weight, 0 or above, of first-pass score / query's best score in a linear blend.
        passages: whether documents longer than the model's window are read by passages.
        languages: ISO 639-1 codes of the languages that the model reads; empty if not known.
        kind: the model's kind: ``bi-encoder``, ``late-interaction``, ``cross-encoder`` or ``duo``.
        feedback: how a bi-encoder's queries move towards their best candidates; None if they do not.
    """

    first_pass_weight: float = 0.0
    passages: bool = False
    languages: tuple[str, ...] = ()
    kind: str = "cross-encoder"
    feedback: Feedback | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.first_pass_weight < math.inf:
            raise ValueError(f"first_pass_weight is {self.first_pass_weight}; it must be 0 or above")


@runtime_checkable
class Scorer(Protocol):
    """Reads query and documents together, and returns one float per tuple. It knows nothing of rankings.

    ```python
    import numpy as np
    from osrerank import Reranker
    from osrerank.types import NEVER, Advice, Scores

    class CommonWords:
        model, identity, advice = "common-words", "common-words-1", Advice()

        def score(self, query, documents, tuples, *, deadline=NEVER):
            words = set(query.split())
            values = [len(words & set(documents[at].split())) for (at,) in tuples]
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
        """All that a score depends on except the texts: model digest, precision, input policy. Part of cache keys."""

    @property
    def advice(self) -> Advice:
        """What the model recommends for ranking; nothing unless a scorer overrides this."""
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
            query: its text.
            documents: their texts.
            tuples: indices into ``documents``: ``(i,)`` for one document, ``(i, j)`` for duo.
            deadline: no batch begins after it; tuples are attempted approximately in order.
        """

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Map `Scores.log_odds` ``(n,)`` to calibrated probabilities ``(n,)`` by a non-decreasing function."""

    def close(self) -> None:
        """Release the model; further calls are errors."""
