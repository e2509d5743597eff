"""What the log says of slow searches, and pages that need no model."""

import logging
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from osrerank import MonoStage, Pipeline, connect
from osrerank._log_throttle import LogThrottle
from osrerank.options.rerank import Rerank
from osrerank.search import slow
from osrerank.search.plan import Plan, SearchCall
from osrerank.testing import FunctionScorer, ManualClock
from osrerank.types import NEVER, Deadline, Ranking, StageReport
from osrerank.types.reasons import ReasonCode
from tests.rankings import client_for
from tests.servers import ROOT

STAGE = StageReport("mono", True, took_ms=1800.0, candidates=100, inferences=80, model="some/cross-encoder")


@pytest.fixture(autouse=True)
def fresh_throttles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "slow_search_throttle", LogThrottle())
    monkeypatch.setattr(slow, "missing_vectors_throttle", LogThrottle(math.inf))


def advise(stages: list[StageReport], took_s: float = 2.0, **options: Any) -> None:
    """Log what would help a search for a text."""
    with client_for([]) as client:
        search_call = SearchCall("low", index="notes", options=Rerank())
        plan = Plan(search_call, client.searcher.service, options=Rerank(**options))
        assert list(slow.advise([{"_index": "notes"}], stages, took_s, plan, client.searcher)) == []


def test_a_slow_search_logs_a_remedy_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        advise([STAGE])
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "[slow-search] a search took 2.0 s, 1.8 s of them in the stage mono: 80 inferences for 100 candidates with "
        "some/cross-encoder; lower depth (now 100), set deadline_ms to limit the time, use workers or a GPU (backend)"
        f" ({slow.GUIDE})"
    )
    assert (ROOT / slow.GUIDE.partition("/main/")[2]).exists()


BUILD = "build the vectors beforehand: osrerank vectors build --index notes   (70 texts of this search had no stored"


CUT = {"name": "vectors", "candidates": 0, "model": "", "reason": "the deadline passed", "code": ReasonCode.DEADLINE}


