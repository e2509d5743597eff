"""Queries in scripts that a model does not read, and those that only look foreign."""

import importlib.util
from pathlib import Path

import pytest

from osrerank import connect
from osrerank.errors import ConfigError
from osrerank.stages.language_guard import unreadable
from osrerank.testing import CannedTransport, FunctionScorer
from osrerank.types import Advice
from tests.rankings import response_of


class Reads(FunctionScorer):
    """A scorer whose model reads English."""

    @property
    def advice(self) -> Advice:
        return Advice(languages=("en",))


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
def test_scripts(query, languages, script):
    assert unreadable(query, languages) == script


def search(**options):
    answer = response_of(["a", "давление bb", "ccc"])
    client = connect("http://localhost:9", scorer=Reads(), transport_class=CannedTransport, answer=answer)
    return client.search("давление", index="i", rerank=options or True)


def test_the_first_pass_stays_and_the_response_says_why():
    response = search()
    assert [hit["_id"] for hit in response["hits"]["hits"]] == ["d0", "d1", "d2"]
    assert response["rerank"]["applied"] is False
    reason = "language: the query is mostly in Cyrillic, and testing/function reads en"
    assert response["rerank"]["reason"].startswith(reason)
    assert search(on_failure="raise")["rerank"]["applied"] is False  # nothing has failed


def test_the_guard_can_be_turned_off():
    response = search(language_guard=False)
    assert response["rerank"]["applied"] is True
    assert response["hits"]["hits"][0]["_id"] == "d1"
    with pytest.raises(ConfigError, match="language_guard"):
        search(language_guard="no")


FOREIGN = "arabic belarusian bengali chinese greek hebrew kazakh nepali russian tajik tamil"


def words_of(language):
    """Return the words of a language in llama-index' test data."""
    found = importlib.util.find_spec("llama_index")
    if found is None:
        pytest.skip("llama-index, whose files have words of many languages, is not installed")
    folder = Path(next(iter(found.submodule_search_locations))) / "core" / "_static" / "nltk_cache"
    return (folder / "corpora" / "stopwords" / language).read_text("utf-8").split()


@pytest.mark.parametrize("language", FOREIGN.split())
def test_texts_of_other_scripts_are_recognised(language):
    words = words_of(language)
    queries = [" ".join(words[at : at + 5]) for at in range(0, len(words), 5)]
    assert all(unreadable(query, ("en",)) for query in queries)


@pytest.mark.parametrize("language", ["english", "german", "french", "turkish"])
def test_texts_in_latin_letters_are_left_alone(language):
    assert not any(unreadable(word, ("en",)) for word in words_of(language))
