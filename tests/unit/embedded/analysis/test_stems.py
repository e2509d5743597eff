"""Stemming in the embedded engine, beside Lucene's stems."""

import pytest

from osrerank.embedded.analysis.analyzers import Analyzers
from osrerank.embedded.errors import ApiError
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.load.mapping import LANGUAGES, SNOWBALL, IndexOptions, build_index_body, list_permanent_options

STEMS = {
    "German": "abgeleitete:abgeleitet gearbeitet:gearbeitet häuser:haus straßen:strass wohnungen:wohnung",
    "Swedish": "arbetets:arbetet livet:livet springandet:spring nyheter:nyhet",
    "Dutch": "aanbevelingen:aanbevel huizen:huiz mogelijkheden:mogelijk",
    "Russian": "важные:важн вопросы:вопрос книгами:книг",
    "Spanish": "gobernaciones:gobern corriendo:corr ciudades:ciudad",
    "French": "l'homme:l'homm aujourd'hui:aujourd'hui écoles:écol",
    "Italian": "l'homme:l'homm dell'acqua:dell'acqu",
    "Turkish": "istanbul'da:istanbul' don't:don't kitaplar:kitap",
    "Danish": "city's:city's huset:hus",
    "Catalan": "lazy's:lazy",
}


@pytest.mark.parametrize("language", STEMS)
def test_stems_of_languages_are_lucenes(language):
    pairs = [pair.split(":") for pair in STEMS[language].split()]
    analyzer = Analyzers().compose("standard", ["lowercase", {"type": "snowball", "language": language}])
    assert analyzer.terms(" ".join(word for word, _ in pairs)) == [stem for _, stem in pairs]


def test_a_language_without_a_stemmer_is_named():
    with pytest.raises(
        ApiError, match=r"has the language \[Polish\]; the embedded engine supports \['Arabic', 'Basque'"
    ):
        Analyzers().compose("standard", [{"type": "snowball", "language": "Polish"}])


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_indexs_text_is_analysed_in_its_language(language):
    loader = LOADERS["msmarco-v2-document"]
    body = build_index_body(loader, IndexOptions(language=language, contents=True), {})
    fields = body["mappings"]["properties"]
    name = f"snowball_{language}" if language in SNOWBALL else language
    assert {fields[field]["analyzer"] for field in ("title", "text", "contents", "headings")} == {name}
    assert fields["url"] == loader.fields["url"]
    if language in SNOWBALL:
        assert Analyzers(body["settings"]["index"]["analysis"]).get(name).terms("AB 12") == ["ab", "12"]
    fixed = list_permanent_options(loader, IndexOptions(language=language))
    assert (f"language={language}" in fixed) is (language != "english")
