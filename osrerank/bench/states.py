"""How fast documents are scored whose states are there: from texts to scores, and where the time goes."""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from osrerank.bench.contenders import Ours
from osrerank.bench.workload import Task
from osrerank.errors import ConfigError
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.locate import locate
from osrerank.scoring.model_files import read_card
from osrerank.scoring.onnx_scorer import JoinedBackend
from osrerank.scoring.states.configured import States
from osrerank.scoring.states.file import FileStore
from osrerank.scoring.states.record import PROFILES, Record
from osrerank.scoring.states.scorer import JoinedScorer

MOST_BYTES = 1 << 32
DAY_S = 86_400
WHOLE_PAIRS = 100
"""Documents that are also scored as whole pairs."""


def measure_states(
    model: str, tasks: Sequence[Task], folder: Path, *, profile: str, rounds: int, threads: int = 0
) -> dict[str, Any]:
    """Return medians over queries and rounds, in milliseconds, of documents whose states are in a file.

    ``total_ms`` is one call: keys, store, query, join. The parts are measured apart, one after the other. Each round
    asks a query that was not asked before.

    Args:
        model: of the layout ``joined``.
        tasks: the queries and documents.
        folder: an empty one, for the file.
        profile: how much of a document is kept.
        rounds: how often each query is asked.
        threads: CPU threads; 0 means the cores that this process may use.

    Raises:
        ConfigError: the model has another layout.
    """
    directory = locate(model)
    card = read_card(directory, name=model)
    if card.layout != "joined" or card.kind != "mono":
        raise ConfigError(f"{model} has no states: name a mono model of the layout joined", setting="model")
    store = FileStore(folder, most_bytes=MOST_BYTES, ttl_s=DAY_S)
    backend = JoinedBackend.load(directory, card, threads=threads)
    builder = InputBuilder.load(directory, card)
    scorer = JoinedScorer(directory, card, builder, backend, States(store, PROFILES[profile]))
    texts = list(dict.fromkeys(text for task in tasks for text in task.documents.values()))
    began = time.perf_counter()
    scorer.remember(texts)
    build_s = time.perf_counter() - began
    whole = Ours(model, threads=threads)
    spent: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for task in tasks:
            _measure(
                scorer, backend, builder, whole, Task(task.query_id, f"{task.query} {number}", task.documents), spent
            )
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


def _measure(
    scorer: JoinedScorer,
    backend: JoinedBackend,
    builder: InputBuilder,
    whole: Ours,
    task: Task,
    spent: defaultdict[str, list[float]],
) -> None:
    texts = list(task.documents.values())
    tuples = [(place,) for place in range(len(texts))]
    with _timed(spent, "total_ms"):
        scores = scorer.score(task.query, texts, tuples)
    assert scores.reached == len(texts)
    store = scorer.store
    assert store is not None
    ids = builder.alone(builder.query(task.query)).ids
    with _timed(spent, "query_ms"):
        query: Mapping[str, Any] = backend.encoded(ids)
    with _timed(spent, "keys_ms"):
        keys = scorer.keys_of(texts)
    with _timed(spent, "read_ms"):
        contents = store.read(list(dict.fromkeys(keys)))
    with _timed(spent, "check_ms"):
        records = {key: Record.read(content, key) for key, content in contents.items()}
    seen = [[record] for key in keys if (record := records[key]) is not None]
    with _timed(spent, "join_ms"):
        scorer.joiner.scores(query, seen)
    some = texts[:WHOLE_PAIRS]
    began = time.perf_counter()
    whole.score(task.query, some)
    spent["whole_pair_ms"].append(1000 * (time.perf_counter() - began) / len(some))


@contextmanager
def _timed(spent: defaultdict[str, list[float]], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    spent[name].append(1000 * (time.perf_counter() - began))
