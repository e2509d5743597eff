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
"""float32 ``(n, dimensions)``, a vector per text; for late interaction, a sequence of n ``(tokens, dimensions)``."""


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """What an encoder returns: the vectors of texts, and which texts failed or were cut.

    Attributes:
        rows: the vectors, float32 ``(n, dimensions)``, one per text; for late interaction, a list of n arrays
            ``(tokens, dimensions)``, one vector per token. NaN if a text failed or was not reached.
        failures: index of a text -> why it could not be encoded.
        cut: the indices of texts that are longer than the model reads.
    """

    rows: Rows
    failures: Mapping[int, str] = field(default_factory=dict)
    cut: frozenset[int] = frozenset()


class Encoder(Protocol):
    """A model that encodes each text alone. A document's vector depends on no other text, so it can be stored.

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
        """A string that changes with everything that a similarity depends on, except the texts."""

    @property
    def key(self) -> str:
        """A string that changes with everything that a document's vector depends on, except its text.

        It does not change with the backend, the device or the dtype.
        """

    @property
    def dimensions(self) -> int:
        """The length of a vector."""

    @property
    def advice(self) -> Advice:
        """What the model recommends for ranking."""

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        """Encode texts, in their order, until the deadline.

        Args:
            texts: the texts of queries or documents.
            side: whether they are queries or documents; a model may have a prefix for each.
            deadline: the time after which no batch begins.

        Raises:
            ScoringError: nothing could be encoded.
        """

    def similarity(self, query: npt.NDArray[np.float32], vectors: Rows) -> npt.NDArray[np.float32]:
        """Return a logit for each document ``(n,)``; higher is better.

        Args:
            query: the query's vector ``(dimensions,)``; for late interaction, its tokens' ``(tokens, dimensions)``.
            vectors: the documents' vectors ``(n, dimensions)``, as `encode` returned them but rounded; for late
                interaction, n arrays ``(tokens, dimensions)``.
        """

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Map similarities ``(n,)`` to calibrated probabilities ``(n,)`` by a non-decreasing function."""

    def close(self) -> None:
        """Release the model; further calls are errors."""


Part = tuple[str, Span | None]
"""A passage or sentence as the model reads it, and its span in the document; the span is None for the whole text."""


def in_turns(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the indices ``(document, part)`` of all parts: first each document's first part, then the second parts.

    In this order, a deadline leaves out later parts before it leaves a document without a score.

    Args:
        counts: the number of parts of each document.
    """
    return [
        (document, part)
        for part in range(max(counts, default=0))
        for document in range(len(counts))
        if part < counts[document]
    ]


def is_encoder(model: Any) -> "TypeIs[Encoder]":
    """Return whether a model is an encoder; every other model is a scorer."""
    return hasattr(model, "encode")


@dataclass(frozen=True, slots=True, eq=False)
class LongText:
    """A document that is read by passages, and split into them only if their vectors are not stored.

    Attributes:
        content: the digest of everything that the passages depend on: the texts, and how they are cut.
        cut: a function that returns the passages as the model reads them, at least one, each with its span (None for
            the whole text).
    """

    content: bytes
    cut: Callable[[], Sequence[Part]] = field(compare=False)


@dataclass(frozen=True, slots=True)
class PassageScores(Counts):
    """The scores of the passages, or sentences, of several documents.

    Attributes:
        spans: the spans of each document's passages, at least one; None for the whole text.
        logits: the logits of each document's passages, float32 ``(n,)``; NaN for passages that failed or were not
            attempted.
        failures: (index of a document, index of its passage) -> why the passage could not be scored.
        identity: the identity of the model, as in `osrerank.types.Scores`.
        odds: the log-odds of each document's passages ``(n,)``, as in `osrerank.types.Scores`.
        cut: the indices of documents with a passage that was cut to fit the model.
        unread: the number of documents of which a deadline left passages unread.
    """

    spans: Sequence[Sequence[Span | None]]
    logits: Sequence[npt.NDArray[np.float32]]
    failures: Mapping[tuple[int, int], str] = field(default_factory=dict)
    identity: str = ""
    odds: Sequence[npt.NDArray[np.float32]] | None = None
    cut: frozenset[int] = frozenset()
    unread: int = 0

    @property
    def log_odds(self) -> Sequence[npt.NDArray[np.float32]]:
        """The log-odds of each document's passages ``(n,)``, as in `osrerank.types.Scores`."""
        return self.logits if self.odds is None else self.odds

    @property
    def asked(self) -> int:
        """The number of passages that the documents were split into; a deadline may have left out further ones."""
        return sum(map(len, self.spans))

    @property
    def attempted(self) -> int:
        """The number of passages that were scored or failed."""
        return len(self.failures) + sum(int(np.count_nonzero(~np.isnan(logits))) for logits in self.logits)

    @property
    def scored(self) -> list[int]:
        """The indices of the documents with at least one scored passage."""
        return [index for index, logits in enumerate(self.logits) if not np.isnan(logits).all()]

    @property
    def failed(self) -> dict[int, str]:
        """Index of a document without a scored passage -> why its first failed passage could not be scored."""
        reasons = {index: reason for (index, _), reason in sorted(self.failures.items(), reverse=True)}
        return {index: reasons[index] for index in sorted(reasons) if np.isnan(self.logits[index]).all()}

    @property
    def reached(self) -> int:
        """The number of leading documents with an attempted passage; later documents may have one, too."""
        tried = {*self.scored, *self.failed}
        return next((index for index in range(len(self.logits)) if index not in tried), len(self.logits))


@runtime_checkable
class CutsTexts(Protocol):
    """A scorer that can cut texts with its model's tokenizer."""

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return the start and end, in characters, of each text's consecutive chunks that fit the model beside a query.

        A text that fits is one chunk; a text without tokens has none.

        Args:
            query: the query's text.
            texts: the documents' texts.
        """


@runtime_checkable
class NeedsServer(Protocol):
    """A scorer that sends its texts to a rerank server."""

    def check_server(self, deadline: Deadline = NEVER) -> None:
        """Check that the server can score.

        Raises:
            DeadlineExceeded, EndpointError, Overloaded: the server cannot score, or does not answer in time.
        """

    def allow_long_retries(self) -> None:
        """Let all later calls without a deadline wait for minutes while the server is busy or does not answer."""


@runtime_checkable
class NeedsWorkers(Protocol):
    """A model that runs on workers: for all texts, or for those without stored vectors."""

    def find_workers(self, deadline: Deadline = NEVER) -> int:
        """Return how many workers there are, without sending them anything.

        For a time after a failure, this raises at once, without a request to the broker.

        Args:
            deadline: the time until which to wait for the broker.

        Raises:
            WorkerError: there are no workers, or the broker does not answer in time.
        """
