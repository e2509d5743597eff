"""`Scorer`, the protocol of models that score documents against a query, with the types that its methods use."""

import math
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

MAX_REMAINING_S = 1e6
"""The longest time until a deadline, in seconds. Locks do not accept much longer timeouts."""
POLL_INTERVAL_S = 0.1
"""The interval at which `Deadline.wait` checks whether the caller has given up, in seconds."""
QUERY_TRUNCATED_BIT = 128
"""The bit that is set in an element of `Scores.cuts` if the query was truncated."""
NOT_FINITE = (
    "{model} returned numbers that are not finite (NaN or infinity); if it computes in 16 bits, set dtype to fp32"
)
"""The reason why a text has no score if the model's number for it is infinite or NaN."""


def single_documents(count: int) -> list[tuple[int, ...]]:
    """Return the tuples with which a scorer scores each document alone: ``[(0,), (1,)]`` for two documents."""
    return [(index,) for index in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much work a scoring call did.

    Attributes:
        inferences: the number of inputs that a cross-encoder scored, or of texts that a bi-encoder compared.
        cached: the number of scores that came from the cache, without a forward pass.
        encoded: the number of texts that a bi-encoder encoded in this call. Each passage of a document counts as one.
        known: the number of texts or passages whose vectors were already stored.
        truncated: the number of documents truncated to the model's window, including those with cached scores.
        query_truncated: whether the query was truncated.
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
        """Return the sum of each count over several calls, such as ``{"inferences": 200, "cached": 0, ...}``.

        ``query_truncated`` is True if any call truncated the query.
        """
        names = [count.name for count in fields(Counts) if count.name != "query_truncated"]
        sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in names}
        return {**sums, "query_truncated": any(part.query_truncated for part in parts)}


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time after which a call does not begin any more work.

    Attributes:
        at_s: the deadline as a time of ``clock``, at most `MAX_REMAINING_S` from now. None if it never passes.
        withdrawn: a fast function that returns whether the caller has given up. If so, the deadline counts as passed.
        clock: a monotonic clock, in seconds.
    """

    at_s: float | None = None
    withdrawn: Callable[[], bool] | None = field(default=None, compare=False)
    clock: Callable[[], float] = field(default=time.monotonic, compare=False)

    def __post_init__(self) -> None:
        if self.at_s is not None:
            if math.isnan(self.at_s):
                raise ValueError("the time of a deadline is NaN")
            object.__setattr__(self, "at_s", min(self.at_s, self.clock() + MAX_REMAINING_S))

    @classmethod
    def after_ms(cls, duration_ms: float | None, clock: Callable[[], float] = time.monotonic) -> Self:
        """Return the deadline that passes in this many milliseconds. If the duration is None, it never passes."""
        return cls(None if duration_ms is None else clock() + duration_ms / 1000, clock=clock)

    @property
    def is_withdrawn(self) -> bool:
        """Whether the caller has given up."""
        return self.withdrawn is not None and self.withdrawn()

    def within_ms(self, duration_ms: float) -> "Deadline":
        """Return a deadline that passes in at most this many milliseconds, and not later than this one."""
        if duration_ms == math.inf:
            return self
        other = replace(Deadline.after_ms(duration_ms, self.clock), withdrawn=self.withdrawn)
        return other if other.remaining_s() < self.remaining_s() else self

    def remaining_s(self) -> float:
        """Return the seconds until the deadline. They are negative after it, and infinite if it never passes."""
        if self.is_withdrawn:
            return -1.0
        return math.inf if self.at_s is None else self.at_s - self.clock()

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed, or the caller has given up."""
        return (self.at_s is not None and self.at_s <= self.clock()) or self.is_withdrawn

    def wait(self, event: threading.Event) -> bool:
        """Wait for an event until the deadline. Return whether the event is set."""
        while not event.is_set() and not self.passed:
            timeout_s = self.remaining_s()
            if self.withdrawn is not None:
                timeout_s = min(timeout_s, POLL_INTERVAL_S)
            event.wait(None if timeout_s == math.inf else max(0.0, timeout_s))
        return event.is_set()


NEVER = Deadline()
"""A deadline that never passes."""


