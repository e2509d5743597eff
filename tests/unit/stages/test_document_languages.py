"""Searches whose documents are in a language that the model does not read."""

import logging

import pytest
from prometheus_client import REGISTRY

from osrerank import connect
from osrerank.stages.language_guard import IS_INSTALLED, language_of, why_unread
from osrerank.testing import CannedTransport, FunctionScorer
from osrerank.types import Advice, Candidate, Query, Ranking
from tests.rankings import response_of

pytestmark = pytest.mark.skipif(not IS_INSTALLED, reason="the extra languages is not installed")

ENGLISH = [
    "Aspirin is taken against pain and fever, and in small doses it keeps platelets from sticking together; "
    f"doctors advise patients of {age} to take it with a meal and to tell them about other drugs that they take."
    for age in range(40, 50)
]
GERMAN = [
    "Aspirin wird gegen Schmerzen und Fieber genommen, und in kleinen Mengen verhindert es, dass Blutplättchen "
    f"verklumpen; Ärzte raten Menschen mit {age} Jahren, es zum Essen einzunehmen und andere Mittel zu nennen."
    for age in range(40, 50)
]
NORWEGIAN = [
    "Aspirin brukes mot smerter og feber, og i små doser hindrer det at blodplatene klumper seg sammen; legene ber "
    f"pasienter på {age} år om å ta det til et måltid og å fortelle om de andre medisinene som de bruker hver dag."
    for age in range(40, 50)
]


class Reads(FunctionScorer):
    """A scorer whose model reads some languages."""

    languages = ("en",)

    @property
    def advice(self) -> Advice:
        return Advice(languages=self.languages)


def ranking(texts, query="aspirin"):
    found = (Candidate(str(at), text, 1 / at, at) for at, text in enumerate(texts, 1))
    return Ranking(Query("q", query), tuple(found))


def why(texts, *languages):
    model = type("Some", (Reads,), {"languages": languages})()
    return why_unread(ranking(texts), model)


def test_most_of_five_of_the_first_ten_must_be_read():
    assert why(GERMAN, "en").startswith("the documents are mostly in another language (de), and testing/function reads")
    assert '[index."NAME"] model' in why(GERMAN, "en")
    assert why(GERMAN[:3] + ENGLISH, "en")
    assert why(GERMAN[:2] + ENGLISH, "en") == ""
    assert why(ENGLISH + GERMAN, "en") == ""
    assert why(GERMAN, "en", "de") == why(GERMAN) == ""
    assert why(ENGLISH, "de").startswith("the documents are mostly in another language (en)")


def test_short_texts_are_passed_over_and_one_text_is_too_little():
    assert why(["kurzer Text"] * 9 + GERMAN[:1], "en") == ""
    assert why(["kurzer Text"] * 8 + GERMAN[:2], "en") != ""
    assert why(["kurzer Text"] * 10 + GERMAN, "en") == ""
    assert why([None, "", *GERMAN[:2]], "en") != ""


def test_numbers_and_code_are_no_language():
    assert why(["4711 0815 " * 30] * 5, "en") == ""
    assert why([*GERMAN[:1], *["x1 = f(y2) + g[3];" * 20] * 4], "en") == ""
    assert why([*GERMAN[:2], *["x1 = f(y2) + g[3];" * 20] * 3], "en") != ""  # most of what can be told


@pytest.mark.parametrize("code", ["no", "nb", "nn"])
def test_close_relatives_are_read_by_the_same_model(code):
    assert why(NORWEGIAN, "en") != ""
    assert why(NORWEGIAN, code) == ""


def test_a_query_is_judged_first():
    found = why_unread(ranking(GERMAN, "что снижает давление"), Reads())
    assert found.startswith("the query is mostly in Cyrillic")


class LoggedOnce(Reads):
    """One that no other test names: a line of the log is due once a minute and model."""

    @property
    def model(self) -> str:
        return "testing/logged-once"


def client(texts, model=Reads):
    return connect("http://localhost:9", scorer=model(), transport_class=CannedTransport, answer=response_of(texts))


def test_the_first_pass_stays_and_response_log_and_metric_say_why(caplog):
    name, labels = "osrerank_unreadable_total", {"what": "documents"}
    before = REGISTRY.get_sample_value(name, labels) or 0
    with caplog.at_level(logging.WARNING):
        responses = [client(GERMAN, LoggedOnce).search("aspirin", index="i", rerank=True) for _ in range(2)]
    assert [hit["_id"] for hit in responses[0]["hits"]["hits"]] == [f"d{number}" for number in range(10)]
    assert responses[0]["rerank"]["applied"] is False
    assert responses[0]["rerank"]["reason"].startswith("language: the documents are mostly in another language (de)")
    assert (REGISTRY.get_sample_value(name, labels) or 0) == before + 2
    assert len([line for line in caplog.messages if line.startswith("[language] ")]) == 1
    assert client(ENGLISH).search("aspirin", index="i", rerank=True)["rerank"]["applied"] is True


def test_the_guard_can_be_turned_off():
    options = {"language_guard": False}
    assert client(GERMAN).search("aspirin", index="i", rerank=options)["rerank"]["applied"] is True


def test_a_text_is_told_once():
    before = language_of.cache_info()
    for _ in range(3):
        why(GERMAN, "en")
    after = language_of.cache_info()
    assert after.misses - before.misses <= 5
    assert after.hits - before.hits >= 10