@pytest.mark.parametrize(
    ("stage", "options", "remedy", "unnamed"),
    [
        ({"name": "vectors", "encoded": 70, "known": 30}, {}, BUILD, ()),
        ({"name": "vectors", "encoded": 0, "known": 100}, {}, "all vectors were stored", ("GPU", "lower", "build")),
        (
            CUT,
            {},
            "the deadline passed; build the vectors beforehand: osrerank vectors build",
            ("None", "known", "0 inf"),
        ),
        (
            CUT | {"code": ReasonCode.LOADING, "reason": "it is loading"},
            {},
            "vectors: it is loading (",
            ("build", "known"),
        ),
        ({"name": "duo"}, {"deadline_ms": 5000}, "lower duo_depth (now 20), use workers", ("deadline_ms",)),
        ({}, {"pipeline": "vectors-mono", "mono_depth": 30}, "lower mono_depth (now 30)", ()),
    ],
)
def test_the_remedy_for_a_slow_search_depends_on_its_stage(
    stage: Any, options: Any, remedy: str, unnamed: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    advise([replace(STAGE, **stage)], **options)
    assert remedy in caplog.text
    assert not any(word in caplog.text for word in unnamed)


def test_metrics_count_texts_with_and_without_stored_vectors() -> None:
    def value(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(f"osrerank_{name}_total", labels) or 0.0

    def counts() -> list[float]:
        return [value("searched_texts", vectors=state) for state in ("known", "encoded")]

    texts = [f"text {number}" for number in range(5)]
    with client_for(texts, None) as client:
        before = counts()
        for _ in range(2):
            client.search("low", index="i", rerank={"fields": ["text"], "deadline_ms": None})
            client.searcher.service.load_vectors(Rerank()).records.flush()  # type: ignore[union-attr]
    assert [after - count for after, count in zip(counts(), before, strict=True)] == [5, 5]


def test_searches_that_are_not_reranked_are_counted_by_the_code_of_the_reason() -> None:
    def counts() -> list[float]:
        codes = [str(code) for code in ReasonCode]
        return [REGISTRY.get_sample_value("osrerank_not_reranked_total", {"reason": code}) or 0.0 for code in codes]

    before = counts()
    with client_for(["low", "lower"]) as client:
        client.search("low", index="i", size=0, rerank=True)
        client.search("low", index="i", rerank={"pipeline": "none"})  # nothing was to be reranked
    counted = {code for code, old, new in zip(ReasonCode, before, counts(), strict=True) if new > old}
    assert counted == {ReasonCode.REQUEST}


@pytest.mark.parametrize("stages", [[], [STAGE]])
def test_a_slow_first_pass_is_not_logged(stages: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    advise(stages, 4.4)
    assert not caplog.records


@pytest.mark.parametrize(("took_s", "is_slow"), [(1.9, True), (0.9, False)])
def test_a_slow_search_through_the_client_is_logged(
    took_s: float, is_slow: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()

    class Slow(MonoStage):
        def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
            clock.sleep(took_s)
            after = super().rerank(ranking, deadline=deadline)
            return replace(after, reports=(replace(after.reports[0], took_ms=1_000 * took_s),))

    client = client_for(["a", "b"], clock=clock)
    client.search("low", index="i", rerank={"pipeline": Pipeline((Slow(FunctionScorer()),))})
    assert ("in the stage mono: 2 inferences for 2 candidates" in caplog.text) is is_slow


def test_a_page_below_the_depth_has_the_report_of_a_page_above() -> None:
    client = client_for([str(index) * (index + 1) for index in range(9)])
    pages = [client.search("low", index="i", from_=start, size=3, rerank={"depth": 6}) for start in (0, 3, 6)]
    assert all(page["rerank"] == pages[0]["rerank"] | {"stages": page["rerank"]["stages"]} for page in pages)
    assert [page["rerank"]["stages"][0]["candidates"] for page in pages] == [6, 6, 6]
    hits = client.search("low", index="i", size=9, rerank={"depth": 6})["hits"]["hits"]
    assert [hit for page in pages for hit in page["hits"]["hits"]] == hits


DRAWN = random.Random(3)
WAYS = [[DRAWN.choice((0, 7)) for _ in range(3)] + [DRAWN.choice(list(ReasonCode))] for _ in range(60)]


@pytest.mark.parametrize(("known", "encoded", "lacking", "code"), WAYS)
def test_a_slow_search_recommends_a_build_only_if_vectors_were_missing(
    known: int, encoded: int, lacking: int, code: ReasonCode, caplog: pytest.LogCaptureFixture
) -> None:
    counts = {"known": known, "encoded": encoded, "lacking": lacking, "candidates": known + encoded + lacking}
    advise([replace(STAGE, name="vectors", code=code, reason="a reason", **counts)])
    (line,) = [text for text in caplog.messages if text.startswith("[slow-search]")]
    assert ("all vectors were stored" in line) == bool(known and not encoded and not lacking)
    assert ("vectors build" in line) == bool(encoded or lacking or (not known and code is ReasonCode.DEADLINE))


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        (
            ["title"],
            'a build would encode title, text, and this search uses title: first write fields = ["title"] under ',
        ),
        (["title", "text"], ""),
    ],
)
def test_a_slow_search_of_unbuilt_fields_says_how_to_build_them(
    fields: list[str], first: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow, "SLOW_S", 0.0)
    with connect(f"embedded:{tmp_path}", scorer=FunctionScorer()) as client:
        client.index(index="notes", id="1", body={"title": "Salt", "text": "Salt raises it."}, refresh=True)
        query = {"multi_match": {"query": "salt", "fields": fields}}

        class Lacking(MonoStage):
            def rerank(self, ranking: Ranking, *, deadline: Deadline = NEVER) -> Ranking:
                after = super().rerank(ranking, deadline=deadline)
                report = replace(after.reports[0], applied="partial", took_ms=1e4, lacking=1)
                return replace(after, reports=(report,))

        rerank = {"pipeline": Pipeline((Lacking(FunctionScorer()),))}
        client.search(index="notes", body={"query": query}, rerank=rerank)
    lines = [line for line in caplog.messages if line.startswith(("[slow-search]", "[vectors-lacking]"))]
    assert len(lines) == 2
    for line in lines:
        assert "build --index notes" in line
        assert ("a build would encode" in line) == bool(first)
        assert first in line


@pytest.mark.parametrize(
    "response", [{"took": 3}, {"took": 3, "hits": {}}, {"took": 3, "hits": {"total": {"value": 2}}}]
)
def test_a_response_without_hits_is_returned_unchanged(
    response: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with client_for(response) as client:
        found = client.search("low", index="i", filter_path="took", rerank=True)
    assert {name: found[name] for name in response} == response
    assert not [line for line in caplog.messages if line.startswith("[internal]")]
