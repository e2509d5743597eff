"""Documents whose vectors are kept: texts read by their passages, and scorers that know them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from osrerank.types.scores import NEVER, Counts, Deadline, RequestVectors
from osrerank.types.values import Span


@dataclass(frozen=True, slots=True, eq=False)
class LongText:
    """A document that is read by its passages, which are cut only where nobody knows their vectors.

    Attributes:
        content: digest of everything that its passages depend on: the texts, and how they are cut.
        cut: returns the passages as the model reads them, at least one, each with its place; None for the whole text.
    """

    content: bytes
    cut: Callable[[], Sequence[tuple[str, Span | None]]]


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
class ScoresPassages(Protocol):
    """A scorer that is given documents, and knows how long ones are read."""

    def score_passages(
        self,
        query: str,
        texts: Sequence[str | LongText],
        *,
        deadline: Deadline = NEVER,
        vectors: RequestVectors | None = None,
    ) -> PassageScores:
        """Score the passages of texts against a query, the first of every text before the second of any.

        Args:
            query: its text.
            texts: a text is its only passage; a long one is cut where its vectors are not known.
            deadline: as of `Scorer.score`.
            vectors: likewise.
        """


@runtime_checkable
class HasVectors(ScoresPassages, Protocol):
    """A scorer whose documents have vectors."""

    @property
    def keeps_vectors(self) -> bool:
        """Whether vectors outlive a call, so that a document is computed once."""

    def keys_of(self, texts: Sequence[str | LongText]) -> list[bytes]:
        """Return the keys of texts' records."""

    def known(self, keys: Sequence[bytes], vectors: RequestVectors | None = None) -> set[bytes]:
        """Return those keys whose records a search brought or a store has; ``vectors`` gets what it lacks of them."""


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
