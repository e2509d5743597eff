"""How fast documents are scored whose vectors are there: from texts to scores, and where the time goes."""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from osrerank._version import __version__
from osrerank.bench.contenders import Ours, Values
from osrerank.bench.workload import BenchQuery
from osrerank.errors import ConfigError
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.registry import load_model
from osrerank.settings import Settings
from osrerank.types import is_encoder
from osrerank.vectors.configured import VectorStorage
from osrerank.vectors.documents import DocumentVectors
from osrerank.vectors.file import FileStore
from osrerank.vectors.record import PROFILES, VectorRecord, rows_of
from osrerank.vectors.store import MemoryStore

MOST_BYTES = 1 << 32
DAY_S = 86_400
WHOLE_PAIRS = 100
"""Documents that are also scored as whole pairs."""


class KnownVectors:
    """Scores documents whose vectors are there, each time a query that was not asked before.

    Args:
        model: a bi-encoder.
        tasks: whose document vectors are computed beforehand.
        vectors: where they are kept.
        threads: CPU threads; 0 means the cores that this process may use.

    Raises:
        ConfigError: the model is no bi-encoder.
    """

    version = __version__

    def __init__(self, model: str, tasks: Sequence[BenchQuery], vectors: VectorStorage, *, threads: int = 0) -> None:
        self.scorer = scorer_of(model, vectors, threads=threads)
        self.scorer.vectors.remember(texts_of(tasks))
        storage = vectors.store.name if vectors.store else "none"
        self.name = f"osrerank {self.scorer.model}, vectors in {storage}"
        self._number = 0

    def score(self, query: str, documents: Sequence[str]) -> Values:
        self._number += 1
        scores = self.scorer.score(f"{query} {self._number}", documents, [(at,) for at in range(len(documents))])
        return scores.values.astype(np.float64)

    def cpu_s(self) -> float:
        return time.process_time()

    def close(self) -> None:
        self.scorer.close()


def storages(settings: Settings, folder: Path, profile: str) -> list[VectorStorage]:
    """Return where vectors may be: in memory, in a file of the folder, and in the settings' Redis if there is one."""
    kept = PROFILES[profile]
    found = [
        VectorStorage(MemoryStore(MOST_BYTES), kept),
        VectorStorage(FileStore(folder, most_bytes=MOST_BYTES, ttl_s=DAY_S), kept),
    ]
    if settings.vectors_redis_url is not None:
        in_redis = VectorStorage.of(settings.model_copy(update={"vectors": "redis"}))
        found.append(replace(in_redis, bits=kept))
    return found


def scorer_of(model: str, storage: VectorStorage, *, threads: int) -> EncoderScorer:
    """Load a bi-encoder.

    Raises:
        ConfigError: the model is none.
    """
    encoder = load_model(model, backend="onnx", threads=threads)
    if not is_encoder(encoder):
        encoder.close()
        raise ConfigError(f"{model} has no vectors: name a bi-encoder", setting="model")
    return EncoderScorer(DocumentVectors(encoder, storage))


def texts_of(tasks: Sequence[BenchQuery]) -> list[str]:
    """Return the different documents of tasks."""
    return list(dict.fromkeys(text for task in tasks for text in task.documents.values()))


def measure_vectors(
    model: str, tasks: Sequence[BenchQuery], folder: Path, *, profile: str, rounds: int, threads: int = 0
) -> dict[str, Any]:
    """Return medians over queries and rounds, in milliseconds, of documents whose vectors are in a file.

    ``total_ms`` is one call: keys, store, query, cosines. The parts are measured apart, one after the other. Each round
    asks a query that was not asked before.

    Args:
        model: a bi-encoder.
        tasks: the queries and documents.
        folder: an empty one, for the file.
        profile: how much of a document is kept.
        rounds: how often each query is asked.
        threads: CPU threads; 0 means the cores that this process may use.

    Raises:
        ConfigError: the model is no bi-encoder.
    """
    store = FileStore(folder, most_bytes=MOST_BYTES, ttl_s=DAY_S)
    scorer = scorer_of(model, VectorStorage(store, PROFILES[profile]), threads=threads)
    texts = texts_of(tasks)
    began = time.perf_counter()
    scorer.vectors.remember(texts)
    build_s = time.perf_counter() - began
    whole = Ours(model, threads=threads)
    spent: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for task in tasks:
            asked = BenchQuery(task.query_id, f"{task.query} {number}", task.documents)
            _measure(scorer, whole, asked, spent)
    size = store.size()
    scorer.close()
    whole.close()
    depth = statistics.median(len(task.documents) for task in tasks)
    found = {name: statistics.median(values) for name, values in spent.items()}
    per_pair_ms = found.pop("whole_pair_ms")
    return {
        "model": model,
        "profile": profile,
        "depth": depth,
        **found,
        "pairs_per_s": 1000 * depth / found["total_ms"],
        "whole_pairs_per_s": 1000 / per_pair_ms,
        "times_whole_pairs": per_pair_ms * depth / found["total_ms"],
        "built_per_s": len(texts) / build_s,
        "bytes_per_text": size.stored / size.records,
    }


def _measure(scorer: EncoderScorer, whole: Ours, task: BenchQuery, spent: defaultdict[str, list[float]]) -> None:
    texts = list(task.documents.values())
    tuples = [(at,) for at in range(len(texts))]
    with _timed(spent, "total_ms"):
        scores = scorer.score(task.query, texts, tuples)
    assert scores.reached == len(texts)
    store = scorer.vectors.store
    assert store is not None
    with _timed(spent, "query_ms"):
        query = scorer.encoder.encode([f"{task.query} again"], "query").rows[0]  # queries that were just asked are kept
    with _timed(spent, "keys_ms"):
        keys = scorer.vectors.keys_of(texts)
    with _timed(spent, "read_ms"):
        contents = store.read(list(dict.fromkeys(keys)))
    with _timed(spent, "check_ms"):
        records = {key: VectorRecord.read(content, key) for key, content in contents.items()}
    kept = [record for key in keys if (record := records[key]) is not None]
    with _timed(spent, "cosines_ms"):
        scorer.encoder.similarity(query, rows_of(kept))
    some = texts[:WHOLE_PAIRS]
    began = time.perf_counter()
    whole.score(task.query, some)
    spent["whole_pair_ms"].append(1000 * (time.perf_counter() - began) / len(some))


@contextmanager
def _timed(spent: defaultdict[str, list[float]], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    spent[name].append(1000 * (time.perf_counter() - began))
