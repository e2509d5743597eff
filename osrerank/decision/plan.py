"""Compute how many workers a load needs, from measured rates and the queueing formula of Allen and Cunneen.

A worker is a process that answers one search at a time, in ``S`` seconds on average. Searches wait in one queue for
the first of ``c`` workers that is free (G/G/c), first come, first served. With ``L`` searches a second, ``a = L S`` and
the load ``r = a / c``:

- Erlang's C is the probability that a search waits in M/M/c: ``C = B / (1 - r (1 - B))``, with Erlang's B from
  ``B_0 = 1``, ``B_k = a B_(k-1) / (k + a B_(k-1))``.
- The mean wait in M/M/c is ``C S / (c - a)``. Allen and Cunneen's approximation for G/G/c, ``W``, multiplies it by
  ``(Ca^2 + Cs^2) / 2``, with the coefficients of variation of the times between searches (Ca) and of the service times
  (Cs) (Allen: Probability, Statistics, and Queueing Theory, 2nd edition 1990, section 5.3).
- Searches that wait are assumed to wait an exponential time with the mean ``W / C``, as in M/M/c. So the 95th
  percentile of the wait is ``W / C ln(C / .05)``, or 0 if C is below .05.
- The 95th percentile of a response is the larger of two values, plus the time of the first pass and of transport:
  ``S`` plus the 95th percentile of the wait; and ``S (1 + 1.645 Cs)``, that of a normal service time without a wait.
"""

import math
import tempfile
import time
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean, pstdev

from osrerank.client import Client
from osrerank.errors import ConfigError, InferenceError
from osrerank.indexing.documents import documents_of
from osrerank.indexing.estimate import encoding_rate
from osrerank.response import parse
from osrerank.scoring.card import POINTWISE
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.registry import as_scorer, load_local
from osrerank.search.coverage import ModelText
from osrerank.settings import Settings
from osrerank.types import Query, Scorer

QUERY = "low blood pressure after bed rest"
MOST_LOAD = 0.8
"""Largest share of the time that a planned worker is busy."""
TAIL, NORMAL_95 = 0.05, 1.645
"""Share of the searches beyond the 95th percentile, and that percentile of the standard normal distribution."""
FILL, SIDE_INDEX_BYTES = 0.58, 300
"""Share of the file that holds records (measured with 100,000 of 300 to 600 bytes), and the additional bytes of each
record in a side index."""
SEARCHES, LEAST_SEARCHES, BUDGET_S = 50, 5, 10.0
"""How many searches are timed, the least number if they exceed the budget, and the budget in seconds."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load that the workers must serve.

    Attributes:
        searches_per_s: mean number of searches a second.
        p95_ms: upper limit of the 95th percentile of the response time.
        burstiness: coefficient of variation of the times between searches; 1 for arrivals at random (Poisson).
        first_pass_ms: time that the first pass and transport add to each response.
    """

    searches_per_s: float
    p95_ms: float = 300.0
    burstiness: float = 1.0
    first_pass_ms: float = 18.0


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast one worker is.

    Attributes:
        search_s: mean seconds to score a search's candidates: the query is new, the document vectors are known.
        variation: coefficient of variation of these times.
        scored_per_s: documents scored a second, for a query that is encoded already; None if nothing was measured.
        encoded_per_s: documents encoded a second; None if the model has no vectors.
        record_bytes: bytes of a document's vector in the file; None if the model has no vectors.
    """

    search_s: float
    variation: float
    scored_per_s: float | None = None
    encoded_per_s: float | None = None
    record_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted load and response time of a number of workers.

    Attributes:
        workers: number of workers.
        busy: share of the time that each is busy, in [0, 1).
        wait_ms: mean time that a search waits for a worker.
        p95_ms: 95th percentile of the response time.
    """

    workers: int
    busy: float
    wait_ms: float
    p95_ms: float


def erlang_c(workers: int, offered: float) -> float:
    """Return the probability that a search waits in M/M/c.

    Args:
        workers: c.
        offered: arrival rate times service time, in [0, c).
    """
    blocked = 1.0
    for count in range(1, workers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1 - offered / workers * (1 - blocked))


