"""An index that compares pairs now is judged with its pairs, and keeps them where they are best."""

import tomllib
import zlib
from pathlib import Path
from typing import Any

import pytest

from osrerank import connect
from osrerank.cli.advise import settings_table
from osrerank.cli.settings_file import settings_text
from osrerank.decision.advice.advise import Advice, advise
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


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return f"embedded:{tmp_path / 'engine'}"


def advice_with(url: str, *, duo_depth: int, scorer: FunctionScorer, duo_scorer: FunctionScorer) -> Advice:
    rerank: Any = {"depth": 20, "blend": "replace", "pipeline": "mono-duo", "duo_depth": duo_depth, "pairs": "min"}
    text = "The pressure was low and then it was high there."
    with connect(url, scorer=scorer, duo_scorer=duo_scorer, rerank=rerank) as client:
        fill(client, INDEX, [{"title": "", "text": f"It is answer{number}. {text}"} for number in range(NOTES)])
        return advise(client, INDEX, QUERIES, QRELS, depths=(5, 20))


def test_pairs_that_know_more_stay_with_how_they_are_aggregated(url: str) -> None:
    advice = advice_with(url, duo_depth=20, scorer=CONFUSED, duo_scorer=KNOWING)
    assert (advice.verdict.outcome, advice.best) == ("helps", advice.current)
    assert {one.duo_depth for one in advice.choice.by_fold} == {20}
    assert advice.choice.promised > 0.95
    Path("osrerank.toml").write_text(settings_text("", {}, {INDEX: settings_table(advice)}))
    table = tomllib.loads(Path("osrerank.toml").read_text())["index"][INDEX]["rerank"]
    assert (table["pipeline"], table["duo_depth"], table["depth"], table["blend"]) == ("mono-duo", 20, 20, "replace")
    with connect(url, scorer=CONFUSED, duo_scorer=KNOWING) as client:
        assert client.options_of(INDEX).pairs.aggregation == "min"


def test_pairs_that_confuse_are_judged_and_go(url: str) -> None:
    advice = advice_with(url, duo_depth=15, scorer=KNOWING, duo_scorer=CONFUSED)
    assert advice.current.duo_depth == 15
    assert {one.duo_depth for one in advice.values} == {0, 15}
    assert advice.best.duo_depth == 0
    assert advice.recommended["pipeline"] == "mono"


def test_pairs_that_fail_raise(url: str) -> None:
    with pytest.raises(InferenceError, match="broken on purpose"):
        advice_with(url, duo_depth=15, scorer=KNOWING, duo_scorer=FunctionScorer(broken=True))
