"""Searches on workers while a Sentinel lets their Redis fail over, behind one address that leads to the master."""

import itertools
import logging
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Self

import pytest

from osrerank import connect
from tests.sentinel import Failover, failover
from tests.waiting import wait_until
from tests.workers import STAND_IN, worker_group

pytestmark = pytest.mark.integration

SIZES = [3, 1, 4, 15, 9, 2, 6, 5, 35, 8]
WORKERS, SEARCHERS = 2, 3

logger = logging.getLogger(__name__)


class Searchers:
    """Clients that search all the time, each in a thread, and what they were answered.

    Attributes:
        answers: how often a search was reranked ("True"), in part ("partial"), or not, with the reason.
        errors: what searches raised, and responses that are wrong.
        longest_s: the longest search.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.answers: Counter[str] = Counter()
        self.errors: list[str] = []
        self.longest_s = 0.0
        self._numbers = itertools.count()
        self._lock, self._ended = threading.Lock(), threading.Event()
        embedded = f"embedded:{folder}"
        self._clients = [connect(embedded, backend="workers", redis_url=url, model=STAND_IN) for _ in range(SEARCHERS)]
        for number, size in enumerate(SIZES):
            self._clients[0].index(
                index="words", id=str(number), body={"text": " ".join(["word"] * size)}, refresh=True
            )
        self._threads = [threading.Thread(target=self._search, args=(client,)) for client in self._clients]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
            if thread.is_alive():
                self.errors.append("a search hangs")
        for client in self._clients:
            client.close()

    def wait_for_reranked(self, count: int) -> None:
        """Return when so many more searches were reranked."""
        enough = self.answers["True"] + count
        wait_until(lambda: self.answers["True"] >= enough, 30, lambda: str(self.answers))

    def _search(self, client) -> None:
        while not self._ended.is_set():
            query = f"word {next(self._numbers)}"  # another each time, so that no score is cached
            began = time.monotonic()
            try:
                response = client.search(query, index="words", size=10, rerank={"fields": ["text"]})
                self._note(response, time.monotonic() - began)
            except Exception as error:  # noqa: BLE001 - a search may raise nothing
                self.errors.append(f"{type(error).__name__}: {error}")

    def _note(self, found, seconds: float) -> None:
        marks = found["rerank"]
        sizes = [len(hit["_source"]["text"].split()) for hit in found["hits"]["hits"]]
        with self._lock:
            self.longest_s = max(self.longest_s, seconds)
            self.answers[str(marks["applied"]) if marks["applied"] else str(marks["reason"])] += 1
            if sorted(sizes) != sorted(SIZES) or (marks["applied"] is True and sizes != sorted(SIZES, reverse=True)):
                self.errors.append(f"{marks} {sizes}")


def fail_over(made: Failover, folder: Path, times: int) -> None:
    """Search, fail over so many times, and check that nothing was lost; log the figures."""
    options = ("--seconds-per-pair", "0.002")
    made_of = {"model": STAND_IN, "module": "tests.workers", "options": options}
    with worker_group(made.url, folder / "workers", WORKERS, **made_of) as group:
        with Searchers(made.url, folder / "embedded") as searchers:
            searchers.wait_for_reranked(20)
            for _ in range(times):
                made.force()
                searchers.wait_for_reranked(20)
                group.wait_for(WORKERS, seconds=30)
        states = [process.poll() for process in group.processes]
        logger.info("%d failovers, longest search %.1f s, workers %s", times, searchers.longest_s, states)
        logger.info("%d searches: %s", searchers.answers.total(), searchers.answers.most_common())
        assert searchers.errors == []
        assert states == [None] * WORKERS
        assert group.stop() == [0] * WORKERS


CUTS = pytest.mark.parametrize("cuts", [True, False], ids=["connections are cut", "connections stay"])


@pytest.mark.slow
@CUTS
def test_no_search_and_no_worker_is_lost_in_a_failover(tmp_path: Path, cuts: bool) -> None:
    with failover(tmp_path, cuts=cuts) as made:
        fail_over(made, tmp_path, 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@CUTS
def test_no_search_and_no_worker_is_lost_in_twenty_failovers(tmp_path: Path, cuts: bool) -> None:
    with failover(tmp_path, cuts=cuts) as made:
        fail_over(made, tmp_path, 20)