def predict(load: Load, rates: Rates, workers: int) -> Prediction:
    """Predict load and response time of a number of workers, by the formula of this module.

    Raises:
        ConfigError: they cannot serve the load; the message says how many can.
    """
    offered = load.searches_per_s * rates.search_s
    if offered >= workers:
        reason = f"{workers:,} workers serve fewer than {workers / rates.search_s:,.1f} searches a second"
        least = least_workers(load, rates)
        needed = f"{load.searches_per_s:,g} a second within {load.p95_ms:,g} ms need {least:,} workers"
        raise ConfigError(f"{reason}: {needed}", setting="workers", source="flag")
    waits = erlang_c(workers, offered)
    wait_s = (load.burstiness**2 + rates.variation**2) / 2 * waits * rates.search_s / (workers - offered)
    tail_s = wait_s / waits * math.log(waits / TAIL) if waits > TAIL else 0.0
    p95_s = max(rates.search_s + tail_s, rates.search_s * (1 + NORMAL_95 * rates.variation))
    return Prediction(workers, offered / workers, 1000 * wait_s, load.first_pass_ms + 1000 * p95_s)


def least_workers(load: Load, rates: Rates) -> int:
    """Return the smallest number of workers that meets the p95 limit and is at most 80% busy.

    Bisection finds it, because the p95 falls as the number grows.

    Raises:
        ConfigError: no number of workers meets the limit.
    """
    alone_ms = load.first_pass_ms + 1000 * rates.search_s * (1 + NORMAL_95 * rates.variation)
    if alone_ms > load.p95_ms:
        reason = f"no number of workers meets {load.p95_ms:,g} ms: without a wait, the p95 is {alone_ms:,.0f} ms"
        raise ConfigError(f"{reason}; lower --depth, take a faster model, or raise --p95-ms", setting="p95_ms")
    offered = load.searches_per_s * rates.search_s
    numbers = range(max(1, math.ceil(offered / MOST_LOAD)), 2 * math.ceil(offered) + 10)
    return numbers[bisect_left(numbers, -load.p95_ms, key=lambda count: -predict(load, rates, count).p95_ms)]


def storage(documents: int, rates: Rates) -> dict[str, float] | None:
    """Return the bytes of document vectors in a file and in a side index; None if the model has no vectors."""
    if rates.record_bytes is None:
        return None
    return {"file": documents * rates.record_bytes, "side_index": documents * (rates.record_bytes + SIDE_INDEX_BYTES)}


def texts_of(client: Client, index: str, most: int) -> list[str]:
    """Return texts of an index's documents, as the model reads them.

    Raises:
        ConfigError: no document has text.
    """
    options, fields = client.options_of(index), client.fields_of(index)
    hits, own = list(islice(documents_of(client, index, fields), most)), fields.by_index(options.fields)
    ranking = parse(hits, Query("plan", QUERY), fields.read, options.separator, own)
    if texts := [candidate.text for candidate in ranking.candidates if candidate.text]:
        return texts
    raise ConfigError(f"{index} has no documents with text to measure with", setting="index", source="flag")


def measure(settings: Settings, documents: Sequence[str]) -> Rates:
    """Measure the configured model in this process, with a temporary store of vectors.

    Raises:
        OsrerankError: the model cannot be loaded, or does not score.
    """
    with tempfile.TemporaryDirectory(prefix="osrerank-plan-") as folder:
        own = settings.model_copy(update={"vectors": "file", "vectors_folder": Path(folder)})
        with closing(as_scorer(load_local(own, POINTWISE), own)) as scorer:
            vectors = scorer.vectors if isinstance(scorer, EncoderScorer) else None
            if vectors:
                vectors.remember(documents)
            _seconds(scorer, QUERY, documents)  # the first search is slower
            searches, again, until_s = list[float](), list[float](), time.monotonic() + BUDGET_S
            while len(searches) < LEAST_SEARCHES or (len(searches) < SEARCHES and time.monotonic() < until_s):
                query = f"{QUERY} {len(searches)}"
                searches.append(_seconds(scorer, query, documents))
                again.append(_seconds(scorer, query, documents))  # the query's vector is cached now
            rates = Rates(fmean(searches), pstdev(searches) / fmean(searches), len(documents) / fmean(again))
            if vectors is None:
                return rates
            rate = encoding_rate(vectors, [ModelText(text, len(text)) for text in documents])
            encoded_per_s = rate.characters_per_s * len(documents) / sum(map(len, documents))
            return replace(rates, encoded_per_s=encoded_per_s, record_bytes=rate.text_bytes / FILL)


def _seconds(scorer: Scorer, query: str, documents: Sequence[str]) -> float:
    began = time.perf_counter()
    scores = scorer.score(query, documents, [(at,) for at in range(len(documents))])
    if scores.failures or scores.reached < len(documents):
        raise InferenceError(f"{scorer.model} did not score all documents", model=scorer.model)
    return time.perf_counter() - began