@dataclass(frozen=True, slots=True)
class Scores(Counts):
    """The scores that a scorer returns for n tuples of documents.

    A tuple has the indices of the documents that the model reads together: one, or two if it compares a pair.

    Attributes:
        values: the logits of the tuples, in order, float32 ``(n,)``. Higher is better. NaN marks a tuple that failed or
            was not attempted.
        failures: why tuples could not be scored, by the tuple's index: ``{3: "its text is blank"}``.
        reached: the number of tuples before the first one that was not attempted. The default, -1, becomes n.
        identity: `Scorer.identity` at the time of the call. Empty if it never changes.
        odds: the log-odds of relevance ``(n,)``. None if ``values`` are log-odds, as for all heads but a next-sentence
            head, whose value is the second of two logits.
        cuts: which texts of each tuple were truncated, as bits ``(n,)``: 1 for the first document, 2 for the second,
            and `QUERY_TRUNCATED_BIT` for the query. None if unknown.
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
        """The log-odds of relevance ``(n,)``, the argument of `Scorer.probabilities`."""
        return self.values if self.odds is None else self.odds

    @staticmethod
    def merge_log_odds(
        parts: Sequence["Scores | str | None"], indices: Sequence[Sequence[int]], size: int
    ) -> npt.NDArray[np.float32] | None:
        """Merge the log-odds of several calls into an array ``(size,)``. Returns None if no call has ``odds``.

        Args:
            parts: the scores of each call. They are an error message or None if the call failed.
            indices: for each call, the indices of its tuples among all tuples, such as ``[[0, 2], [1, 3]]``.
            size: the number of all tuples.
        """
        if all(not isinstance(part, Scores) or part.odds is None for part in parts):
            return None
        log_odds = np.full(size, np.nan, dtype=np.float32)
        for part, part_indices in zip(parts, indices, strict=True):
            if isinstance(part, Scores):
                log_odds[list(part_indices)] = part.log_odds
        return log_odds

    def truncated_documents(self, tuples: Sequence[tuple[int, ...]]) -> set[int]:
        """Return the indices of the truncated documents. The result is empty if ``cuts`` is None.

        Args:
            tuples: the tuples that were scored, in order.
        """
        if self.cuts is None:
            return set()
        truncated = set[int]()
        document_bits = QUERY_TRUNCATED_BIT - 1  # all lower bits
        for tuple_index in np.flatnonzero(self.cuts & document_bits).tolist():
            for position, document_index in enumerate(tuples[tuple_index]):
                if self.cuts[tuple_index] & (1 << position):
                    truncated.add(document_index)
        return truncated

    def expand(self, indices: Sequence[int], size: int, reason: str) -> "Scores":
        """Return these scores as part of the scores of a longer list of documents. The other documents have failed.

        Args:
            indices: the index of each scored document in the longer list, ascending.
            size: the length of the longer list.
            reason: why the other documents failed.
        """
        values = np.full(size, np.nan, dtype=np.float32)
        values[indices] = self.values
        other_indices = sorted({*range(size)} - {*indices})
        failures = dict.fromkeys(other_indices, reason)
        failures |= {indices[index]: failure for index, failure in self.failures.items()}
        reached = indices[self.reached] if self.reached < len(indices) else size
        odds = Scores.merge_log_odds([self], [indices], size)
        return replace(self, values=values, failures=failures, reached=reached, odds=odds, cuts=None)

    @property
    def attempted(self) -> list[int]:
        """The indices of the tuples that were scored or failed, ascending."""
        scored = np.flatnonzero(~np.isnan(self.values[self.reached :])) + self.reached
        failed = [index for index in self.failures if index >= self.reached]
        return [*range(self.reached), *sorted({*scored.tolist(), *failed})]


@dataclass(frozen=True, slots=True)
class Advice:
    """How a model recommends using its scores. By default, candidates are ranked by these scores alone.

    Attributes:
        first_pass_weight: the first pass's weight w in a linear blend, at least 0. The blend adds w * s / s_max to a
            candidate's logit, where s is its first-pass score and s_max is the highest one.
        passages: whether documents longer than the model's window are split into passages.
        languages: the languages that the model supports, as ISO 639-1 codes. Empty if unknown.
        kind: the model's kind: ``bi-encoder``, ``late-interaction``, ``cross-encoder`` or ``duo``.
        vectors_weight: a cross-encoder's weight for the bi-encoder's logit, at least 0. The pipeline ``vectors-mono``
            multiplies the logit by the weight, and adds the product to the cross-encoder's logit.
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


def count_leading_attempts(values: npt.NDArray[np.float32], failures: Container[int]) -> int:
    """Return the number of tuples before the first one that was not attempted (`Scores.reached`).

    Args:
        values: the logits ``(n,)``. NaN marks a tuple without a score.
        failures: the indices of the tuples that failed.
    """
    unscored_indices = np.flatnonzero(np.isnan(values)).tolist()
    return next((index for index in unscored_indices if index not in failures), len(values))


@runtime_checkable
class Scorer(Protocol):
    """A model that takes a query and one or two documents as one input, such as a cross-encoder.

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
        """The model's name in reports."""

    @property
    def identity(self) -> str:
        """A string for cache keys. It changes whenever the same texts might get another score.

        It can consist of a digest of the weights, the precision, and the length to which texts are truncated.
        """

    @property
    def advice(self) -> Advice:
        """How to use the scores."""
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
            tuples: for each input of the model, the indices of its documents: ``(i,)`` for a cross-encoder, or
                ``(i, j)`` for a duo model, which compares two documents.
            deadline: the time after which no batch begins. Tuples are scored roughly in order, so that the first ones
                get a score if there is not enough time for all.
        """

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Convert log-odds ``(n,)`` (`Scores.log_odds`) to calibrated probabilities ``(n,)``, in the same order."""

    def close(self) -> None:
        """Release the model. It cannot be used afterwards."""
