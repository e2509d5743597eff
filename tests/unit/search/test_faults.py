"""Whatever a model or a mistake raises, a search answers, says why, and tells nothing of its texts elsewhere."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY, generate_latest

from osrerank import MonoStage, Pipeline, connect
from osrerank.aio import connect_async
from osrerank.errors import DeadlineExceeded, InferenceError
from osrerank.search import run
from osrerank.testing import CannedTransport, FunctionScorer
from osrerank.types import Advice, Vectors
from tests.rankings import client_for, ids, response_of
from tests.tracing import recording, told
from tests.waiting import wait_until

SECRET = "zebra"
BODY = {"query": {"match": {"text": SECRET}}}
KINDS: tuple[type[Exception], ...] = (
    ValueError, TypeError, KeyError, AttributeError, RuntimeError, MemoryError, ConnectionError, UnicodeError,
    InferenceError, DeadlineExceeded,
)  # fmt: skip


class Breaking:
    """An encoder that counts letters, and raises in one of its methods."""

    model, identity, key, dimensions = "letters", "letters-1", "letters-1", 26
    advice = Advice(kind="bi-encoder")

    def __init__(self, where: str, error: Exception) -> None:
        self.where, self.error = where, error

    def broken(self, where: str) -> None:
        if where == self.where:
            raise self.error

    def encode(self, texts: Any, side: str, **_: Any) -> Vectors:
        self.broken(side)
        counts = [[text.count(chr(97 + index)) for index in range(26)] for text in texts]
        return Vectors(np.array(counts, np.float32))

    def similarity(self, query: Any, vectors: Any) -> Any:
        self.broken("similarity")
        return vectors @ query

    def probabilities(self, logits: Any) -> Any:
        self.broken("probabilities")
        return 1 / (1 + np.exp(-logits.astype(np.float64)))

    def close(self) -> None: ...


class BreakingStage:
    name, depth = "mine", 10

    def __init__(self, error: Exception) -> None:
        self.error = error

    def rerank(self, _ranking: Any, **_: Any) -> Any:
        raise self.error


class BreakingPipeline(BreakingStage):
    """A pipeline of a class that is not osrerank's."""

    stages = ()


def raising(error: Exception) -> Callable[..., float]:
    def score(*_: str) -> float:
        raise error

    return score


def scorer_of(where: str, error: Exception) -> dict[str, Any]:
    """Return the arguments of a client, and the options of a search, in which something raises the error."""
    if where == "scorer":
        return {"scorer": FunctionScorer(raising(error))}
    if where == "duo":
        return {
            "scorer": FunctionScorer(),
            "duo_scorer": FunctionScorer(raising(error)),
            "rerank": {"pipeline": "mono-duo"},
        }
    if where == "stage":
        return {
            "scorer": FunctionScorer(),
            "rerank": {"pipeline": Pipeline((MonoStage(FunctionScorer()), BreakingStage(error)))},
        }
    if where == "pipeline":
        return {"scorer": FunctionScorer(), "rerank": {"pipeline": BreakingPipeline(error)}}
    return {"scorer": Breaking(where, error)}


