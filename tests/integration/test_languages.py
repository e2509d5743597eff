"""`osrerank index --language`: the same terms on both engines."""

import importlib
import json
import re
from pathlib import Path

import pytest
from opensearchpy import OpenSearch

from osrerank import connect
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.load.job import LoadOptions, load
from osrerank_loaders.load.mapping import SNOWBALL, IndexOptions

pytestmark = pytest.mark.integration
TEXTS = {"1": "Die Häuser der Städte wurden abgeleitet.", "2": "Ein Haus ohne Wohnungen", "3": "nothing of that"}


def collection(folder: Path) -> str:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in TEXTS.items()))
    return str(path)


def test_words_of_a_language_are_found_by_their_stems(engine: OpenSearch, index_name: str, tmp_path: Path) -> None:
    options = LoadOptions(index=IndexOptions(language="german"))
    load(engine, index_name, LOADERS["jsonl"], [collection(tmp_path)], options=options)
    engine.indices.refresh(index=index_name)
    hits = engine.search(index=index_name, body={"query": {"match": {"text": "haus wohnung"}}})["hits"]["hits"]
    assert [hit["_id"] for hit in hits] == ["2", "1"]
    tokens = engine.indices.analyze(index=index_name, body={"field": "text", "text": TEXTS["1"]})["tokens"]
    assert [one["token"] for one in tokens] == ["die", "haus", "der", "stadt", "wurd", "abgeleitet"]


def test_chinese_japanese_and_korean_are_opensearchs_alone(engine: OpenSearch, index_name: str, tmp_path: Path) -> None:
    options = LoadOptions(index=IndexOptions(language="cjk"))
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"id": "1", "text": "東京都の天気"}) + "\n", "utf-8")
    if type(engine.transport).__name__ == "EmbeddedTransport":
        with pytest.raises(
            Exception, match=r"analyzer \[cjk\] has not been configured in mappings; the embedded engine"
        ):
            load(engine, index_name, LOADERS["jsonl"], [str(path)], options=options)
        return
    load(engine, index_name, LOADERS["jsonl"], [str(path)], options=options)
    engine.indices.refresh(index=index_name)
    assert engine.count(index=index_name, body={"query": {"match": {"text": "天気"}}})["count"] == 1


def words_of(language: str) -> list[str]:
    """Return a few thousand words of a newspaper's, from the models that NLTK's sentence splitter has."""
    try:
        found = importlib.import_module(f"punkt.data.{language}").ORTHO_CONTEXT
    except ModuleNotFoundError:
        return []
    words = sorted(word for word in found if re.fullmatch(r"[^\W\d_]{2,}", word))
    return words[:: max(1, len(words) // 2000)]


@pytest.mark.long
def test_stems_are_opensearchs(opensearch_url: str, tmp_path: Path) -> None:
    shares = {}
    with connect(opensearch_url) as server, connect(f"embedded:{tmp_path}") as embedded:
        for language in SNOWBALL:
            if words := words_of(language):
                found = [terms(client, language, words) for client in (server, embedded)]
                assert len(found[0]) == len(found[1]) == len(words)
                shares[language] = sum(map(str.__eq__, *found)) / len(words)
    assert len(shares) >= 12
    assert min(shares.values()) >= 0.99, shares


def terms(client: OpenSearch, language: str, words: list[str]) -> list[str]:
    filters = ["lowercase", {"type": "snowball", "language": language.capitalize()}]
    body = {"tokenizer": "whitespace", "filter": filters, "text": " ".join(words)}
    return [one["token"] for one in client.indices.analyze(body=body)["tokens"]]
