"""Indices with OpenSearch's own analyzers of languages: searched and reranked there; refused by the embedded engine."""

from pathlib import Path

import opensearchpy
import pytest

from osrerank import connect
from osrerank.indexing.languages import ANALYZERS
from osrerank.testing import FunctionScorer
from tests.articles import filled
from tests.rankings import ids

pytestmark = pytest.mark.integration

SCORER = FunctionScorer(lambda _query, text: float(len(text)))
TEXTS = {
    "german": ("Häuser", ["Das Haus am See.", "Die Häuser am See sind alt und sehr gross.", "Ein Boot."]),
    "french": ("chevaux", ["Le cheval est blanc.", "Les chevaux sont blancs et tres rapides.", "Un bateau."]),
    "spanish": ("montañas", ["La montaña es blanca.", "Las montañas son blancas y muy grandes.", "Un barco."]),
    "russian": ("дома", ["Дом у моря.", "Старые дома у моря очень большие.", "Лодка."]),  # noqa: RUF001
    "cjk": ("東京", ["東京は大きい。", "東京は日本の首都で、とても大きい。", "船。"]),
}


@pytest.mark.parametrize("analyzer", TEXTS)
def test_inflected_words_are_found_and_reranked(opensearch_url: str, analyzer: str) -> None:
    query, texts = TEXTS[analyzer]
    body = {"mappings": {"properties": {"text": {"type": "text", "analyzer": analyzer}}}}
    documents = {f"d{index}": {"text": text} for index, text in enumerate(texts)}
    with filled(opensearch_url, f"test-{analyzer}", documents, body, scorer=SCORER) as client:
        response = client.search(query, index=f"test-{analyzer}", rerank=True)
        assert (response["rerank"]["applied"], ids(response)) == (True, ["d1", "d0"])


def test_opensearch_has_every_analyzer_that_is_named(opensearch_url: str) -> None:
    with connect(opensearch_url) as client:
        for analyzer in {*ANALYZERS.values()}:
            assert client.indices.analyze(body={"analyzer": analyzer, "text": "x1"})["tokens"]


@pytest.mark.parametrize("analyzer", TEXTS)
def test_the_embedded_engine_refuses_analyzers_that_it_lacks_by_name(tmp_path: Path, analyzer: str) -> None:
    body = {"mappings": {"properties": {"text": {"type": "text", "analyzer": analyzer}}}}
    with connect(f"embedded:{tmp_path / 'engine'}") as client:
        with pytest.raises(opensearchpy.RequestError, match=rf"analyzer \[{analyzer}\].*the embedded engine supports"):
            client.indices.create(index="waren", body=body)
        assert not client.indices.exists(index="waren")
