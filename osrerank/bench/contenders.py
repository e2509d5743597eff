"""Who is measured: this library's backends; its peers are in `osrerank.bench.peers`."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from osrerank._version import __version__
from osrerank.errors import InferenceError
from osrerank.scoring.backends.base import Backend
from osrerank.scoring.cross_encoder import CrossEncoder
from osrerank.scoring.inputs import InputBuilder, Pieces, Tokens
from osrerank.scoring.locate import locate
from osrerank.scoring.model_files import read_card
from osrerank.scoring.registry import forms_of, load_backend
from osrerank.vectors.token_vectors import maxsim

Values = npt.NDArray[np.float64]


class Contender(Protocol):
    """Scores the documents of a query."""

    @property
    def name(self) -> str:
        """Begins with the library's name."""

    @property
    def version(self) -> str:
        """The library's, and its engine's."""

    def score(self, query: str, documents: Sequence[str]) -> Values:
        """Return scores ``(n,)``, higher is better, on any scale."""

    def cpu_s(self) -> float:
        """Return the processor time that it took so far, in seconds, all threads together; only differences count."""

    def close(self) -> None:
        """Release the model."""


@dataclass(slots=True)
class Spent:
    """Seconds of work by part, summed over threads, and the tokens that went through the model.

    Attributes:
        tokenise_s: making sequences of texts.
        compute_s: in the backend.
        tokens: of the sequences.
        slots: of the batches, padding among them.
    """

    tokenise_s: float = 0.0
    compute_s: float = 0.0
    tokens: int = 0
    slots: int = 0
    lock: Lock = field(default_factory=Lock)

    def clear(self) -> None:
        """Reset all counts."""
        self.tokenise_s = self.compute_s = 0.0
        self.tokens = self.slots = 0

    @contextmanager
    def tokenising(self) -> Iterator[None]:
        """Add the time of the block to the tokenisation."""
        began = time.perf_counter()
        yield
        self.tokenise_s += time.perf_counter() - began

    def computed(self, sequences: Sequence[Tokens], seconds: float, *, packed: bool) -> None:
        """Count a batch."""
        lengths = [len(tokens.ids) for tokens in sequences]
        with self.lock:
            self.compute_s += seconds
            self.tokens += sum(lengths)
            self.slots += sum(lengths) if packed else max(lengths) * len(lengths)


class TimedBackend:
    """A backend whose runs are counted.

    Args:
        backend: does the work.
        spent: where the work is counted.
    """

    def __init__(self, backend: Backend, spent: Spent) -> None:
        self._backend, self._spent = backend, spent
        self.name, self.precision = backend.name, backend.precision
        self.files, self.threads = backend.files, backend.threads
        self.budget_tokens, self.packed, self.parallel = backend.budget_tokens, backend.packed, backend.parallel

    def run(self, sequences: Sequence[Tokens]) -> npt.NDArray[np.float32]:
        began = time.perf_counter()
        outputs: npt.NDArray[np.float32] = self._backend.run(sequences)
        self._spent.computed(sequences, time.perf_counter() - began, packed=self.packed)
        return outputs

    def close(self) -> None:
        self._backend.close()


class Cosines:
    """An encoder's backend as one of whole pairs: both texts of a sequence are encoded and compared.

    Args:
        backend: encodes texts.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name, self.precision, self.files = backend.name, backend.precision, backend.files
        self.threads, self.budget_tokens = backend.threads, backend.budget_tokens
        self.packed, self.parallel = backend.packed, backend.parallel

    def run(self, sequences: Sequence[Tokens]) -> npt.NDArray[np.float32]:
        """Return the cosine or MaxSim of each sequence's query, segment 0, and document, segment 1 ``(n, 1)``."""
        texts = [one.ids[one.segments == segment] for segment in (0, 1) for one in sequences]
        rows = self._backend.run([Tokens(ids, np.zeros_like(ids)) for ids in texts])
        queries, documents = rows[: len(sequences)], rows[len(sequences) :]
        if isinstance(rows, list):
            return np.array([maxsim(*pair) for pair in zip(queries, ([one] for one in documents), strict=True)])
        cosines: npt.NDArray[np.float32] = (queries * documents).sum(axis=1, keepdims=True)
        return cosines

    def close(self) -> None:
        self._backend.close()


class TimedBuilder:
    """An input builder whose work is counted.

    Args:
        builder: does the work.
        spent: where the work is counted.
    """

    def __init__(self, builder: InputBuilder, spent: Spent) -> None:
        self._builder, self._spent = builder, spent
        self.length_rule = builder.length_rule

    def query(self, text: str) -> Pieces:
        """As of `InputBuilder`."""
        with self._spent.tokenising():
            return self._builder.query(text)

    def documents(self, texts: Sequence[str], query: Pieces) -> list[Pieces]:
        """As of `InputBuilder`."""
        with self._spent.tokenising():
            return self._builder.documents(texts, query)

    def mono(self, query: Pieces, document: Pieces) -> Tokens:
        """As of `InputBuilder`."""
        with self._spent.tokenising():
            return self._builder.mono(query, document)


class Ours:
    """This library with a model directory, a shipped name or a hub id.

    Args:
        model: what to load.
        label: name of its row.
        backend: as for `load_scorer`.
        threads: CPU threads; 0 means the cores that this process may use.
        budget_tokens: replaces the backend's own; 0 keeps it.
        max_tokens: of a pair, instead of the card's; 0 keeps those.

    Raises:
        ModelLoadError: the model cannot be loaded.
        MissingDependencyError: its backend is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        label: str = "",
        backend: str = "auto",
        threads: int = 0,
        budget_tokens: int = 0,
        max_tokens: int = 0,
    ) -> None:
        directory = locate(model, forms=forms_of(backend))
        card = read_card(directory, name=label or model)
        card = replace(card, max_tokens=max_tokens or card.max_tokens)
        network = load_backend(directory, card, backend=backend, threads=threads)
        loaded = Cosines(network) if card.is_encoder else network
        self.spent = Spent()
        self.directory, self.precision, self.threads = directory, loaded.precision, loaded.threads
        timed = TimedBackend(loaded, self.spent)
        timed.budget_tokens = budget_tokens or timed.budget_tokens
        self.budget_tokens = timed.budget_tokens
        self.builder = InputBuilder.load(directory, card)
        self.model = model
        timed_builder: Any = TimedBuilder(self.builder, self.spent)
        self._scorer = CrossEncoder(directory, card, timed_builder, timed)
        self.kind = loaded.name
        batches = f", batches of {budget_tokens}" if budget_tokens else ""
        self.name = f"osrerank {self.kind} {self.precision} {label or model}{batches}"
        self.version = __version__

    def score(self, query: str, documents: Sequence[str]) -> Values:
        scores = self._scorer.score(query, documents, [(at,) for at in range(len(documents))])
        if scores.failures:
            raise InferenceError(f"{self.name}: {next(iter(scores.failures.values()))}", model=self.name)
        return scores.values.astype(np.float64)

    def cpu_s(self) -> float:
        return time.process_time()

    def close(self) -> None:
        self._scorer.close()
