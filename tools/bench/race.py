"""Race libraries that score the same pairs: the pairs, this library as a contender, and the race itself."""

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from osrerank._version import __version__
from osrerank.errors import InferenceError
from osrerank.formats.candidates import candidate_lists
from osrerank.scoring.card_file import read_card
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.registry import load_scorer
from osrerank.types.scores import single_documents

FloatArray = npt.NDArray[np.floating[Any]]
TOP = 10
SEED = 1
QUERY_WORDS = 6
SYLLABLES = ("low", "blood", "press", "ure", "heart", "rate", "wing", "flow", "salt", "bed", "rest", "north", "sea")


class BenchQuery(NamedTuple):
    """A query, and the texts of its documents in first-pass order."""

    query: str
    documents: Sequence[str]


class Contender(Protocol):
    """A library that scores the documents of a query."""

    @property
    def name(self) -> str:
        """The contender's name, which begins with the library's."""

    @property
    def version(self) -> str:
        """The versions of the library and its engine."""

    def score(self, query: str, documents: Sequence[str]) -> FloatArray:
        """Return scores ``(n,)``, higher is better, on any scale."""

    def cpu_s(self) -> float:
        """Return the processor time of all threads so far, in seconds, from any origin."""

    def close(self) -> None:
        """Release the model."""


class OsrerankContender:
    """This library with an exported model.

    Args:
        directory: the directory of the model.
        threads: the number of CPU threads.
    """

    def __init__(self, directory: Path, threads: int) -> None:
        self._scorer = load_scorer(str(directory), backend="onnx", threads=threads)
        self.name = f"osrerank {directory.name}"
        self.version = __version__

    def score(self, query: str, documents: Sequence[str]) -> FloatArray:
        scores = self._scorer.score(query, documents, single_documents(len(documents)))
        if scores.failures:
            raise InferenceError(f"{self.name}: {next(iter(scores.failures.values()))}", model=self.name)
        return scores.values.astype(np.float64)

    def cpu_s(self) -> float:
        return time.process_time()

    def close(self) -> None:
        self._scorer.close()


class RaceResult(NamedTuple):
    """The times and scores of a contender.

    Attributes:
        seconds: the time of each round, in seconds.
        cpu_seconds: the processor time of all threads in each round, in seconds. Other load distorts it less.
        scores: an array ``(n_documents,)`` for each query.
    """

    seconds: list[float]
    cpu_seconds: list[float]
    scores: list[FloatArray]


def race(contenders: Sequence[Contender], queries: Sequence[BenchQuery], rounds: int) -> Mapping[str, RaceResult]:
    """Score all queries ``rounds`` times with each contender in turn, after one query as a warm-up."""
    results = {contender.name: RaceResult([], [], []) for contender in contenders}
    for contender in contenders:
        contender.score(*queries[0])
    for _round in range(rounds):
        for contender in contenders:
            seconds, cpu_seconds, scores = results[contender.name]
            start_s, cpu_start_s = time.perf_counter(), contender.cpu_s()
            scores[:] = [contender.score(*query) for query in queries]
            seconds.append(time.perf_counter() - start_s)
            cpu_seconds.append(contender.cpu_s() - cpu_start_s)
    return results


def top_overlap(scores: Sequence[FloatArray], reference: Sequence[FloatArray]) -> float:
    """Return the mean share of the reference's first ten documents that are among the first ten here."""
    tops = [(_top(values), _top(expected_values)) for values, expected_values in zip(scores, reference, strict=True)]
    return statistics.mean(len(top & expected_top) / len(expected_top) for top, expected_top in tops)


def read_queries(path: Path, *, n_queries: int, depth: int) -> list[BenchQuery]:
    """Read the first queries of a candidate file, with their first ``depth`` documents."""
    return [
        BenchQuery(
            candidates.query.text,
            [f"{entry.get('title') or ''} {entry['text']}".strip() for entry in candidates.documents[:depth]],
        )
        for candidates in tuple(candidate_lists(path))[:n_queries]
    ]


def generate_queries(n_words: int, *, n_queries: int, depth: int) -> list[BenchQuery]:
    """Return queries of invented words, with documents of 0.5 to 1.5 times ``n_words`` words."""
    generator = random.Random(SEED)
    vocabulary = [first + second for first in SYLLABLES for second in SYLLABLES]
    min_words, max_words = max(1, n_words // 2), max(1, 3 * n_words // 2)

    def generate_text(size: int) -> str:
        return " ".join(generator.choices(vocabulary, k=size))

    def generate_document() -> str:
        return generate_text(generator.randint(min_words, max_words))

    return [
        BenchQuery(generate_text(QUERY_WORDS), [generate_document() for _ in range(depth)]) for _ in range(n_queries)
    ]


def mean_tokens(directory: Path, queries: Sequence[BenchQuery]) -> float:
    """Return the mean number of tokens of a pair of query and document."""
    builder, lengths = InputBuilder.load(directory, read_card(directory)), []
    for task in queries:
        query = builder.tokenise_query(task.query)
        lengths += [
            len(builder.build_mono(query, document).ids)
            for document in builder.tokenise_documents(task.documents, query)
        ]
    return statistics.mean(lengths)


def _top(scores: FloatArray) -> set[int]:
    return set(np.argsort(-scores, kind="stable")[:TOP].tolist())
