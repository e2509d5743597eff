"""The protocol `Encoder`, its `Vectors`, and types of documents read by passages."""

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
Rows = Any
"""float32 ``(n, dimensions)``: a vector of each text; of late interaction a sequence of n ``(tokens, dimensions)``."""


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """The vectors of texts.

    Attributes:
        rows: float32 ``(n, dimensions)``, one vector per text; of late interaction a list of n arrays
            ``(tokens, dimensions)``, one vector per token. NaN where a text failed or was not reached.
        failures: index of a text -> why it could not be encoded.
        cut: the indices of texts that are longer than the model reads.
    """

    rows: Rows
    failures: Mapping[int, str] = field(default_factory=dict)
    cut: frozenset[int] = frozenset()


class Encoder(Protocol):
    """Encodes each text alone. A document's vector depends on no other text, so it can be stored.

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
        """Length of a vector."""

    @property
    def advice(self) -> Advice:
        """What the model recommends for ranking."""

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        """Encode texts, in their order, until the deadline.

        Args:
            texts: queries or documents.
            side: which of the two; a model may have a prefix for each.
            deadline: no batch begins after it.

        Raises:
            ScoringError: nothing could be encoded.
        """

    def similarity(self, query: npt.NDArray[np.float32], vectors: Rows) -> npt.NDArray[np.float32]:
        """Return a logit for each document ``(n,)``; higher is better.

        Args:
            query: the query's vector ``(dimensions,)``; of late interaction its tokens' ``(tokens, dimensions)``.
            vectors: the documents', as `encode` gave them but rounded ``(n, dimensions)``; of late interaction n
                ``(tokens, dimensions)``.
        """

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Map similarities ``(n,)`` to calibrated probabilities ``(n,)`` by a non-decreasing function."""

    def close(self) -> None:
        """Release the model; further calls are errors."""


Part = tuple[str, Span | None]
"""A passage or sentence as the model reads it, and its span in the document; None for the whole text."""


def in_turns(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return (document, part) of every part: all documents' first parts, then all second ones, etc.

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
    """A document that is read by passages. It is split only if their vectors are not known.

    Attributes:
        content: digest of everything that its passages depend on: the texts, and how they are cut.
        cut: returns the passages as the model reads them, at least one, each with its span; None for the whole text.
    """

    content: bytes
    cut: Callable[[], Sequence[Part]] = field(compare=False)


@dataclass(frozen=True, slots=True)
class PassageScores(Counts):
    """The scores of the passages, or sentences, of several documents.

    Attributes:
        places: spans of each document's passages, at least one; None for the whole text.
        logits: float32 ``(n,)`` for each document; NaN for passages that failed or were not attempted.
        failures: document and passage -> why it could not be scored.
        identity: as in `osrerank.types.Scores`.
        odds: likewise, ``(n,)`` for each document.
        cut: documents with a passage that was cut to fit the model.
        unread: how many documents a deadline left without all of their passages.
    """

    places: Sequence[Sequence[Span | None]]
    logits: Sequence[npt.NDArray[np.float32]]
    failures: Mapping[tuple[int, int], str] = field(default_factory=dict)
    identity: str = ""
    odds: Sequence[npt.NDArray[np.float32]] | None = None
    cut: frozenset[int] = frozenset()
    unread: int = 0

    @property
    def log_odds(self) -> Sequence[npt.NDArray[np.float32]]:
        """As in `osrerank.types.Scores`, ``(n,)`` for each document."""
        return self.logits if self.odds is None else self.odds

    @property
    def asked(self) -> int:
        """Number of passages of all documents, as far as they were cut."""
        return sum(map(len, self.places))

    @property
    def attempted(self) -> int:
        """Number of passages that were scored or failed."""
        return len(self.failures) + sum(int(np.count_nonzero(~np.isnan(logits))) for logits in self.logits)

    @property
    def scored(self) -> list[int]:
        """The documents with at least one scored passage."""
        return [at for at, logits in enumerate(self.logits) if not np.isnan(logits).all()]

    @property
    def failed(self) -> dict[int, str]:
        """Document -> why it has no score, if a passage of it failed and none was scored."""
        reasons = {at: why for (at, _), why in sorted(self.failures.items(), reverse=True)}
        return {at: reasons[at] for at in sorted(reasons) if np.isnan(self.logits[at]).all()}

    @property
    def reached(self) -> int:
        """How many leading documents had a passage attempted; later ones may have had, too."""
        tried = {*self.scored, *self.failed}
        return next((at for at in range(len(self.logits)) if at not in tried), len(self.logits))


@runtime_checkable
class CutsTexts(Protocol):
    """A scorer that has its model's tokenizer at hand."""

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return the start and end, in characters, of each text's consecutive chunks that fit the model beside a query.

        A text that fits is one chunk; a text without tokens has none.

        Args:
            query: its text.
            texts: the documents' texts.
        """


@runtime_checkable
class NeedsServer(Protocol):
    """A scorer that asks a rerank server."""

    def check_server(self, deadline: Deadline = NEVER) -> None:
        """Check that the server can score.

        Raises:
            DeadlineExceeded, EndpointError, Overloaded: it cannot, or does not answer in time.
        """

    def insist(self) -> None:
        """From now on, let calls without a deadline wait minutes for a busy server, or one that went away."""


@runtime_checkable
class NeedsWorkers(Protocol):
    """A model that needs workers, for all texts or those without vectors."""

    def find_workers(self, deadline: Deadline = NEVER) -> None:
        """Check that there are workers; nothing is sent to them.

        For a time after a failure, this raises at once, without asking the broker.

        Args:
            deadline: how long to wait for the broker.

        Raises:
            WorkerError: there are none, or the broker does not answer in time.
        """
