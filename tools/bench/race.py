"""The pairs of a race, this library as a contender, and contenders that take turns."""

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from osrerank._version import __version__
from osrerank.errors import InferenceError
from osrerank.formats.candidates import candidate_lists
from osrerank.scoring.card_file import read_card
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.registry import load_scorer

Values = npt.NDArray[np.float64]
TOP, SEED, QUERY_WORDS = 10, 1, 6
SYLLABLES = ("low", "blood", "press", "ure", "heart", "rate", "wing", "flow", "salt", "bed", "rest", "north", "sea")


class BenchQuery(NamedTuple):
    """A query, and the texts of its documents in first-pass order."""

    query: str
    documents: Sequence[str]


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


class Ours:
    """This library with an exported model.

    Args:
        directory: the model's.
        threads: CPU threads.
    """

    def __init__(self, directory: Path, threads: int) -> None:
        self._scorer = load_scorer(str(directory), backend="onnx", threads=threads)
        self.name, self.version = f"osrerank {directory.name}", __version__

    def score(self, query: str, documents: Sequence[str]) -> Values:
        scores = self._scorer.score(query, documents, [(at,) for at in range(len(documents))])
        if scores.failures:
            raise InferenceError(f"{self.name}: {next(iter(scores.failures.values()))}", model=self.name)
        return scores.values.astype(np.float64)

    def cpu_s(self) -> float:
        return time.process_time()

    def close(self) -> None:
        self._scorer.close()


class Timings(NamedTuple):
    """What a contender took and found.

    Attributes:
        seconds: of each round.
        cpu_seconds: processor time of each round, all threads together; other load distorts it less.
        values: its scores, one array for each query.
    """

    seconds: list[float]
    cpu_seconds: list[float]
    values: list[Values]


def take_turns(contenders: Sequence[Contender], tasks: Sequence[BenchQuery], rounds: int) -> Mapping[str, Timings]:
    """Score all tasks ``rounds`` times with each contender in turn, after one task to warm each up."""
    found = {contender.name: Timings([], [], []) for contender in contenders}
    for contender in contenders:
        contender.score(*tasks[0])
    for _round in range(rounds):
        for contender in contenders:
            seconds, cpu_seconds, values = found[contender.name]
            began, cpu_began = time.perf_counter(), contender.cpu_s()
            values[:] = [contender.score(*task) for task in tasks]
            seconds.append(time.perf_counter() - began)
            cpu_seconds.append(contender.cpu_s() - cpu_began)
    return found


def shared_top(values: Sequence[Values], reference: Sequence[Values]) -> float:
    """Return the mean share of the reference's first ten that are among the first ten."""
    tops = [(_top(own), _top(other)) for own, other in zip(values, reference, strict=True)]
    return statistics.mean(len(own & other) / len(other) for own, other in tops)


def from_candidates(path: Path, *, queries: int, depth: int) -> list[BenchQuery]:
    """Read the first ``depth`` documents of the first ``queries`` queries of a candidate file."""
    return [
        BenchQuery(
            one.query.text,
            [f"{entry.get('title') or ''} {entry['text']}".strip() for entry in one.documents[:depth]],
        )
        for one in tuple(candidate_lists(path))[:queries]
    ]


def synthetic(words: int, *, queries: int, depth: int) -> list[BenchQuery]:
    """Return queries of invented words with documents of 0.5 to 1.5 times ``words`` words."""
    draw = random.Random(SEED)
    lexicon = [first + second for first in SYLLABLES for second in SYLLABLES]

    def text(size: int) -> str:
        return " ".join(draw.choices(lexicon, k=size))

    sizes = max(1, words // 2), max(1, 3 * words // 2)
    return [
        BenchQuery(text(QUERY_WORDS), [text(draw.randint(*sizes)) for _ in range(depth)]) for _query in range(queries)
    ]


def mean_tokens(directory: Path, tasks: Sequence[BenchQuery]) -> float:
    """Return the mean number of tokens of a pair."""
    builder, lengths = InputBuilder.load(directory, read_card(directory)), []
    for task in tasks:
        query = builder.query(task.query)
        lengths += [len(builder.mono(query, document).ids) for document in builder.documents(task.documents, query)]
    return statistics.mean(lengths)


def _top(values: Values) -> set[int]:
    return set(np.argsort(-values, kind="stable")[:TOP].tolist())
