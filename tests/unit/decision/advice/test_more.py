"""Pairs and sentences among what is tried: planted models that know more by them, limits, and what is left out."""

import json
import tomllib
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from osrerank import connect
from osrerank.cli.advise import _settings as settings_of
from osrerank.decision.advice.advise import Advice, advise
from osrerank.decision.advice.choose import order_of
from osrerank.decision.advice.report import report
from osrerank.decision.advice.tried import Wanted
from osrerank.decision.advice.words import as_json, lines
from osrerank.errors import InferenceError
from osrerank.testing import FunctionScorer
from osrerank.types import Qrels, Query
from tests.articles import fill

NOTES, INDEX = 20, "notes"
WANTED = Wanted(sample=NOTES, budget_s=60, depths=(5, 20))
QUERIES = [Query(f"q{number}", f"pressure question{number}") for number in range(NOTES)]
QRELS = Qrels({f"q{number}": {str(number): 1} for number in range(NOTES)})


def noise(query: str, text: str) -> float:
    return zlib.crc32(f"{query} {text}".encode()) % 1000 / 1000


def knows(query: str, text: str) -> float:
    """The planted truth: whether a note, or a sentence, answers the question. BM25 finds no word of it."""
    return 4.0 * (query.replace("pressure question", "answer") in text.replace(".", " ").split())


CONFUSED = FunctionScorer(lambda query, text: 3 * noise(query, text))
KNOWING = FunctionScorer(lambda query, text: knows(query, text) + noise(query, text))


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return f"embedded:{tmp_path / 'engine'}"


def advice_with(url: str, wanted: Wanted = WANTED, *, sentences: int = 1, **options: Any) -> Advice:
    """Return advice on notes of so many sentences, one of which has the answer."""
    rest = " ".join(["The pressure was low and then it was high there."] * sentences)
    with connect(url, **{"rerank": {"depth": 20, "blend": "replace"}, **options}) as client:
        fill(client, INDEX, [{"title": "", "text": f"It is answer{number}. {rest}"} for number in range(NOTES)])
        return advise({"m": client}, INDEX, QUERIES, QRELS, wanted)


def test_pairs_that_know_more_are_chosen(url: str) -> None:
    advice = advice_with(url, scorer=CONFUSED, duo_scorer=KNOWING, duo_model="planted")
    assert advice.choice is not None
    assert [str(one) for one in advice.tried] == [
        "m, passages auto", "m, passages auto, pairs of the first 10", "m, passages auto, pairs of the first 20",
    ]  # fmt: skip
    assert {one.duo_depth for one in advice.choice.by_fold} == {20}
    assert (advice.choice.verdict.outcome, advice.best.duo_depth) == ("helps", 20)
    assert advice.choice.promised > 0.95
    assert advice.recommended == {
        "pipeline": "mono-duo", "duo_depth": 20, "depth": 20, "blend": "replace", "passages": "auto",
    }  # fmt: skip
    assert advice.cost == advice.tried[2].costs[20]
    assert "pairs of the first 20" in report(advice, QRELS, "")
    json.dumps(as_json(advice))


def test_pairs_slower_than_the_limit_are_left_out(url: str) -> None:
    slow = replace(KNOWING, seconds_per_pair=0.001)
    advice = advice_with(url, replace(WANTED, p95_ms=60), scorer=CONFUSED, duo_scorer=slow, duo_model="planted")
    assert [one.duo_depth for one in advice.tried] == [0]
    (ten, twenty) = advice.left_out
    assert ten.startswith("pairs of the first 10, a search takes ")
    assert twenty.startswith("pairs of the first 20, ")
    assert any(one.strip().startswith("not tried: pairs of the first 20") for one in lines(advice))
    hurried = replace(WANTED, budget_s=0.5)
    left = advice_with(url, hurried, scorer=CONFUSED, duo_scorer=slow, duo_model="planted").left_out
    assert all("--budget-s gives more" in one for one in left)


def test_a_model_of_pairs_that_fails_is_left_out_and_said(url: str) -> None:
    advice = advice_with(url, scorer=KNOWING, duo_scorer=FunctionScorer(broken=True), duo_model="planted")
    assert [one.duo_depth for one in advice.tried] == [0]
    assert all("this scorer is broken on purpose" in one for one in advice.left_out)


def test_pairs_that_are_set_now_are_what_is_judged(url: str) -> None:
    rerank: Any = {"depth": 20, "blend": "replace", "pipeline": "mono-duo", "duo_depth": 15}
    advice = advice_with(url, scorer=KNOWING, duo_scorer=CONFUSED, duo_model="planted", rerank=rerank)
    assert advice.verdict is not None
    assert advice.current.duo_depth == 15
    assert {one.duo_depth for one in advice.tried} == {0, 10, 15, 20}
    assert advice.best.duo_depth == 0
    assert advice.recommended["pipeline"] == "mono"
    with pytest.raises(InferenceError, match="broken on purpose"):
        advice_with(url, scorer=KNOWING, duo_scorer=FunctionScorer(broken=True), rerank=rerank)


def test_sentences_that_say_more_than_their_document_are_chosen(url: str) -> None:
    pytest.importorskip("sentencex")
    short = FunctionScorer(lambda query, text: noise(query, text) + knows(query, text) * (len(text.split()) < 30))
    advice = advice_with(url, scorer=short, sentences=35)
    assert advice.choice is not None
    best = advice.best
    assert best.sentences is not None
    assert advice.choice.verdict.outcome == "helps"
    assert advice.recommended["sentences"] == {"a": best.sentences.a, "weights": list(best.sentences.sentences)}
    assert "sentences" in str(advice.tried_with(best))
    report(advice, QRELS, "")
    with connect(url, scorer=short) as client:
        for one in advice.tried_with(best).found[:3]:
            for setting in (best, *(other for other in advice.values if other.sentences and other.depth == 5)):
                hits = client.search(one.query.text, index=INDEX, size=20, rerank=setting.options())["hits"]["hits"]
                assert order_of(one, setting) == [hit["_id"] for hit in hits]


def test_the_settings_file_keeps_how_pairs_are_aggregated(url: str) -> None:
    rerank: Any = {"depth": 20, "blend": "replace", "pipeline": "mono-duo", "duo_depth": 20, "pairs": "min"}
    advice = advice_with(url, scorer=CONFUSED, duo_scorer=KNOWING, rerank=rerank)
    table = tomllib.loads(settings_of(advice, None))["index"][INDEX]["rerank"]
    assert (table["pipeline"], table["duo_depth"], table["pairs"]["aggregation"]) == ("mono-duo", 20, "min")
    Path("osrerank.toml").write_text(settings_of(advice, None))
    with connect(url, scorer=CONFUSED, duo_scorer=KNOWING) as client:
        assert client.options_of(INDEX).pairs.aggregation == "min"
