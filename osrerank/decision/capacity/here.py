"""The rates of the settings' model: on this machine, or on the worker that the broker leads to."""

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from osrerank.bench.machine import machine
from osrerank.bench.states import KnownStates, texts_of
from osrerank.bench.workload import Task
from osrerank.decision.capacity.measure import Score, measure_rate
from osrerank.decision.capacity.rates import Rates, StatesRate
from osrerank.errors import ConfigError, InferenceError
from osrerank.scoring.local import LocalScorer
from osrerank.scoring.registry import WORKERS, load_scorer
from osrerank.scoring.remote.chunks import MOST_PAIRS, READ_CHARACTERS
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.scoring.remote.signing import Signer
from osrerank.scoring.states.configured import States
from osrerank.scoring.states.file import FileStore
from osrerank.scoring.states.record import PROFILES
from osrerank.scoring.states.scorer import JoinedScorer
from osrerank.settings import Settings
from osrerank.types import Scorer

SINGLE_TASKS, MERGING_TASKS = 4, 16
"""Chunks that a worker scores at a time unless the settings say otherwise, as of `osrerank worker`."""
STORE_BYTES = 1 << 30
DAY_S = 86_400
SHARE_WHOLE = 0.7
"""Part of the time for whole pairs; the rest is for documents with states."""
ENCODED_TASKS = 3
"""Tasks whose documents' states are made: enough to see what it takes."""


def measure_rates(settings: Settings, tasks: Sequence[Task], depth: int, *, budget_s: float) -> Rates:
    """Measure the settings' model: one worker of the broker with the backend ``workers``, else this process.

    Args:
        settings: model, backend, threads, broker.
        tasks: queries and documents.
        depth: candidates of a search.
        budget_s: seconds, about; making states takes some more.

    Raises:
        ConfigError: several workers are there, or the backend is a rerank server.
        OsrerankError: the model cannot be loaded, or does not score.
    """
    if settings.backend == WORKERS:
        return _of_a_worker(settings, tasks, depth, budget_s)
    if settings.backend == "http":
        reason = "--backend http: a rerank server's rate is not measured here; give it with --pairs-per-s"
        raise ConfigError(reason, setting="backend", source="flag")
    with closing(_without_states(settings)) as scorer:
        has_states = isinstance(scorer, JoinedScorer) and scorer.card.kind == "mono"
        backend: Any = scorer.backend
        at_a_time = settings.worker_tasks or (MERGING_TASKS if scorer.merges_calls else SINGLE_TASKS)
        whole = measure_rate(
            _scoring(scorer),
            tasks,
            min(depth, MOST_PAIRS),
            budget_s=budget_s * (SHARE_WHOLE if has_states else 1),
            at_a_time=at_a_time,
        )
    on_gpu = getattr(backend, "device", "cpu") != "cpu"
    return Rates(
        model=settings.model,
        threads=0 if on_gpu else backend.threads,
        **_lengths(tasks),
        whole=whole,
        states=_states(settings, tasks, depth, (1 - SHARE_WHOLE) * budget_s) if has_states else None,
        where={**machine(), "backend": backend.name, "precision": backend.precision},
    )


def _without_states(settings: Settings) -> LocalScorer:
    return load_scorer(
        settings.model, backend=settings.backend, threads=settings.threads, dtype=settings.dtype, kind="mono"
    )


def _scoring(scorer: Scorer) -> Score:
    def score(query: str, documents: Sequence[str]) -> None:
        found = scorer.score(query, documents, [(place,) for place in range(len(documents))])
        if found.failures or found.reached < len(documents):
            reason = next(iter(found.failures.values()), "not all documents were scored")
            raise InferenceError(f"{scorer.model} could not be measured: {reason}", model=scorer.model)

    return score


def _of_a_worker(settings: Settings, tasks: Sequence[Task], depth: int, budget_s: float) -> Rates:
    scorer = RemoteScorer(
        settings.broker(), settings.model, queue_chunks=settings.queue_chunks, signer=Signer.of(settings)
    )
    with closing(scorer):
        heartbeats = scorer.workers().heartbeats
        if len(heartbeats) != 1:
            reason = f"--backend workers: {len(heartbeats)} workers are there, and one is measured: stop the others"
            raise ConfigError(reason, setting="backend", source="flag")
        tasks_at_a_time = heartbeats[0].tasks
        whole = measure_rate(
            _scoring(scorer), tasks, min(depth, MOST_PAIRS), budget_s=budget_s, at_a_time=tasks_at_a_time
        )
        where = {**machine(), "backend": WORKERS, "precision": "", "worker": heartbeats[0].worker}
    return Rates(model=settings.model, threads=settings.threads, **_lengths(tasks), whole=whole, where=where)


def _states(settings: Settings, tasks: Sequence[Task], depth: int, budget_s: float) -> StatesRate:
    """Measure a search whose documents have states in a file, and what making these takes."""
    some = tasks[:ENCODED_TASKS]
    profile = PROFILES[settings.states_profile]
    with tempfile.TemporaryDirectory(prefix="osrerank-plan-") as folder:
        store = FileStore(Path(folder), most_bytes=STORE_BYTES, ttl_s=DAY_S)
        with closing(KnownStates(settings.model, (), States(store, profile), threads=settings.threads)) as known:
            texts, began = texts_of(some), perf_counter()
            known.scorer.remember(texts)
            encode_s = (perf_counter() - began) / len(texts)
            size = store.size()
            rate = measure_rate(known.score, some, depth, budget_s=budget_s, at_a_time=SINGLE_TASKS)
            dimension = known.scorer.records.hidden
    return StatesRate(rate, encode_s, size.stored / max(1, size.records), dimension)


def _lengths(tasks: Sequence[Task]) -> dict[str, Any]:
    texts = texts_of(tasks)
    return {
        "document_words": fmean(len(text.split()) for text in texts),
        "query_words": fmean(len(task.query.split()) for task in tasks),
        "document_characters": fmean(min(len(text), READ_CHARACTERS) for text in texts),
    }