class Notes(CannedTransport):
    """Answers every search, alone or in a multi-search, with ten notes."""

    def perform_request(self, method: str, url: str, params: Any = None, body: Any = None, **_: Any) -> Any:
        response = response_of([f"a {SECRET} and {number} salts" for number in range(10)])
        if url.endswith("_msearch"):
            return {"took": 1, "responses": [response] * (body.count("\n") // 2)}
        return super().perform_request(method, url, params, body) if method == "GET" else response


class AsyncNotes(Notes):
    async def perform_request(self, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        return super().perform_request(*arguments, **options)


def searched(options: Any, **client: Any) -> Any:
    with connect("http://localhost:9", transport_class=Notes, **client) as opened_client:
        return opened_client.search(SECRET, index="notes", rerank=options)


def in_asyncio(options: Any, **client: Any) -> Any:
    opened_client = connect_async("http://localhost:9", transport_class=AsyncNotes, **client)
    return asyncio.run(opened_client.search(SECRET, index="notes", rerank=options))


def in_a_multi_search(options: Any, **client: Any) -> Any:
    with connect("http://localhost:9", transport_class=Notes, **client) as opened_client:
        return opened_client.msearch(body=[{"index": "notes"}, BODY] * 2, rerank=options)["responses"][1]


DRIVERS = (searched, in_asyncio, in_a_multi_search)
MODELS = ("scorer", "duo", "stage", "pipeline", "query", "document", "similarity", "probabilities")
STEPS = (
    "complete_page", "fields_have_changed", "extract_boost_scores", "hits_with_texts", "read_ranking",
    "load_models_and_vectors", "run_stages", "make_report", "record_search", "finish_search",
)  # fmt: skip
FOLLOW_UPS = ("_count_outcome", "_save_order", "_write_vectors", "advise")
FIRST = [f"d{number}" for number in range(10)]


@pytest.fixture(autouse=True)
def _nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSRERANK_VECTORS", "off")


def metrics() -> str:
    return generate_latest(REGISTRY).decode()


def code_of(kind: type[Exception]) -> str:
    return "deadline" if kind is DeadlineExceeded else "scoring"


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("where", MODELS)
def test_a_model_that_raises_leaves_the_best_order_so_far(where: str, driver: Any) -> None:
    for kind in KINDS:
        client_options = scorer_of(where, kind(f"cannot read {SECRET}"))
        with recording() as exporter:
            response = driver(client_options.pop("rerank", True), **client_options)
            spans = told(exporter)
        marks = response["rerank"]
        assert sorted(ids(response)) == FIRST
        assert (kind, marks["applied"]) == (kind, "partial" if where in ("duo", "stage") else False)
        assert marks["reason_code"] == code_of(kind)
        assert SECRET in marks["reason"]
        assert SECRET not in str(spans)
    assert SECRET not in metrics()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("where", MODELS)
def test_a_models_error_is_raised_with_on_failure_raise(where: str, driver: Any) -> None:
    for kind in KINDS:
        client_options = scorer_of(where, kind(f"cannot read {SECRET}"))
        options = {**client_options.pop("rerank", {}), "on_failure": "raise"}
        with pytest.raises(kind):
            driver(options, **client_options)


@pytest.mark.mistakes
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("step", STEPS)
def test_an_error_after_the_response_gives_the_plain_answer(
    step: str, driver: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for kind in KINDS:
        monkeypatch.setattr(run, step, raising(kind(f"cannot read {SECRET}")))
        with recording() as exporter:
            answer = driver(True, scorer=FunctionScorer())
            spans = told(exporter)
        assert ids(answer) == FIRST
        assert (answer["rerank"]["applied"], answer["rerank"]["reason_code"]) == (False, "internal")
        assert SECRET not in answer["rerank"]["reason"]
        assert SECRET not in str(spans)
    assert SECRET not in metrics()
    assert "Traceback" in caplog.text


@pytest.mark.mistakes
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("step", ["make_plan", "perform"])
def test_an_error_in_a_search_repeated_with_the_newest_fields_gives_the_first_answer(
    step: str, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def have_changed(*_: Any) -> Iterator[Any]:
        yield from ()
        monkeypatch.setattr(run, step, raising(KeyError(SECRET)))
        return True

    original = getattr(run, step)
    monkeypatch.setattr(run, "fields_have_changed", have_changed)
    for options in (True, False):
        monkeypatch.setattr(run, step, original)
        answer = driver(options, scorer=FunctionScorer())
        assert ids(answer) == FIRST
        if options:
            assert (answer["rerank"]["applied"], answer["rerank"]["reason_code"]) == (False, "internal")
        else:
            assert "rerank" not in answer


@pytest.mark.mistakes
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("step", FOLLOW_UPS)
def test_an_error_after_reranking_keeps_the_reranked_answer_and_is_counted_once(
    step: str, driver: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run, "SLOW_S", -1.0)  # advise every search
    for kind in KINDS:
        expected = driver(True, scorer=FunctionScorer())
        before = counts()
        with monkeypatch.context() as patches:
            patches.setattr(run, step, raising(kind(f"cannot read {SECRET}")))
            answer = driver(True, scorer=FunctionScorer())
        assert ids(answer) == ids(expected)
        assert (answer["rerank"]["applied"], answer["rerank"]["reason"]) == (True, None)
        assert answer["rerank"]["warnings"] == [run.UNFINISHED]
        n_searches = 2 if driver is in_a_multi_search else 1
        n_counted = 0 if step == "_count_outcome" else n_searches
        assert [after - old for after, old in zip(counts(), before, strict=True)] == [n_counted, 0, n_searches]
    assert SECRET not in metrics()
    assert "Traceback" in caplog.text


def counts() -> list[float]:
    """Return how many searches were reranked, how many were not, and how many met a mistake of osrerank's own."""
    labels = (("searches", {"applied": "true"}), ("searches", {"applied": "false"}), ("internal_errors", {}))
    return [REGISTRY.get_sample_value(f"osrerank_{name}_total", label) or 0.0 for name, label in labels]


def test_a_shadow_record_has_no_message_of_a_models_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "shadow.jsonl"
    monkeypatch.setenv("OSRERANK_SHADOW_FILE", str(file))
    for kind in KINDS:
        client_options: Any = {"scorer": FunctionScorer(raising(kind(f"cannot read {SECRET}")))}
        with connect("http://localhost:9", transport_class=Notes, **client_options) as client:
            client.search(SECRET, index="notes", rerank={"traffic": {"shadow": True}})
            client.msearch(body=[{"index": "notes"}, BODY], rerank={"traffic": {"shadow": True}})
    wait_until(lambda: file.exists() and file.read_text("utf-8").count("\n") == 2 * len(KINDS))
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [line["reason_code"] for line in lines] == [code_of(kind) for kind in KINDS for _ in range(2)]
    assert SECRET not in file.read_text("utf-8")


ODD_HITS = [
    None, 3, "no", [3], [{}], [{"_id": 7}], [{"_id": "1", "_score": "high"}], [{"_id": "1", "_source": [1]}],
    [{"_id": "1", "_score": float("nan"), "_source": {"text": "x"}}],
]  # fmt: skip


@pytest.mark.parametrize("hits", ODD_HITS)
def test_a_response_of_unknown_form_is_returned_with_the_reason(hits: Any) -> None:
    response = {"took": 1, "hits": {"total": {"value": 1, "relation": "eq"}, "hits": hits}}
    answer = client_for(response).search("salt", index="i", rerank=True)
    assert answer["rerank"]["reason_code"] == "response"
    shown = answer["hits"]["hits"]
    if isinstance(shown, list):
        shown = [
            hit if not isinstance(hit, dict) else {name: hit[name] for name in hit if name != "_rerank"}
            for hit in shown
        ]
    assert repr(shown) == repr(hits)
