"""Advice on a duo stage: kept if it improves the order, dropped if it worsens it."""

import zlib
from pathlib import Path
from typing import Any

import pytest

from osrerank import connect
from osrerank.decision.advice.advise import IndexAdvice, advise
from osrerank.errors import InferenceError
from osrerank.testing import FunctionScorer
from osrerank.types import Qrels, Query
from tests.articles import fill

NOTES, INDEX = 20, "notes"
QUERIES = [Query(f"q{number}", f"pressure question{number}") for number in range(NOTES)]
QRELS = Qrels({f"q{number}": {str(number): 1} for number in range(NOTES)})


def noise(query: str, text: str) -> float:
    return zlib.crc32(f"{query} {text}".encode()) % 1000 / 1000


def knows(query: str, text: str) -> float:
    """The planted truth: whether a note answers the question. BM25 finds no word of it."""
    return 4.0 * (query.replace("pressure question", "answer") in text.replace(".", " ").split())


CONFUSED = FunctionScorer(lambda query, text: 3 * noise(query, text))
KNOWING = FunctionScorer(lambda query, text: knows(query, text) + noise(query, text))


def advice_with(url: str, *, duo_depth: int, scorer: FunctionScorer, duo_scorer: FunctionScorer) -> IndexAdvice:
    rerank: Any = {"depth": 20, "blend": "replace", "pipeline": "mono-duo", "duo_depth": duo_depth, "pairs": "min"}
    with connect(url, scorer=scorer, duo_scorer=duo_scorer, rerank=rerank) as client:
        notes = [f"It is answer{number}. The pressure was low, then it was high." for number in range(NOTES)]
        fill(client, INDEX, [{"title": "", "text": text} for text in notes])
        return advise(client, INDEX, QUERIES, QRELS, depths=(5, 20))


def test_a_duo_stage_that_improves_the_order_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    advice = advice_with("embedded:engine", duo_depth=20, scorer=CONFUSED, duo_scorer=KNOWING)
    assert (advice.verdict.outcome, advice.best) == ("helps", advice.current)
    assert {choice.duo_depth for choice in advice.choice.by_fold} == {20}
    assert advice.choice.promised > 0.95
    assert advice.recommended == {}


@pytest.mark.long
def test_a_duo_stage_that_worsens_the_order_is_dropped(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}"
    advice = advice_with(url, duo_depth=15, scorer=KNOWING, duo_scorer=CONFUSED)
    assert {value.duo_depth for value in advice.values} == {0, 15}
    assert (advice.current.duo_depth, advice.recommended["pipeline"]) == (15, "auto")
    with pytest.raises(InferenceError, match="broken on purpose"):
        advice_with(url, duo_depth=15, scorer=KNOWING, duo_scorer=FunctionScorer(broken=True))
