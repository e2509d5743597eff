"""`Encoder`, the protocol of models that encode texts into vectors, and the types for passages of documents.

The other protocols describe what only some models can do, such as splitting texts or reaching a server.
"""

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
"""The vectors of n texts: float32 ``(n, dimensions)``, or for late interaction n arrays ``(tokens, dimensions)``."""


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """The vectors of n texts. Some texts might have failed, or might have been truncated.

    Attributes:
        rows: a vector per text, float32 ``(n, dimensions)``. For late interaction, a vector per token: n arrays
            ``(tokens, dimensions)``. NaN marks texts that failed or were not encoded before the deadline.
        failures: why texts could not be encoded, by the text's index: ``{3: "its text is blank"}``.
        cut: the indices of the truncated texts.
    """

    rows: Rows
    failures: Mapping[int, str] = field(default_factory=dict)
    cut: frozenset[int] = frozenset()


class Encoder(Protocol):
    """A model that encodes each text into a vector, independently of other texts, so that vectors can be stored.

    ```python
    import string
    import numpy as np
    from osrerank import Reranker
    from osrerank.types import NEVER, Advice, Vectors

    class Letters:
        model, identity, key, dimensions = "letters", "letters-1", "letters-1", 26
        advice = Advice(kind="bi-encoder")

        def encode(self, texts, side, *, deadline=NEVER):
            counts = [[text.count(letter) for letter in string.ascii_lowercase] for text in texts]
            rows = np.array(counts, np.float32)
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
        """The model's name in reports."""

    @property
    def identity(self) -> str:
        """A string for cache keys of scores. It changes whenever the same texts might get another similarity."""

    @property
    def key(self) -> str:
        """A string for keys of stored vectors. It changes whenever the same document might get another vector.

        It stays the same on another backend or device and with another dtype, because the vectors are interchangeable.
        """

    @property
    def dimensions(self) -> int:
        """The length of a vector."""

    @property
    def advice(self) -> Advice:
        """How the model recommends using its similarities."""

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        """Encode texts in order, until the deadline.

        Args:
            texts: queries or documents.
            side: whether they are queries or documents. Some models add a different prefix to each.
            deadline: the time after which no batch begins.

        Raises:
            ScoringError: no text could be encoded.
        """

    def similarity(self, query: npt.NDArray[np.float32], vectors: Rows) -> npt.NDArray[np.float32]:
        """Return the similarity of each document to the query, a logit ``(n,)``. Higher is better.

        Args:
            query: the query's vector ``(dimensions,)``, or for late interaction its vectors ``(tokens, dimensions)``.
            vectors: the vectors of n documents, as in `Vectors.rows`. They may have been rounded for storage.
        """

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Convert similarities ``(n,)`` to calibrated probabilities ``(n,)``, in the same order."""

    def close(self) -> None:
        """Release the model. It cannot be used afterwards."""


Part = tuple[str, Span | None]
"""The text of a passage or sentence, and its span in the document. The span is None if the document was not split."""


def interleave_parts(part_counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the order in which to score parts: the first part of each document, then the second parts, and so on.

    The order is a list of ``(document, part)`` indices: ``[(0, 0), (1, 0), (0, 1)]`` if the first document has two
    parts, and the second document has one. If the deadline comes early, each document then has a score at least for its
    beginning.

    Args:
        part_counts: the number of parts of each document.
    """
    return [
        (document_index, part_index)
        for part_index in range(max(part_counts, default=0))
        for document_index, n_parts in enumerate(part_counts)
        if part_index < n_parts
    ]


def is_encoder(model: Any) -> "TypeIs[Encoder]":
    """Return whether a model is an `Encoder`. All other models are scorers."""
    return hasattr(model, "encode")


@dataclass(frozen=True, slots=True, eq=False)
class LongText:
    """A document to encode by passages. It is split only if the vectors of its passages are not stored.

    Attributes:
        content: a digest of the document and of the options for splitting it.
        cut: a function that splits the document into one or more passages.
    """

    content: bytes
    cut: Callable[[], Sequence[Part]] = field(compare=False)


@dataclass(frozen=True, slots=True)
class PassageScores(Counts):
    """The scores of the passages or sentences of several documents.

    Attributes:
        spans: for each document, the spans of its passages, at least one. The span is None if it was not split.
        logits: for each document, the logits of its n passages, float32 ``(n,)``. NaN marks a passage that failed or
            was not attempted.
        failures: why passages could not be scored, by the indices of document and passage: ``{(2, 0): "..."}``.
        identity: the model's identity, as in `osrerank.types.Scores`.
        odds: for each document, the calibrated log-odds of its passages ``(n,)``. None if the logits are log-odds.
        cut: the indices of the documents with a truncated passage.
        unread: the number of documents that were not completely split before the deadline.
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
        """For each document, the log-odds of its passages ``(n,)``."""
        return self.logits if self.odds is None else self.odds

    @property
    def asked(self) -> int:
        """The number of passages of all documents that were split off before the deadline."""
        return sum(map(len, self.spans))

    @property
    def attempted(self) -> int:
        """The number of passages that were scored or failed."""
        return len(self.failures) + sum(int(np.count_nonzero(~np.isnan(logits))) for logits in self.logits)

    @property
    def scored(self) -> list[int]:
        """The indices of the documents with a scored passage."""
        return [index for index, logits in enumerate(self.logits) if not np.isnan(logits).all()]

    @property
    def failed(self) -> dict[int, str]:
        """Why documents without a scored passage failed, by the document's index: the reason of its first failure."""
        reasons = dict[int, str]()
        for (index, _part_index), reason in sorted(self.failures.items()):
            reasons.setdefault(index, reason)
        return {index: reason for index, reason in reasons.items() if np.isnan(self.logits[index]).all()}

    @property
    def reached(self) -> int:
        """The number of leading documents of which at least one passage was scored or failed."""
        attempted_indices = {*self.scored, *self.failed}
        return next((index for index in range(len(self.logits)) if index not in attempted_indices), len(self.logits))


@runtime_checkable
class CutsTexts(Protocol):
    """A scorer that can split texts with its model's tokenizer."""

    def chunks(self, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Split texts into consecutive chunks, each of which fits into the model's window together with a query.

        Args:
            query: the query's text.
            texts: the documents' texts.

        Returns:
            The chunks of each text, as slices in characters: ``[(0, 900), (900, 1250)]`` for a text of 1,250
            characters. A text without tokens has no chunks.
        """


@runtime_checkable
class NeedsServer(Protocol):
    """A scorer that sends texts to a rerank server."""

    def check_server(self, deadline: Deadline = NEVER) -> None:
        """Check that the server can score.

        Raises:
            DeadlineExceeded, EndpointError, Overloaded: the server cannot score, or does not respond in time.
        """

    def allow_long_retries(self) -> None:
        """Let later calls without a deadline wait minutes for a busy or unavailable server, which suits batch jobs."""


@runtime_checkable
class NeedsWorkers(Protocol):
    """A model that runs on Celery workers."""

    def find_workers(self, deadline: Deadline = NEVER) -> int:
        """Return the number of running workers, without sending them a task.

        For a while after a failure, the call raises the same error again without asking the broker.

        Args:
            deadline: the time until which to wait for the broker.

        Raises:
            WorkerError: no workers are registered, or the broker does not respond in time.
        """
