"""Queries in scripts, and documents in languages, that a model does not read; and those that only look foreign."""

import logging

import pytest

from osrerank.errors import ConfigError
from osrerank.stages.language_guard import detect_language, explain_unsupported_language, find_unsupported_script
from osrerank.testing import FunctionScorer
from osrerank.types import Advice, Candidate, Query, Ranking
from tests.rankings import client_for, ids


class Reads(FunctionScorer):
    """A scorer whose model reads some languages."""

    languages = ("en",)

    @property
    def advice(self) -> Advice:
        return Advice(languages=self.languages)


@pytest.mark.parametrize(
    ("query", "languages", "script"),
    [
        ("что снижает давление", ("en",), "Cyrillic"),
        ("τι μειώνει την πίεση", ("en", "de"), "Greek"),
        ("ما الذي يخفض ضغط الدم", ("en",), "Arabic"),
        ("रक्तचाप क्या कम करता है", ("en",), "Devanagari"),
        ("什么降低血压", ("en",), "Chinese characters"),
        ("血圧を下げるもの", ("en",), "Hiragana"),
        ("혈압을 낮추는 것", ("en",), "Hangul"),
        ("low blood pressure", ("ru",), "Latin"),
        ("\uff4c\uff4f\uff57 \uff50\uff52\uff45\uff53", ("ru",), "Latin"),
        ("血圧を下げる", ("ja",), ""),
        ("низак крвни притисак", ("sr",), ""),
        ("nizak krvni pritisak", ("sr",), ""),
        ("что снижает давление", ("en", "ru"), ""),
        ("что снижает давление", (), ""),
        ("niedriger Blutdruck bei älteren Menschen", ("en",), ""),
        ("iPhone 价格", ("en",), ""),
        ("what is the β-catenin pathway", ("en",), ""),
        ("TNF-\u03b1", ("en",), ""),
        ("42 + 17 = ?", ("en",), ""),
        ("😀", ("en",), ""),
        ("", ("en",), ""),
    ],
)
def test_the_scripts_of_a_text_are_recognised(query, languages, script):
    assert find_unsupported_script(query, languages) == script


def search(**options):
    return client_for(["a", "давление bb", "ccc"], Reads()).search("давление", index="i", rerank=options or True)


def test_a_query_in_an_unread_script_keeps_the_first_pass_with_the_reason():
    response = search()
    assert (ids(response), response["rerank"]["applied"]) == (["d0", "d1", "d2"], False)
    reason = "language: the query is mostly in Cyrillic, and testing/function reads en"
    assert response["rerank"]["reason"].startswith(reason)
    assert search(on_failure="raise")["rerank"]["applied"] is False  # nothing has failed
    assert search(language_guard=False)["rerank"]["applied"] is True
    with pytest.raises(ConfigError, match="language_guard"):
        search(language_guard="no")


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


def ranking(texts, query="aspirin"):
    candidates = (Candidate(str(rank), text, 1 / rank, rank) for rank, text in enumerate(texts, 1))
    return Ranking(Query("q", query), tuple(candidates))


def reason_for(texts, *languages):
    model = type("Some", (Reads,), {"languages": languages})()
    return explain_unsupported_language(ranking(texts), model)


def test_most_of_five_sampled_documents_must_be_in_a_language_of_the_model():
    assert reason_for(GERMAN, "en").startswith(
        "the documents are mostly in another language (de), and testing/function reads"
    )
    assert "osrerank/e5-multilingual reads it: " in reason_for(GERMAN, "en")
    assert '[index."NAME"] model = "osrerank/e5-multilingual"' in reason_for(GERMAN, "en")
    assert reason_for(GERMAN[:3] + ENGLISH, "en")
    assert reason_for(GERMAN[:2] + ENGLISH, "en") == ""
    assert reason_for(ENGLISH + GERMAN, "en") == ""
    assert reason_for(GERMAN, "en", "de") == reason_for(GERMAN) == ""
    assert "reads 11 other languages" in reason_for(
        GERMAN, *["en", "es", "fr", "it", "nl", "pt", "pl", "ru", "sv", "da", "fi"]
    )
    assert reason_for(ENGLISH, "de").startswith("the documents are mostly in another language (en)")


def test_the_language_guard_skips_short_texts_and_needs_two():
    assert reason_for(["kurzer Text"] * 9 + GERMAN[:1], "en") == ""
    assert reason_for(["kurzer Text"] * 8 + GERMAN[:2], "en") != ""
    assert reason_for(["kurzer Text"] * 10 + GERMAN, "en") == ""
    assert reason_for([None, "", *GERMAN[:2]], "en") != ""


def test_numbers_and_code_have_no_language():
    assert reason_for(["4711 0815 " * 30] * 5, "en") == ""
    assert reason_for([*GERMAN[:1], *["x1 = f(y2) + g[3];" * 20] * 4], "en") == ""
    assert reason_for([*GERMAN[:2], *["x1 = f(y2) + g[3];" * 20] * 3], "en") != ""  # most of what can be told


@pytest.mark.parametrize("code", ["no", "nb", "nn"])
def test_close_relatives_are_read_by_the_same_model(code):
    assert reason_for(NORWEGIAN, "en") != ""
    assert reason_for(NORWEGIAN, code) == ""


def test_an_unread_query_is_reported_before_unread_documents():
    reason = explain_unsupported_language(ranking(GERMAN, "что снижает давление"), Reads())
    assert reason.startswith("the query is mostly in Cyrillic")


class LoggedOnce(Reads):
    """One that no other test names: a line of the log is due once a minute and model."""

    @property
    def model(self) -> str:
        return "testing/logged-once"


def test_response_and_log_name_the_language_of_unread_documents(caplog):
    with caplog.at_level(logging.WARNING):
        responses = [client_for(GERMAN, LoggedOnce()).search("aspirin", index="i", rerank=True) for _ in range(2)]
    assert ids(responses[0]) == [f"d{number}" for number in range(10)]
    assert responses[0]["rerank"]["applied"] is False
    assert responses[0]["rerank"]["reason"].startswith("language: the documents are mostly in another language (de)")
    assert len([line for line in caplog.messages if line.startswith("[language] ")]) == 1
    assert client_for(ENGLISH, Reads()).search("aspirin", index="i", rerank=True)["rerank"]["applied"] is True
    turned_off = client_for(GERMAN, Reads()).search("aspirin", index="i", rerank={"language_guard": False})
    assert turned_off["rerank"]["applied"] is True


def test_the_language_of_a_text_is_detected_once():
    before = detect_language.cache_info()
    for _ in range(3):
        reason_for(GERMAN, "en")
    after = detect_language.cache_info()
    assert after.misses - before.misses <= 5
    assert after.hits - before.hits >= 10
