"""Models that encode one text at a time, and documents that are read by their passages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from osrerank.types.scores import NEVER, Advice, Counts, Deadline
from osrerank.types.values import Span

if TYPE_CHECKING:
    from typing_extensions import TypeIs

Side = Literal["query", "document"]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """What an encoder returns.

    Attributes:
        rows: float32 ``(n, dimensions)``, a vector of each text; NaN where a text failed or was not reached.
        failures: index of a text -> why it could not be encoded.
        cut: the indices of texts that are longer than the model reads.
    """

    rows: npt.NDArray[np.float32]
    failures: Mapping[int, str] = field(default_factory=dict)
    cut: frozenset[int] = frozenset()


class Encoder(Protocol):
    """Reads one text alone: what it computes of a document depends on no other text, so it may be stored.

    ```python
    import numpy as np
    from osrerank import Reranker
    from osrerank.types import NEVER, Advice, Vectors

    class Letters:
        model, identity, key, dimensions = "letters", "letters-1", "letters-1", 26
        advice = Advice(kind="bi-encoder")

        def encode(self, texts, side, *, deadline=NEVER):
            rows = np.array([[text.count(chr(97 + at)) for at in range(26)] for text in texts], np.float32)
            return Vectors(rows / np.linalg.norm(rows, axis=1, keepdims=True))

        def similarity(self, query, vectors):
            return vectors @ query

        def probabilities(self, logits):
            return 1 / (1 + np.exp(-logits.astype(np.float64)))

        def close(self):
            pass

    ranked = Reranker(scorer=Letters()).rank("low pressure", ["a high fee", "a low pressure"])
    assert ranked[0].text == "a low pressure"
    ```
    """

    @property
    def model(self) -> str:
        """The model's name, for reports."""

    @property
    def identity(self) -> str:
        """All that a similarity depends on except the texts."""

    @property
    def key(self) -> str:
        """All that a document's vector depends on except its text; not the backend, the device or the dtype."""

    @property
    def dimensions(self) -> int:
        """Numbers of a vector."""

    @property
    def advice(self) -> Advice:
        """What the model recommends for ordering."""

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        """Encode texts, in their order, until the deadline.

        Args:
            texts: queries or documents.
            side: which of them, as models have a prefix for each.
            deadline: no batch begins after it.

        Raises:
            ScoringError: nothing could be encoded.
        """

    def similarity(self, query: npt.NDArray[np.float32], vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return a logit for each document ``(n,)``; higher is better.

        Args:
            query: its vector ``(dimensions,)``.
            vectors: of documents ``(n, dimensions)``, of norm 1.
        """

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Map similarities ``(n,)`` to calibrated probabilities ``(n,)`` by a non-decreasing function."""

    def close(self) -> None:
        """Release the model; further calls are errors."""


Part = tuple[str, Span | None]
"""A passage or sentence as the model reads it, with its place in the document; None for the whole text."""


def in_turns(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return document and part of each part, the first of every document before the second of any.

    So a deadline cuts off later parts before it leaves a document without a score.

    Args:
        counts: parts of each document.
    """
    return [
        (place, turn) for turn in range(max(counts, default=0)) for place in range(len(counts)) if turn < counts[place]
    ]


def is_encoder(model: Any) -> "TypeIs[Encoder]":
    """Return whether a model encodes texts one by one; the others are scorers."""
    return hasattr(model, "encode")


@dataclass(frozen=True, slots=True, eq=False)
class LongText:
    """A document that is read by its passages, which are cut only where nobody knows their vectors.

    Attributes:
        content: digest of everything that its passages depend on: the texts, and how they are cut.
        cut: returns the passages as the model reads them, at least one, each with its place; None for the whole text.
    """

    content: bytes
    cut: Callable[[], Sequence[Part]]


@dataclass(frozen=True, slots=True)
class PassageScores(Counts):
    """The scores of the passages, or sentences, of several documents.

    Attributes:
        places: of each document's passages, at least one; None for the whole text.
        logits: of each document float32 ``(n,)``; NaN for passages that failed or were not attempted.
        failures: document and passage -> why it could not be scored.
        identity: as of `osrerank.types.Scores`.
        odds: likewise, of each document ``(n,)``.
        cut: the documents of which a passage was cut to fit the model.
    """

    places: Sequence[Sequence[Span | None]]
    logits: Sequence[npt.NDArray[np.float32]]
    failures: Mapping[tuple[int, int], str] = field(default_factory=dict)
    identity: str = ""
    odds: Sequence[npt.NDArray[np.float32]] | None = None
    cut: frozenset[int] = frozenset()

    @property
    def log_odds(self) -> Sequence[npt.NDArray[np.float32]]:
        """As of `osrerank.types.Scores`, of each document ``(n,)``."""
        return self.logits if self.odds is None else self.odds

    @property
    def asked(self) -> int:
        """Number of passages of all documents."""
        return sum(map(len, self.places))

    @property
    def attempted(self) -> int:
        """Number of passages that were scored or failed."""
        return len(self.failures) + sum(int(np.count_nonzero(~np.isnan(logits))) for logits in self.logits)

    @property
    def scored(self) -> list[int]:
        """The documents of which at least one passage was scored."""
        return [at for at, logits in enumerate(self.logits) if not np.isnan(logits).all()]

    @property
    def failed(self) -> dict[int, str]:
        """Document -> why none of its passages could be scored, among those of which one was attempted."""
        reasons = {at: why for (at, _), why in sorted(self.failures.items(), reverse=True)}
        return {at: reasons[at] for at in sorted(reasons) if np.isnan(self.logits[at]).all()}

    @property
    def reached(self) -> int:
        """How many leading documents had at least one passage attempted; some behind them may have too."""
        tried = {*self.scored, *self.failed}
        return next((at for at in range(len(self.logits)) if at not in tried), len(self.logits))


@runtime_checkable
class CutsTexts(Protocol):
    """A scorer that has its model's tokenizer at hand."""

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return the start and end, in characters, of each text's consecutive chunks that fit the model beside a query.

        A text that fits is its only chunk, and one without a piece has none.

        Args:
            query: its text.
            texts: to be scored against it.
        """


@runtime_checkable
class NeedsServer(Protocol):
    """A scorer that another server scores for."""

    def check_server(self, deadline: Deadline = NEVER) -> None:
        """Return if the server can score now.

        Raises:
            DeadlineExceeded, EndpointError, Overloaded: it cannot, or does not say so in time.
        """

    def insist(self) -> None:
        """Wait minutes for a server that is busy, or away after it was there, where a call has no deadline."""


@runtime_checkable
class NeedsWorkers(Protocol):
    """A scorer that needs workers, for everything or for what is not known."""

    def find_workers(self, deadline: Deadline = NEVER) -> None:
        """Return if there are workers; they are asked nothing.

        After a failure whoever asks again, and cannot do without an answer, is refused at once for a time.

        Args:
            deadline: until when the broker is waited for.

        Raises:
            WorkerError: there are none, or the broker cannot be asked, or not in time.
        """
